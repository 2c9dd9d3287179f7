// SPDX-License-Identifier: MIT OR Apache-2.0
//! Simulates the chip: cores take tasks from a dispatcher, and execute the memory accesses of the
//! tasks in the order of time.
//!
//! Algorithm: repeatedly advance the core with the earliest event.
//!
//! 1. A core is waiting for the dispatcher's lock, about to access data, about to fetch
//!    instructions that missed its cache, running towards one of these points, or halted.
//! 2. Events are ordered by time, then by time of arrival at the lock, then by core number. A run
//!    is therefore deterministic. Events are all accesses to shared resources (lock, second-level
//!    cache, memory) and all data accesses, because a write invalidates the line in the caches of
//!    other cores.
//! 3. Instructions are never written. A core may therefore advance beyond the events of other cores
//!    while its instructions hit its cache.
//!
//! Dispatching: at the end of its task, a core waits for the lock. While it holds the lock, it
//! marks the successors of the task that are now ready, and takes the next task. The rest of the
//! cost of a dispatch follows outside the lock. If there is no ready task, the core halts. When a
//! core has ended a task and taken its next task, it wakes one halted core for each task that is
//! still ready.
//!
//! Cost of a step of the simulation: proportional to the number of cores. A run ends with the error
//! `Stuck` if all cores have halted and tasks are left.

use usher_cache::GeometryError;
use usher_tasks::dispatch::{Dispatcher, Groups};

use crate::graph::{AccessKind, Dependencies, TaskAccess, TaskGraph, TaskGraphError};
use crate::memory::{Caches, Memory, MemoryAccess, MissModel, Timing};
use crate::tally::{CycleTotals, RunResult, TaskExecution};

/// Parameters of a chip: cores, caches, latencies and the cost of scheduling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chip {
    /// Number of cores.
    pub cores: usize,
    /// Sizes of the caches.
    pub caches: Caches,
    /// Latencies of caches and memory.
    pub timing: Timing,
    /// Cost model of misses: constant costs, or accesses that queue for shared resources.
    pub mode: MissModel,
    /// Cycles that a dispatch takes on the core that gets the task.
    pub dispatch_cycles: u64,
    /// Part of `dispatch_cycles` during which the core holds the dispatcher's lock.
    pub locked_cycles: u64,
}

/// Error: the chip is invalid, or the chip cannot run the graph.
#[derive(Debug, thiserror::Error)]
pub enum ChipError {
    /// The geometry of a cache is invalid.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// The task graph is invalid.
    #[error(transparent)]
    Graph(#[from] TaskGraphError),
    /// The chip has no cores.
    #[error("the simulated chip must have at least one core")]
    NoCores,
    /// The number of groups differs from the number of tasks.
    #[error("the order has groups for {groups} tasks, but the graph has {tasks} tasks")]
    Groups {
        /// Number of tasks.
        tasks: usize,
        /// Number of groups.
        groups: usize,
    },
    /// The tasks access more memory than the simulated machine was created for.
    #[error("the tasks of the graph touch {needs} bytes, but the machine has only {has} bytes")]
    Memory {
        /// Bytes that the tasks access.
        needs: u64,
        /// Bytes of memory of the simulated machine.
        has: u64,
    },
    /// All cores halted although the dispatcher had not released all tasks.
    #[error("{left} of {tasks} tasks were never dispatched")]
    Stuck {
        /// Number of tasks that did not run.
        left: usize,
        /// Number of all tasks.
        tasks: usize,
    },
}

/// A task graph with its dependencies, and the groups that a pattern assigns to the tasks.
#[derive(Debug, Clone, Copy)]
pub struct GroupedGraph<'a> {
    /// The tasks with their accesses.
    pub graph: &'a TaskGraph,
    /// The dependencies between the tasks.
    pub order: &'a Dependencies,
    /// Groups of each task.
    pub groups: &'a [Groups],
}

/// Position of a core within the accesses of its task.
#[derive(Debug, Clone, Copy, Default)]
struct Cursor {
    task: u32,
    access: usize,
    row: u32,
    at: u64,
    end: u64,
}

