// SPDX-License-Identifier: MIT OR Apache-2.0
//! Detects by which mechanism this machine gives launched programs cgroups of their own, and by
//! which mechanism background work yields the CPU. Also builds and parses the names of these
//! cgroups.
//!
//! A launched program gets a directory `usher-PID-START.PROGRAM` below its launcher's own cgroup,
//! or under systemd a scope `usher-PID-START-PROGRAM.scope` in the launcher's slice. `PID-START` is
//! the pid and the start time of this Usher process, which names the instance. Usher enables no
//! controller for a directory or scope. An attached program is never moved.
//!
//! [`Environment::detect`] chooses in this order:
//!
//! 1. Under systemd: a scope, if systemd's manager of this user can make one for programs of this
//!    cgroup.
//! 2. Without systemd: a directory of cgroup v2, if this process may write to its own cgroup.
//! 3. Otherwise: no cgroup. The program's processes are found by descent from its first process.
//!
//! If the placement permits `cpu.idle`, background work yields by `cpu.idle`; otherwise by the nice
//! value of autogroups.
//!
//! At most 16 reasons ([`REASONS_MAX`]) for rejected mechanisms are kept; further reasons are
//! dropped. The detection reads a few files and, for root under systemd, queries logind for at most
//! 5 s. [`instance_dirs`] visits every cgroup below its argument.

use std::path::{Path, PathBuf};

use rustix::fs::Access;
use usher_model::{CpuSet, ProcessId, ProgramId};

use crate::config::{ActConfig, ActDescription, CgroupPlacement, WorkClass, YieldMethod};
use crate::error::{ActError, message_of};
use crate::journal::{CgroupPaths, Dir, DirKind};
use crate::mounts::Mounts;
use crate::procs::Procs;
use crate::systemd::Manager;

/// Prefix of the name of every cgroup directory of Usher's.
pub(crate) const PREFIX: &str = "usher-";
/// Upper limit of the reasons that are kept for `usher doctor`.
const REASONS_MAX: usize = 16;

/// The mechanisms that one instance uses to give programs cgroups.
#[derive(Debug)]
pub(crate) struct Environment {
    pub mounts: Mounts,
    pub description: ActDescription,
    /// The systemd manager from which scopes are requested, if systemd owns the cgroups.
    pub scopes: Option<Manager>,
    instance: String,
}

impl Environment {
    /// Detects the available mechanisms. Changes nothing.
    pub(crate) fn detect(
        config: &ActConfig,
        procs: &Procs,
        instance: &str,
    ) -> Result<Self, ActError> {
        let mounts = Mounts::read(config)?;
        let own = procs.own()?;
        let places = mounts.places(procs, own.pid).unwrap_or_default();
        let systemd = config.systemd_dir.is_dir() && mounts.v2.is_some();
        let scopes = systemd.then(|| Manager::new(&config.busctl));
        let mut reasons = Vec::new();
        let placement = match placement(scopes.as_ref(), &mounts, &places) {
            Ok(placement) => placement,
            Err(reason) => {
                reasons.push(format!(
                    "launched programs get no cgroup of their own: {reason}"
                ));
                CgroupPlacement::Descent
            }
        };
        let yielding = match yielding(placement, &places) {
            Ok(yielding) => yielding,
            Err(reason) => {
                reasons.push(format!("cpu.idle is not used: {reason}"));
                YieldMethod::Autogroup
            }
        };
        Ok(Self {
            mounts,
            description: ActDescription {
                placement,
                yielding,
                reasons,
            },
            scopes,
            instance: instance.to_owned(),
        })
    }

    /// Records the reason for which a program has no cgroup of its own, if it is not recorded yet.
    /// Reasons that differ only in numbers, such as the program's number, count as equal.
    pub(crate) fn because(&mut self, reason: &str) {
        let reason = format!(
            "launched programs stay in the launcher's cgroup and are followed by their process \
             tree: {reason}"
        );
        let reasons = &mut self.description.reasons;
        let is_known = reasons
            .iter()
            .any(|known| without_digits(known) == without_digits(&reason));
        if !is_known && reasons.len() < REASONS_MAX {
            reasons.push(reason);
        }
    }

    /// Returns whether this is the given instance.
    pub(crate) fn is(&self, instance: &CgroupInstance) -> bool {
        self.instance == instance.name
    }

