// SPDX-License-Identifier: MIT OR Apache-2.0
//! Transient scopes: how a program gets a cgroup of its own on a machine
//! whose cgroups belong to systemd.
//!
//! systemd wants nobody else to write in its cgroups, but hands out subtrees:
//! a scope with `Delegate=yes` holds processes that others have started, and
//! below it we may do as we like. So each program gets a scope, named after
//! this instance and the program, and in it one directory of ours. systemd
//! removes the scope when its last process ends.
//!
//! The two calls go through `busctl`, which is part of systemd: they are a
//! few a program, and a D-Bus library with its threads would be the largest
//! part of an idle daemon. Interface: `org.freedesktop.systemd1(5)`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::error::ActError;
use crate::mounts::Mounts;
use crate::procs::Procs;

/// How long systemd may take to move the processes.
const MOVE_WAIT: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(1);

/// The directory of ours in a scope.
pub(crate) const SUBDIR: &str = "usher";

/// The manager that the scopes are asked of: the system's for root, the
/// user's otherwise.
#[derive(Debug, Clone)]
pub(crate) struct Manager {
    busctl: PathBuf,
    user: bool,
}

impl Manager {
    pub(crate) fn new(busctl: &Path) -> Self {
        Self {
            busctl: busctl.to_owned(),
            user: !rustix::process::geteuid().is_root(),
        }
    }

    /// Has a scope made that holds these processes, and waits until the first
    /// of them is in it. Returns the scope's cgroup directory.
    pub(crate) fn start_scope(
        &self,
        unit: &str,
        pids: &BTreeSet<i32>,
        mounts: &Mounts,
        procs: &Procs,
    ) -> Result<PathBuf, ActError> {
        let count = pids.len().to_string();
        let mut args = vec!["StartTransientUnit", "ssa(sv)a(sa(sv))", unit, "fail", "4"];
        args.extend(["Description", "s", "A program managed by Usher"]);
        args.extend(["CollectMode", "s", "inactive-or-failed"]);
        args.extend(["Delegate", "b", "true"]);
        args.extend(["PIDs", "au", &count]);
        let pids_text: Vec<String> = pids.iter().map(ToString::to_string).collect();
        args.extend(pids_text.iter().map(String::as_str));
        args.push("0"); // no auxiliary units
        self.call(unit, &args)?;
        let deadline = Instant::now() + MOVE_WAIT;
        loop {
            let dirs = pids.iter().filter_map(|&pid| mounts.places(procs, pid)?.v2);
            if let Some(scope) = dirs.filter_map(|dir| scope_in(&dir, unit)).next() {
                return Ok(scope);
            }
            if Instant::now() >= deadline {
                return Err(failed(unit, "the processes were not moved into it in time"));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Has a process moved into a scope of ours.
    pub(crate) fn attach(&self, unit: &str, pid: i32) -> Result<(), ActError> {
        let subdir = format!("/{SUBDIR}");
        let pid = pid.to_string();
        let args = ["AttachProcessesToUnit", "ssau", unit, &subdir, "1", &pid];
        self.call(unit, &args)
    }

    fn call(&self, unit: &str, args: &[&str]) -> Result<(), ActError> {
        let output = Command::new(&self.busctl)
            .arg(if self.user { "--user" } else { "--system" })
            .args(["--quiet", "--timeout=5", "call"])
            .args(["org.freedesktop.systemd1", "/org/freedesktop/systemd1"])
            .arg("org.freedesktop.systemd1.Manager")
            .args(args)
            .output()
            .map_err(|error| failed(unit, &format!("{}: {error}", self.busctl.display())))?;
        if output.status.success() {
            return Ok(());
        }
        Err(failed(unit, String::from_utf8_lossy(&output.stderr).trim()))
    }
}

/// The directory of a scope, at or above this one.
fn scope_in(dir: &Path, unit: &str) -> Option<PathBuf> {
    let is_scope = |dir: &&Path| dir.file_name().is_some_and(|name| name == unit);
    dir.ancestors().find(is_scope).map(Path::to_owned)
}

fn failed(unit: &str, reason: &str) -> ActError {
    ActError::Systemd {
        unit: unit.to_owned(),
        reason: reason.to_owned(),
    }
}
