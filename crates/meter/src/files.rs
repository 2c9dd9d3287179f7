// SPDX-License-Identifier: MIT OR Apache-2.0
//! Identifies files without requests to the server of a file system.
//!
//! A request to a file system may block: the server of a file system in user space may be the
//! stopped program itself, and the server of a network file system may be unreachable. Therefore
//! the meter uses only values that the kernel has cached. [`file_id`] makes one system call.
//! [`device_of`] reads the mount table once; its path must be absolute. A failure is `None`.

use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, statx};

use crate::text;
use usher_model::DiskId;

/// The identity of a file, as cached by the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileId {
    /// Device of the file system, and inode of the file.
    pub file: ((u32, u32), u64),
    pub kind: FileType,
}

/// Returns the identity of an open file of a process. `link` is the file's link in `/proc/PID/fd`,
/// which the kernel resolves without a path lookup.
pub(crate) fn file_id(link: &Path) -> Option<FileId> {
    let of = statx(CWD, link, AtFlags::STATX_DONT_SYNC, StatxFlags::BASIC_STATS).ok()?;
    Some(FileId {
        file: ((of.stx_dev_major, of.stx_dev_minor), of.stx_ino),
        kind: FileType::from_raw_mode(of.stx_mode.into()),
    })
}

/// Returns the device of the file system that contains a path, from the mount table.
pub(crate) fn device_of(proc: &Path, path: &Path) -> Option<DiskId> {
    let mounts = text::read(&proc.join("self/mountinfo")).ok()?;
    let mounts = mounts.lines().filter_map(mount);
    let above = mounts.filter(|(point, _)| path.starts_with(point));
    // If two mounts have the same mount point, the later mount hides the earlier mount.
    let (_, device) = above.max_by_key(|(point, _)| point.len())?;
    Some(device)
}

/// Returns the mount point and the device in a line of the mount table, which are its fifth and
/// third fields.
fn mount(line: &str) -> Option<(String, DiskId)> {
    let fields: Vec<&str> = line.split(' ').collect();
    let (major, minor) = text::device_number(fields.get(2)?)?;
    let point = fields.get(4)?.replace("\\040", " ");
    Some((point, DiskId { major, minor }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_belongs_to_the_nearest_mount() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("self")).unwrap();
        let mounts = "1 0 254:0 / / rw - ext4 /dev/vda rw\n2 1 8:1 / /a\\040b rw - xfs x rw\n\
                      3 1 0:39 / /a rw - fuse x rw\nnonsense\n4 1 8:2 / /a rw - ext4 y rw\n";
        std::fs::write(dir.path().join("self/mountinfo"), mounts).unwrap();
        let of = |path: &str| device_of(dir.path(), Path::new(path)).map(|id| id.to_string());
        assert_eq!(of("/a b/c").as_deref(), Some("8:1"));
        assert_eq!(of("/a/c").as_deref(), Some("8:2"));
        assert_eq!(of("/ab").as_deref(), Some("254:0"));
    }
}
