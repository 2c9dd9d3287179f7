// SPDX-License-Identifier: MIT OR Apache-2.0
//! The reason for which a program has no cgroup of its own. An ordinary user without a cgroup may
//! not create one; this is a property of the machine, and no fault.

use std::io;

use crate::error::ActError;
use crate::files;

/// Why a program has no cgroup of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoOwnCgroup {
    /// A sentence without its full stop.
    pub reason: String,
    /// Whether an attempt to make a cgroup failed unexpectedly. If false, Usher made no attempt, by
    /// design, or the user may not make the cgroup.
    pub failed: bool,
}

impl NoOwnCgroup {
    pub(super) fn by_design(reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            failed: false,
        }
    }

    /// Describes a failed attempt. Without a cgroup of the user, an ordinary user's attempts always
    /// fail, which is no fault.
    pub(super) fn after(error: &ActError) -> Self {
        Self::after_attempt(error, rustix::process::geteuid().is_root())
    }

    fn after_attempt(error: &ActError, is_root: bool) -> Self {
        match error {
            ActError::File {
                doing,
                path,
                source,
            } if !is_root && source.kind() == io::ErrorKind::PermissionDenied => {
                let moves = path.file_name().is_some_and(|name| name == "cgroup.procs");
                let what = match (*doing == files::MAKING, moves) {
                    (true, _) => "create a cgroup in",
                    (false, true) => "move a program into",
                    (false, false) => "change the settings of",
                };
                let cgroup = path.parent().unwrap_or(path).display();
                Self::by_design(format!(
                    "this user may not {what} {cgroup}; 'systemd-run --user --scope' starts a \
                     program in a cgroup of the user"
                ))
            }
            _ => Self {
                reason: error.to_string(),
                failed: true,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::error::file_error;

    use super::*;

    fn denied(doing: &'static str, path: &str) -> ActError {
        file_error(doing, path)(io::ErrorKind::PermissionDenied.into())
    }

    #[test]
    fn a_missing_permission_is_no_fault_of_an_ordinary_user() {
        let made = denied(files::MAKING, "/sys/fs/cgroup/usher-1-2.3");
        let found = NoOwnCgroup::after_attempt(&made, false);
        assert!(!found.failed);
        let expected = "this user may not create a cgroup in /sys/fs/cgroup; 'systemd-run --user";
        assert!(found.reason.starts_with(expected), "{}", found.reason);
        let moved = denied("writing", "/sys/fs/cgroup/a/cgroup.procs");
        let found = NoOwnCgroup::after_attempt(&moved, false);
        let expected = "this user may not move a program into /sys/fs/cgroup/a; ";
        assert!(found.reason.starts_with(expected), "{}", found.reason);
        assert!(NoOwnCgroup::after_attempt(&made, true).failed);
        let full = file_error(files::MAKING, "/x")(io::ErrorKind::StorageFull.into());
        assert!(NoOwnCgroup::after_attempt(&full, false).failed);
    }
}
