// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads and writes small files of the kernel, with errors that name the file. A file in Usher's
//! runtime directory, such as a journal, is read only if it is a regular file of bounded size,
//! because another user may have created the directory and its files.
//!
//! The caller states the size limit. A larger file, a symbolic link and a file of another kind are
//! errors. No function waits or retries.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;
use usher_model::CpuSet;

use crate::error::{ActError, file_error};

/// The size of the buffer with which the reading of a file begins, in bytes.
const READ_BYTES: usize = 4096;

/// The operation of an error of [`make_dir`].
pub(crate) const MAKING: &str = "making directory";

/// Returns the text of a file, without surrounding white space.
pub(crate) fn read(path: &Path) -> Result<String, ActError> {
    let text = read_text(path).map_err(file_error("reading", path))?;
    Ok(text.trim().to_owned())
}

/// Returns the whole text of a file, with bytes that are not UTF-8 replaced. Files of `/proc`
/// contain names that a program chose, which may be any bytes.
pub(crate) fn read_text(path: &Path) -> io::Result<String> {
    let bytes = read_bytes(path)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the whole content of a small file of the kernel.
pub(crate) fn read_bytes(path: &Path) -> io::Result<Vec<u8>> {
    // The kernel reports a size of 0 for the files of `/proc`. `fs::read` would query this size and
    // the position of the file, and would then begin with reads of a few bytes. `take` without a
    // limit reads at once into the capacity of the buffer.
    let mut bytes = Vec::with_capacity(READ_BYTES);
    File::open(path)?.take(u64::MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns the content of a file in Usher's runtime directory, such as a journal. Another user may
/// have created the file. Therefore this function reads only regular files of at most `bytes_max`
/// bytes, follows no symbolic link, and does not block on a FIFO or device.
pub(crate) fn read_own(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let mut options = OpenOptions::new();
    let options = options.read(true).custom_flags(flags.bits() as i32);
    let file = options.open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(io::Error::other("the file is not a regular file"));
    }
    if meta.len() > bytes_max {
        let text = format!(
            "the file has {} bytes; Usher reads files of at most {bytes_max} bytes",
            meta.len()
        );
        return Err(io::Error::other(text));
    }
    let mut bytes = Vec::new();
    file.take(bytes_max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads a CPU list from a file.
pub(crate) fn read_cpus(path: &Path) -> Result<CpuSet, ActError> {
    read(path)?.parse().map_err(|error| ActError::File {
        doing: "reading",
        path: path.to_owned(),
        source: io::Error::new(io::ErrorKind::InvalidData, error),
    })
}

/// Writes a value to an existing file in one `write` call, as cgroupfs requires. Never creates a
/// file.
pub(crate) fn write(path: &Path, value: &str) -> Result<(), ActError> {
    put(path, value).map_err(file_error("writing", path))
}

/// Does the same as [`write()`], but returns the kernel's error unchanged for callers that inspect
/// it.
pub(crate) fn put(path: &Path, value: &str) -> io::Result<()> {
    let mut file: File = OpenOptions::new().write(true).open(path)?;
    file.write_all(value.as_bytes())
}

/// Creates a directory; an existing one is no error.
pub(crate) fn make_dir(path: &Path) -> Result<(), ActError> {
    match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(file_error(MAKING, path)(error))
        }
        _ => Ok(()),
    }
}

/// Returns the directories directly below a directory; empty if the directory cannot be listed.
pub(crate) fn subdirs(path: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(path) else {
        return Vec::new();
    };
    let mut dirs: Vec<PathBuf> = entries
        .filter_map(Result::ok)
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect();
    dirs.sort();
    dirs
}

/// Returns whether an error has this number.
pub(crate) fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

/// Returns whether the error means that the process, the file, or the cgroup of an open file no
/// longer exists.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    is(error, Errno::SRCH) || is(error, Errno::NOENT) || is(error, Errno::NODEV)
}

/// Returns whether the kernel rejected the operation because this process lacks privileges.
pub(crate) fn is_denied(error: &ActError) -> bool {
    let (ActError::File { source, .. } | ActError::Process { source, .. }) = error else {
        return false;
    };
    [Errno::ACCESS, Errno::PERM, Errno::ROFS]
        .iter()
        .any(|&errno| is(source, errno))
}
