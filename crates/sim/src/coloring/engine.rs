// SPDX-License-Identifier: MIT OR Apache-2.0
//! CPUs that run tasks, in virtual time.
//!
//! A CPU does operations of its task. Between two it takes what came from outside,
//! wakes whom its operation woke, and calls the scheduler when its task waits or
//! was told to give way. Wake-ups and decisions happen under the one lock; who
//! finds it taken spins, and gets it in the order of asking. What happens under
//! the lock takes what its instructions take and what its looks at memory cost in
//! the caches as they are then.
//!
//! An event is one of a CPU's: "goes on", or "lets go of the lock". What an
//! operation or a critical section does, it does at its beginning.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::kernel::{self, Field, RUNNING, SLEEPING, Structures, walk};
use super::machine::Machine;
use super::memory::Looks;
use super::model::Model;
use super::workload::{Step, Workload};

/// What was counted, from the beginning on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Time that passed.
    pub cycles: u64,
    /// Units of work that the workload completed.
    pub completed: u64,
    /// Operations done.
    pub operations: u64,
    /// Calls of the scheduler.
    pub decisions: u64,
    /// Structures that walks looked at.
    pub visits: u64,
    /// What walks asked of the second level.
    pub walk: Looks,
    /// What operations asked of it.
    pub work: Looks,
    /// Times that the lock was asked for.
    pub acquisitions: u64,
    /// Times that it was taken then.
    pub contended: u64,
    /// Cycles that it was held.
    pub held: u64,
    /// Cycles that CPUs spun for it.
    pub spun: u64,
    /// Cycles of operations.
    pub worked: u64,
}

impl std::ops::Sub for Counts {
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

/// What a CPU wants the lock for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Want {
    Wake(usize),
    Schedule,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    GoesOn,
    LetsGo,
}

/// When, in which order among those of one time, whose, of which epoch, what.
type Due = (u64, u64, usize, u64, Event);

#[derive(Debug, Default)]
struct Cpu {
    running: Option<u32>,
    to_wake: Vec<usize>,
    wants: Option<Want>,
    asked: u64,
    /// An idle one that was told that there is work.
    told: bool,
    /// The last decision was for another task.
    changes: bool,
    next_tick: u64,
    /// Events of an earlier one are void.
    epoch: u64,
}

/// CPUs, their memory and what they run.
pub struct Engine<'a> {
    machine: Machine,
    workload: &'a dyn Workload,
    model: Model,
    cpus: Vec<Cpu>,
    owner: Option<usize>,
    waiting: VecDeque<usize>,
    events: BinaryHeap<Reverse<Due>>,
    sequence: u64,
    now: u64,
    counts: Counts,
}

