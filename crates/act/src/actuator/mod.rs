// SPDX-License-Identifier: MIT OR Apache-2.0
//! The actuator: admits programs, gives them seats, freezes, thaws and demotes them, and undoes all
//! these changes.
//!
//! Each change is written to the journal of this instance before it is made, so that the keeper or
//! the next start can undo it. Masks and priorities are set by repeated scans of `/proc`, because
//! threads that start during a scan inherit the former values. [`Actuator::refresh`] covers threads
//! and processes that start later. The submodules are:
//!
//! - `admission`: the checks and the home cgroup;
//! - `acting`: seat, release, freeze, thaw;
//! - `copies`: parts of the seat for single processes;
//! - `demotion`: lower priorities of background work;
//! - `joining`: further process trees of a program;
//! - `departure`: the end of the management, and the undo of all programs;
//! - `members`: which process belongs to which program;
//! - `no_cgroup`: why a program has no cgroup of its own;
//! - `ownership`: which processes may be changed on behalf of another user;
//! - `pruning`: records of ended processes and threads.
//!
//! Dropping an actuator undoes no change: [`Actuator::undo_all`], the keeper or the next start of
//! Usher does.
//!
//! Bounds: [`Actuator::refresh`] costs one read of `/proc/loadavg` if no process of the machine has
//! forked. After a fork, this function lists the program's processes and threads. If the program
//! has no cgroup, this function lists all processes of the machine. A seat takes about 50 ms at
//! most, and [`Actuator::depart`] retries for at most 1 s. [`Actuator::undo_all`] scans for at most
//! 1.5 s, waits for autogroups for at most 2 s, and retries for at most 0.7 s per program. Changes
//! that remain stay in the journal.

mod acting;
mod admission;
mod copies;
mod demotion;
mod departure;
mod joining;
mod members;
mod no_cgroup;
mod ownership;
mod pruning;

pub use self::copies::CopyPlacement;
pub use self::no_cgroup::NoOwnCgroup;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use libbpf_rs::Link;
use usher_model::{Action, CpuSet, Demotion, ProcessId, ProcessTree, ProgramId};

use self::demotion::DemotionGaps;
use crate::backlog::Backlog;
use crate::cgroups::{self, Freezer};
use crate::config::{ActConfig, ActDescription, WorkClass};
use crate::environment::Environment;
use crate::error::{ActError, runtime_error};
use crate::instance;
use crate::journal::{Dir, DirKind, Journal, JournalHeader, ProgramState, VERSION};
use crate::mask::{self, PinnedCpus};
use crate::own_masks::OwnMasks;
use crate::prepared::{HomeDirs, PreparedHome};
use crate::procs::Procs;
use crate::release;
use crate::scan::Scan;
use crate::undo::{self, UndoReport};

/// Returns the mechanisms that an actuator of this process would use on this machine. Changes
/// nothing.
///
/// # Errors
/// `/proc` cannot be read.
pub fn describe(config: &ActConfig) -> Result<ActDescription, ActError> {
    Ok(Environment::detect(config, &Procs::new(config), "")?.description)
}

/// The object through which a process of Usher admits, changes and releases programs.
///
/// Dropping an actuator undoes no change. Call [`Self::undo_all`] before, or leave the undo to the
/// keeper.
#[derive(Debug)]
pub struct Actuator {
    config: ActConfig,
    procs: Procs,
    environment: Environment,
    journal: Journal,
    instance_dir: PathBuf,
    programs: BTreeMap<ProgramId, ManagedProgram>,
    /// Scans that restore masks and priorities of programs that were released or depart.
    scans: BTreeMap<ProgramId, Scan>,
    /// For each program of another user: the user ID (uid) of the processes that Usher may change.
    owners: BTreeMap<ProgramId, u32>,
    found_stale: UndoReport,
    /// BPF programs that limit the unsent data in the sockets of background work. The BPF programs
    /// are loaded at the first use.
    backlog: Option<Result<Backlog, String>>,
}

