// SPDX-License-Identifier: MIT OR Apache-2.0
//! A simulated machine with delays: a CPU schedules some time after it was requested to, and becomes
//! idle in steps between which other CPUs act.
//!
//! [`DelayedMachine::run`] executes one event after another: the end of a burst or slice, a tick, a
//! wake-up, a delayed request to schedule, or a step of a transition to idle. Each event takes time
//! in proportion to the CPUs and the waiting threads.

use std::collections::BTreeSet;

use oorandom::Rand64;
use usher_rules::sched::{HostSched, Task, TaskId};

use crate::common::rig::{Shape, set};
use crate::common::{MS, SETTINGS};
use crate::idle_time::{IdleTime, Snapshot};
use crate::load::LoadThread;

/// Ticks of a kernel with CONFIG_HZ=250.
const TICK_NS: u64 = 4 * MS;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Asleep,
    Waiting,
    On(usize),
    Ended,
}

#[derive(Debug)]
struct Thread {
    of: LoadThread,
    task: TaskId,
    state: State,
    /// Remaining CPU time of the burst, and remaining bursts.
    left_ns: u64,
    bursts: u32,
    /// The CPU from which the thread went to sleep.
    last: usize,
}

#[derive(Debug, Clone, Copy)]
struct Cpu {
    running: Option<usize>,
    since_ns: u64,
    slice_ends_ns: u64,
    tick_ns: u64,
    /// Time at which the CPU schedules as requested; `u64::MAX`: there is no request.
    due_ns: u64,
    /// Time of the next step of the transition to idle; `u64::MAX`: the CPU is in no transition.
    step_ns: u64,
}

/// Largest delays, in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub struct Delays {
    /// From a request until the CPU schedules.
    pub kick_ns: u64,
    /// From one step of a transition to idle to the next.
    pub step_ns: u64,
}

pub struct DelayedMachine {
    pub sched: HostSched,
    pub idle_time: IdleTime,
    shape: Shape,
    delays: Delays,
    random: Rand64,
    now_ns: u64,
    cpus: Vec<Cpu>,
    threads: Vec<Thread>,
    by_task: Vec<usize>,
    /// Wake-up time of each sleeping thread.
    sleepers: BTreeSet<(u64, usize)>,
}

impl DelayedMachine {
    pub fn new(sched: HostSched, shape: Shape, delays: Delays, random: Rand64) -> Self {
        let now_ns = 1_000 * MS;
        let cpu = |cpu: usize| Cpu {
            running: None,
            since_ns: now_ns,
            slice_ends_ns: u64::MAX,
            tick_ns: now_ns + TICK_NS * cpu as u64 / shape.cpus() as u64,
            due_ns: u64::MAX,
            step_ns: u64::MAX,
        };
        let mut machine = Self {
            sched,
            idle_time: IdleTime::default(),
            shape,
            delays,
            random,
            now_ns,
            cpus: (0..shape.cpus()).map(cpu).collect(),
            threads: Vec::new(),
            by_task: Vec::new(),
            sleepers: BTreeSet::new(),
        };
        machine.sched.set_now(now_ns);
        machine
    }

    /// Adds a thread that sleeps until its start. `parent` is the running thread that forks it.
    pub fn add(&mut self, of: LoadThread, parent: Option<usize>) {
        let allowed = set((0..self.shape.cpus()).filter(|&cpu| of.cpus >> cpu & 1 == 1));
        let last = match parent.map(|parent| self.threads[parent].last) {
            Some(cpu) if of.cpus >> cpu & 1 == 1 => cpu,
            _ => of.cpus.trailing_zeros() as usize,
        };
        let task = self.sched.new_task(&Task {
            mm: of.mm << 12,
            is_kernel: (of.mm == 0).into(),
            weight: of.weight,
            cpu: last as u32,
            parent: parent.map_or(0, |parent| self.threads[parent].task.index() as u32),
            is_forked: parent.is_some().into(),
            cpus: allowed,
            ..Task::default()
        });
        let number = self.threads.len();
        let len = self.by_task.len().max(task.index() + 1);
        self.by_task.resize(len, 0);
        self.by_task[task.index()] = number;
        self.threads.push(Thread {
            of,
            task,
            state: State::Asleep,
            left_ns: of.burst_ns(&mut self.random),
            bursts: of.bursts,
            last,
        });
        self.sleepers.insert((self.now_ns + of.starts_ns, number));
    }

