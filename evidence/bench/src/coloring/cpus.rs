// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs a workload under a scheduler like that of Linux 2.4 on this machine. Each thread represents
//! a CPU of the emulated machine.
//!
//! Each thread repeats these steps until the time or the number of operations is reached:
//!
//! 1. Without a task, or when the running task's time slice (quantum) ends, call the scheduler: it
//!    walks the list of all runnable tasks under a common spin lock and selects the task with the
//!    highest goodness.
//! 2. Execute an operation of the task: it sends or receives a message, and writes and reads
//!    memory.
//! 3. Wake the tasks that the operation made runnable, under the lock.
//!
//! The code of the tasks' steps and of the decisions is that of the simulation (`usher_coloring`).
//! Memory, caches and lock contention are those of this machine. Limit: the kernel schedules the
//! threads, and other load on the machine disturbs the result.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use usher_coloring::kernel::{self, Field, RUNNING, SLEEPING, Structures};
use usher_coloring::machine::{Colors, WorkloadKind};
use usher_coloring::workload::{OperationResult, Workload};

use super::lock::{LockStats, SpinLock};
use super::region::{Pages, Region, View, walk_queue};
use super::work::{OperationState, TaskMemory};

/// Period of the timer tick.
const TICK_NS: u64 = 10_000_000;

/// End condition of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum EndCondition {
    /// The run ends after two periods, of which only the second period is counted.
    Time(Duration, Duration),
    /// The run ends after this number of operations.
    Operations(u64),
}

/// Settings of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RunPlan {
    /// The workload.
    pub load: WorkloadKind,
    /// Positions of the task structures in their blocks.
    pub colors: Colors,
    /// Page size.
    pub pages: Pages,
    /// Number of threads, each of which stands for a CPU.
    pub cpus: usize,
    /// End of the run.
    pub until: EndCondition,
    /// Iterations of the arithmetic loop in each operation.
    pub turns: u64,
    /// Seed of the initial order of the run queue and of the tasks' initial CPUs.
    pub seed: u64,
}

/// Results of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct RunTotals {
    /// Measured wall time in seconds.
    pub seconds: f64,
    /// Messages or requests completed since the start.
    pub completed: u64,
    /// Operations done.
    pub operations: u64,
    /// Calls of the scheduler.
    pub decisions: u64,
    /// Task structures that walks of the run queue visited.
    pub visits: u64,
    /// Use of the run-queue lock, summed over all CPUs.
    pub lock: LockStats,
}

impl RunTotals {
    fn and(self, other: Self) -> Self {
        Self {
            seconds: self.seconds.max(other.seconds),
            completed: self.completed.max(other.completed),
            operations: self.operations + other.operations,
            decisions: self.decisions + other.decisions,
            visits: self.visits + other.visits,
            lock: self.lock.and(other.lock),
        }
    }
}

/// State that all CPUs share.
struct Machine<'a> {
    workload: &'a dyn Workload,
    view: View<'a>,
    /// Position of each task's structure, in the order of the tasks.
    places: &'a [u32],
    own: &'a [TaskMemory],
    lock: SpinLock,
    /// The task that runs on each CPU; 0 if it is idle.
    running: Vec<AtomicU32>,
    /// Idle CPUs that were notified of work.
    notified: Vec<AtomicBool>,
    stop: AtomicBool,
    operations: AtomicU64,
    start: Instant,
    plan: RunPlan,
}

/// Runs a workload.
pub fn run(plan: &RunPlan) -> Result<RunTotals> {
    let workload = plan.load.workload();
    let tasks = workload.tasks();
    let region = Region::new(tasks, plan.pages)?;
    let places = region.places(tasks, plan.colors)?;
    let mut view = View::new(&region, &places);
    view.fill(Some(workload.as_ref()), plan.cpus, plan.seed);
    let own: Vec<TaskMemory> = (0..tasks).map(|_| TaskMemory::default()).collect();
    let machine = Machine {
        workload: workload.as_ref(),
        view,
        places: &places,
        own: &own,
        lock: SpinLock::default(),
        running: (0..plan.cpus).map(|_| AtomicU32::new(0)).collect(),
        notified: (0..plan.cpus).map(|_| AtomicBool::new(true)).collect(),
        stop: AtomicBool::new(false),
        operations: AtomicU64::new(0),
        start: Instant::now(),
        plan: *plan,
    };
    let tallies = std::thread::scope(|scope| {
        let cpu = |number| Cpu::new(&machine, number).run();
        let others: Vec<_> = (1..plan.cpus)
            .map(|n| scope.spawn(move || cpu(n)))
            .collect();
        let first = cpu(0);
        let mut all = vec![Some(first)];
        all.extend(others.into_iter().map(|other| other.join().ok()));
        all.into_iter().collect::<Option<Vec<_>>>()
    });
    let tallies = tallies.context("a thread of the workload panicked")?;
    let mut all = tallies
        .into_iter()
        .fold(RunTotals::default(), RunTotals::and);
    all.completed = workload.completed();
    Ok(all)
}

/// A CPU.
struct Cpu<'a> {
    machine: &'a Machine<'a>,
    view: View<'a>,
    number: usize,
    current: Option<u32>,
    to_wake: Vec<usize>,
    next_tick_ns: u64,
    work: OperationState,
    /// Start of the counted period, in nanoseconds since the start of the run.
    counts_from_ns: u64,
    tally: RunTotals,
}

impl<'a> Cpu<'a> {
    fn new(machine: &'a Machine<'a>, number: usize) -> Self {
        Self {
            machine,
            view: machine.view,
            number,
            current: None,
            to_wake: vec![],
            next_tick_ns: TICK_NS,
            work: OperationState::new(number as u64, machine.plan.turns),
            counts_from_ns: 0,
            tally: RunTotals::default(),
        }
    }