    /// Returns the name of a program's scope.
    pub(crate) fn scope_of(&self, program: ProgramId) -> String {
        format!("{PREFIX}{}-{program}.scope", self.instance)
    }

    /// Returns a program's directory below `parent`.
    fn below(&self, parent: &Path, program: ProgramId, kind: DirKind) -> Dir {
        Dir {
            dir: parent.join(format!("{PREFIX}{}.{program}", self.instance)),
            kind,
            wide: CpuSet::new(),
        }
    }

    /// Returns the directory to make for a launched program that yields by `cpu.idle`. The
    /// directory is below the program's former cgroup of the cpu hierarchy, where every limit of
    /// CPU time stays in force.
    pub(crate) fn idle_dir(&self, program: ProgramId, from: &CgroupPaths) -> Result<Dir, String> {
        match &from.cpu {
            _ if self.mounts.cpu.is_none() => Err(
                "the cpu controller of cgroup v2 is not enabled for the program's cgroup"
                    .to_owned(),
            ),
            None => Err(
                "the cgroup in which the program was started is not visible to Usher".to_owned(),
            ),
            Some(own) if !own.join("cpu.idle").exists() => {
                Err("this kernel's cgroup v1 has no cpu.idle".to_owned())
            }
            Some(own) => Ok(self.below(own, program, DirKind::CpuV1)),
        }
    }

    /// Returns the directories to make for a launched program. `from` are the cgroups of its
    /// launcher.
    pub(crate) fn dirs(&self, program: ProgramId, from: &CgroupPaths, work: WorkClass) -> Vec<Dir> {
        let mut dirs = Vec::new();
        if self.scopes.is_none()
            && let Some(own) = &from.v2
        {
            dirs.push(self.below(own, program, DirKind::V2));
            // The directory with `cpu.idle` is useful only together with a v2 directory, which
            // identifies the program's processes.
            if work == WorkClass::Background {
                dirs.extend(self.idle_dir(program, from));
            }
        }
        dirs
    }
}

/// Returns the mechanism by which programs that are launched from the cgroup of this process get a
/// cgroup of their own.
fn placement(
    scopes: Option<&Manager>,
    mounts: &Mounts,
    own: &CgroupPaths,
) -> Result<CgroupPlacement, String> {
    let Some(mount) = &mounts.v2 else {
        return Err("cgroup v2 is not mounted".to_owned());
    };
    let Some(dir) = &own.v2 else {
        return Err("the cgroup of Usher itself is not visible".to_owned());
    };
    match scopes {
        // The unit of the root daemon does not show whether its users' units can get scopes.
        // Therefore the daemon checks only that systemd keeps users' sessions.
        Some(manager) if rustix::process::geteuid().is_root() => match manager.keeps_sessions() {
            Some(reason) => Err(reason.to_owned()),
            None => Ok(CgroupPlacement::SystemdScope),
        },
        Some(manager) => {
            let target = manager.target(dir, &mount.point);
            target.map(|_| CgroupPlacement::SystemdScope)
        }
        None => rustix::fs::access(dir, Access::WRITE_OK)
            .map(|()| CgroupPlacement::ChildCgroup)
            .map_err(|errno| format!("{}: {}", dir.display(), message_of(&errno.into()))),
    }
}

/// Returns the mechanism by which background work with this placement yields the CPU. `own` are the
/// cgroups of this process.
fn yielding(placement: CgroupPlacement, own: &CgroupPaths) -> Result<YieldMethod, String> {
    match (placement, &own.cpu, &own.v2) {
        (CgroupPlacement::SystemdScope, ..) => Ok(YieldMethod::CpuWeight),
        (CgroupPlacement::Descent, ..) => {
            Err("launched programs get no cgroup of their own".to_owned())
        }
        (_, Some(cpu), _) if cpu.join("cpu.idle").exists() => Ok(YieldMethod::CpuV1),
        (_, Some(_), _) => Err("this kernel's cgroup v1 has no cpu.idle".to_owned()),
        (_, None, Some(v2)) if controls_cpu(v2) => Ok(YieldMethod::CpuV2),
        _ => Err(
            "the cpu controller of cgroup v2 is not enabled for the launcher's cgroup, and Usher \
             enables no controllers"
                .to_owned(),
        ),
    }
}

fn controls_cpu(dir: &Path) -> bool {
    let list = crate::files::read(&dir.join("cgroup.subtree_control"));
    list.is_ok_and(|list| list.split_whitespace().any(|name| name == "cpu"))
}

