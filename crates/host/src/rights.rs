// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads files with a user's rights instead of root's.
//!
//! A daemon that runs as root opens paths that an ordinary user has given: executables, operands,
//! heartbeat pages. The user must be permitted to read each of these files, and opening a file must
//! have no effect that the user could not cause. [`with_rights`] therefore runs the work on a new
//! thread, which first takes the user's file-system IDs and groups and drops all capabilities. On
//! Linux these IDs belong to a thread, and the raw system calls do not affect other threads. Each
//! call starts one thread and waits for its end, without a time limit. For root, and in a process
//! that is not root, the work runs on the calling thread with unchanged rights.
//!
//! The thread keeps its real, effective and saved user IDs. If these were the user's IDs, the user
//! could send signals to the thread, and SIGKILL would end the whole daemon. `setfsuid(2)` exists
//! for this purpose.

use std::io;
use std::panic::resume_unwind;

use rustix::process::Gid;
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities, set_thread_groups};

/// The identity that decides which files may be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileRights {
    /// The user.
    pub uid: u32,
    /// The primary group.
    pub gid: u32,
    /// The supplementary groups.
    pub groups: Vec<u32>,
}

/// Runs `work` with the given rights and returns its result.
///
/// A process that is not root cannot take other rights, and runs `work` with its own rights. Work
/// on behalf of root also runs with the process's own rights.
///
/// # Errors
/// The thread does not start, or the kernel does not permit the change of its IDs.
pub fn with_rights<T: Send>(rights: &FileRights, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    if rights.uid == 0 || !rustix::process::geteuid().is_root() {
        return Ok(work());
    }
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("user's files".to_owned());
        let thread = thread.spawn_scoped(scope, || {
            assume(rights)?;
            Ok(work())
        })?;
        thread.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

/// Gives the calling thread these rights until it ends.
fn assume(rights: &FileRights) -> io::Result<()> {
    let groups: Vec<Gid> = rights
        .groups
        .iter()
        .map(|&gid| Gid::from_raw(gid))
        .collect();
    set_thread_groups(&groups)?;
    // SAFETY: these system calls change only IDs of the calling thread and access no memory. The
    // system calls return the former ID and never an error. To read the current ID, a second call
    // passes an invalid ID, which changes nothing.
    let (uid, gid) = unsafe {
        libc::setfsgid(rights.gid);
        libc::setfsuid(rights.uid);
        (libc::setfsuid(u32::MAX), libc::setfsgid(u32::MAX))
    };
    if (uid as u32, gid as u32) != (rights.uid, rights.gid) {
        return Err(io::Error::other(
            "the kernel did not let this thread change its user and group ids for file access",
        ));
    }
    let none = CapabilitySet::empty();
    set_capabilities(
        None,
        CapabilitySets {
            effective: none,
            permitted: none,
            inheritable: none,
        },
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const NOBODY: FileRights = FileRights {
        uid: 65534,
        gid: 65534,
        groups: Vec::new(),
    };

    #[test]
    fn work_reads_only_the_users_files_and_the_caller_keeps_its_rights() {
        if !rustix::process::geteuid().is_root() {
            usher_skip::skip!("only root can take another user's rights");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let secret = dir.path().join("secret");
        std::fs::write(&secret, "x").unwrap();
        std::fs::set_permissions(&secret, PermissionsExt::from_mode(0o600)).unwrap();
        let denied = with_rights(&NOBODY, || std::fs::read(&secret)).unwrap();
        assert_eq!(denied.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        let through_root = format!("/proc/1/root{}", secret.display());
        assert!(
            with_rights(&NOBODY, || std::fs::read(through_root))
                .unwrap()
                .is_err()
        );
        assert!(
            with_rights(&NOBODY, || std::fs::read("/proc/self/stat"))
                .unwrap()
                .is_ok()
        );
        assert_eq!(std::fs::read(&secret).unwrap(), b"x");
    }
}
