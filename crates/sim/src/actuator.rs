// SPDX-License-Identifier: MIT OR Apache-2.0
//! Simulated actuator, which follows the journal protocol of the real actuator (crate `act`). Each
//! action consists of small steps, and the journal record of a step is written before the step.
//! When the daemon dies, another process undoes exactly the steps that the journal records.
//!
//! The format of the records and their replay are the code of the real journal
//! ([`usher_act::journal`]). This module models only the order in which records are written and
//! steps are undone (`act/src/mask.rs`, `acting.rs`, `release.rs`). In the backend of affinities
//! and signals, an action takes a number of steps in proportion to the threads of the program. Each
//! change of an affinity visits all threads of the program again (module `threads`): a seat or a
//! release takes quadratic time in the number of threads. In the backend of cgroups, an action is
//! one step. Every thread of the simulation represents a process of one thread. There are two
//! backends:
//!
//! - Cgroups: a seat or a freeze is one write to a cgroup. Removing the cgroup's directory undoes
//!   it.
//! - Affinities and signals: an action changes one thread after another, and can be interrupted
//!   after any of them.
//!
//! Limits: a journal above 64 KiB is rewritten at each further record. An undo ends after a given
//! number of steps, and leaves the rest to a later undo. Errors: an injected failure or death, a
//! seat without a CPU that a thread may use, and every demotion, because priorities are not
//! modelled. A failed action is not retried here.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use usher_act::journal::{
    CgroupPaths, Dir, DirKind, JournalState, ProgramState, Record, ThreadId, fold, line_of,
};
use usher_model::{Action, CpuSet, ProcessId, ProgramId};

use crate::engine::Engine;
use crate::threads::ThreadHandle;
use crate::world::NO_PRIORITIES;

/// Size of the journal in bytes above which it is rewritten with the minimal set of records.
const COMPACT_BYTES: usize = 1 << 16;

/// Mechanism by which the actuator gives seats to programs and stops them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Backend {
    /// A cgroup with a cpuset for each program.
    Cgroups,
    /// `sched_setaffinity` and `SIGSTOP` for each thread.
    Threads,
}

/// A fault that occurs after a number of steps of an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InjectedFault {
    /// The given number of consecutive steps fails.
    Fails(u32),
    /// The program is killed.
    ProgramDies,
    /// The daemon is killed. If the daemon is writing a record, only the given part of the record
    /// (in 256ths) reaches the journal.
    DaemonDies(u8),
}

/// Reason why an action was not completed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SimActError {
    /// The action failed, possibly half-way.
    Failed(String),
    /// The daemon is dead.
    Dead,
}

/// The actuator of one daemon, with its journal.
#[derive(Debug)]
pub struct SimActuator {
    backend: Backend,
    journal: Vec<u8>,
    state: JournalState,
    fault: Option<(u32, InjectedFault)>,
    dead: bool,
}

impl SimActuator {
    /// Creates an actuator with an empty journal.
    pub fn new(backend: Backend) -> Self {
        Self {
            backend,
            journal: Vec::new(),
            state: JournalState::default(),
            fault: None,
            dead: false,
        }
    }

    /// Injects a fault that occurs after `steps` further steps.
    pub fn inject(&mut self, steps: u32, trouble: InjectedFault) {
        self.fault = Some((steps, trouble));
    }

    /// Ends an action: clears an injected fault that has not occurred. A death of the daemon stays
    /// pending, because it can also occur between actions.
    pub fn clear_fault(&mut self) {
        self.fault
            .take_if(|(_, trouble)| !matches!(trouble, InjectedFault::DaemonDies(_)));
    }

    /// Returns whether the daemon has been killed or its death is pending.
    pub fn is_dying(&self) -> bool {
        self.dead || self.fault.is_some()
    }

    /// Returns whether the daemon has been killed.
    pub fn is_dead(&self) -> bool {
        self.dead
    }

    /// Returns the journal's content.
    pub fn into_journal(self) -> Vec<u8> {
        self.journal
    }

