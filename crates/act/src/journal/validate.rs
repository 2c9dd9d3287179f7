// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks the paths in a journal before the undo changes any of them.
//!
//! The undo may run as root, which may write everywhere. A journal that another user created, that
//! was restored from a backup or that is damaged must not make the undo change anything except
//! Usher's own cgroups. A path is valid if
//!
//! - it is absolute, has no `..`, and lies at or below the configured root of the cgroup file
//!   systems;
//! - no component of it is a symbolic link;
//! - it is a directory of a cgroup file system (by `statfs`);
//! - for paths that the undo removes, the name of the directory or of a directory above it begins
//!   with `usher-`.
//!
//! A path that does not exist is valid, because its directory has been removed already. The check
//! opens each component of a path once. Each invalid path is removed from the state and reported as
//! an error; the remaining paths stay in force.

use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::{CgroupPaths, DirKind, JournalState};
use crate::config::ActConfig;
use crate::environment::PREFIX;
use crate::error::ActError;

const CGROUP_MAGICS: [u32; 2] = [0x6367_7270, 0x0027_e0eb];

/// Removes invalid paths from the state to be undone, and returns an error for each removed path.
/// The undo then applies the rest of the state.
pub(crate) fn validate(
    state: &mut JournalState,
    config: &ActConfig,
    instance: &Path,
) -> Vec<ActError> {
    let root = &config.cgroup_root;
    let mut errors = Vec::new();
    let mut keep = |path: &Path, removed: bool| match problem(root, path, removed) {
        None => true,
        Some(reason) => {
            errors.push(ActError::ForeignPath {
                journal: instance.join(super::FILE),
                path: path.to_owned(),
                reason,
            });
            false
        }
    };
    state.bases.retain(|dir| keep(dir, true));
    state.enabled.retain(|dir| keep(dir, false));
    for program in state.programs.values_mut() {
        program
            .dirs
            .retain(|dir| keep(&dir.dir, dir.kind != DirKind::Unit));
        let homes = program.members.values_mut();
        for places in homes.chain([&mut program.from]) {
            let mut check = |place: &mut Option<PathBuf>| {
                if place.as_ref().is_some_and(|path| !keep(path, false)) {
                    *place = None;
                }
            };
            let CgroupPaths { v2, cpuset, cpu } = places;
            [v2, cpuset, cpu].into_iter().for_each(&mut check);
        }
    }
    errors
}

/// Returns the reason for which the undo must not change a path; `None` if the path is valid.
fn problem(root: &Path, path: &Path, removed: bool) -> Option<String> {
    let plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
    if !path.is_absolute() || !path.components().all(plain) || !path.starts_with(root) {
        return Some(format!("the path is not below {}", root.display()));
    }
    let below = path.strip_prefix(root).unwrap_or(path);
    let ours = |part: Component<'_>| part.as_os_str().to_string_lossy().starts_with(PREFIX);
    if removed && !below.components().any(ours) {
        return Some(format!("no part of the path begins with {PREFIX}"));
    }
    // The path of the configured root itself may contain symbolic links.
    let real = std::fs::canonicalize(root).unwrap_or_else(|_| root.to_owned());
    let handle = match open_without_links(&real, below) {
        Ok(handle) => handle,
        Err(Errno::NOENT) => return None,
        Err(Errno::LOOP | Errno::NOTDIR) => {
            return Some("a part of the path is a symbolic link or a file".to_owned());
        }
        Err(error) => return Some(unreadable(error)),
    };
    match rustix::fs::fstatfs(&handle) {
        Ok(found) if CGROUP_MAGICS.contains(&(found.f_type as u32)) => None,
        Ok(_) => Some("the directory is not a cgroup".to_owned()),
        Err(error) => Some(unreadable(error)),
    }
}

fn unreadable(error: Errno) -> String {
    format!("the path cannot be opened: {}", std::io::Error::from(error))
}

/// Opens a directory below a root, and fails at a symbolic link. The directory is opened component
/// by component instead of by one `openat2`, because `openat2` fails with ENOSYS in a unit with
/// `RestrictSUIDSGID=yes`.
fn open_without_links(root: &Path, below: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let top = rustix::fs::open(root, flags, Mode::empty())?;
    below.components().try_fold(top, |dir, part| {
        rustix::fs::openat(&dir, part.as_os_str(), flags, Mode::empty())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn validates_only_paths_of_ushers_own_cgroups() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        std::fs::create_dir_all(root.join("usher-1-1/1")).unwrap();
        std::os::unix::fs::symlink("/sys/fs/cgroup", root.join("usher-link")).unwrap();
        std::os::unix::fs::symlink("usher-1-1", root.join("usher-inner")).unwrap();
        let found = |path: &str, removed| problem(root, &root.join(path), removed);
        for path in [
            "usher-1-1",
            "usher-1-1/1",
            "../usher-x",
            "/etc/usher-x",
            "usher-link",
            "usher-inner/1",
        ] {
            assert!(found(path, true).is_some(), "{path}");
        }
        assert_eq!(found("usher-gone", true), None);
        assert!(found("other", true).is_some());
        assert_eq!(found("other", false), None);
        let real = Path::new("/sys/fs/cgroup");
        let a_cgroup = |path: &PathBuf| {
            let found = rustix::fs::statfs(path);
            found.is_ok_and(|found| CGROUP_MAGICS.contains(&(found.f_type as u32)))
        };
        match [real.to_owned(), real.join("unified")]
            .into_iter()
            .find(a_cgroup)
        {
            Some(cgroup) => assert_eq!(problem(real, &cgroup, false), None),
            None => usher_skip::skip!("no cgroup file system is mounted here"),
        }
    }
}
