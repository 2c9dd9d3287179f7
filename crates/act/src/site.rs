// SPDX-License-Identifier: MIT OR Apache-2.0
//! What there is to act with on this machine, and this instance's place in it.
//!
//! Every instance has one directory of its own, `usher-PID-START`, in each
//! hierarchy that it uses, and in it one directory a program. As root it lies
//! at the top of the hierarchy, so that a program is never narrowed by where
//! it is put; otherwise in the caller's own cgroup, where that was delegated.
//! An Usher that runs inside a program of another Usher stays within it.

use std::path::{Path, PathBuf};

use usher_model::{CpuSet, ProgramId};

use crate::cgroups::effective_cpus;
use crate::config::{ActConfig, Backend, Description, Freezing, Tracking, Work};
use crate::error::ActError;
use crate::files;
use crate::journal::{Dir, DirKind, Journal, Record};
use crate::mounts::{Mount, Mounts, Places};
use crate::procs::Procs;
use crate::systemd::{self, Manager};

/// Every directory of ours in a cgroup hierarchy begins so.
pub(crate) const PREFIX: &str = "usher-";

/// Where a program can be made to give way to everybody else by `cpu.idle`.
///
/// The file counts among the directories beside it, so such a directory lies
/// not in this instance's own, which has a share like any other, but beside it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Idling {
    /// The program's own directory in cgroup v2 goes below this one.
    CgroupV2(PathBuf),
    /// It gets another one, below this one, in the cpu hierarchy of cgroup v1.
    CpuV1(PathBuf),
    /// Nowhere, and why.
    Nowhere(String),
}

/// What one instance acts with.
#[derive(Debug)]
pub(crate) struct Site {
    pub mounts: Mounts,
    pub description: Description,
    v2_base: Option<PathBuf>,
    v1_base: Option<PathBuf>,
    /// Where directories for background work go, if anywhere.
    idling: Idling,
    /// Whom programs get scopes from, where systemd owns the cgroups.
    pub scopes: Option<Manager>,
    instance: String,
}

impl Site {
    /// Finds the best that works, by making this instance's directories.
    pub(crate) fn detect(
        config: &ActConfig,
        procs: &Procs,
        journal: &mut Journal,
        instance: &str,
    ) -> Result<Self, ActError> {
        let mounts = Mounts::read(config)?;
        let own = procs.own()?;
        let places = mounts.places(procs, own.pid).unwrap_or_default();
        let mut search = Search {
            journal,
            name: format!("{PREFIX}{instance}"),
            reasons: Vec::new(),
        };
        let systemd = config.systemd_dir.is_dir() && mounts.v2.is_some();
        let v2_base = if systemd {
            search.because("systemd owns the cgroups: each program gets a transient scope");
            None
        } else {
            search.base(parent(mounts.v2.as_ref(), places.v2.as_ref()), "cgroup v2")
        };
        let (backend, v1_base) = if systemd && search.scope_cpuset(config, &mounts, &places) {
            (Backend::CpusetV2, None)
        } else {
            let v1_parent = parent(mounts.cpuset.as_ref(), places.cpuset.as_ref());
            search.backend(config.prefer, v2_base.as_deref(), v1_parent)
        };
        let v1_base = v1_base.filter(|_| backend == Backend::CpusetV1);
        let tracking = match (&v2_base, &v1_base) {
            _ if systemd => Tracking::SystemdScope,
            (Some(base), _) => Tracking::CgroupV2(base.clone()),
            (None, Some(base)) => Tracking::CpusetV1(base.clone()),
            (None, None) => Tracking::Pids,
        };
        let idling = idling(&mounts, &places, v2_base.as_deref(), systemd);
        if let Idling::Nowhere(reason) = &idling {
            search.because(format!("cpu.idle is not used: {reason}"));
        }
        let description = Description {
            backend,
            freezing: freezing(&tracking),
            tracking,
            reasons: search.reasons,
        };
        Ok(Self {
            mounts,
            description,
            v2_base,
            v1_base,
            idling,
            scopes: systemd.then(|| Manager::new(&config.busctl)),
            instance: instance.to_owned(),
        })
    }