impl Cursor {
    fn next(
        &mut self,
        accesses: &[TaskAccess],
        private_base: u64,
        line: u64,
    ) -> Option<MemoryAccess> {
        let mut cycles = 0;
        loop {
            let access = accesses.get(self.access)?;
            if self.at < self.end {
                let address = self.at;
                self.at = self.end.min((address / line + 1) * line);
                return Some(MemoryAccess {
                    kind: access.kind,
                    address,
                    bytes: self.at - address,
                    shared: !access.private,
                    cycles,
                });
            }
            if self.row < access.rows.max(1) {
                if self.row == 0 {
                    cycles += u64::from(access.cycles);
                }
                let base = if access.private { private_base } else { 0 };
                self.at = base + access.address + u64::from(self.row) * u64::from(access.stride);
                self.end = self.at + u64::from(access.bytes);
                self.row += 1;
                if access.bytes == 0 {
                    let (kind, address) = (access.kind, self.at);
                    return Some(MemoryAccess {
                        kind,
                        address,
                        bytes: 0,
                        shared: false,
                        cycles,
                    });
                }
            } else {
                (self.access, self.row) = (self.access + 1, 0);
            }
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// The core waits for the lock since the time `requested_at`. `ended` is the task that the core
    /// has completed; `None` after a halt.
    Lock {
        requested_at: u64,
        ended: Option<u32>,
    },
    /// The core runs towards its next event.
    Running,
    /// The core is about to access data, or to fetch instructions that missed its cache.
    Due(MemoryAccess),
    /// The core is halted until another core wakes it.
    Halted,
}

#[derive(Debug, Clone)]
struct Core {
    time: u64,
    state: State,
    cursor: Cursor,
    private_base: u64,
}

/// A simulated chip. The content of its caches persists between runs.
#[derive(Debug, Clone)]
pub struct ChipMachine {
    chip: Chip,
    memory: Memory,
    cores: Vec<Core>,
    lock_free: u64,
    memory_bytes: (u64, u64),
}

/// State and counters of one run.
struct Progress<'a> {
    work: GroupedGraph<'a>,
    dispatcher: &'a mut dyn Dispatcher<u32>,
    waits: Vec<u32>,
    left: usize,
    spans: Vec<TaskExecution>,
    tally: CycleTotals,
}

impl ChipMachine {
    /// Creates a chip with empty caches, for graphs that access at most `shared` bytes of shared
    /// memory and `private` bytes of private memory per core.
    ///
    /// # Errors
    /// The chip has no cores, or a cache geometry is invalid.
    pub fn new(chip: &Chip, (shared, private): (u64, u64)) -> Result<Self, ChipError> {
        if chip.cores == 0 {
            return Err(ChipError::NoCores);
        }
        let line = chip.caches.l2_line_bytes.max(1) as u64;
        let shared_end = shared.next_multiple_of(line);
        // Each core's private memory is one line longer than needed, so that the private memories
        // of the cores start in different cache sets.
        let private_step = private.next_multiple_of(line) + line;
        let bytes = shared_end + private_step * chip.cores as u64;
        let memory = Memory::new(&chip.caches, chip.cores, bytes, chip.timing, chip.mode)?;
        let core = |number: usize| Core {
            time: 0,
            state: State::Halted,
            cursor: Cursor::default(),
            private_base: shared_end + private_step * number as u64,
        };
        Ok(Self {
            chip: *chip,
            memory,
            cores: (0..chip.cores).map(core).collect(),
            lock_free: 0,
            memory_bytes: (shared, private),
        })
    }

    /// Runs all tasks of a graph to their end.
    ///
    /// # Errors
    /// The graph does not fit the machine, or the dispatcher does not release all tasks.
    pub fn run(
        &mut self,
        work: GroupedGraph<'_>,
        dispatcher: &mut dyn Dispatcher<u32>,
    ) -> Result<RunResult, ChipError> {
        self.check(&work)?;
        let tasks = work.graph.tasks.len();
        let mut progress = Progress {
            work,
            dispatcher,
            waits: work.order.waits.clone(),
            left: tasks,
            spans: vec![TaskExecution::default(); tasks],
            tally: CycleTotals::default(),
        };
        for (task, _) in work
            .order
            .waits
            .iter()
            .enumerate()
            .filter(|(_, waits)| **waits == 0)
        {
            progress.dispatcher.ready(task as u32, work.groups[task]);
        }
        let began = self.now();
        let counted = self.memory.counts;
        for core in &mut self.cores {
            core.time = began;
            core.state = State::Lock {
                requested_at: began,
                ended: None,
            };
        }
        while let Some((core, horizon)) = self.first() {
            match self.cores[core].state {
                State::Lock {
                    requested_at,
                    ended,
                } => self.at_lock(core, requested_at, ended, &mut progress),
                State::Due(touch) => {
                    self.serve(core, &touch, &mut progress.tally);
                    self.advance(core, horizon, &mut progress);
                }
                State::Running => self.advance(core, horizon, &mut progress),
                State::Halted => {}
            }
        }
        if progress.left > 0 {
            let left = progress.left;
            return Err(ChipError::Stuck { left, tasks });
        }
        let ended = self.now();
        let mut tally = progress.tally;
        tally.idle += self.cores.iter().map(|core| ended - core.time).sum::<u64>();
        tally.cycles = ended - began;
        tally.tasks = tasks as u64;
        tally.counts = self.memory.counts.since(&counted);
        Ok(RunResult {
            tally,
            spans: progress.spans,
        })
    }

    fn check(&self, work: &GroupedGraph<'_>) -> Result<(), ChipError> {
        let (shared, private) = work.graph.extent()?;
        for (needs, has) in [
            (shared, self.memory_bytes.0),
            (private, self.memory_bytes.1),
        ] {
            if needs > has {
                return Err(ChipError::Memory { needs, has });
            }
        }
        let (tasks, groups) = (work.graph.tasks.len(), work.groups.len());
        match tasks == groups && tasks == work.order.waits.len() {
            true => Ok(()),
            false => Err(ChipError::Groups { tasks, groups }),
        }
    }

