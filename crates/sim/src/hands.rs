// SPDX-License-Identifier: MIT OR Apache-2.0
//! Hands on the simulated machine that work as the real ones do (crate `act`):
//! each action is taken in small steps, each with its line in a journal first,
//! and whoever outlives the daemon undoes what the journal says and nothing
//! else.
//!
//! The lines and what they amount to are the real journal's
//! ([`usher_act::journal`]); what is modelled here is the order in which they
//! are written and taken back (`act/src/mask.rs`, `acting.rs`, `release.rs`).
//! Every thread of the simulation stands for a process of one thread. Two
//! backends: one with cgroups, where a seat or a freeze is one write that is
//! undone with the directory; one with affinities and signals, thread by
//! thread, which can stop half-way anywhere.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use usher_act::journal::{
    Dir, DirKind, Places, ProgramState, Record, State, ThreadId, fold, line_of,
};
use usher_model::{Action, CpuSet, ProcessId, ProgramId};

use crate::engine::Engine;
use crate::threads::ThreadName;
use crate::world::NO_PRIORITIES;

/// A journal is rewritten with the fewest lines when it has grown to this.
const COMPACT_BYTES: usize = 1 << 16;

/// How programs are narrowed and stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Backend {
    /// A cgroup with a cpuset for each program.
    Cgroups,
    /// `sched_setaffinity` and `SIGSTOP` for each thread.
    Threads,
}

/// What befalls whom, some steps into an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// So many steps running fail.
    Fails(u32),
    /// The program is killed.
    ProgramDies,
    /// The daemon is killed; of the line that it was writing, if it was, this
    /// share stands, in 256ths.
    Dies(u8),
}

/// Why an action was not carried out to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop {
    /// It failed, perhaps half-way.
    Failed(String),
    /// Whoever acted is dead.
    Dead,
}

/// One daemon's hands and its journal.
#[derive(Debug)]
pub struct Hands {
    backend: Backend,
    journal: Vec<u8>,
    state: State,
    fuse: Option<(u32, Trouble)>,
    dead: bool,
}

impl Hands {
    /// Hands that have done nothing.
    pub fn new(backend: Backend) -> Self {
        Self {
            backend,
            journal: Vec::new(),
            state: State::default(),
            fuse: None,
            dead: false,
        }
    }

    /// Trouble comes after so many steps from now.
    pub fn light(&mut self, steps: u32, trouble: Trouble) {
        self.fuse = Some((steps, trouble));
    }

    /// An action is over: trouble that has not come over it does not come, but
    /// for death, which comes between two as well.
    pub fn put_out(&mut self) {
        self.fuse
            .take_if(|(_, trouble)| !matches!(trouble, Trouble::Dies(_)));
    }

    /// Whether the daemon has been killed, or will be some steps on.
    pub fn is_dying(&self) -> bool {
        self.dead || self.fuse.is_some()
    }

    /// Whether the daemon has been killed.
    pub fn is_dead(&self) -> bool {
        self.dead
    }

    /// What stands in the journal.
    pub fn into_journal(self) -> Vec<u8> {
        self.journal
    }

    /// Takes a program in.
    ///
    /// # Errors
    /// The daemon died over it.
    pub fn admit(&mut self, engine: &mut Engine, id: ProgramId, job: usize) -> Result<(), Stop> {
        let from = Places::default();
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

    /// Carries out an action, on a program that may have gone meanwhile.
    ///
    /// # Errors
    /// It failed, perhaps half-way; or the daemon died over it.
    pub fn act(&mut self, engine: &mut Engine, job: usize, action: &Action) -> Result<(), Stop> {
        let id = action.program();
        match (self.backend, action) {
            (_, Action::Demote { .. }) => Err(Stop::Failed(NO_PRIORITIES.to_owned())),
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
                if matches!(stopped, Err(Stop::Failed(_))) {
                    // As the real one: some may stand.
                    let _ = self.go_on(engine, id, job);
                }
                stopped
            }
            (Backend::Threads, Action::Thaw { .. }) => self.go_on(engine, id, job),
        }
    }

    /// Lets a program go in good order.
    ///
    /// # Errors
    /// The daemon died over it.
    pub fn depart(&mut self, engine: &mut Engine, id: ProgramId, job: usize) -> Result<(), Stop> {
        if let Some(state) = self.state.programs.get(&id).cloned() {
            let mut undo = Undo { engine, left: None };
            // Nothing stops an undo without a limit.
            let _ = undo.program(&state, Some(job));
        }
        self.write(engine, job, Record::Close { program: id })
    }

    /// Programs that the journal says are not let go.
    pub fn held(&self) -> impl Iterator<Item = ProgramId> {
        self.state.programs.keys().copied()
    }

    // Steps.

    fn step(&mut self, engine: &mut Engine, job: usize) -> Result<(), Stop> {
        if self.dead {
            return Err(Stop::Dead);
        }
        match &mut self.fuse {
            None => Ok(()),
            Some((steps, _)) if *steps > 0 => {
                *steps -= 1;
                Ok(())
            }
            Some((_, Trouble::Fails(more))) if *more > 0 => {
                *more -= 1;
                Err(Stop::Failed("it failed half-way".to_owned()))
            }
            Some((_, Trouble::Fails(_))) => {
                self.fuse = None;
                Ok(())
            }
            Some((_, Trouble::ProgramDies)) => {
                self.fuse = None;
                engine.kill(job);
                Ok(())
            }
            Some((_, Trouble::Dies(_))) => {
                self.dead = true;
                Err(Stop::Dead)
            }
        }
    }