    /// Notes why a program had to be taken in without cgroups; each reason once.
    pub(crate) fn because(&mut self, error: &ActError) {
        let reason = format!("a program is followed by its pids: {error}");
        if !self.description.reasons.contains(&reason) && self.description.reasons.len() < 16 {
            self.description.reasons.push(reason);
        }
    }

    /// Whether a directory may be one of this instance's, by its name.
    pub(crate) fn has_made(&self, dir: &Path) -> bool {
        dir.to_string_lossy().contains(&self.instance)
    }

    /// The name of a program's scope.
    pub(crate) fn scope_of(&self, program: ProgramId) -> String {
        format!("{PREFIX}{}-{program}.scope", self.instance)
    }

    /// The directory to be made in a program's scope. It narrows where the
    /// scope has the cpuset controller.
    pub(crate) fn dir_in_scope(
        &self,
        scope: &Path,
        from: &Places,
        journal: &mut Journal,
    ) -> Result<Dir, ActError> {
        let mut wide = CpuSet::new();
        if self.description.backend == Backend::CpusetV2 {
            let from = from.v2.as_deref().unwrap_or(scope);
            let mut search = Search {
                journal,
                name: String::new(),
                reasons: Vec::new(),
            };
            if search.enable(scope) {
                wide = effective_v2(from)?;
            }
        }
        Ok(Dir {
            dir: scope.join(systemd::SUBDIR),
            kind: DirKind::Scope,
            wide,
        })
    }

    /// A program's directory beside this instance's own.
    fn beside(&self, parent: &Path, program: ProgramId) -> PathBuf {
        parent.join(format!("{PREFIX}{}.{program}", self.instance))
    }

    /// The directory to be made for a program from there so that it can be
    /// made to give way, or why there is none.
    pub(crate) fn idle_dir(&self, program: ProgramId, from: &Places) -> Result<Dir, String> {
        let parent = match &self.idling {
            Idling::CpuV1(parent) => parent,
            Idling::CgroupV2(_) => {
                return Err("it was not taken in as background work".to_owned());
            }
            Idling::Nowhere(reason) => return Err(reason.clone()),
        };
        let Some(own) = &from.cpu else {
            return Err("the cgroup that it comes from cannot be seen here".to_owned());
        };
        // It would be free of its limit elsewhere.
        if let Some(limited) = limited(own) {
            return Err(format!("its CPU time is limited by {}", limited.display()));
        }
        Ok(Dir {
            dir: self.beside(parent, program),
            kind: DirKind::CpuV1,
            wide: CpuSet::new(),
        })
    }

    /// The directories to be made for a program that comes from there.
    pub(crate) fn dirs(
        &self,
        program: ProgramId,
        from: &Places,
        work: Work,
    ) -> Result<Vec<Dir>, ActError> {
        let mut dirs = Vec::new();
        let backend = self.description.backend;
        if let Some(base) = &self.v2_base {
            let wide = match (backend, &from.v2) {
                (Backend::CpusetV2, Some(from)) => effective_v2(from)?,
                (Backend::CpusetV2, None) => effective_v2(base)?,
                _ => CpuSet::new(),
            };
            let dir = match (&self.idling, work) {
                (Idling::CgroupV2(parent), Work::Background) => self.beside(parent, program),
                _ => base.join(program.to_string()),
            };
            dirs.push(Dir {
                dir,
                kind: DirKind::V2,
                wide,
            });
        }
        if let Some(base) = &self.v1_base {
            dirs.push(Dir {
                dir: base.join(program.to_string()),
                kind: DirKind::CpusetV1,
                wide: effective_cpus(from.cpuset.as_deref().unwrap_or(base), DirKind::CpusetV1)?,
            });
        }
        // Only beside one that says who belongs to the program.
        if work == Work::Background && !dirs.is_empty() {
            dirs.extend(self.idle_dir(program, from));
        }
        Ok(dirs)
    }
}

/// The CPUs of a cgroup v2: of the nearest above it that says.
pub(crate) fn effective_v2(dir: &Path) -> Result<CpuSet, ActError> {
    let speaks = |dir: &&Path| dir.join("cpuset.cpus.effective").exists();
    effective_cpus(dir.ancestors().find(speaks).unwrap_or(dir), DirKind::V2)
}

