// SPDX-License-Identifier: MIT OR Apache-2.0
//! Simulates CPUs that run the tasks of a workload in virtual time, under the scheduler of Linux
//! 2.4 ([`crate::kernel`]).
//!
//! Algorithm: the event with the earliest time is taken from a heap, and its effects are applied.
//!
//! 1. A CPU executes the operations of its task. Between two operations, it handles data that
//!    arrive from outside, wakes the tasks that the operation made runnable, and calls the
//!    scheduler if its task waits or must be rescheduled.
//! 2. Wakeups and scheduling decisions happen under one lock. A CPU that finds the lock taken
//!    spins. The lock is granted in the order of the requests.
//! 3. An operation takes its instructions plus the cost of its memory accesses in the present state
//!    of the caches. The same applies to a critical section under the lock.
//!
//! There are two kinds of events: a CPU continues after an operation, or a CPU releases the lock.
//! Limit: all effects of an operation or a critical section occur at its start.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::kernel::{self, Field, RUNNING, SLEEPING, Structures, walk};
use crate::machine::SmpMachine;
use crate::memory::CacheRequests;
use crate::model::TaskStructures;
use crate::workload::{OperationResult, Workload};

/// Counters of a simulation since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RunCounts {
    /// Elapsed time in cycles.
    pub cycles: u64,
    /// Completed units of work (messages or requests).
    pub completed: u64,
    /// Number of operations.
    pub operations: u64,
    /// Number of scheduler calls.
    pub decisions: u64,
    /// Number of structures visited by walks.
    pub visits: u64,
    /// Requests of walks to the second-level caches.
    pub walk: CacheRequests,
    /// Requests of operations to the second-level caches.
    pub work: CacheRequests,
    /// Number of lock requests.
    pub acquisitions: u64,
    /// Number of lock requests that found the lock taken.
    pub contended: u64,
    /// Cycles for which the lock was held.
    pub held: u64,
    /// Cycles for which CPUs spun on the lock.
    pub spun: u64,
    /// Cycles of operations.
    pub worked: u64,
}

impl std::ops::Sub for RunCounts {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            cycles: self.cycles - earlier.cycles,
            completed: self.completed - earlier.completed,
            operations: self.operations - earlier.operations,
            decisions: self.decisions - earlier.decisions,
            visits: self.visits - earlier.visits,
            walk: self.walk - earlier.walk,
            work: self.work - earlier.work,
            acquisitions: self.acquisitions - earlier.acquisitions,
            contended: self.contended - earlier.contended,
            held: self.held - earlier.held,
            spun: self.spun - earlier.spun,
            worked: self.worked - earlier.worked,
        }
    }
}

/// Reason for which a CPU requests the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LockReason {
    Wake(usize),
    Schedule,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Continue,
    ReleaseLock,
}

/// An event: time, sequence number (which orders events of equal time), CPU, epoch of the CPU,
/// kind.
type Due = (u64, u64, usize, u64, Event);

#[derive(Debug, Default)]
struct Cpu {
    running: Option<u32>,
    to_wake: Vec<usize>,
    lock_request: Option<LockReason>,
    lock_requested_ns: u64,
    /// Whether the CPU, which is idle, has been notified that a task is runnable.
    notified: bool,
    /// Whether the last scheduling decision selected another task than the previous task.
    changes: bool,
    next_tick: u64,
    /// Events with an earlier epoch are ignored.
    epoch: u64,
}

/// The simulated machine: CPUs, memory, tasks and pending events.
pub struct SmpEngine<'a> {
    machine: SmpMachine,
    workload: &'a dyn Workload,
    model: TaskStructures,
    cpus: Vec<Cpu>,
    owner: Option<usize>,
    waiting: VecDeque<usize>,
    events: BinaryHeap<Reverse<Due>>,
    sequence: u64,
    now: u64,
    counts: RunCounts,
}

