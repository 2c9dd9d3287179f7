// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests transient scopes from systemd: cgroups for launched programs on a machine where systemd
//! owns the cgroups.
//!
//! A scope is created in the slice of the launcher, where every limit of the slices stays in force.
//! In the following cases, leaving the launcher's unit would have further effects. The program then
//! stays in the unit, and its processes are found by descent:
//!
//! - The unit is a service. `systemctl stop` of the service must end the program, but would not end
//!   a scope.
//! - The unit has limits of its own (`limits.rs`), which a program outside the unit would escape.
//! - logind ends all processes of a session at the end of the session (`KillUserProcesses=`).
//! - The unit belongs to a systemd manager that this process may not use. A login session belongs
//!   to the system manager, but the daemon of a user can use only the user's manager.
//!
//! A request contains `DelegateControllers=` with an empty list, because `Delegate=yes` would make
//! systemd enable every controller in the slices above. systemd removes the scope when its last
//! process ends. A request takes at most 5 s (the time-out of `busctl`). The wait until systemd has
//! moved the process, after a successful request, takes at most 2 s. No request is retried here.
//!
//! Requests are made by `busctl`, which is part of systemd. A D-Bus library with its threads would
//! be the largest part of an idle daemon, although each program needs only a few requests. The
//! interface is described in `org.freedesktop.systemd1(5)`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::error::ActError;
use crate::mounts::Mounts;
use crate::procs::Procs;
use crate::{files, limits};

/// Upper limit of the wait for systemd to move the process.
const MOVE_WAIT: Duration = Duration::from_secs(2);
/// Pause between two checks whether systemd has moved the process.
const PAUSE: Duration = Duration::from_millis(1);
/// The number that systemd uses for `CPUWeight=idle`. [`WEIGHT_UNSET`] is the number of a unit that
/// sets no weight.
const WEIGHT_IDLE: &str = "0";
const WEIGHT_UNSET: &str = "18446744073709551615";

/// The systemd manager that creates scopes: the system manager for root, the user manager
/// otherwise.
#[derive(Debug, Clone)]
pub(crate) struct Manager {
    busctl: PathBuf,
    user: bool,
    /// The reason for which launched programs must not leave their sessions; `None` if they may.
    keeps_sessions: Option<String>,
}

/// The slice in which a new scope is created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ScopeParent {
    /// The launcher's slice.
    pub slice: String,
    /// The directory of the slice's cgroup.
    pub dir: PathBuf,
}

impl Manager {
    pub(crate) fn new(busctl: &Path) -> Self {
        let mut manager = Self::silent(busctl);
        if !manager.user {
            manager.keeps_sessions = manager.why_sessions_are_kept();
        }
        manager
    }

    /// Returns a manager that makes no scopes and therefore does not query logind.
    pub(crate) fn silent(busctl: &Path) -> Self {
        Self {
            busctl: busctl.to_owned(),
            user: !rustix::process::geteuid().is_root(),
            keeps_sessions: None,
        }
    }

    /// Returns the reason for which launched programs must stay in their sessions; `None` if they
    /// may leave.
    pub(crate) fn keeps_sessions(&self) -> Option<&str> {
        self.keeps_sessions.as_deref()
    }

    fn why_sessions_are_kept(&self) -> Option<String> {
        let args = [
            "get-property",
            "org.freedesktop.login1",
            "/org/freedesktop/login1",
            "org.freedesktop.login1.Manager",
            "KillUserProcesses",
        ];
        match self.run(&args) {
            Ok(answer) if answer.trim() == "b false" => None,
            Ok(_) => {
                Some("logind kills all processes of a session when the session ends".to_owned())
            }
            Err(reason) => Some(format!(
                "it is unknown whether logind kills all processes of a session when the session \
                 ends: {reason}"
            )),
        }
    }

    /// Returns the slice in which a program that is launched from the cgroup `launcher` may get a
    /// scope.
    ///
    /// # Errors
    /// The reason for which the program must stay in the launcher's unit.
    pub(crate) fn target(&self, launcher: &Path, mount: &Path) -> Result<ScopeParent, String> {
        let top = match self.user {
            false => mount.to_owned(),
            true => user_manager(launcher)
                .ok_or("the launcher belongs to the system's systemd, not to the user's")?,
        };
        let below = launcher
            .strip_prefix(&top)
            .map_err(|_| "the launcher belongs to no systemd unit")?;
        let (mut dir, mut slice, mut unit) = (top, "-.slice".to_owned(), None);
        for part in below {
            let name = part.to_string_lossy();
            if !name.ends_with(".slice") {
                unit = Some((dir.join(part), name.into_owned()));
                break;
            }
            dir.push(part);
            slice = name.into_owned();
        }
        let (unit, name) = unit.ok_or("the launcher belongs to no systemd unit")?;
        if !name.ends_with(".scope") || name == "init.scope" {
            return Err(format!(
                "the launcher belongs to the service {name}, and `systemctl stop` of the service \
                 would not end a program in a scope of its own"
            ));
        }
        let mut levels = launcher
            .ancestors()
            .take_while(|dir| dir.starts_with(&unit));
        if let Some((dir, limit)) = levels.find_map(|dir| Some((dir, limits::of(dir)?))) {
            return Err(format!(
                "the limit of the cgroup {} ({limit}) would not apply to a program in a scope of \
                 its own",
                dir.display()
            ));
        }
        match &self.keeps_sessions {
            Some(reason) => Err(reason.clone()),
            None => Ok(ScopeParent { slice, dir }),
        }
    }