impl<'a> Engine<'a> {
    /// All tasks on the queue, each as if it had run on a CPU drawn by the model's
    /// seed; all CPUs about to call the scheduler.
    pub fn new(machine: Machine, workload: &'a dyn Workload, model: Model, cpus: usize) -> Self {
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
            counts: Counts::default(),
        };
        kernel::empty(&mut engine.model);
        for task in 0..workload.tasks() {
            let number = Model::number(task);
            let space = workload.address_space(task);
            let cpu = engine.model.draw_cpu(cpus);
            kernel::create(&mut engine.model, number, space, cpu);
            kernel::add(&mut engine.model, number);
        }
        engine.model.take();
        let tick = machine.cycles(machine.tick_us * 1_000);
        for cpu in 0..cpus {
            engine.cpus[cpu].told = true;
            engine.cpus[cpu].next_tick = tick * (cpu as u64 + 1) / cpus as u64;
            engine.push(0, cpu, Event::GoesOn);
        }
        engine
    }

    /// Runs until so many units of work are completed, or nothing can happen any
    /// more; what was counted by then.
    pub fn run_until_completed(&mut self, units: u64) -> Counts {
        while self.workload.completed() < units {
            let Some(Reverse((at, _, cpu, epoch, event))) = self.events.pop() else {
                break;
            };
            if self.cpus[cpu].epoch != epoch {
                continue;
            }
            self.now = at;
            match event {
                Event::GoesOn => self.go_on(cpu),
                Event::LetsGo => self.let_go(cpu),
            }
        }
        self.counts.completed = self.workload.completed();
        self.counts.cycles = self.now;
        self.counts
    }

    /// The structures, to look at.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Who runs on each CPU.
    pub fn running(&self) -> Vec<Option<u32>> {
        self.cpus.iter().map(|cpu| cpu.running).collect()
    }

    fn push(&mut self, at: u64, cpu: usize, event: Event) {
        self.sequence += 1;
        let epoch = self.cpus[cpu].epoch;
        self.events
            .push(Reverse((at, self.sequence, cpu, epoch, event)));
    }

    /// A CPU between two operations.
    fn go_on(&mut self, cpu: usize) {
        let now_ns = self.machine.ns(self.now);
        self.workload.arrivals(now_ns, &mut self.cpus[cpu].to_wake);
        if let Some(task) = self.cpus[cpu].to_wake.pop() {
            return self.ask(cpu, Want::Wake(task));
        }
        let Some(task) = self.cpus[cpu].running else {
            return self.idle(cpu);
        };
        self.ticks(cpu, task);
        if self.model.peek(task, Field::NeedResched) != 0 {
            return self.ask(cpu, Want::Schedule);
        }
        self.operate(cpu, task, now_ns);
    }

    fn idle(&mut self, cpu: usize) {
        if std::mem::take(&mut self.cpus[cpu].told) {
            return self.ask(cpu, Want::Schedule);
        }
        let tick = self.machine.cycles(self.machine.tick_us * 1_000);
        let late = self.now.saturating_sub(self.cpus[cpu].next_tick);
        self.cpus[cpu].next_tick += late.div_ceil(tick) * tick;
        if let Some(ns) = self.workload.next_arrival_ns() {
            let at = self.machine.cycles(ns).max(self.now);
            self.push(at, cpu, Event::GoesOn);
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
        let place = Model::place(task);
        let step = self
            .workload
            .step(place, now_ns, &mut self.cpus[cpu].to_wake);
        if step == Step::Waits {
            return self.ask(cpu, Want::Schedule);
        }
        self.model.poke(task, Field::State, RUNNING);
        let machine = self.machine;
        self.model.on(cpu).touch_operation(&machine, place);
        let looks = self.model.take();
        let took = self.model.about(machine.operation_cycles) + self.cost(looks);
        self.counts.operations += 1;
        self.counts.worked += took;
        self.counts.work.requests += looks.requests;
        self.counts.work.misses += looks.misses;
        self.push(self.now + took, cpu, Event::GoesOn);
    }

    fn cost(&self, looks: Looks) -> u64 {
        let hits = looks.requests - looks.misses;
        hits * self.machine.hit_cycles + looks.misses * self.machine.miss_cycles
    }

    fn ask(&mut self, cpu: usize, want: Want) {
        self.cpus[cpu].wants = Some(want);
        self.cpus[cpu].asked = self.now;
        self.counts.acquisitions += 1;
        match self.owner {
            None => self.enter(cpu),
            Some(_) => {
                self.counts.contended += 1;
                self.waiting.push_back(cpu);
            }
        }
    }

    /// A CPU gets the lock and does what it wanted it for.
    fn enter(&mut self, cpu: usize) {
        self.owner = Some(cpu);
        self.counts.spun += self.now - self.cpus[cpu].asked;
        self.model.on(cpu).touch_lock();
        let instructions = match self.cpus[cpu].wants.take() {
            Some(Want::Wake(task)) => self.wake(cpu, Model::number(task)),
            Some(Want::Schedule) => self.schedule(cpu),
            None => 0,
        };
        let looks = self.model.take();
        let held = instructions + self.cost(looks);
        self.counts.held += held;
        self.push(self.now + held, cpu, Event::LetsGo);
    }

    fn wake(&mut self, cpu: usize, task: u32) -> u64 {
        let running = self.running();
        let woken = kernel::wake(self.model.on(cpu), task, &running);
        if let Some(to) = woken.cpu.filter(|&to| running[to].is_none()) {
            self.tell(to);
        }
        self.machine.wake_cycles
    }

    /// Tells an idle CPU that there is work.
    fn tell(&mut self, cpu: usize) {
        if !std::mem::replace(&mut self.cpus[cpu].told, true) && !self.is_busy(cpu) {
            self.cpus[cpu].epoch += 1;
            self.push(self.now, cpu, Event::GoesOn);
        }
    }

    /// Whether an event of that CPU will come by itself, or the lock to it.
    fn is_busy(&self, cpu: usize) -> bool {
        self.owner == Some(cpu) || self.waiting.contains(&cpu)
    }

    fn schedule(&mut self, cpu: usize) -> u64 {
        let mut walked = Looks::default();
        let prev = self.cpus[cpu].running;
        let model = self.model.on(cpu);
        let mut before = Looks::default();
        let chosen = kernel::schedule(model, cpu as u32, prev, |model, cpu, space, so_far| {
            before = add(before, model.take());
            let found = walk(model, cpu, space, so_far);
            walked = add(walked, model.take());
            found
        });
        self.counts.decisions += 1;
        self.counts.visits += u64::from(chosen.visits);
        self.counts.walk = add(self.counts.walk, walked);
        self.cpus[cpu].running = chosen.next;
        self.cpus[cpu].changes = chosen.next != prev;
        // The rest of the critical section is still in the model's count.
        let instructions =
            self.machine.decision_cycles + u64::from(chosen.visits) * self.machine.visit_cycles;
        instructions + self.cost(add(before, walked))
    }

    fn let_go(&mut self, cpu: usize) {
        self.owner = None;
        if let Some(next) = self.waiting.pop_front() {
            self.enter(next);
        }
        let changes = std::mem::take(&mut self.cpus[cpu].changes);
        let switch = u64::from(changes) * self.machine.switch_cycles;
        self.push(self.now + switch, cpu, Event::GoesOn);
    }
}

fn add(a: Looks, b: Looks) -> Looks {
    Looks {
        requests: a.requests + b.requests,
        misses: a.misses + b.misses,
    }
}

/// Numbers on the queue, in its order.
pub fn queue(model: &Model) -> Vec<u32> {
    let head = model.head();
    let mut queue = vec![];
    let mut at = model.peek(head, Field::Next);
    while at != head {
        queue.push(at);
        at = model.peek(at, Field::Next);
    }
    queue
}