    /// Starts managing a program.
    ///
    /// # Errors
    /// The daemon died during the operation.
    pub fn admit(
        &mut self,
        engine: &mut Engine,
        id: ProgramId,
        job: usize,
    ) -> Result<(), SimActError> {
        let from = CgroupPaths::default();
        self.write(engine, job, Record::Begin { program: id, from })?;
        if self.backend == Backend::Cgroups {
            let dir = Dir {
                dir: format!("/sys/fs/cgroup/usher/{id}").into(),
                kind: DirKind::V2,
                wide: engine.machine().topology().all_cpus(),
            };
            self.write(engine, job, Record::Dir { program: id, dir })?;
        }
        Ok(())
    }

    /// Carries out an action on a program, which may have ended in the meantime.
    ///
    /// # Errors
    /// The action failed, possibly half-way, or the daemon died during it.
    pub fn act(
        &mut self,
        engine: &mut Engine,
        job: usize,
        action: &Action,
    ) -> Result<(), SimActError> {
        let id = action.program();
        match (self.backend, action) {
            (_, Action::Demote { .. }) => Err(SimActError::Failed(NO_PRIORITIES.to_owned())),
            (Backend::Cgroups, action) => {
                self.step(engine, job)?;
                match action {
                    Action::Seat { cpus, .. } => engine.seat(job, Some(cpus)),
                    Action::Release { .. } => engine.seat(job, None),
                    Action::Freeze { .. } => engine.freeze(job, true),
                    Action::Thaw { .. } => engine.freeze(job, false),
                    Action::Demote { .. } => {}
                }
                Ok(())
            }
            (Backend::Threads, Action::Seat { cpus, .. }) => self.narrow(engine, id, job, cpus),
            (Backend::Threads, Action::Release { .. }) => self.widen(engine, id, job),
            (Backend::Threads, Action::Freeze { .. }) => {
                let stopped = self.stop(engine, id, job);
                if matches!(stopped, Err(SimActError::Failed(_))) {
                    // Some threads may already be stopped. As in the real actuator, they are
                    // continued.
                    let _ = self.resume(engine, id, job);
                }
                stopped
            }
            (Backend::Threads, Action::Thaw { .. }) => self.resume(engine, id, job),
        }
    }

    /// Releases a program.
    ///
    /// # Errors
    /// The daemon died during the operation.
    pub fn depart(
        &mut self,
        engine: &mut Engine,
        id: ProgramId,
        job: usize,
    ) -> Result<(), SimActError> {
        if let Some(state) = self.state.programs.get(&id).cloned() {
            let mut undo = Undo { engine, left: None };
            // The undo returns `None` only if it reaches a step limit, and this undo has none.
            let _ = undo.program(&state, Some(job));
        }
        self.write(engine, job, Record::Close { program: id })
    }

    /// Returns the programs that the journal does not record as released.
    pub fn open_programs(&self) -> impl Iterator<Item = ProgramId> {
        self.state.programs.keys().copied()
    }

    // Steps.

    fn step(&mut self, engine: &mut Engine, job: usize) -> Result<(), SimActError> {
        if self.dead {
            return Err(SimActError::Dead);
        }
        match &mut self.fault {
            None => Ok(()),
            Some((steps, _)) if *steps > 0 => {
                *steps -= 1;
                Ok(())
            }
            Some((_, InjectedFault::Fails(more))) if *more > 0 => {
                *more -= 1;
                Err(SimActError::Failed(
                    "the simulated action failed halfway".to_owned(),
                ))
            }
            Some((_, InjectedFault::Fails(_))) => {
                self.fault = None;
                Ok(())
            }
            Some((_, InjectedFault::ProgramDies)) => {
                self.fault = None;
                engine.kill(job);
                Ok(())
            }
            Some((_, InjectedFault::DaemonDies(_))) => {
                self.dead = true;
                Err(SimActError::Dead)
            }
        }
    }