    /// Runs the machine for `ns`.
    pub fn run(&mut self, ns: u64) {
        let until_ns = self.now_ns + ns;
        loop {
            let next_ns = self.next_event_ns().min(until_ns);
            let snapshot = self.snapshot();
            self.idle_time.add(&snapshot, next_ns - self.now_ns);
            self.now_ns = next_ns;
            self.sched.set_now(next_ns);
            if next_ns == until_ns {
                return;
            }
            self.execute_due();
        }
    }

    fn snapshot(&self) -> Snapshot {
        let mut snapshot = Snapshot::default();
        for (at, cpu) in self.cpus.iter().enumerate() {
            let is_called = cpu.due_ns != u64::MAX || cpu.step_ns != u64::MAX;
            match cpu.running {
                Some(_) => {}
                None if is_called => snapshot.called |= 1 << at,
                None => snapshot.idle |= 1 << at,
            }
        }
        let waiting = self.threads.iter().enumerate();
        let waiting = waiting.filter(|(_, thread)| thread.state == State::Waiting);
        snapshot.waiting = waiting.map(|(at, thread)| (at, thread.of.cpus)).collect();
        snapshot
    }

    fn burst_ends_ns(&self, cpu: &Cpu) -> u64 {
        let left_ns = cpu.running.map(|thread| self.threads[thread].left_ns);
        left_ns.map_or(u64::MAX, |left_ns| cpu.since_ns + left_ns)
    }

    fn event_ns(&self, cpu: &Cpu) -> u64 {
        let tick_ns = cpu.running.map_or(u64::MAX, |_| cpu.tick_ns);
        let first = self.burst_ends_ns(cpu).min(cpu.slice_ends_ns).min(tick_ns);
        first.min(cpu.due_ns).min(cpu.step_ns)
    }

    fn next_event_ns(&mut self) -> u64 {
        let cpus = self.cpus.iter().map(|cpu| self.event_ns(cpu));
        let sleeper = self.sleepers.first().map(|&(at_ns, _)| at_ns);
        let next_ns = cpus.chain(sleeper).min().unwrap_or(u64::MAX);
        next_ns.min(self.sched.next_timer_ns()).max(self.now_ns)
    }

    /// Executes the events that are due, on each CPU at most one.
    fn execute_due(&mut self) {
        let now_ns = self.now_ns;
        for at in 0..self.cpus.len() {
            let cpu = self.cpus[at];
            if self.event_ns(&cpu) > now_ns {
                continue;
            }
            if cpu.step_ns <= now_ns {
                self.sched.continue_idle(at);
                self.arm_step(at);
            } else if self.burst_ends_ns(&cpu) <= now_ns {
                self.end_burst(at);
            } else if cpu.slice_ends_ns.min(cpu.due_ns) <= now_ns {
                self.schedule(at);
            } else {
                self.sched.tick(at);
                self.cpus[at].tick_ns += TICK_NS;
            }
            self.follow_marks();
        }
        if self.sched.next_timer_ns() <= now_ns {
            self.sched.run_timers();
            self.follow_marks();
        }
        self.wake_due();
    }

    /// Sets the times at which the marked CPUs schedule.
    fn follow_marks(&mut self) {
        let marked = self.sched.marked()[0];
        for (at, cpu) in self.cpus.iter_mut().enumerate() {
            if marked >> at & 1 == 0 {
                cpu.due_ns = u64::MAX;
            } else if cpu.due_ns == u64::MAX {
                cpu.due_ns = self.now_ns + self.random.rand_range(1..self.delays.kick_ns);
            }
        }
    }