/// How programs that are found so are stopped.
fn freezing(tracking: &Tracking) -> Freezing {
    match tracking {
        Tracking::CgroupV2(_) | Tracking::SystemdScope => Freezing::CgroupV2,
        Tracking::CpusetV1(_) | Tracking::Pids => Freezing::Sigstop,
    }
}

/// Where `cpu.idle` works. The cpu controller of cgroup v2 is used where
/// somebody has enabled it. Usher never does: CPUs would from then on be
/// shared out between all the cgroups beside ours, and whoever is in them
/// would lose their autogroups.
///
/// Under systemd it is not asked for either (`CPUWeight=idle`): systemd would
/// enable the controller just so, and the scope would give way only to what
/// shares its slice, not to sessions in other slices.
fn idling(mounts: &Mounts, own: &Places, v2_base: Option<&Path>, systemd: bool) -> Idling {
    if systemd {
        return Idling::Nowhere("the cgroups that count belong to systemd".to_owned());
    }
    if let Some(mount) = &mounts.cpu {
        let parent = parent(Some(mount), own.cpu.as_ref());
        return match parent.filter(|dir| dir.join("cpu.idle").exists()) {
            Some(parent) => Idling::CpuV1(parent),
            None => Idling::Nowhere("this kernel's cgroup v1 has none".to_owned()),
        };
    }
    let parent = v2_base.and_then(Path::parent);
    let enabled = |dir: &&Path| has_controller(dir, "cpu", "cgroup.subtree_control");
    match (parent.filter(enabled), parent) {
        (Some(parent), _) => Idling::CgroupV2(parent.to_owned()),
        (None, Some(parent)) => Idling::Nowhere(format!(
            "the cpu controller is not enabled in {}",
            parent.join("cgroup.subtree_control").display()
        )),
        (None, None) => Idling::Nowhere("there are no cgroups to use".to_owned()),
    }
}

/// The nearest directory of cgroup v1, from this one upwards, that has a limit
/// of CPU time.
fn limited(dir: &Path) -> Option<PathBuf> {
    let has_limit = |dir: &&Path| {
        let quota = files::read(&dir.join("cpu.cfs_quota_us"));
        quota.is_ok_and(|quota| quota.parse::<i64>().is_ok_and(|us| us > 0))
    };
    dir.ancestors().find(has_limit).map(Path::to_owned)
}

/// Below which directory of a hierarchy this instance's own goes, where it is
/// mounted.
fn parent(mount: Option<&Mount>, own: Option<&PathBuf>) -> Option<PathBuf> {
    let top = &mount?.point;
    let nested = |dir: &PathBuf| {
        let below = dir.strip_prefix(top).unwrap_or(dir);
        below
            .iter()
            .any(|part| part.to_string_lossy().starts_with(PREFIX))
    };
    let root = rustix::process::geteuid().is_root();
    if root && !own.is_some_and(nested) {
        return Some(top.to_owned());
    }
    own.cloned()
}

fn has_cpuset(dir: &Path, file: &str) -> bool {
    has_controller(dir, "cpuset", file)
}

fn has_controller(dir: &Path, controller: &str, file: &str) -> bool {
    let list = files::read(&dir.join(file));
    list.is_ok_and(|list| list.split_whitespace().any(|name| name == controller))
}

/// The cgroup of the user's service manager, at or above this one.
fn user_manager(dir: &Path) -> Option<PathBuf> {
    let is_manager = |dir: &&Path| {
        let name = dir
            .file_name()
            .map(|name| name.to_string_lossy().into_owned());
        name.is_some_and(|name| name.starts_with("user@") && name.ends_with(".service"))
    };
    dir.ancestors().find(is_manager).map(Path::to_owned)
}

/// Trying what works, noting why what does not does not.
struct Search<'a> {
    journal: &'a mut Journal,
    name: String,
    reasons: Vec<String>,
}