    fn write(
        &mut self,
        engine: &mut Engine,
        job: usize,
        record: Record,
    ) -> Result<(), SimActError> {
        let line = line_of(&record).map_err(|error| SimActError::Failed(error.to_string()))?;
        let lived = !self.dead;
        if let Err(error) = self.step(engine, job) {
            if let (true, Some((_, InjectedFault::DaemonDies(share)))) =
                (lived && self.dead, self.fault)
            {
                let torn = line.len() * usize::from(share) / 256;
                self.journal.extend(&line[..torn]);
            }
            return Err(error);
        }
        self.journal.extend(&line);
        self.state.apply(record);
        if self.journal.len() > COMPACT_BYTES {
            self.compact(engine);
        }
        Ok(())
    }

    /// Rewrites the journal with the minimal set of records, without threads that have ended.
    fn compact(&mut self, engine: &Engine) {
        for state in self.state.programs.values_mut() {
            state
                .threads
                .retain(|&thread, _| engine.affinity(name_of(thread)).is_some());
            state
                .stopped
                .retain(|&process| engine.affinity(name_of_process(process)).is_some());
        }
        let lines = self.state.records().into_iter();
        self.journal = lines
            .filter_map(|record| line_of(&record).ok())
            .flatten()
            .collect();
    }

    // Affinities, as in `act/src/mask.rs`.

    fn narrow(
        &mut self,
        engine: &mut Engine,
        id: ProgramId,
        job: usize,
        cpus: &CpuSet,
    ) -> Result<(), SimActError> {
        let mut to_set = Vec::new();
        let threads = engine.threads_of(job);
        let mut seated = threads.is_empty();
        for name in threads {
            let Some(current) = engine.affinity(name) else {
                continue;
            };
            let Some(before) = self.before(id, name, &current) else {
                continue;
            };
            let thread = id_of(name);
            if self
                .state
                .programs
                .get(&id)
                .is_some_and(|state| !state.threads.contains_key(&thread))
            {
                let before = before.clone();
                self.write(
                    engine,
                    job,
                    Record::Thread {
                        program: id,
                        thread,
                        before,
                    },
                )?;
            }
            let wanted = before.and(cpus);
            seated |= !wanted.is_empty();
            if !wanted.is_empty() && wanted != current {
                to_set.push((name, wanted));
            }
        }
        if !seated {
            return Err(SimActError::Failed(format!(
                "no thread of the program may use any of the CPUs {cpus}"
            )));
        }
        for (name, wanted) in to_set {
            let masks = self.state.programs.get(&id).map(|state| &state.masks);
            if masks.is_none_or(|masks| masks.last() != Some(&wanted)) {
                let cpus = wanted.clone();
                self.write(engine, job, Record::Mask { program: id, cpus })?;
            }
            self.step(engine, job)?;
            engine.set_affinity(name, &wanted);
        }
        Ok(())
    }

    /// Returns the affinity mask that a thread would have without Usher.
    fn before(&self, id: ProgramId, name: ThreadHandle, current: &CpuSet) -> Option<CpuSet> {
        let state = self.state.programs.get(&id)?;
        let ours = state.masks.contains(current);
        match state.threads.get(&id_of(name)) {
            Some(before) if ours || before == current => Some(before.clone()),
            Some(_) => None,
            None if ours => state.unbound.clone(),
            None => Some(current.clone()),
        }
    }

    fn widen(&mut self, engine: &mut Engine, id: ProgramId, job: usize) -> Result<(), SimActError> {
        let Some(state) = self.state.programs.get(&id).cloned() else {
            return Ok(());
        };
        for (name, before) in to_restore(engine, &state, job) {
            self.step(engine, job)?;
            engine.set_affinity(name, &before);
        }
        self.write(engine, job, Record::Unmask { program: id })
    }

    // Signals, as in `act/src/actuator/acting.rs`.

    fn stop(&mut self, engine: &mut Engine, id: ProgramId, job: usize) -> Result<(), SimActError> {
        for name in engine.threads_of(job) {
            if engine.is_signal_stopped(name) {
                continue;
            }
            let process = process_of(name);
            self.write(
                engine,
                job,
                Record::Stop {
                    program: id,
                    process,
                },
            )?;
            self.step(engine, job)?;
            engine.set_signal_stopped(name, true);
        }
        Ok(())
    }

