// SPDX-License-Identifier: MIT OR Apache-2.0
//! One Usher process's hands.

mod acting;
mod admission;
mod demotion;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use libbpf_rs::Link;
use usher_model::{Action, CpuSet, Demotion, Home, ProcessId, ProgramId};

use crate::backlog::Backlog;
use crate::cgroups::Freezer;
use crate::config::{ActConfig, Backend, Description, Work};
use crate::error::{ActError, file_error};
use crate::files;
use crate::journal::{DirKind, Head, Journal, ProgramState, Record, ThreadId, VERSION};
use crate::keeper;
use crate::prepared::PreparedHome;
use crate::procs::Procs;
use crate::release::{self, Left, Patience, let_go, let_go_all};
use crate::site::Site;
use crate::undo::{self, UndoReport};

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
    home: Option<Home>,
    /// Where it sits; `None`: wherever it could before.
    seat: Option<CpuSet>,
    frozen: bool,
    /// Its `cgroup.freeze`, from the first time that it was frozen on.
    freezer: Option<Freezer>,
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
    /// Since when threads are being given their own masks back.
    releasing_since: Option<Instant>,
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
        let mut journal = Journal::create(&instance_dir, head)?;
        let site = Site::detect(&config, &procs, &mut journal, &name)?;
        Ok(Self {
            config,
            procs,
            site,
            journal,
            instance_dir,
            programs: BTreeMap::new(),
            found_stale,
            backlog: None,
        })
    }

    /// How programs are narrowed.
    pub fn backend(&self) -> Backend {
        self.site.description.backend
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

    /// Makes the cgroups of a program that is about to be launched, so that
    /// its first process can be born inside ([`PreparedHome::fork`]): a move
    /// into a cgroup costs a grace period of 8 to 20 ms when there was none
    /// for a while, a birth 0.1 ms. [`Self::act`] may seat it at once;
    /// [`Self::admit`] completes it when the process is there.
    ///
    /// `launcher` is the process that forks: survivors go back to its cgroups.
    /// `work` says what directories it needs: background work is born where it
    /// can be demoted without another move.
    ///
    /// # Errors
    /// The program is managed already, the launcher is gone, or the cgroups
    /// cannot be made.
    pub fn prepare(
        &mut self,
        program: ProgramId,
        launcher: ProcessId,
        work: Work,
    ) -> Result<PreparedHome, ActError> {
        self.begin(program, launcher, Some(work))?;
        match PreparedHome::open(&self.procs, program, &self.state(program)?.dirs) {
            Ok(home) => Ok(home),
            Err(error) => self.give_up(program, error),
        }
    }

    /// Takes in the whole tree rooted at a process, or completes a
    /// [`Self::prepare`]d program. A tree that may not be moved (somebody
    /// else's cgroups) stays in them: [`Home::cgroup`] is then `None`, and it
    /// is seated by affinity and stopped by signals. What it was prepared as
    /// counts, where it was; else `work`.
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
    ) -> Result<Home, ActError> {
        if self
            .programs
            .get(&program)
            .is_some_and(|held| held.home.is_some())
        {
            return Err(ActError::Taken(program));
        }
        self.check(program, root)?;
        if !self.programs.contains_key(&program) {
            self.begin(program, root, Some(work))?;
        }
        let scope = self.enter_scope(program, root);
        if let Err(error) = scope.and_then(|()| self.capture(program, root)) {
            if !files::is_denied(&error) && !matches!(error, ActError::Systemd { .. }) {
                return self.give_up(program, error);
            }
            // Not ours to move: it stays in its cgroups and is followed.
            self.site.because(&error);
            self.depart(program)?;
            self.begin(program, root, None)?;
            if let Err(error) = self.capture(program, root) {
                return self.give_up(program, error);
            }
        }
        let home = Home {
            program,
            root,
            cgroup: self.v2_dir(program)?,
        };
        let held = self.programs.entry(program).or_default();
        held.home = Some(home.clone());
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

    /// Where a program lives.
    pub fn home(&self, program: ProgramId) -> Option<&Home> {
        self.programs.get(&program)?.home.as_ref()
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
                let held = self.held(program)?;
                held.seat = Some(cpus.clone());
                held.releasing_since = None;
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

    /// Catches up with what happened since the last call: new threads
    /// (affinity), new processes (no cgroups), CPUs that came back (cgroup
    /// v1); finishes departures. Cheap where there is nothing to do.
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
        let has_dirs = !self.state(program)?.dirs.is_empty();
        if forked && !has_dirs {
            self.follow(program, frozen)?;
        }
        if forked {
            self.prune(program)?;
        }
        self.follow_demotion(program)?;
        let v1 = self
            .narrowing_dir(program)?
            .map(|dir| dir.kind == DirKind::CpusetV1);
        match (v1, seat) {
            (None, Some(cpus)) if forked => self.seat(program, &cpus),
            (None, None) => self.finish_release(program),
            (Some(true), Some(cpus)) => self.repair_v1(program, &cpus),
            _ => Ok(()),
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
        let state = self.state(program)?;
        match let_go(&self.procs, program, state, Patience::SHORT) {
            Left::Nothing => self.journal.write(Record::Close { program }),
            Left::Remains => Ok(()),
            Left::Errors(errors) => Err(join(program, errors)),
        }
    }

    /// Lets every program go and closes the journal. Returns what could not
    /// be taken back.
    pub fn undo_all(&mut self) -> Vec<ActError> {
        self.programs.clear();
        // A keeper that does not see it undoes what is left all the same.
        let _ = fs::write(self.instance_dir.join(keeper::ENDING), "");
        let mut errors = Vec::new();
        let state = self.journal.state().clone();
        for (program, left) in let_go_all(&self.procs, &state.programs) {
            match left {
                Left::Nothing => errors.extend(self.journal.write(Record::Close { program }).err()),
                Left::Remains => {}
                Left::Errors(left) => errors.extend(left),
            }
        }
        if errors.is_empty() {
            errors.extend(undo::remove_bases(&state));
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
        let noted = noted_in(self.state(program)?);
        self.held(program)?.noted = noted;
        Ok(())
    }

    fn v2_dir(&self, program: ProgramId) -> Result<Option<PathBuf>, ActError> {
        let dirs = &self.state(program)?.dirs;
        let v2 = dirs.iter().find(|dir| dir.kind.is_v2());
        Ok(v2.map(|dir| dir.dir.clone()))
    }

    /// Removes what the kernel did not let go of when a program left.
    fn finish_departures(&mut self) {
        let is_left = |program: &&ProgramId| !self.programs.contains_key(program);
        let left: Vec<ProgramId> = self
            .journal
            .state()
            .programs
            .keys()
            .filter(is_left)
            .copied()
            .collect();
        for program in left {
            if let Ok(state) = self.state(program)
                && let Left::Nothing = let_go(&self.procs, program, state, Patience::NONE)
            {
                // A line that is not written is written the next time.
                let _ = self.journal.write(Record::Close { program });
            }
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