/// A program under management.
#[derive(Debug, Default)]
struct ManagedProgram {
    home: Option<ProcessTree>,
    own_masks: OwnMasks,
    /// The seat; `None` if the program is not restricted.
    seat: Option<CpuSet>,
    /// Whether the seat must be applied again at the next refresh.
    seat_is_incomplete: bool,
    /// The time of the freeze; `None` if the program is not frozen. This field is the only place
    /// that stores whether the program is frozen; other code queries [`Actuator::frozen_since`].
    frozen_since: Option<Instant>,
    /// Whether the program was stopped by signals although it has a cgroup. Signals are used if the
    /// cgroup contains processes that must not be changed.
    by_signal: bool,
    /// The program's open `cgroup.freeze`, from the first freeze on.
    freezer: Option<Freezer>,
    /// The reason for which the program has no cgroup of its own.
    no_cgroup: Option<NoOwnCgroup>,
    /// Whether processes of the program were seen outside its cgroup.
    has_leavers: bool,
    /// Processes that the last scan found inside its cgroup.
    inside: Vec<ProcessId>,
    /// The requested demotion.
    demotion: Option<Demotion>,
    /// Whether the demotion is complete, apart from the recorded gaps. If false, the program is not
    /// demoted, or an error interrupted its demotion.
    is_demoted: bool,
    /// Whether a cgroup of the program's own has `cpu.idle`.
    idles: bool,
    /// Attaches the BPF program that limits the unsent data of the program's connections. Dropping
    /// the link detaches the BPF program.
    backlog: Option<Link>,
    /// Parts of the demotion that were not done, with reasons.
    demotion_gaps: DemotionGaps,
    /// Sessions that the demotion has handled: the session's autogroup is lowered, or must not be
    /// lowered.
    sessions: BTreeSet<i32>,
    /// The time at which the demotion of threads began.
    priorities_since: Option<Instant>,
    /// The pid that the kernel had assigned last when the last scan for sessions began. A different
    /// value later means that a process has forked since.
    last_session_scan_pid: Option<i32>,
    /// Number of recorded processes and threads after the last pruning.
    noted: usize,
    /// The pid that the kernel had assigned last when the last scan for threads and processes
    /// began.
    last_scan_pid: Option<i32>,
}

impl Actuator {
    /// Opens an actuator: first undoes the changes that dead instances left
    /// ([`Self::found_stale`]), then detects the mechanisms of this machine and starts the journal
    /// of this instance.
    ///
    /// # Errors
    /// The runtime directory cannot be made or written.
    pub fn open(config: ActConfig) -> Result<Self, ActError> {
        let found_stale = undo::undo_stale(&config)?;
        let procs = Procs::new(&config);
        procs.check_namespace()?;
        let owner = procs.own()?;
        let name = instance::name_of(owner);
        let instance_dir = config.instances_dir().join(&name);
        let make = |recursive: bool, path: &Path| {
            let mut builder = fs::DirBuilder::new();
            let made = builder.recursive(recursive).mode(0o700).create(path);
            made.map_err(runtime_error("making directory", path))
        };
        make(true, &config.instances_dir())?;
        make(false, &instance_dir)?;
        let head = JournalHeader {
            version: VERSION,
            boot: procs.boot_id()?,
            owner,
            pid_namespace: procs.pid_namespace(),
        };
        let journal = Journal::create(&instance_dir, head).inspect_err(|_| {
            // Nothing was changed, so the directory has nothing to undo.
            let _ = instance::remove_instance(&instance_dir);
        })?;
        let environment = Environment::detect(&config, &procs, &name)?;
        Ok(Self {
            config,
            procs,
            environment,
            journal,
            instance_dir,
            programs: BTreeMap::new(),
            scans: BTreeMap::new(),
            owners: BTreeMap::new(),
            found_stale,
            backlog: None,
        })
    }