    fn run(mut self) -> RunTotals {
        let warm_ns = match self.machine.plan.until {
            EndCondition::Time(warm, _) => warm.as_nanos() as u64,
            EndCondition::Operations(_) => 0,
        };
        loop {
            let now_ns = self.machine.start.elapsed().as_nanos() as u64;
            if self.ends(now_ns) {
                break;
            }
            if self.counts_from_ns == 0 && now_ns >= warm_ns {
                self.counts_from_ns = now_ns;
                self.tally = RunTotals::default();
            }
            self.machine.workload.arrivals(now_ns, &mut self.to_wake);
            while let Some(task) = self.to_wake.pop() {
                self.wake(self.machine.places[task]);
            }
            match self.current {
                None => self.schedule(),
                Some(task) => self.continue_task(task, now_ns),
            }
        }
        let end_ns = self.machine.start.elapsed().as_nanos() as u64;
        self.tally.seconds = (end_ns - self.counts_from_ns) as f64 / 1e9;
        self.tally
    }

    fn ends(&self, now_ns: u64) -> bool {
        let over = match self.machine.plan.until {
            EndCondition::Time(warm, time) => u128::from(now_ns) >= (warm + time).as_nanos(),
            EndCondition::Operations(count) => self.machine.operations.load(Relaxed) >= count,
        };
        if over {
            self.machine.stop.store(true, Relaxed);
        }
        self.machine.stop.load(Relaxed)
    }

    fn continue_task(&mut self, task: u32, now_ns: u64) {
        while self.next_tick_ns <= now_ns {
            self.next_tick_ns += TICK_NS;
            kernel::tick(&mut self.view, task);
        }
        if self.view.read(task, Field::NeedResched) != 0 {
            return self.schedule();
        }
        // The task's state becomes SLEEPING before `step` tests the wait condition. A waker that
        // finds the task registered as waiting writes RUNNING after that, and its wake-up is not
        // lost.
        self.view.write(task, Field::State, SLEEPING);
        let place = self.place(task);
        let step = self.machine.workload.step(place, now_ns, &mut self.to_wake);
        if step == OperationResult::Waits {
            return self.schedule();
        }
        self.view.write(task, Field::State, RUNNING);
        self.work.operation(&self.machine.own[place]);
        self.tally.operations += 1;
        if let EndCondition::Operations(_) = self.machine.plan.until {
            self.machine.operations.fetch_add(1, Relaxed);
        }
    }

    /// Returns the index of a task in the workload from the position of its structure. Block `i +
    /// 1` of the memory contains the structure of task `i`.
    fn place(&self, task: u32) -> usize {
        task as usize * 4 / kernel::BLOCK_BYTES - 1
    }

    fn wake(&mut self, task: u32) {
        let machine = self.machine;
        let view = &mut self.view;
        machine.lock.with(&mut self.tally.lock, || {
            let running_task = |cpu: &AtomicU32| Some(cpu.load(Relaxed)).filter(|&task| task != 0);
            let running: Vec<Option<u32>> = machine.running.iter().map(running_task).collect();
            let woken = kernel::wake(view, task, &running);
            if let Some(cpu) = woken.cpu.filter(|&cpu| running[cpu].is_none()) {
                machine.notified[cpu].store(true, Relaxed);
            }
        });
    }

    /// Selects the next task of this CPU. Idle CPUs call this function repeatedly; without a
    /// notification, the function returns at once.
    fn schedule(&mut self) {
        let notified = &self.machine.notified[self.number];
        if self.current.is_none() && !notified.swap(false, Relaxed) {
            return std::hint::spin_loop();
        }
        let (machine, number, prev) = (self.machine, self.number, self.current);
        let view = &mut self.view;
        let chosen = machine.lock.with(&mut self.tally.lock, || {
            let chosen = kernel::schedule(view, number as u32, prev, walk_queue);
            machine.running[number].store(chosen.next.unwrap_or(0), Relaxed);
            chosen
        });
        self.current = chosen.next;
        self.tally.decisions += 1;
        self.tally.visits += u64::from(chosen.visits);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(load: WorkloadKind, colors: Colors, cpus: usize) -> RunPlan {
        RunPlan {
            load,
            colors,
            pages: Pages::Small,
            cpus,
            until: EndCondition::Operations(30_000),
            turns: 1,
            seed: 1,
        }
    }

    #[test]
    fn workloads_progress_with_all_colours_and_cpus() {
        for load in WorkloadKind::ALL {
            for colors in [Colors::Plain, Colors::DEFAULT] {
                for cpus in [1, 2] {
                    let tally = run(&plan(load, colors, cpus)).unwrap();
                    assert!(tally.operations >= 30_000, "{load:?} {colors:?} {cpus}");
                    assert!(tally.decisions > 0 && tally.visits > tally.decisions);
                    // In the chat, all first messages are sent before any message is received. A
                    // short run may therefore complete no message.
                    assert!(tally.completed > 0 || load == WorkloadKind::Chat);
                    assert!(tally.lock.acquisitions >= tally.decisions);
                }
            }
        }
    }

    #[test]
    fn one_cpu_decides_alike_wherever_structures_stand() {
        let counts = |colors| {
            let tally = run(&plan(WorkloadKind::Chat, colors, 1)).unwrap();
            (tally.operations, tally.decisions)
        };
        let (plain, ours) = (counts(Colors::Plain), counts(Colors::DEFAULT));
        assert_eq!(plain.0, ours.0);
        // A tick of the clock may occur during different tasks in the two runs.
        assert!(plain.1.abs_diff(ours.1) < plain.1 / 4, "{plain:?} {ours:?}");
    }
}
