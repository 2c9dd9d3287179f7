// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads files of foreign input with limits. A FIFO, a device or a directory is never opened for
//! reading in a way that could block: files are opened with `O_NONBLOCK`, and only regular files
//! are read. Files of `/proc` and `/sys` are regular files. At most the given number of bytes is
//! read, whatever size the file states.
//!
//! hwloc reads the files of a copy of `/sys` itself, without these checks. `check_tree` therefore
//! checks all files of the copy before.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::error::escaped;

/// Maximum size of a text in bytes; longer than any file that a user writes or a program exports.
pub const TEXT_BYTES_MAX: u64 = 64 << 20;

/// Maximum size of an attribute of sysfs in bytes: the size of a page in Linux.
pub(crate) const ATTRIBUTE_BYTES_MAX: u64 = 4096;

/// Maximum size of a file in a copy of `/sys` and `/proc` in bytes. `/proc/cpuinfo` has about 12 MiB
/// on a machine with 8,192 CPUs.
const CAPTURED_BYTES_MAX: u64 = 64 << 20;

/// Maximum number of files and folders in a copy of `/sys` and `/proc`.
const CAPTURED_FILES_MAX: usize = 1_000_000;

/// Opens a regular file for reading. The call does not block. A descriptor that the caller of the
/// program has opened (`/dev/stdin`, `/dev/fd/63` of a shell's `<(command)`) may also be a pipe, and is
/// read to its end.
///
/// # Errors
/// The file cannot be opened, or is a FIFO, a device, a socket or a directory.
pub fn open(path: &Path) -> io::Result<File> {
    if is_descriptor(path) {
        return File::open(path);
    }
    let not_regular = || Err(io::Error::other("the path is not a regular file"));
    // Checked before, too: opening a device may have an effect.
    if !std::fs::metadata(path)?.is_file() {
        return not_regular();
    }
    let mut options = OpenOptions::new();
    let options = options
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    let file = options.open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => not_regular(),
    }
}

/// Returns whether the path names a descriptor of this process.
fn is_descriptor(path: &Path) -> bool {
    let folder = path.parent().and_then(Path::to_str);
    path == Path::new("/dev/stdin") || matches!(folder, Some("/dev/fd" | "/proc/self/fd"))
}

/// Reads a regular file of UTF-8 text, of at most [`TEXT_BYTES_MAX`] bytes.
///
/// # Errors
/// As [`open`]; the file cannot be read, is larger, or is not UTF-8.
pub fn read_text(path: &Path) -> io::Result<String> {
    let invalid = |reason: String| io::Error::new(io::ErrorKind::InvalidData, reason);
    let bytes = read_opened(open(path)?, TEXT_BYTES_MAX).map_err(invalid)?;
    String::from_utf8(bytes).map_err(|_| invalid("the file is not UTF-8 text".to_owned()))
}

/// Reads a regular file of at most `bytes_max` bytes.
pub(crate) fn read(path: &Path, bytes_max: u64) -> Result<Vec<u8>, String> {
    let file = open(path).map_err(|why| why.to_string())?;
    read_opened(file, bytes_max)
}

fn read_opened(file: File, bytes_max: u64) -> Result<Vec<u8>, String> {
    let length = file.metadata().map_err(|why| why.to_string())?.len();
    if length > bytes_max {
        return Err(format!(
            "the file has {length} bytes; the maximum is {bytes_max}"
        ));
    }
    let mut bytes = Vec::new();
    file.take(bytes_max + 1)
        .read_to_end(&mut bytes)
        .map_err(|why| why.to_string())?;
    match bytes.len() as u64 > bytes_max {
        true => Err(format!(
            "the file has more than the maximum of {bytes_max} bytes"
        )),
        false => Ok(bytes),
    }
}

/// Reads an attribute of sysfs; `None` if it is missing or no regular file of at most a page.
pub(crate) fn attribute(path: &Path) -> Option<String> {
    String::from_utf8(read(path, ATTRIBUTE_BYTES_MAX).ok()?).ok()
}

/// Checks that a copy of `/sys` and `/proc` contains only regular files of at most 64 MiB, folders,
/// and links to such files in the copy. Links that lead nowhere are permitted, as in every partial
/// copy. The real `/` is not checked, because the kernel provides its files.
///
/// # Errors
/// Returns the path of the first other file, relative to the root, and the reason.
pub(crate) fn check_tree(root: &Path) -> Result<(), String> {
    if root == Path::new("/") {
        return Ok(());
    }
    let shown = |path: &Path| {
        let relative = path.strip_prefix(root).unwrap_or(path);
        escaped(&relative.to_string_lossy())
    };
    let mut folders = vec![root.to_owned()];
    let mut files = 0;
    while let Some(folder) = folders.pop() {
        let failed = |why: std::io::Error| format!("cannot read {}: {why}", shown(&folder));
        for entry in std::fs::read_dir(&folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            files += 1;
            if files > CAPTURED_FILES_MAX {
                return Err(format!(
                    "the directory has more than {CAPTURED_FILES_MAX} files"
                ));
            }
            let kind = entry.file_type().map_err(failed)?;
            let path = entry.path();
            if kind.is_dir() {
                folders.push(path);
                continue;
            }
            let about = match std::fs::metadata(&path) {
                Ok(about) => about,
                Err(why) if why.kind() == std::io::ErrorKind::NotFound => continue,
                Err(why) => return Err(format!("cannot read {}: {why}", shown(&path))),
            };
            let leads_out = || {
                path.canonicalize()
                    .is_ok_and(|target| !target.starts_with(root))
            };
            if about.is_dir() && !leads_out() {
                continue;
            }
            if !about.is_file() {
                let reason = "is neither a regular file nor a folder in the copy";
                return Err(format!("{} {reason}", shown(&path)));
            }
            // The target may block a reader although it is a regular file: /proc/kmsg.
            if kind.is_symlink() && leads_out() {
                return Err(format!(
                    "{} is a symbolic link that leads out of the directory",
                    shown(&path)
                ));
            }
            if about.len() > CAPTURED_BYTES_MAX {
                return Err(format!(
                    "{} has {} bytes; the maximum is {CAPTURED_BYTES_MAX}",
                    shown(&path),
                    about.len()
                ));
            }
        }
    }
    Ok(())
}