    /// Returns the mechanisms that the actuator uses on this machine, with the reasons for which it
    /// uses no better mechanisms.
    pub fn describe(&self) -> &ActDescription {
        &self.environment.description
    }

    /// Returns the directory of this instance's journal, for the keeper and for launchers.
    pub fn instance_dir(&self) -> &Path {
        &self.instance_dir
    }

    /// Returns the configuration that this instance was opened with.
    pub fn config(&self) -> &ActConfig {
        &self.config
    }

    /// Returns the result of undoing the changes that dead instances had left.
    pub fn found_stale(&self) -> &UndoReport {
        &self.found_stale
    }

    /// Begins a program that is about to be launched. If possible, the program gets a cgroup of its
    /// own below its launcher's cgroup, and its first process is created inside this cgroup
    /// ([`PreparedHome::fork`]). Creation inside a cgroup takes 0.1 ms. A move into a cgroup takes
    /// 8 to 20 ms, an RCU grace period, if no other move preceded it shortly before. [`Self::act`]
    /// may seat the program at once; [`Self::admit`] completes the admission when the process
    /// exists. Programs that were not prepared are never moved.
    ///
    /// `launcher` is the process that will fork, or the launched process itself while it is held
    /// before its `exec`. When the program departs, its surviving processes are moved back to the
    /// cgroups of `launcher`. `work` selects the directories: the directories of background work
    /// permit a demotion without another move.
    ///
    /// # Errors
    /// The program is managed already, or the launcher is gone.
    pub fn prepare(
        &mut self,
        program: ProgramId,
        launcher: ProcessId,
        work: WorkClass,
    ) -> Result<PreparedHome, ActError> {
        self.begin(program, launcher)?;
        if let Err(error) = self.make_dirs(program, launcher, work) {
            return self.abort_admission(program, error);
        }
        match PreparedHome::open(&self.procs, program, &self.state(program)?.dirs) {
            Ok(home) => Ok(home),
            Err(error) => self.abort_admission(program, error),
        }
    }

    /// Does the same as [`Self::prepare`] for a launcher that is another process than this one.
    /// Returns the directories of the home, in which the launcher creates the program's process.
    ///
    /// # Errors
    /// The errors of [`Self::prepare`]; the launcher may not be managed, or is part of a managed
    /// program. A process that such a launcher creates would be part of the same program.
    pub fn prepare_for(
        &mut self,
        program: ProgramId,
        launcher: ProcessId,
        work: WorkClass,
    ) -> Result<HomeDirs, ActError> {
        self.prepare_held(program, launcher, work)?;
        Ok(HomeDirs::of(&self.state(program)?.dirs))
    }

    /// Does the same as [`Self::prepare`] for a launched process that is held before its `exec`.
    /// [`Self::admit`] completes the admission.
    ///
    /// # Errors
    /// The errors of [`Self::admit`]. After an error, nothing has changed.
    pub fn prepare_held(
        &mut self,
        program: ProgramId,
        process: ProcessId,
        work: WorkClass,
    ) -> Result<(), ActError> {
        self.check_again(Some(program), process)?;
        self.begin(program, process)?;
        match self.make_dirs(program, process, work) {
            Err(error) => self.abort_admission(program, error),
            made => made,
        }
    }

