// SPDX-License-Identifier: MIT OR Apache-2.0
//! One Usher process's hands.

mod acting;
mod admission;
mod demotion;
mod members;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use libbpf_rs::Link;
use usher_model::{Action, CpuSet, Demotion, ProcessId, ProcessTree, ProgramId};

use crate::backlog::Backlog;
use crate::cgroups::{self, Freezer};
use crate::config::{ActConfig, Description, Work};
use crate::error::{ActError, file_error};
use crate::journal::{Dir, DirKind, Head, Journal, ProgramState, Record, ThreadId, VERSION};
use crate::keeper;
use crate::mask::{self, OwnMasks};
use crate::prepared::PreparedHome;
use crate::procs::Procs;
use crate::release::{self, Left, Patience, let_go, let_go_all};
use crate::scan::Scan;
use crate::site::Site;
use crate::undo::{self, UndoReport};

/// What an actuator of this process would use. Changes nothing.
///
/// # Errors
/// `/proc` cannot be read.
pub fn describe(config: &ActConfig) -> Result<Description, ActError> {
    Ok(Site::detect(config, &Procs::new(config), "")?.description)
}

/// Why a launched program has no cgroup of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InPlace {
    /// A sentence without its full stop.
    pub reason: String,
    /// Whether an attempt failed; else it was not to have one.
    pub failed: bool,
}

/// CPUs that threads of a program chose by affinity masks of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinnedCpus {
    /// All of them.
    pub cpus: CpuSet,
    /// Whether no thread of the program was left unpinned.
    pub every_thread: bool,
}

/// Takes programs in, acts on them and lets them go.
///
/// Dropping it undoes nothing by itself: call [`Self::undo_all`], or leave it
/// to the keeper.
#[derive(Debug)]
pub struct Actuator {
    config: ActConfig,
    procs: Procs,
    site: Site,
    journal: Journal,
    instance_dir: PathBuf,
    programs: BTreeMap<ProgramId, Held>,
    /// Scans that give masks and priorities back to programs that were released
    /// or depart.
    scans: BTreeMap<ProgramId, Scan>,
    /// Users whose processes alone are changed in a program's tree.
    owners: BTreeMap<ProgramId, u32>,
    found_stale: UndoReport,
    /// What bounds the backlog of background work, from the first of it on.
    backlog: Option<Result<Backlog, String>>,
}

/// Processes and threads of a program that may be noted before those that
/// are gone are forgotten.
const PRUNE_MIN: usize = 512;

/// A program under management.
#[derive(Debug, Default)]
struct Held {
    home: Option<ProcessTree>,
    own_masks: OwnMasks,
    /// Where it sits; `None`: wherever it could before.
    seat: Option<CpuSet>,
    frozen: bool,
    /// Whether it was stopped by signals though it has a cgroup: processes in the
    /// cgroup must not be changed.
    by_signal: bool,
    /// Its `cgroup.freeze`, from the first time that it was frozen on.
    freezer: Option<Freezer>,
    /// Why it has no cgroup of its own, if it was launched.
    in_place: Option<InPlace>,
    /// Whether processes of it were seen outside its cgroup.
    has_leavers: bool,
    /// Processes that were last seen inside its cgroup.
    inside: Vec<ProcessId>,
    /// How far it is to be demoted.
    demotion: Option<Demotion>,
    /// Whether that was done, but for what is lacking; else it failed half-way.
    is_demoted: bool,
    /// Whether a cgroup of its own gives way.
    idles: bool,
    /// Bounds the backlog of its connections while it is held.
    backlog: Option<Link>,
    /// What of that was not done, and why.
    lacking: Vec<String>,
    /// Sessions whose autogroups were lowered, or must not be.
    sessions: BTreeSet<i32>,
    /// Since when threads are being demoted.
    priorities_since: Option<Instant>,
    /// The machine's last pid when sessions were last looked for.
    followed_at: Option<i32>,
    /// Processes and threads noted when those that are gone were last forgotten.
    noted: usize,
    /// The machine's last pid when threads and processes were last looked for.
    looked_at: Option<i32>,
}