impl<'a> SmpEngine<'a> {
    /// Puts all tasks on the run queue, each with a random last CPU. Each CPU starts with a call of
    /// the scheduler.
    pub fn new(
        machine: SmpMachine,
        workload: &'a dyn Workload,
        model: TaskStructures,
        cpus: usize,
    ) -> Self {
        let mut engine = Self {
            machine,
            workload,
            model,
            cpus: (0..cpus).map(|_| Cpu::default()).collect(),
            owner: None,
            waiting: VecDeque::new(),
            events: BinaryHeap::new(),
            sequence: 0,
            now: 0,
            counts: RunCounts::default(),
        };
        kernel::empty(&mut engine.model);
        for task in 0..workload.tasks() {
            let number = TaskStructures::number(task);
            let space = workload.address_space(task);
            let cpu = engine.model.draw_cpu(cpus);
            kernel::create(&mut engine.model, number, space, cpu);
            kernel::add(&mut engine.model, number);
        }
        engine.model.take();
        let tick = machine.cycles(machine.tick_us * 1_000);
        for cpu in 0..cpus {
            engine.cpus[cpu].notified = true;
            engine.cpus[cpu].next_tick = tick * (cpu as u64 + 1) / cpus as u64;
            engine.push(0, cpu, Event::Continue);
        }
        engine
    }

    /// Runs until `units` units of work are completed or no event is left. Returns the counters.
    pub fn run_until_completed(&mut self, units: u64) -> RunCounts {
        while self.workload.completed() < units {
            let Some(Reverse((at, _, cpu, epoch, event))) = self.events.pop() else {
                break;
            };
            if self.cpus[cpu].epoch != epoch {
                continue;
            }
            self.now = at;
            match event {
                Event::Continue => self.continue_task(cpu),
                Event::ReleaseLock => self.release_lock(cpu),
            }
        }
        self.counts.completed = self.workload.completed();
        self.counts.cycles = self.now;
        self.counts
    }

    /// Returns the task structures, for inspection by tests.
    pub fn model(&self) -> &TaskStructures {
        &self.model
    }

    /// Returns the current task of each CPU; `None`: the CPU is idle.
    pub fn running(&self) -> Vec<Option<u32>> {
        self.cpus.iter().map(|cpu| cpu.running).collect()
    }

    fn push(&mut self, at: u64, cpu: usize, event: Event) {
        self.sequence += 1;
        let epoch = self.cpus[cpu].epoch;
        self.events
            .push(Reverse((at, self.sequence, cpu, epoch, event)));
    }

    /// Continues a CPU after an operation, a critical section or an idle time.
    fn continue_task(&mut self, cpu: usize) {
        let now_ns = self.machine.ns(self.now);
        self.workload.arrivals(now_ns, &mut self.cpus[cpu].to_wake);
        if let Some(task) = self.cpus[cpu].to_wake.pop() {
            return self.request_lock(cpu, LockReason::Wake(task));
        }
        let Some(task) = self.cpus[cpu].running else {
            return self.idle(cpu);
        };
        self.ticks(cpu, task);
        if self.model.peek(task, Field::NeedResched) != 0 {
            return self.request_lock(cpu, LockReason::Schedule);
        }
        self.operate(cpu, task, now_ns);
    }

    fn idle(&mut self, cpu: usize) {
        if std::mem::take(&mut self.cpus[cpu].notified) {
            return self.request_lock(cpu, LockReason::Schedule);
        }
        let tick = self.machine.cycles(self.machine.tick_us * 1_000);
        let late = self.now.saturating_sub(self.cpus[cpu].next_tick);
        self.cpus[cpu].next_tick += late.div_ceil(tick) * tick;
        if let Some(ns) = self.workload.next_arrival_ns() {
            let at = self.machine.cycles(ns).max(self.now);
            self.push(at, cpu, Event::Continue);
        }
    }

    fn ticks(&mut self, cpu: usize, task: u32) {
        let tick = self.machine.cycles(self.machine.tick_us * 1_000);
        while self.cpus[cpu].next_tick <= self.now {
            self.cpus[cpu].next_tick += tick;
            kernel::tick(self.model.on(cpu), task);
            self.model.take();
        }
    }

    fn operate(&mut self, cpu: usize, task: u32, now_ns: u64) {
        self.model.poke(task, Field::State, SLEEPING);
        let place = TaskStructures::place(task);
        let step = self
            .workload
            .step(place, now_ns, &mut self.cpus[cpu].to_wake);
        if step == OperationResult::Waits {
            return self.request_lock(cpu, LockReason::Schedule);
        }
        self.model.poke(task, Field::State, RUNNING);
        let machine = self.machine;
        self.model.on(cpu).touch_operation(&machine, place);
        let requests = self.model.take();
        let took = self.model.draw_length(machine.operation_cycles) + self.cost(requests);
        self.counts.operations += 1;
        self.counts.worked += took;
        self.counts.work.requests += requests.requests;
        self.counts.work.misses += requests.misses;
        self.push(self.now + took, cpu, Event::Continue);
    }