    fn arm_step(&mut self, at: usize) {
        self.cpus[at].step_ns = match self.sched.becomes_idle(at) {
            true => self.now_ns + self.random.rand_range(1..self.delays.step_ns),
            false => u64::MAX,
        };
    }

    /// Subtracts the CPU time until now from the burst of the running thread.
    fn account(&mut self, at: usize) {
        let cpu = &mut self.cpus[at];
        if let Some(thread) = cpu.running {
            self.threads[thread].left_ns -= self.now_ns - cpu.since_ns;
        }
        cpu.since_ns = self.now_ns;
    }

    fn schedule(&mut self, at: usize) {
        self.account(at);
        let next = self.sched.schedule(at);
        let next = next.map(|task| self.by_task[task.index()]);
        let prev = std::mem::replace(&mut self.cpus[at].running, next);
        // An idle CPU has no ticks.
        while prev.is_none() && self.cpus[at].tick_ns <= self.now_ns {
            self.cpus[at].tick_ns += TICK_NS;
        }
        if prev != next {
            if let Some(prev) = prev.map(|prev| &mut self.threads[prev])
                && prev.state == State::On(at)
            {
                prev.state = State::Waiting;
            }
            if let Some(next) = next.map(|next| &mut self.threads[next]) {
                assert_eq!(next.state, State::Waiting);
                assert!(next.of.cpus >> at & 1 == 1, "{next:?} runs on CPU {at}");
                next.state = State::On(at);
            }
        }
        let slice_ns = next.map(|next| self.sched.slice_ns(self.threads[next].task));
        self.cpus[at].slice_ends_ns = slice_ns.map_or(u64::MAX, |ns| self.now_ns + ns);
        self.arm_step(at);
    }

    fn end_burst(&mut self, at: usize) {
        let Some(number) = self.cpus[at].running else {
            return;
        };
        self.account(at);
        let thread = &mut self.threads[number];
        thread.last = at;
        thread.bursts -= 1;
        thread.left_ns = thread.of.burst_ns(&mut self.random);
        let (of, task, ends) = (thread.of, thread.task, thread.bursts == 0);
        if ends {
            let starts_ns = self.random.rand_range(0..20_000);
            let mut child = of;
            child.starts_ns = starts_ns;
            self.add(child, Some(number));
            self.threads[number].state = State::Ended;
        } else {
            self.threads[number].state = State::Asleep;
            let wakes_ns = self.now_ns + of.rest_ns(&mut self.random);
            self.sleepers.insert((wakes_ns, number));
        }
        self.sched.remove(task);
        self.schedule(at);
        if ends {
            self.sched.end_task(task);
        }
    }

    /// Wakes the threads that are due. The kernel delays the wake-up of a thread while the CPU on
    /// which it ran has not switched away from it.
    fn wake_due(&mut self) {
        while let Some(&(at_ns, number)) = self.sleepers.first() {
            if at_ns > self.now_ns {
                return;
            }
            self.sleepers.pop_first();
            let thread = &mut self.threads[number];
            let step_ns = self.cpus[thread.last].step_ns;
            if step_ns != u64::MAX {
                self.sleepers.insert((step_ns + 1, number));
                continue;
            }
            thread.state = State::Waiting;
            let by_cpu = self.random.rand_range(0..self.cpus.len() as u64) as usize;
            if thread.bursts == thread.of.bursts {
                self.sched.wake_new(thread.task, by_cpu);
            } else {
                self.sched.wake(thread.task, by_cpu);
            }
            self.follow_marks();
        }
    }
}

/// Settings of the scheduler for a machine.
pub fn settings(shape: Shape) -> usher_rules::sched::HostSettings {
    usher_rules::sched::HostSettings {
        llcs: (shape.0 * shape.1) as u32,
        ..SETTINGS
    }
}