impl Actuator {
    /// Finds out what there is to act with, starts this instance's journal,
    /// and first undoes what dead instances left ([`Self::found_stale`]).
    ///
    /// # Errors
    /// The runtime directory cannot be made or written.
    pub fn open(config: ActConfig) -> Result<Self, ActError> {
        let found_stale = undo::undo_stale(&config)?;
        let procs = Procs::new(&config);
        let owner = procs.own()?;
        let name = undo::name_of(owner);
        let instance_dir = config.instances_dir().join(&name);
        let make = |recursive: bool, path: &Path| {
            let mut builder = fs::DirBuilder::new();
            let made = builder.recursive(recursive).mode(0o700).create(path);
            made.map_err(file_error("making directory", path))
        };
        make(true, &config.instances_dir())?;
        make(false, &instance_dir)?;
        let head = Head {
            version: VERSION,
            boot: procs.boot_id()?,
            owner,
            pid_namespace: procs.pid_namespace(),
        };
        let journal = Journal::create(&instance_dir, head)?;
        let site = Site::detect(&config, &procs, &name)?;
        Ok(Self {
            config,
            procs,
            site,
            journal,
            instance_dir,
            programs: BTreeMap::new(),
            scans: BTreeMap::new(),
            owners: BTreeMap::new(),
            found_stale,
            backlog: None,
        })
    }

    /// What is used here, and why nothing better is.
    pub fn describe(&self) -> &Description {
        &self.site.description
    }

    /// Where this instance's journal lies: for the keeper and for launchers.
    pub fn instance_dir(&self) -> &Path {
        &self.instance_dir
    }

    /// What this instance was opened with.
    pub fn config(&self) -> &ActConfig {
        &self.config
    }

    /// What dead instances had left, and what of it could not be undone.
    pub fn found_stale(&self) -> &UndoReport {
        &self.found_stale
    }

    /// Begins a program that is about to be launched. It gets a cgroup of its
    /// own below its launcher's where that can be made, so that its first
    /// process can be born inside ([`PreparedHome::fork`]): a move into a
    /// cgroup costs a grace period of 8 to 20 ms when there was none for a
    /// while, a birth 0.1 ms. [`Self::act`] may seat it at once;
    /// [`Self::admit`] completes it when the process is there. Only a program
    /// that was prepared is ever moved.
    ///
    /// `launcher` is the process that forks, or the launched process itself
    /// while it is held before its `exec`: survivors go back to its cgroups.
    /// `work` tells what directories it needs: background work is born where it
    /// can be demoted without another move.
    ///
    /// # Errors
    /// The program is managed already, or the launcher is gone.
    pub fn prepare(
        &mut self,
        program: ProgramId,
        launcher: ProcessId,
        work: Work,
    ) -> Result<PreparedHome, ActError> {
        self.begin(program, launcher)?;
        if let Err(error) = self.make_dirs(program, launcher, work) {
            return self.give_up(program, error);
        }
        match PreparedHome::open(&self.procs, program, &self.state(program)?.dirs) {
            Ok(home) => Ok(home),
            Err(error) => self.give_up(program, error),
        }
    }

    /// As [`Self::prepare`], for a launched process that is held before its
    /// `exec`. [`Self::admit`] completes it.
    ///
    /// # Errors
    /// As [`Self::admit`]; nothing was done then.
    pub fn prepare_held(
        &mut self,
        program: ProgramId,
        process: ProcessId,
        work: Work,
    ) -> Result<(), ActError> {
        self.check_again(program, process)?;
        self.begin(program, process)?;
        match self.make_dirs(program, process, work) {
            Err(error) => self.give_up(program, error),
            made => made,
        }
    }

    /// Changes only processes of this user in a program's tree, from now on until
    /// the program departs: no setuid program that it runs, and no process of
    /// another user that such a program starts. To be called before the program is
    /// prepared or admitted on behalf of a user other than this process's.
    pub fn restrict_to(&mut self, program: ProgramId, owner: u32) {
        self.owners.insert(program, owner);
    }

    /// Whether the program's cgroup has processes that must not be changed.
    fn has_foreign(&self, program: ProgramId) -> Result<bool, ActError> {
        let Some(&owner) = self.owners.get(&program) else {
            return Ok(false);
        };
        let inside = release::inside(self.state(program)?);
        let foreign = |pid: &i32| {
            let lives = self.procs.get(*pid).is_some_and(|one| !one.is_dead());
            lives && !self.procs.belongs_to(*pid, owner)
        };
        Ok(inside.iter().any(foreign))
    }

