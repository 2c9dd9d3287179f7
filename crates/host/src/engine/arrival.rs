// SPDX-License-Identifier: MIT OR Apache-2.0
//! Inspects a program before it is managed: its owner, its command, its key in the profile store,
//! and its heartbeat page. [`ArrivingProgram::inspect`] runs in the thread that makes the request,
//! because reading the build ID of an executable would delay the control loop.
//!
//! 1. Check that the requesting user owns the process, and that the given bounds are valid.
//! 2. With the rights of the process, read its command, derive the key from the executable, and
//!    open the heartbeat page. Because of these rights, a request cannot make the daemon read a
//!    file for another user.
//! 3. Let the review (`AdoptOptions::review`) change the options, or reject the program.
//! 4. Read the profile of the program and the calibration of the machine from the store.
//!
//! Bounds: A command line is truncated to 512 bytes, a name to 256 bytes. A weight outside 0.001 to
//! 1000 is rejected. Steps 2 and 4 read files once, without a time limit and without retries. If
//! the key cannot be derived, the program is managed without a profile; a heartbeat page that
//! cannot be opened is an error.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use usher_heartbeat::Page;
use usher_model::{
    CpuSet, ProcessId, ProfileMatch, Program, ProgramId, ProgramKey, ProgressSource, SourceErrors,
    StoredCopies,
};
use usher_probe::{
    ProcessFacts, ProgramCommand, Roots, command_line_of, command_of, identify, online_cpus,
};

use super::config::{AdoptOptions, EngineError, HintRequest, ReviewedProcess};
use super::profiles::Profiles;
use crate::launch::LaunchSpec;
use crate::rights::{FileRights, with_rights};

/// Maximum length of a command line that is kept for display.
const COMMAND_BYTES_MAX: usize = 512;
/// Maximum length of a name that is derived from a command line.
const NAME_BYTES_MAX: usize = 256;
/// Range of valid weights. With weights outside this range, rounding errors would dominate the
/// mean.
pub const WEIGHTS: std::ops::RangeInclusive<f64> = 0.001..=1000.0;
/// Magic numbers of file systems in memory. Reading a file of such a file system never waits for a
/// server or a disk.
const MEMORY_FILE_SYSTEMS: [u32; 2] = [0x0102_1994, 0x8584_58f6];

/// A program that is about to be managed.
#[derive(Debug)]
pub(super) struct ArrivingProgram {
    pub root: ProcessId,
    pub uid: u32,
    pub command: String,
    pub heartbeat: Option<Page>,
    /// The requesting user.
    pub asking: u32,
    pub key: Option<ProgramKey>,
    /// The program; the loop sets its number.
    pub program: Program,
    /// Progress sources that were inaccurate for the program in earlier runs.
    pub misleading: Vec<ProgressSource>,
    /// Whether bytes measured the progress of the program in earlier runs.
    pub trusts_bytes: bool,
    /// The calibrated errors of the sources of progress on this machine.
    pub source_errors: SourceErrors,
    /// Identifier of the profile of other arguments that is used for the program, if any.
    pub similar_to: Option<String>,
    /// Whether the process waits before its `exec`.
    pub held: bool,
    /// Whether the process stays in its cgroup, although it waits before its `exec`.
    pub in_place: bool,
    pub group: Option<String>,
    pub job: Option<String>,
    /// The reason for which the review changed the options.
    pub review: Option<String>,
    /// The variables that set the number of threads.
    pub hints: Option<HintRequest>,
    /// The copies that the program started in an earlier run.
    pub stored_copies: Option<StoredCopies>,
}

/// What `/proc` contains about a process.
struct ProcessInfo {
    comm: String,
    root: ProcessId,
    uid: u32,
    /// Real, effective, saved and file-system user ids.
    uids: [u32; 4],
    rights: FileRights,
    allowed: Option<CpuSet>,
}