    fn cost(&self, requests: CacheRequests) -> u64 {
        let hits = requests.requests - requests.misses;
        hits * self.machine.hit_cycles + requests.misses * self.machine.miss_cycles
    }

    fn request_lock(&mut self, cpu: usize, reason: LockReason) {
        self.cpus[cpu].lock_request = Some(reason);
        self.cpus[cpu].lock_requested_ns = self.now;
        self.counts.acquisitions += 1;
        match self.owner {
            None => self.enter(cpu),
            Some(_) => {
                self.counts.contended += 1;
                self.waiting.push_back(cpu);
            }
        }
    }

    /// Gives the lock to a CPU, and executes the critical section of the CPU.
    fn enter(&mut self, cpu: usize) {
        self.owner = Some(cpu);
        self.counts.spun += self.now - self.cpus[cpu].lock_requested_ns;
        self.model.on(cpu).touch_lock();
        let instructions = match self.cpus[cpu].lock_request.take() {
            Some(LockReason::Wake(task)) => self.wake(cpu, TaskStructures::number(task)),
            Some(LockReason::Schedule) => self.schedule(cpu),
            None => 0,
        };
        let requests = self.model.take();
        let held = instructions + self.cost(requests);
        self.counts.held += held;
        self.push(self.now + held, cpu, Event::ReleaseLock);
    }

    fn wake(&mut self, cpu: usize, task: u32) -> u64 {
        let running = self.running();
        let woken = kernel::wake(self.model.on(cpu), task, &running);
        if let Some(to) = woken.cpu.filter(|&to| running[to].is_none()) {
            self.notify(to);
        }
        self.machine.wake_cycles
    }

    /// Notifies an idle CPU that a task is runnable.
    fn notify(&mut self, cpu: usize) {
        if !std::mem::replace(&mut self.cpus[cpu].notified, true) && !self.is_busy(cpu) {
            self.cpus[cpu].epoch += 1;
            self.push(self.now, cpu, Event::Continue);
        }
    }

    /// Returns whether the CPU has a pending event or waits for the lock.
    fn is_busy(&self, cpu: usize) -> bool {
        self.owner == Some(cpu) || self.waiting.contains(&cpu)
    }

    fn schedule(&mut self, cpu: usize) -> u64 {
        let mut walked = CacheRequests::default();
        let prev = self.cpus[cpu].running;
        let model = self.model.on(cpu);
        let mut before = CacheRequests::default();
        let chosen = kernel::schedule(model, cpu as u32, prev, |model, cpu, space, partial| {
            before = add(before, model.take());
            let found = walk(model, cpu, space, partial);
            walked = add(walked, model.take());
            found
        });
        self.counts.decisions += 1;
        self.counts.visits += u64::from(chosen.visits);
        self.counts.walk = add(self.counts.walk, walked);
        self.cpus[cpu].running = chosen.next;
        self.cpus[cpu].changes = chosen.next != prev;
        // The accesses of the present critical section are not yet part of the counters, but still
        // in the model.
        let instructions =
            self.machine.decision_cycles + u64::from(chosen.visits) * self.machine.visit_cycles;
        instructions + self.cost(add(before, walked))
    }

    fn release_lock(&mut self, cpu: usize) {
        self.owner = None;
        if let Some(next) = self.waiting.pop_front() {
            self.enter(next);
        }
        let changes = std::mem::take(&mut self.cpus[cpu].changes);
        let switch = u64::from(changes) * self.machine.switch_cycles;
        self.push(self.now + switch, cpu, Event::Continue);
    }
}

fn add(a: CacheRequests, b: CacheRequests) -> CacheRequests {
    CacheRequests {
        requests: a.requests + b.requests,
        misses: a.misses + b.misses,
    }
}

/// Returns the tasks on the run queue, in order.
pub fn queue(model: &TaskStructures) -> Vec<u32> {
    let head = model.head();
    let mut queue = vec![];
    let mut at = model.peek(head, Field::Next);
    while at != head {
        queue.push(at);
        at = model.peek(at, Field::Next);
    }
    queue
}