    /// Returns the latest time that a core has reached.
    fn now(&self) -> u64 {
        self.cores.iter().map(|core| core.time).max().unwrap_or(0)
    }

    /// Returns the core with the earliest event, and the time of the earliest event of all other
    /// cores.
    fn first(&self) -> Option<(usize, u64)> {
        let key = |number: usize, core: &Core| match core.state {
            State::Halted => None,
            State::Lock { requested_at, .. } => Some((core.time, requested_at, number)),
            _ => Some((core.time, core.time, number)),
        };
        let mut first: Option<(u64, u64, usize)> = None;
        let mut second = u64::MAX;
        for (number, core) in self.cores.iter().enumerate() {
            let Some(this) = key(number, core) else {
                continue;
            };
            match first {
                Some(before) if before <= this => second = second.min(this.0),
                Some((time, _, _)) => {
                    second = second.min(time);
                    first = Some(this);
                }
                None => first = Some(this),
            }
        }
        first.map(|(_, _, number)| (number, second))
    }

    fn at_lock(
        &mut self,
        number: usize,
        requested_at: u64,
        ended: Option<u32>,
        progress: &mut Progress<'_>,
    ) {
        let core = &mut self.cores[number];
        if self.lock_free > core.time {
            progress.tally.lock_wait += self.lock_free - core.time;
            core.time = self.lock_free;
            core.state = State::Lock {
                requested_at,
                ended,
            };
            return;
        }
        if let Some(task) = ended {
            progress.resolve(task);
        }
        let next = progress.dispatcher.next(number);
        core.time += self.chip.locked_cycles;
        self.lock_free = core.time;
        progress.tally.scheduling += self.chip.locked_cycles;
        match next {
            Some(dispatch) => {
                let outside = self
                    .chip
                    .dispatch_cycles
                    .saturating_sub(self.chip.locked_cycles);
                core.time += outside;
                progress.tally.scheduling += outside;
                let spec = &progress.work.graph.tasks[dispatch.item as usize];
                let span = &mut progress.spans[dispatch.item as usize];
                (span.core, span.from) = (number, core.time);
                span.times += 1;
                core.time += u64::from(spec.cycles);
                progress.tally.compute += u64::from(spec.cycles);
                core.cursor = Cursor {
                    task: dispatch.item,
                    ..Cursor::default()
                };
                core.state = State::Running;
            }
            None => core.state = State::Halted,
        }
        if ended.is_some() {
            self.wake(number, progress);
        }
    }

    /// Wakes one halted core for each ready task; the woken cores wait for the lock.
    fn wake(&mut self, by: usize, progress: &mut Progress<'_>) {
        let mut count = progress.dispatcher.len();
        for (number, core) in self.cores.iter_mut().enumerate() {
            if count > 0 && number != by && matches!(core.state, State::Halted) {
                count -= 1;
                progress.tally.idle += self.lock_free - core.time;
                core.time = self.lock_free;
                core.state = State::Lock {
                    requested_at: core.time,
                    ended: None,
                };
            }
        }
    }

    /// Advances a core through its task until its next event is at `horizon` or later, or until the
    /// task ends.
    fn advance(&mut self, number: usize, horizon: u64, progress: &mut Progress<'_>) {
        let line = self.memory.l1_line_bytes();
        let graph = progress.work.graph;
        let task = self.cores[number].cursor.task;
        let accesses = &graph.tasks[task as usize].accesses;
        loop {
            let core = &mut self.cores[number];
            let Some(touch) = core.cursor.next(accesses, core.private_base, line) else {
                break;
            };
            core.time += touch.cycles;
            progress.tally.compute += touch.cycles;
            let is_present = match touch.kind {
                _ if touch.bytes == 0 => true,
                AccessKind::Fetch => self.memory.touch(number, &touch),
                AccessKind::Load | AccessKind::Store => false,
            };
            if is_present {
                continue;
            }
            if core.time >= horizon {
                core.state = State::Due(touch);
                return;
            }
            self.serve(number, &touch, &mut progress.tally);
        }
        let core = &mut self.cores[number];
        progress.spans[task as usize].to = core.time;
        core.state = State::Lock {
            requested_at: core.time,
            ended: Some(task),
        };
    }

    /// Executes an access that is due. After a miss, fetches the line and adds the stall to the
    /// core's time.
    fn serve(&mut self, number: usize, touch: &MemoryAccess, tally: &mut CycleTotals) {
        let core = &mut self.cores[number];
        if touch.kind != AccessKind::Fetch && self.memory.touch(number, touch) {
            return;
        }
        let stall = self
            .memory
            .fill(number, touch.kind, touch.address, core.time);
        core.time += stall;
        tally.stalled += stall;
    }
}

impl Progress<'_> {
    /// Passes the tasks that waited only for `task` to the dispatcher as ready.
    fn resolve(&mut self, task: u32) {
        self.left -= 1;
        for &after in self.work.order.successors(task) {
            let waits = &mut self.waits[after as usize];
            *waits -= 1;
            if *waits == 0 {
                self.dispatcher
                    .ready(after, self.work.groups[after as usize]);
            }
        }
    }
}