    /// Requests a scope that contains this process.
    ///
    /// # Errors
    /// systemd rejected the request, or did not answer in time. In the latter case, systemd may
    /// still move the process later.
    pub(crate) fn start_scope(
        &self,
        unit: &str,
        target: &ScopeParent,
        pid: i32,
        idle: bool,
    ) -> Result<(), ActError> {
        let pid = pid.to_string();
        let count = if idle { "6" } else { "5" };
        let mut args = vec![
            "StartTransientUnit",
            "ssa(sv)a(sa(sv))",
            unit,
            "fail",
            count,
        ];
        args.extend(["Description", "s", "A program launched by Usher"]);
        args.extend(["Slice", "s", &target.slice]);
        args.extend(["CollectMode", "s", "inactive-or-failed"]);
        args.extend(["DelegateControllers", "as", "0"]);
        if idle {
            args.extend(["CPUWeight", "t", WEIGHT_IDLE]);
        }
        args.extend(["PIDs", "au", "1", &pid]);
        args.push("0"); // no auxiliary units
        self.call(unit, &args)
    }

    /// Waits until systemd has moved a process into a scope.
    ///
    /// # Errors
    /// The process was not moved in time.
    pub(crate) fn wait_for_move(
        &self,
        unit: &str,
        pid: i32,
        mounts: &Mounts,
        procs: &Procs,
    ) -> Result<PathBuf, ActError> {
        let deadline = Instant::now() + MOVE_WAIT;
        loop {
            let place = mounts.places(procs, pid).and_then(|places| places.v2);
            if let Some(scope) = place.and_then(|dir| scope_in(&dir, unit)) {
                return Ok(scope);
            }
            if Instant::now() >= deadline {
                return Err(failed(
                    unit,
                    "systemd did not move the process into the scope within 2 s",
                ));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Sets `CPUWeight=idle` on a scope of Usher's, or resets the weight.
    ///
    /// # Errors
    /// systemd rejected the request. Versions before 252 do not support the weight `idle`.
    pub(crate) fn set_idle(&self, unit: &str, idle: bool) -> Result<(), ActError> {
        let weight = if idle { WEIGHT_IDLE } else { WEIGHT_UNSET };
        let head = ["SetUnitProperties", "sba(sv)", unit, "true"];
        let args: Vec<&str> = head
            .into_iter()
            .chain(["1", "CPUWeight", "t", weight])
            .collect();
        self.call(unit, &args)
    }

    fn call(&self, unit: &str, args: &[&str]) -> Result<(), ActError> {
        let head = [
            "call",
            "org.freedesktop.systemd1",
            "/org/freedesktop/systemd1",
            "org.freedesktop.systemd1.Manager",
        ];
        let args: Vec<&str> = head.into_iter().chain(args.iter().copied()).collect();
        self.run(&args)
            .map(|_| ())
            .map_err(|reason| failed(unit, &reason))
    }

    fn run(&self, args: &[&str]) -> Result<String, String> {
        let output = Command::new(&self.busctl)
            .arg(if self.user { "--user" } else { "--system" })
            .args(["--quiet", "--timeout=5"])
            .args(args)
            .output()
            .map_err(|error| format!("{}: {error}", self.busctl.display()))?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        }
    }
}

/// Returns whether a scope has `cpu.idle` and therefore yields to all other cgroups.
pub(crate) fn is_idle(scope: &Path) -> bool {
    files::read(&scope.join("cpu.idle")).is_ok_and(|text| text == "1")
}

/// Returns the cgroup of this user's service manager, at or above `dir`.
fn user_manager(dir: &Path) -> Option<PathBuf> {
    let name = format!("user@{}.service", rustix::process::getuid().as_raw());
    let is_manager = |dir: &&Path| dir.file_name().is_some_and(|own| own == name.as_str());
    dir.ancestors().find(is_manager).map(Path::to_owned)
}

/// Returns the directory of a scope, at or above `dir`.
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