/// The identity of an instance, as encoded in the name of a cgroup directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CgroupInstance {
    /// `PID-START`, followed by a number for later instances of the same process.
    pub name: String,
    /// The Usher process of the instance.
    pub owner: ProcessId,
}

/// Returns the instances that made one of the cgroups on this path. Each instance is recognised by
/// the name of a directory: `usher-PID-START`, `usher-PID-START.PROGRAM`,
/// `usher-PID-START-PROGRAM.scope`.
pub(crate) fn instances_in(place: &Path) -> impl Iterator<Item = CgroupInstance> {
    place.iter().filter_map(|part| {
        let whole = part.to_str()?.strip_prefix(PREFIX)?;
        let name = match whole.strip_suffix(".scope") {
            Some(scope) => scope.rsplit_once('-')?.0,
            None => whole.split('.').next()?,
        };
        let mut numbers = name.split('-');
        let owner = ProcessId {
            pid: numbers.next()?.parse().ok()?,
            start_ticks: numbers.next()?.parse().ok()?,
        };
        let name = name.to_owned();
        Some(CgroupInstance { name, owner })
    })
}

/// Returns whether the name of a directory shows that Usher made the directory.
pub(crate) fn is_ours(dir: &Path) -> bool {
    let name = dir.file_name().unwrap_or_default();
    name.to_string_lossy().starts_with(PREFIX)
}

/// A cgroup directory with an instance's name in its own name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum InstanceDir {
    /// The instance's own directory, which contains one directory per program. Only version 1 made
    /// such directories.
    Base(PathBuf),
    /// A program's directory.
    Dir(ProgramId, PathBuf),
    /// A program's scope.
    Scope(ProgramId, PathBuf),
}

/// Returns the directories anywhere below `top` with the instance's name in their names.
pub(crate) fn instance_dirs(top: &Path, instance: &str) -> Vec<InstanceDir> {
    let name = format!("{PREFIX}{instance}");
    let mut found = Vec::new();
    for dir in crate::files::subdirs(top) {
        let own = dir.file_name().and_then(|own| own.to_str());
        let rest = own.and_then(|own| own.strip_prefix(&name));
        let lost = rest.and_then(|rest| classify_dir(rest, &dir));
        found.extend(lost);
        found.extend(instance_dirs(&dir, instance));
    }
    found
}

/// Classifies a directory by the part of its name that follows the instance's name.
fn classify_dir(rest: &str, dir: &Path) -> Option<InstanceDir> {
    let dir = dir.to_owned();
    if rest.is_empty() {
        return Some(InstanceDir::Base(dir));
    }
    if let Some(number) = rest.strip_prefix('.') {
        return Some(InstanceDir::Dir(ProgramId(number.parse().ok()?), dir));
    }
    let number = rest.strip_prefix('-')?.strip_suffix(".scope")?;
    Some(InstanceDir::Scope(ProgramId(number.parse().ok()?), dir))
}

fn without_digits(text: &str) -> String {
    text.replace(|c: char| c.is_ascii_digit(), "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_that_differ_in_numbers_are_kept_once() {
        let config = ActConfig::new("/nonexistent");
        let detected = Environment::detect(&config, &Procs::new(&config), "12-345");
        let mut environment = detected.unwrap();
        let before = environment.description.reasons.len();
        for program in 1..4 {
            environment.because(&format!("making usher-12-345.{program}: read-only"));
        }
        environment.because("another reason");
        assert_eq!(environment.description.reasons.len(), before + 2);
    }

    #[test]
    fn parses_instances_in_cgroup_names() {
        let of = |path: &str| -> Vec<(String, i32, u64)> {
            let all = instances_in(Path::new(path));
            let fields =
                |found: CgroupInstance| (found.name, found.owner.pid, found.owner.start_ticks);
            all.map(fields).collect()
        };
        let first = ("12-345".to_owned(), 12, 345);
        assert_eq!(of("/a/usher-12-345.6/b"), std::slice::from_ref(&first));
        assert_eq!(of("/a/usher-12-345-6.scope"), std::slice::from_ref(&first));
        let second = ("8-9-1".to_owned(), 8, 9);
        assert_eq!(of("/usher-12-345/7/usher-8-9-1.3"), [first, second]);
        assert_eq!(of("/system.slice/usher-dev.service"), []);
    }
}