impl ArrivingProgram {
    /// Inspects a process for the user `asking`. `held` means that the process waits before its
    /// `exec`.
    ///
    /// The owner is checked first, because all later steps open files, with the rights of the
    /// process.
    pub fn inspect(
        roots: &Roots,
        pid: i32,
        mut adopt: AdoptOptions,
        held: bool,
        profiles: &Profiles,
        asking: u32,
    ) -> Result<Self, EngineError> {
        let proc_root = roots.proc.as_path();
        let facts = ProcessInfo::checked(roots, pid, &adopt, asking)?;
        let own = rustix::process::geteuid().as_raw();
        let read = || {
            let command = command(proc_root, pid, &adopt, held);
            let key = adopt.key.clone();
            let key = key.or_else(|| identify(command.as_ref()?).ok());
            let page = adopt.heartbeat.as_deref();
            let page = page.map(|path| open_page(path, asking, asking != own));
            let line = command_line(proc_root, pid, &adopt);
            (command, key, page.transpose(), line)
        };
        let (command, key, page, line) =
            with_rights(&facts.rights, read).map_err(EngineError::Start)?;
        let review = facts.review(command.as_ref(), held, &mut adopt)?;
        check_weight(&adopt)?;
        let name = name_of(&adopt, facts.comm);
        let stored = key.as_ref().map(|key| profiles.recall(key));
        let stored = stored.unwrap_or_default();
        let variation = key.as_ref().and_then(|key| profiles.variation(key));
        Ok(Self {
            root: facts.root,
            uid: facts.uid,
            command: line,
            heartbeat: page?,
            asking,
            key,
            program: Program {
                id: ProgramId(0),
                name,
                weight: adopt.weight,
                cores: adopt.cores.filter(|_| adopt.background.is_none()),
                profile: stored.curve,
                profile_match: match stored.similar_to {
                    Some(_) => ProfileMatch::OtherArguments,
                    None => ProfileMatch::Exact,
                },
                spinners: stored.spinners,
                active_wait: stored.active_wait,
                ran_before: !held,
                stops_unseen: false,
                cpu_quota: None,
                variation: variation.filter(|_| held),
                llc_bytes: stored.llc_bytes,
                bandwidth_gbps: stored.bandwidth_gbps,
                background: adopt.background,
                bound_to: intersection(facts.allowed, adopt.bound_to),
                pinned_to: None,
            },
            misleading: stored.misleading,
            trusts_bytes: stored.trusts_bytes,
            source_errors: profiles.source_errors(),
            similar_to: stored.similar_to,
            held,
            in_place: adopt.in_place,
            group: adopt.group.take(),
            job: adopt.job.take(),
            review,
            hints: adopt.hints.take(),
            stored_copies: stored.copies,
        })
    }
}

/// Returns the identity of a process of the user `asking`.
pub(super) fn owned_process(
    proc_root: &Path,
    pid: i32,
    asking: u32,
) -> Result<ProcessId, EngineError> {
    let process = ProcessInfo::read(proc_root, pid)?;
    process.check_owner(asking, false)?;
    Ok(process.root)
}

fn check_weight(adopt: &AdoptOptions) -> Result<(), EngineError> {
    match WEIGHTS.contains(&adopt.weight) {
        true => Ok(()),
        false => Err(EngineError::Weight {
            name: truncated(adopt.display_name(), NAME_BYTES_MAX),
            weight: adopt.weight,
        }),
    }
}

/// Returns the name of a program; `comm` is the name of its process.
fn name_of(adopt: &AdoptOptions, comm: String) -> String {
    match adopt.name.is_some() || !adopt.argv.is_empty() {
        true => truncated(adopt.display_name(), NAME_BYTES_MAX),
        false => comm,
    }
}

/// Opens a heartbeat page: a regular file of the requesting user. If `foreign` (the requesting user
/// is not the user of the daemon), the file must be in a file system in memory.
fn open_page(path: &Path, asking: u32, foreign: bool) -> Result<Page, EngineError> {
    let refused = |reason: String| EngineError::Heartbeat {
        path: path.to_owned(),
        reason,
    };
    let page = Page::open(path).map_err(|error| refused(error.to_string()))?;
    let failed = |error: std::io::Error| refused(error.to_string());
    let owner = page.file().metadata().map_err(failed)?.uid();
    if asking != 0 && owner != asking {
        return Err(refused(format!(
            "the file belongs to user {owner}, not to user {asking}"
        )));
    }
    let kind = rustix::fs::fstatfs(page.file()).map_err(|error| failed(error.into()))?;
    if foreign && asking != 0 && !MEMORY_FILE_SYSTEMS.contains(&(kind.f_type as u32)) {
        let reason = "the file is not on a tmpfs: create the heartbeat page in /dev/shm".to_owned();
        return Err(refused(reason));
    }
    Ok(page)
}

/// Truncates a text to `bytes_max` bytes.
fn truncated(mut text: String, bytes_max: usize) -> String {
    if text.len() > bytes_max {
        text.truncate(text.floor_char_boundary(bytes_max - '…'.len_utf8()));
        text.push('…');
    }
    text
}

impl ProcessInfo {
    /// Reads a process, and checks that the options are valid and that the user owns the process.
    fn checked(
        roots: &Roots,
        pid: i32,
        adopt: &AdoptOptions,
        asking: u32,
    ) -> Result<Self, EngineError> {
        check_weight(adopt)?;
        let facts = Self::read(&roots.proc, pid)?;
        facts.check_owner(asking, adopt.is_of_user)?;
        facts.check_bounds(roots, adopt)?;
        Ok(facts)
    }