    /// Admits the whole tree rooted at a process, or completes a [`Self::prepare`]d program. A tree
    /// that was not prepared stays in its cgroup. If this cgroup contains no other processes,
    /// [`ProcessTree::cgroup`] is this cgroup; otherwise it is `None`. A prepared program that
    /// cannot get a cgroup of its own also stays in its cgroup ([`Self::no_cgroup_reason`]). `work`
    /// matters only for a prepared program.
    ///
    /// # Errors
    /// The process is gone, is a kernel thread, is Usher itself or one of its ancestors; a process
    /// of its tree is managed already; or a system call failed. After an error, the tree is in its
    /// former cgroups.
    pub fn admit(
        &mut self,
        program: ProgramId,
        root: ProcessId,
        work: WorkClass,
    ) -> Result<ProcessTree, ActError> {
        if self
            .programs
            .get(&program)
            .is_some_and(|managed| managed.home.is_some())
        {
            return Err(ActError::Taken(program));
        }
        self.check_again(Some(program), root)?;
        let is_launched = self.programs.contains_key(&program);
        let cgroup = match is_launched {
            true => self.place_launched(program, root, work),
            false => self.place_attached(program, root),
        };
        let cgroup = match cgroup {
            Ok(cgroup) => cgroup,
            Err(error) => return self.abort_admission(program, error),
        };
        let home = ProcessTree {
            program,
            root,
            cgroup,
        };
        let initial = mask::initial(
            &self.procs,
            &release::pids(&self.procs, self.state(program)?),
        );
        let managed = self.programs.entry(program).or_default();
        managed.home = Some(home.clone());
        managed.own_masks.initial = initial;
        let (seat, frozen) = (managed.seat.take(), managed.frozen_since.take().is_some());
        let again = [
            seat.map(|cpus| Action::Seat { program, cpus }),
            managed
                .demotion
                .take()
                .map(|to| Action::Demote { program, to }),
            frozen.then_some(Action::Freeze { program }),
        ];
        for action in again.into_iter().flatten() {
            self.act(&action)?;
        }
        Ok(home)
    }

    /// Returns why a program has no cgroup of its own; `None` if the program has one.
    pub fn no_cgroup_reason(&self, program: ProgramId) -> Option<&NoOwnCgroup> {
        self.programs.get(&program)?.no_cgroup.as_ref()
    }

    /// Returns whether a program can be frozen by its cgroup, without a stop signal. The parent of
    /// a process would notice a stop signal (`waitpid`).
    pub fn freezes_unseen(&self, program: ProgramId) -> bool {
        let cgroup = self.home(program).and_then(|home| home.cgroup.as_deref());
        cgroup.is_some_and(cgroups::can_freeze)
    }

    /// Returns the time at which a program was frozen; `None` if the program is not frozen.
    pub fn frozen_since(&self, program: ProgramId) -> Option<Instant> {
        self.programs.get(&program)?.frozen_since
    }

    /// Returns the home of a program: its root process and its cgroup.
    pub fn home(&self, program: ProgramId) -> Option<&ProcessTree> {
        self.programs.get(&program)?.home.as_ref()
    }

    /// Returns the CPUs to which threads of a program have pinned themselves. A mask is such a pin
    /// if Usher did not set it and no thread of the program had it at the admission. Returns `None`
    /// if no thread is pinned. Usher never changes the mask of a pinned thread.
    pub fn pins(&self, program: ProgramId) -> Option<PinnedCpus> {
        let own = &self.programs.get(&program)?.own_masks;
        let state = self.state(program).ok()?;
        let pids = release::pids(&self.procs, state);
        mask::pins(&self.procs, state, own, &pids)
    }

    /// Returns the CPUs that at least one thread of a program could use when the program was
    /// admitted.
    pub fn initial_cpus(&self, program: ProgramId) -> Option<&CpuSet> {
        self.programs.get(&program)?.own_masks.initial.as_ref()
    }

    /// Returns the pids of a program's present processes.
    pub fn processes(&self, program: ProgramId) -> Vec<i32> {
        let state = self.journal.state().programs.get(&program);
        state
            .map(|state| release::pids(&self.procs, state).into_iter().collect())
            .unwrap_or_default()
    }