    fn resume(
        &mut self,
        engine: &mut Engine,
        id: ProgramId,
        job: usize,
    ) -> Result<(), SimActError> {
        let state = self.state.programs.get(&id);
        let stopped: Vec<ProcessId> = state
            .iter()
            .flat_map(|state| state.stopped.iter().copied())
            .collect();
        let mut result = Ok(());
        for process in stopped {
            match self.step(engine, job) {
                Ok(()) => engine.set_signal_stopped(name_of_process(process), false),
                Err(SimActError::Dead) => return Err(SimActError::Dead),
                failed => result = failed,
            }
        }
        result?;
        self.write(engine, job, Record::Continue { program: id })
    }
}

/// Undoes the steps that the journal of a dead daemon records, for all programs or for the program
/// `only`. After `steps_max` steps, the undoing process dies, too. Returns true if nothing is left
/// to undo. `jobs` are the programs that still run.
pub fn undo(
    journal: &[u8],
    engine: &mut Engine,
    jobs: &BTreeMap<ProgramId, usize>,
    only: Option<ProgramId>,
    steps_max: Option<u32>,
) -> bool {
    // An incomplete record at the end belongs to a step that was not taken, even if a newline was
    // added to it later. fold() ignores such a record.
    let (state, _) = fold(journal);
    let mut undo = Undo {
        engine,
        left: steps_max,
    };
    let wanted = |id: &ProgramId| only.is_none_or(|only| only == *id);
    let mut programs = state.programs.iter().filter(|(id, _)| wanted(id));
    programs.all(|(id, state)| undo.program(state, jobs.get(id).copied()).is_some())
}

/// Records in a dead daemon's journal that a program has been released.
pub fn close(journal: &mut Vec<u8>, program: ProgramId) {
    // The last record may be incomplete. A newline separates it from the next record.
    journal.push(b'\n');
    journal.extend(line_of(&Record::Close { program }).unwrap_or_default());
}

struct Undo<'a> {
    engine: &'a mut Engine,
    left: Option<u32>,
}

impl Undo<'_> {
    fn step(&mut self) -> Option<()> {
        match &mut self.left {
            Some(0) => None,
            Some(left) => {
                *left -= 1;
                Some(())
            }
            None => Some(()),
        }
    }

    /// Thaws a program, removes its seat, continues its stopped threads and restores their masks.
    /// Returns `None` if the undoing process dies before the end.
    fn program(&mut self, state: &ProgramState, job: Option<usize>) -> Option<()> {
        if let Some(job) = job.filter(|_| !state.dirs.is_empty()) {
            self.step()?;
            self.engine.freeze(job, false);
            self.step()?;
            self.engine.seat(job, None);
        }
        for &process in &state.stopped {
            self.step()?;
            self.engine
                .set_signal_stopped(name_of_process(process), false);
        }
        let Some(job) = job else {
            return Some(());
        };
        for (name, before) in to_restore(self.engine, state, job) {
            self.step()?;
            self.engine.set_affinity(name, &before);
        }
        Some(())
    }
}

/// Returns the threads that have a mask set by Usher, each with its original mask.
fn to_restore(engine: &Engine, state: &ProgramState, job: usize) -> Vec<(ThreadHandle, CpuSet)> {
    let threads = engine.threads_of(job).into_iter();
    let restored = threads.filter_map(|name| {
        let current = engine.affinity(name)?;
        let known = state.threads.get(&id_of(name));
        let before = known.or(state.unbound.as_ref())?;
        (state.masks.contains(&current) && *before != current).then(|| (name, before.clone()))
    });
    restored.collect()
}

fn id_of(name: ThreadHandle) -> ThreadId {
    ThreadId {
        pid: name.number as i32,
        tid: name.number as i32,
        start_ticks: name.generation,
    }
}

fn name_of(thread: ThreadId) -> ThreadHandle {
    ThreadHandle {
        number: thread.tid as usize,
        generation: thread.start_ticks,
    }
}

fn process_of(name: ThreadHandle) -> ProcessId {
    ProcessId {
        pid: name.number as i32,
        start_ticks: name.generation,
    }
}

fn name_of_process(process: ProcessId) -> ThreadHandle {
    ThreadHandle {
        number: process.pid as usize,
        generation: process.start_ticks,
    }
}