    fn write(&mut self, engine: &mut Engine, job: usize, record: Record) -> Result<(), Stop> {
        let line = line_of(&record).map_err(|error| Stop::Failed(error.to_string()))?;
        let lived = !self.dead;
        if let Err(stop) = self.step(engine, job) {
            if let (true, Some((_, Trouble::Dies(share)))) = (lived && self.dead, self.fuse) {
                let torn = line.len() * usize::from(share) / 256;
                self.journal.extend(&line[..torn]);
            }
            return Err(stop);
        }
        self.journal.extend(&line);
        self.state.apply(record);
        if self.journal.len() > COMPACT_BYTES {
            self.compact(engine);
        }
        Ok(())
    }

    /// Rewrites the journal with the fewest lines, less what is gone.
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
    ) -> Result<(), Stop> {
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
            return Err(Stop::Failed(format!("no thread may use any of {cpus}")));
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

    /// The mask that a thread would have without us.
    fn before(&self, id: ProgramId, name: ThreadName, current: &CpuSet) -> Option<CpuSet> {
        let state = self.state.programs.get(&id)?;
        let ours = state.masks.contains(current);
        match state.threads.get(&id_of(name)) {
            Some(before) if ours || before == current => Some(before.clone()),
            Some(_) => None,
            None if ours => state.unbound.clone(),
            None => Some(current.clone()),
        }
    }

    fn widen(&mut self, engine: &mut Engine, id: ProgramId, job: usize) -> Result<(), Stop> {
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

    fn stop(&mut self, engine: &mut Engine, id: ProgramId, job: usize) -> Result<(), Stop> {
        for name in engine.threads_of(job) {
            if engine.is_held(name) {
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
            engine.hold(name, true);
        }
        Ok(())
    }

    fn go_on(&mut self, engine: &mut Engine, id: ProgramId, job: usize) -> Result<(), Stop> {
        let state = self.state.programs.get(&id);
        let stopped: Vec<ProcessId> = state
            .iter()
            .flat_map(|state| state.stopped.iter().copied())
            .collect();
        let mut result = Ok(());
        for process in stopped {
            match self.step(engine, job) {
                Ok(()) => engine.hold(name_of_process(process), false),
                Err(Stop::Dead) => return Err(Stop::Dead),
                failed => result = failed,
            }
        }
        result?;
        self.write(engine, job, Record::Continue { program: id })
    }
}

/// Takes back what a dead daemon's journal says, of all programs or of one; at
/// most so many steps, where the undoer dies too. True when nothing is left.
/// `jobs` are the programs that still live.
pub fn undo(
    journal: &[u8],
    engine: &mut Engine,
    jobs: &BTreeMap<ProgramId, usize>,
    only: Option<ProgramId>,
    steps_max: Option<u32>,
) -> bool {
    // A line that was torn and has got an end since spoke of nothing done.
    let (state, _) = fold(journal);
    let mut undo = Undo {
        engine,
        left: steps_max,
    };
    let wanted = |id: &ProgramId| only.is_none_or(|only| only == *id);
    let mut programs = state.programs.iter().filter(|(id, _)| wanted(id));
    programs.all(|(id, state)| undo.program(state, jobs.get(id).copied()).is_some())
}

/// Notes in a dead daemon's journal that a program is done with.
pub fn close(journal: &mut Vec<u8>, program: ProgramId) {
    // The last line may be torn.
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

    /// Thaws, widens, continues and gives masks back; `None` when the undoer
    /// has died over it.
    fn program(&mut self, state: &ProgramState, job: Option<usize>) -> Option<()> {
        if let Some(job) = job.filter(|_| !state.dirs.is_empty()) {
            self.step()?;
            self.engine.freeze(job, false);
            self.step()?;
            self.engine.seat(job, None);
        }
        for &process in &state.stopped {
            self.step()?;
            self.engine.hold(name_of_process(process), false);
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

/// Threads that have one of our masks, each with the one that it had before.
fn to_restore(engine: &Engine, state: &ProgramState, job: usize) -> Vec<(ThreadName, CpuSet)> {
    let threads = engine.threads_of(job).into_iter();
    let restored = threads.filter_map(|name| {
        let current = engine.affinity(name)?;
        let known = state.threads.get(&id_of(name));
        let before = known.or(state.unbound.as_ref())?;
        (state.masks.contains(&current) && *before != current).then(|| (name, before.clone()))
    });
    restored.collect()
}

fn id_of(name: ThreadName) -> ThreadId {
    ThreadId {
        pid: name.number as i32,
        tid: name.number as i32,
        start_ticks: name.born,
    }
}

fn name_of(thread: ThreadId) -> ThreadName {
    ThreadName {
        number: thread.tid as usize,
        born: thread.start_ticks,
    }
}

fn process_of(name: ThreadName) -> ProcessId {
    ProcessId {
        pid: name.number as i32,
        start_ticks: name.born,
    }
}

fn name_of_process(process: ProcessId) -> ThreadName {
    ThreadName {
        number: process.pid as usize,
        born: process.start_ticks,
    }
}