    /// Whether a process of a program's tree may be changed.
    fn may_change(&self, program: ProgramId, pid: i32) -> bool {
        let owner = self.owners.get(&program);
        owner.is_none_or(|&owner| self.procs.belongs_to(pid, owner))
    }

    /// The numbers of a program's processes that may be changed.
    fn own_pids(&self, program: ProgramId) -> Result<BTreeSet<i32>, ActError> {
        let mut pids = release::pids(&self.procs, self.state(program)?);
        pids.retain(|&pid| self.may_change(program, pid));
        Ok(pids)
    }

    /// Takes in the whole tree rooted at a process, or completes a
    /// [`Self::prepare`]d program. A tree that was not prepared stays in its
    /// cgroup: [`ProcessTree::cgroup`] is that cgroup where it holds nothing else,
    /// and `None` otherwise. So does a prepared one that can get no cgroup of
    /// its own ([`Self::why_in_place`]). `work` counts for a prepared program.
    ///
    /// # Errors
    /// The process is gone, is a kernel thread, is Usher itself or one of its
    /// ancestors, a process of its tree is managed already, or the kernel
    /// refuses; the tree is then where it was.
    pub fn admit(
        &mut self,
        program: ProgramId,
        root: ProcessId,
        work: Work,
    ) -> Result<ProcessTree, ActError> {
        if self
            .programs
            .get(&program)
            .is_some_and(|held| held.home.is_some())
        {
            return Err(ActError::Taken(program));
        }
        self.check_again(program, root)?;
        let is_launched = self.programs.contains_key(&program);
        let cgroup = match is_launched {
            true => self.place_launched(program, root, work),
            false => self.place_attached(program, root),
        };
        let cgroup = match cgroup {
            Ok(cgroup) => cgroup,
            Err(error) => return self.give_up(program, error),
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
        let held = self.programs.entry(program).or_default();
        held.home = Some(home.clone());
        held.own_masks.initial = initial;
        let (seat, frozen) = (held.seat.take(), std::mem::take(&mut held.frozen));
        let again = [
            seat.map(|cpus| Action::Seat { program, cpus }),
            held.demotion
                .take()
                .map(|to| Action::Demote { program, to }),
            frozen.then_some(Action::Freeze { program }),
        ];
        for action in again.into_iter().flatten() {
            self.act(&action)?;
        }
        Ok(home)
    }

    /// Why a launched program has no cgroup of its own; `None` where it has
    /// one, or was attached.
    pub fn why_in_place(&self, program: ProgramId) -> Option<&InPlace> {
        self.programs.get(&program)?.in_place.as_ref()
    }

    /// Whether a program can be frozen without a signal, which its parent
    /// would see.
    pub fn freezes_unseen(&self, program: ProgramId) -> bool {
        let cgroup = self.home(program).and_then(|home| home.cgroup.as_deref());
        cgroup.is_some_and(cgroups::can_freeze)
    }

    /// Where a program lives.
    pub fn home(&self, program: ProgramId) -> Option<&ProcessTree> {
        self.programs.get(&program)?.home.as_ref()
    }

    /// CPUs that threads of a program have pinned themselves to, by masks that are
    /// neither Usher's nor what the program had when it was taken in. `None`
    /// where no thread has. Such a thread is never given a mask by Usher.
    pub fn pins(&self, program: ProgramId) -> Option<PinnedCpus> {
        let own = &self.programs.get(&program)?.own_masks;
        let state = self.state(program).ok()?;
        let pids = release::pids(&self.procs, state);
        mask::pins(&self.procs, state, own, &pids)
    }

    /// CPUs that one thread of a program at least could use when the program was
    /// taken in.
    pub fn initial_cpus(&self, program: ProgramId) -> Option<&CpuSet> {
        self.programs.get(&program)?.own_masks.initial.as_ref()
    }

    /// The numbers of a program's processes, as they are now.
    pub fn processes(&self, program: ProgramId) -> Vec<i32> {
        let state = self.journal.state().programs.get(&program);
        state
            .map(|state| release::pids(&self.procs, state).into_iter().collect())
            .unwrap_or_default()
    }

    /// Seats, releases, freezes, thaws or demotes a program that was taken in.
    /// What of a demotion could not be done here is no error, but said by
    /// [`Self::why_not_demoted`]; one that failed half-way is completed when it
    /// is asked for again, and one that is less than the present one changes
    /// nothing. Where the program has only been [`Self::prepare`]d, it will be
    /// born so.
    ///
    /// A tree that is ending is no error.
    ///
    /// # Errors
    /// The program is not managed, none of the CPUs can be used by it, or the
    /// kernel refuses.
    pub fn act(&mut self, action: &Action) -> Result<(), ActError> {
        let program = action.program();
        let held = self.held(program)?;
        match action {
            Action::Seat { cpus, .. } if held.seat.as_ref() == Some(cpus) => Ok(()),
            Action::Seat { cpus, .. } => {
                // Where it fails half-way it sits neither here nor there.
                held.seat = None;
                self.seat(program, cpus)?;
                self.held(program)?.seat = Some(cpus.clone());
                self.scans.remove(&program);
                Ok(())
            }
            Action::Release { .. } => {
                self.release(program)?;
                self.held(program)?.seat = None;
                Ok(())
            }
            Action::Demote { to, .. } if held.is_demoted && held.demotion >= Some(*to) => Ok(()),
            Action::Demote { to, .. } => self.demote(program, *to),
            Action::Freeze { .. } | Action::Thaw { .. } => {
                let frozen = matches!(action, Action::Freeze { .. });
                if held.frozen != frozen {
                    self.freeze(program, frozen)?;
                    self.held(program)?.frozen = frozen;
                }
                Ok(())
            }
        }
    }

    /// Catches up with what happened since the last call: new threads, new
    /// processes, processes that left the program's cgroup; finishes
    /// departures. Cheap where no process of the machine has forked.
    ///
    /// # Errors
    /// The program is not managed, or the kernel refuses.
    pub fn refresh(&mut self, program: ProgramId) -> Result<(), ActError> {
        self.finish_departures();
        let last_pid = self.procs.last_pid();
        let held = self.held(program)?;
        let forked = last_pid.is_none() || held.looked_at != last_pid;
        let (seat, frozen) = (held.seat.clone(), held.frozen);
        held.looked_at = last_pid;
        if forked {
            self.follow(program, frozen)?;
            self.prune(program)?;
        }
        self.follow_demotion(program)?;
        match seat {
            Some(cpus) if forked => self.seat(program, &cpus),
            Some(_) => Ok(()),
            None => self.continue_scans(),
        }
    }

    /// Lets a program go, ended or not: thaws, widens, moves survivors back
    /// to where they came from, removes its cgroups.
    ///
    /// # Errors
    /// The program is not managed, or something could not be taken back; it
    /// is then tried again by the next `refresh`, `undo_all` or start.
    pub fn depart(&mut self, program: ProgramId) -> Result<(), ActError> {
        self.held(program)?;
        self.programs.remove(&program);
        self.owners.remove(&program);
        self.reset_scope(program);
        self.scans.insert(program, Scan::new());
        self.continue_departure(program, Patience::SHORT)
    }

    /// Goes on with what [`Self::depart`] began.
    fn continue_departure(
        &mut self,
        program: ProgramId,
        patience: Patience,
    ) -> Result<(), ActError> {
        let mut scan = self.scans.remove(&program).unwrap_or_else(Scan::new);
        let state = self.state(program)?;
        let was_complete = scan.is_complete();
        let mut left = let_go(&self.procs, program, state, &mut scan, patience);
        if !scan.is_complete() {
            self.scans.insert(program, scan);
        } else if !was_complete && matches!(left, Left::Errors(_)) {
            // A program that forks is moved out of its cgroup in several attempts.
            left = let_go(&self.procs, program, state, &mut scan, Patience::SHORT);
        }
        match left {
            Left::Nothing => self.journal.write(Record::Close { program }),
            Left::Remains | Left::Threads => Ok(()),
            Left::Errors(errors) => Err(join(program, errors)),
        }
    }

    /// Lets every program go and closes the journal. Returns what could not
    /// be taken back.
    pub fn undo_all(&mut self) -> Vec<ActError> {
        self.programs.clear();
        self.scans.clear();
        // A keeper that does not see it undoes what is left all the same.
        let _ = fs::write(self.instance_dir.join(keeper::ENDING), "");
        let mut errors = Vec::new();
        let state = self.journal.state().clone();
        for (program, left) in let_go_all(&self.procs, &state.programs) {
            match left {
                Left::Nothing => errors.extend(self.journal.write(Record::Close { program }).err()),
                Left::Remains => {}
                Left::Threads => errors.push(undo::threads_left(program)),
                Left::Errors(left) => errors.extend(left),
            }
        }
        if errors.is_empty() {
            errors.extend(undo::remove_instance(&self.instance_dir).err());
        }
        errors
    }

    fn held(&mut self, program: ProgramId) -> Result<&mut Held, ActError> {
        let held = self.programs.get_mut(&program);
        held.ok_or(ActError::Unknown(program))
    }

    fn state(&self, program: ProgramId) -> Result<&ProgramState, ActError> {
        let state = self.journal.state().programs.get(&program);
        state.ok_or(ActError::Unknown(program))
    }

    /// Forgets processes and threads that are gone, where many were noted.
    fn prune(&mut self, program: ProgramId) -> Result<(), ActError> {
        let state = self.state(program)?;
        let noted = noted_in(state);
        let held = self.held(program)?;
        if noted < PRUNE_MIN.max(held.noted * 2) {
            return Ok(());
        }
        let procs = self.procs.clone();
        self.journal.forget(program, |state| {
            state
                .members
                .retain(|&process, _| procs.same(process).is_some());
            let lives = |thread: &ThreadId| {
                procs.thread_start(thread.pid, thread.tid) == Some(thread.start_ticks)
            };
            state.threads.retain(|thread, _| lives(thread));
            state.demoted.threads.retain(|thread, _| lives(thread));
        });
        let state = self.state(program)?;
        let (noted, known) = (noted_in(state), state.threads.clone());
        let held = self.held(program)?;
        held.noted = noted;
        held.own_masks
            .pinned
            .retain(|thread, _| known.contains_key(thread));
        Ok(())
    }

    /// The cgroup that holds a program and nothing else: its home's, or the
    /// directory in which it is to be born.
    fn v2_dir(&self, program: ProgramId) -> Result<Option<Dir>, ActError> {
        let home = self.home(program);
        let is_it = |dir: &&Dir| match home {
            Some(home) => home.cgroup.as_ref() == Some(&dir.dir),
            None => dir.kind == DirKind::V2,
        };
        let mut dirs = self.state(program)?.dirs.iter();
        Ok(dirs.find(|dir| dir.kind.is_v2() && is_it(dir)).cloned())
    }

    /// Removes what the kernel did not let go of when a program left.
    fn finish_departures(&mut self) {
        let is_left = |program: &&ProgramId| {
            !self.programs.contains_key(program) && !self.scans.contains_key(program)
        };
        let programs = self.journal.state().programs.keys();
        let left: Vec<ProgramId> = programs.filter(is_left).copied().collect();
        for program in left {
            // What fails is tried again the next time.
            let _ = self.continue_departure(program, Patience::NONE);
        }
    }

    /// Waits for the end of the departure of an earlier program with this
    /// number.
    fn await_departure(&mut self, program: ProgramId) {
        let is_known = self.journal.state().programs.contains_key(&program);
        if is_known && !self.programs.contains_key(&program) {
            // What is left then is reported by the caller: it is taken.
            let _ = self.continue_departure(program, Patience::SHORT);
        }
    }
}

/// Processes and threads of which something is noted.
fn noted_in(state: &ProgramState) -> usize {
    state.threads.len() + state.members.len() + state.demoted.threads.len()
}

/// One error of several.
fn join(program: ProgramId, mut errors: Vec<ActError>) -> ActError {
    match errors.len() {
        1 => errors.remove(0),
        _ => ActError::Left {
            program,
            what: errors
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join("; "),
        },
    }
}