    fn read(proc_root: &Path, pid: i32) -> Result<Self, EngineError> {
        let facts = match ProcessFacts::read(proc_root, pid) {
            Ok(facts) if facts.has_ended => return Err(EngineError::Ended { pid }),
            Ok(facts) if pid > 0 => facts,
            Err(error) if !error.is_gone() => return Err(error.into()),
            _ => return Err(EngineError::Gone { pid }),
        };
        if facts.is_kernel_thread {
            return Err(EngineError::KernelThread { pid });
        }
        Ok(Self {
            comm: facts.name,
            root: facts.id,
            uid: facts.uids[0],
            uids: facts.uids,
            rights: FileRights {
                uid: facts.uids[0],
                gid: facts.gid,
                groups: facts.groups,
            },
            allowed: Some(facts.cpus_allowed),
        })
    }
}

impl ProcessInfo {
    /// Lets the review change the options. Returns the reason of its changes.
    fn review(
        &self,
        command: Option<&ProgramCommand>,
        held: bool,
        adopt: &mut AdoptOptions,
    ) -> Result<Option<String>, EngineError> {
        let Some(review) = adopt.review.clone() else {
            return Ok(None);
        };
        let process = ReviewedProcess {
            pid: self.root.pid,
            uid: self.uid,
            executable: command
                .filter(|_| held)
                .map(|command| command.executable.as_path()),
            held,
        };
        review
            .apply(&process, adopt)
            .map_err(|reason| EngineError::Ignored { reason })
    }

    /// Checks that the given bounds are CPUs of this machine that are online, and that the process
    /// may use at least one of them.
    fn check_bounds(&self, roots: &Roots, adopt: &AdoptOptions) -> Result<(), EngineError> {
        let Some(cpus) = &adopt.bound_to else {
            return Ok(());
        };
        let refused = |reason: String| {
            let cpus = cpus.clone();
            Err(EngineError::Bounds { cpus, reason })
        };
        if cpus.is_empty() {
            return refused("the set is empty; give at least one CPU".to_owned());
        }
        let online = online_cpus(roots)?;
        let missing = cpus.minus(&online);
        if !missing.is_empty() {
            return refused(format!(
                "the CPUs {missing} are offline or do not exist; the online CPUs are {online}"
            ));
        }
        match &self.allowed {
            Some(allowed) if !allowed.intersects(cpus) => refused(format!(
                "the affinity mask of process {} contains only the CPUs {allowed}",
                self.root.pid
            )),
            _ => Ok(()),
        }
    }

    /// Checks that the user may manage the process. As for ptrace(2), every user id of the
    /// process counts: a setuid program that a user starts does not belong to the user. Unless
    /// `is_strict`, root may manage all processes.
    fn check_owner(&self, asking: u32, is_strict: bool) -> Result<(), EngineError> {
        let may_all = asking == 0 && !is_strict;
        match self.uids.iter().find(|&&uid| !may_all && uid != asking) {
            None => Ok(()),
            Some(&owner) => Err(EngineError::NotYours {
                pid: self.root.pid,
                owner,
                asking,
            }),
        }
    }
}

/// Returns the CPUs that both sets contain; `None` stands for all CPUs.
fn intersection(a: Option<CpuSet>, b: Option<CpuSet>) -> Option<CpuSet> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.and(&b)),
        (a, b) => a.or(b),
    }
}

/// Returns the command that the process runs or is about to run; `None` if the command cannot be
/// determined.
fn command(proc_root: &Path, pid: i32, adopt: &AdoptOptions, held: bool) -> Option<ProgramCommand> {
    let running = command_of(proc_root, pid);
    if !held {
        let mut running = running.ok()?;
        // Variables that the launcher has set are no part of the program's identity: the program
        // had none when its key was first derived.
        if let Some(HintRequest::Given(hints)) = &adopt.hints {
            let set = hints.variables.iter();
            set.for_each(|name| drop(running.environment.remove(OsStr::new(name))));
        }
        return Some(running);
    }
    let (directory, environment) = match running {
        Ok(running) => (running.directory, running.environment),
        Err(_) => (PathBuf::from("/"), BTreeMap::new()),
    };
    let directory = adopt.cwd.clone().unwrap_or(directory);
    let environment: BTreeMap<OsString, OsString> =
        environment.into_iter().chain(adopt.env.clone()).collect();
    let mut spec = LaunchSpec::new(&adopt.argv);
    spec.cwd = Some(directory.clone());
    let path = environment.get(&OsString::from("PATH")).cloned();
    spec.env = [("PATH".into(), path)].into();
    let found = spec.resolve().ok()?;
    Some(ProgramCommand {
        executable: directory.join(found),
        arguments: adopt.argv.iter().skip(1).cloned().collect(),
        directory,
        environment,
    })
}

/// Returns the command line of the program for display: the requested command, or the command of
/// the running process.
fn command_line(proc_root: &Path, pid: i32, adopt: &AdoptOptions) -> String {
    let running = match adopt.argv.is_empty() {
        true => command_line_of(proc_root, pid).unwrap_or_default(),
        false => Vec::new(),
    };
    let words = adopt.argv.iter().chain(&running);
    let words = words.map(|word| word.to_string_lossy());
    let text = words.collect::<Vec<_>>().join(" ");
    truncated(text, COMMAND_BYTES_MAX)
}