    /// Seats, releases, freezes, thaws or demotes an admitted program. If this machine does not
    /// support a part of a demotion, this is no error; [`Self::demotion_gaps`] returns such parts.
    /// The next request for a demotion completes a demotion that an error interrupted. A request
    /// for a weaker demotion than the present one changes nothing. For a program that has only been
    /// [`Self::prepare`]d, the action applies from its first process on.
    ///
    /// It is no error if the processes of the program are ending.
    ///
    /// # Errors
    /// The program is not managed, it can use none of the CPUs, or a system call failed.
    pub fn act(&mut self, action: &Action) -> Result<(), ActError> {
        let program = action.program();
        let managed = self.managed(program)?;
        match action {
            Action::Seat { cpus, .. } if managed.seat.as_ref() == Some(cpus) => Ok(()),
            Action::Seat { cpus, .. } => {
                // If setting the seat fails half-way, the program has neither the former nor the
                // new seat.
                managed.seat = None;
                self.seat(program, cpus)?;
                self.managed(program)?.seat = Some(cpus.clone());
                self.scans.remove(&program);
                Ok(())
            }
            Action::Release { .. } => {
                self.release(program)?;
                self.managed(program)?.seat = None;
                Ok(())
            }
            Action::Demote { to, .. } if managed.is_demoted && managed.demotion >= Some(*to) => {
                Ok(())
            }
            Action::Demote { to, .. } => self.demote(program, *to),
            Action::Freeze { .. } | Action::Thaw { .. } => {
                let frozen = matches!(action, Action::Freeze { .. });
                if managed.frozen_since.is_some() != frozen {
                    self.freeze(program, frozen)?;
                    self.managed(program)?.frozen_since = frozen.then(Instant::now);
                }
                Ok(())
            }
        }
    }

    /// Extends the program's seat, freeze and demotion to new threads, new processes and processes
    /// that left the program's cgroup since the last call. Also applies an incomplete seat again and
    /// completes unfinished departures. If the seat is complete and no process of the machine has
    /// forked since the last call, the call is cheap.
    ///
    /// # Errors
    /// The program is not managed, or a system call failed.
    pub fn refresh(&mut self, program: ProgramId) -> Result<(), ActError> {
        let last_pid = self.procs.last_pid();
        let managed = self.managed(program)?;
        let forked = last_pid.is_none() || managed.last_scan_pid != last_pid;
        let (seat, frozen) = (managed.seat.clone(), managed.frozen_since.is_some());
        let must_seat = forked || managed.seat_is_incomplete;
        managed.last_scan_pid = last_pid;
        if forked {
            self.follow(program, frozen)?;
            self.prune(program)?;
            self.prune_copies(program)?;
        }
        self.follow_demotion(program)?;
        match seat {
            Some(cpus) if must_seat => self.seat(program, &cpus),
            Some(_) => Ok(()),
            None => self.continue_scans(),
        }
    }

    /// Returns whether the masks and priorities of a program are complete, so that no
    /// [`Self::refresh`] is needed before the program runs again.
    pub fn is_complete(&self, program: ProgramId) -> bool {
        let managed = self.programs.get(&program);
        managed.is_some_and(|one| !one.seat_is_incomplete && one.priorities_since.is_none())
    }

    fn managed(&mut self, program: ProgramId) -> Result<&mut ManagedProgram, ActError> {
        let managed = self.programs.get_mut(&program);
        managed.ok_or(ActError::Unknown(program))
    }

    fn state(&self, program: ProgramId) -> Result<&ProgramState, ActError> {
        let state = self.journal.state().programs.get(&program);
        state.ok_or(ActError::Unknown(program))
    }

    /// Returns the cgroup that contains only this program: the cgroup of its home or, before the
    /// admission is complete, the directory in which its first process will be created.
    fn v2_dir(&self, program: ProgramId) -> Result<Option<Dir>, ActError> {
        let home = self.home(program);
        let is_it = |dir: &&Dir| match home {
            Some(home) => home.cgroup.as_ref() == Some(&dir.dir),
            None => dir.kind == DirKind::V2,
        };
        let mut dirs = self.state(program)?.dirs.iter();
        Ok(dirs.find(|dir| dir.kind.is_v2() && is_it(dir)).cloned())
    }
}
