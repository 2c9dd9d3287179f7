// SPDX-License-Identifier: GPL-2.0-only
//! Reads files of foreign content with limits, and replaces files atomically.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};

/// Whether a file must belong to root or to this user, and be writable by its owner alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// The owner and the mode are not checked.
    Anyone,
    /// Only root and this user can have written the file.
    RootOrSelf,
}

/// Reads a regular file of at most `bytes_max` bytes. A FIFO, a device or a symbolic link is
/// rejected without waiting.
///
/// # Errors
/// The file cannot be read, or violates a rule.
pub fn read(path: &Path, bytes_max: u64, trust: Trust) -> anyhow::Result<Vec<u8>> {
    // Checked before, too: opening a device may have an effect.
    let about = fs::symlink_metadata(path)?;
    if !about.is_file() {
        bail!("the path is no regular file");
    }
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)?;
    let about = file.metadata()?;
    if !about.is_file() {
        bail!("the path is no regular file");
    }
    if trust == Trust::RootOrSelf {
        let own = rustix::process::geteuid().as_raw();
        if ![0, own].contains(&about.uid()) || about.mode() & 0o022 != 0 {
            bail!("other users than root could have written the file");
        }
    }
    if about.len() > bytes_max {
        bail!(
            "the file has {} bytes; the maximum is {bytes_max}",
            about.len()
        );
    }
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        bail!("the file has more than {bytes_max} bytes, the maximum");
    }
    Ok(bytes)
}

/// Replaces a file atomically: other processes see the old or the new content, also after a crash.
///
/// # Errors
/// The content cannot be written; the old file is then unchanged.
pub fn replace(path: &Path, text: &str) -> anyhow::Result<()> {
    let doing = || format!("writing '{}'", path.display());
    let name = path.file_name().with_context(doing)?.to_string_lossy();
    let dir = match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    let new = dir.join(format!(".{name}.{}", std::process::id()));
    let written = write_new(&new, text)
        .and_then(|()| fs::rename(&new, path))
        .and_then(|()| File::open(dir)?.sync_all());
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written.with_context(doing)
}

/// Writes a new file, and waits until its content is on the disk.
fn write_new(path: &Path, text: &str) -> std::io::Result<()> {
    // Left over from a process that was killed.
    let _ = fs::remove_file(path);
    let mut options = OpenOptions::new();
    let options = options.write(true).create_new(true).mode(0o644);
    let mut file = options.open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

/// Locks a file beside `path` until the result is dropped, so that two processes do not replace the
/// same file.
///
/// # Errors
/// The lock file cannot be created.
pub fn lock(path: &Path) -> anyhow::Result<File> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let name = PathBuf::from(name);
    let doing = || format!("locking '{}'", name.display());
    let mut options = OpenOptions::new();
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let options = options
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(flags);
    let file = options.open(&name).with_context(doing)?;
    file.lock().with_context(doing)?;
    Ok(file)
}

/// Returns the seconds since 1970.
pub fn now_s() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs().cast_signed())
}