impl Search<'_> {
    fn because(&mut self, reason: impl Into<String>) {
        self.reasons.push(reason.into());
    }

    /// What to narrow programs with, and this instance's cpuset directory in
    /// cgroup v1 where one was made.
    fn backend(
        &mut self,
        prefer: Option<Backend>,
        v2_base: Option<&Path>,
        v1_parent: Option<PathBuf>,
    ) -> (Backend, Option<PathBuf>) {
        if prefer == Some(Backend::Affinity) {
            return (Backend::Affinity, None);
        }
        let v2_first = prefer != Some(Backend::CpusetV1);
        if v2_first && self.v2_cpuset(v2_base) {
            return (Backend::CpusetV2, None);
        }
        let v1_base = self.base(v1_parent, "cgroup v1 cpuset");
        let backend = match v1_base.as_deref().is_some_and(|base| self.fill_v1(base)) {
            true => Backend::CpusetV1,
            false if !v2_first && self.v2_cpuset(v2_base) => Backend::CpusetV2,
            false => Backend::Affinity,
        };
        (backend, v1_base)
    }

    /// Makes this instance's directory in a hierarchy.
    fn base(&mut self, parent: Option<PathBuf>, what: &str) -> Option<PathBuf> {
        let Some(parent) = parent else {
            self.because(format!("{what} is not mounted where it can be used"));
            return None;
        };
        let dir = parent.join(&self.name);
        let record = Record::Base { dir: dir.clone() };
        match self
            .journal
            .write(record)
            .and_then(|()| files::make_dir(&dir))
        {
            Ok(()) => Some(dir),
            Err(error) => {
                self.because(format!("{what} is not used: {error}"));
                None
            }
        }
    }

    /// Enables the cpuset controller down to this instance's programs.
    fn v2_cpuset(&mut self, base: Option<&Path>) -> bool {
        let Some((base, parent)) = base.and_then(|base| Some((base, base.parent()?))) else {
            return false;
        };
        self.enable(parent) && self.enable(base)
    }

    /// Enables the cpuset controller for a directory's children.
    fn enable(&mut self, dir: &Path) -> bool {
        if has_cpuset(dir, "cgroup.subtree_control") {
            return true;
        }
        if dir.join("cgroup.controllers").exists() && !has_cpuset(dir, "cgroup.controllers") {
            self.because("the cpuset controller of cgroup v2 is not available here");
            return false;
        }
        let record = Record::Enable {
            dir: dir.to_owned(),
        };
        let control = dir.join("cgroup.subtree_control");
        let journalled = self.journal.write(record);
        match journalled.and_then(|()| files::write(&control, "+cpuset")) {
            Ok(()) => true,
            Err(error) => {
                let reason = "the cpuset controller of cgroup v2 is not used";
                self.because(format!("{reason}: {error}"));
                false
            }
        }
    }

    /// Whether scopes will have the cpuset controller: root's where the
    /// machine has it, a user's where it was delegated to their manager.
    fn scope_cpuset(&mut self, config: &ActConfig, mounts: &Mounts, own: &Places) -> bool {
        if !matches!(config.prefer, None | Some(Backend::CpusetV2)) {
            return false;
        }
        let top = match rustix::process::geteuid().is_root() {
            true => mounts.v2.as_ref().map(|mount| mount.point.clone()),
            false => own.v2.as_deref().and_then(user_manager),
        };
        if top.is_some_and(|top| has_cpuset(&top, "cgroup.controllers")) {
            return true;
        }
        self.because("systemd has no cpuset controller of cgroup v2 to delegate here");
        false
    }

    /// Opens a fresh v1 cpuset to all that its parent may use.
    fn fill_v1(&mut self, base: &Path) -> bool {
        let parent = base.parent().unwrap_or(base);
        let fill = || -> Result<(), ActError> {
            let whole = Dir {
                dir: base.to_owned(),
                kind: DirKind::CpusetV1,
                wide: effective_cpus(parent, DirKind::CpusetV1)?,
            };
            whole.fill_v1(parent)
        };
        match fill() {
            Ok(()) => true,
            Err(error) => {
                self.because(format!("cgroup v1 cpuset is not used: {error}"));
                false
            }
        }
    }
}
