// SPDX-License-Identifier: MIT OR Apache-2.0
//! A simulated machine for tests, with threads that compute, yield and sleep under the host build
//! of the scheduler.
//!
//! [`Machine::step`] executes the next event: the end of a burst or slice on a CPU, or the wake-up
//! of a sleeping thread. Each event takes time in proportion to the CPUs.

#![allow(dead_code, reason = "each test program uses some of it")]

pub mod rig;

use std::collections::BTreeSet;

use usher_rules::sched::{HostSched, HostSettings, Task, TaskId};
use usher_rules::select_cpu::{CPU_WORDS, CpuWords, Place};

pub const MS: u64 = 1_000_000;
pub const SETTINGS: HostSettings = HostSettings {
    slice_ns: 3 * MS,
    turn_ns: 24 * MS,
    max_lag_ns: 24 * MS,
    smt: 1,
    aggregate: 1,
    llcs: 1,
    unused: 0,
};

/// Behaviour of a thread: it computes for `runs_ns`, then sleeps, or yields if `sleeps_ns` is 0,
/// repeatedly.
#[derive(Debug, Clone, Copy)]
pub struct Program {
    pub mm: u64,
    /// Bitmask of allowed CPUs.
    pub cpus: u64,
    pub weight: u32,
    pub runs_ns: u64,
    pub sleeps_ns: u64,
    /// Number of bursts after which the thread ends.
    pub bursts: u32,
    /// CPU time that the thread has used before; 0: the thread is new.
    pub ran_ns: u64,
    pub cgroup: u64,
    /// Number of the thread that forks this thread.
    pub parent: Option<usize>,
}

impl Program {
    /// Returns a thread that always computes.
    pub fn new(mm: u64, cpus: u64) -> Self {
        Self {
            mm: mm << 12,
            cpus,
            weight: 100,
            runs_ns: u64::MAX,
            sleeps_ns: 0,
            bursts: u32::MAX,
            ran_ns: 1,
            cgroup: 0,
            parent: None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Running(usize),
    Waiting,
    Sleeping,
    Ended,
}

#[derive(Debug, Clone)]
pub struct Thread {
    pub program: Program,
    pub task: TaskId,
    pub state: State,
    pub ran_ns: u64,
    /// Remaining CPU time of its burst.
    left_ns: u64,
    /// Number of completed bursts.
    pub bursts: u32,
    /// Whether the thread has woken and not run since.
    has_woken: bool,
    /// Start of the current run, wait or sleep.
    since_ns: u64,
    /// Longest completed wait.
    waited_ns: u64,
}

/// A machine with running threads.
pub struct Machine {
    pub sched: HostSched,
    pub threads: Vec<Thread>,
    pub now_ns: u64,
    /// The running thread of each CPU.
    pub cpus: Vec<Option<usize>>,
    slice_ends_ns: Vec<u64>,
    by_task: Vec<usize>,
    /// Wake-up time of each sleeping thread.
    sleepers: BTreeSet<(u64, usize)>,
    /// Threads in the order in which they started to run.
    pub began: Vec<usize>,
    /// Threads with the lengths of their completed waits, in the order of `began`.
    pub waits_ns: Vec<(usize, u64)>,
    /// Threads with the lengths of their completed waits after a sleep.
    pub wakeups_ns: Vec<(usize, u64)>,
    /// Longest time after which a request to schedule arrives at another CPU; 0: all arrive at once.
    pub kick_ns: u64,
    /// Arrival of the request of each CPU; `u64::MAX`: there is none.
    arrives_ns: Vec<u64>,
    /// Whether slices end only at ticks, as in a kernel without `CONFIG_SCHED_HRTICK`.
    pub ends_at_ticks: bool,
    /// CPU on which the current event happens.
    here: usize,
    /// Number of requests to other CPUs, which determines their delays.
    kicks: u64,
}

pub fn words(cpus: u64) -> CpuWords {
    let mut words = [0; CPU_WORDS];
    words[0] = cpus;
    words
}

/// Places of the CPUs of one LLC.
pub fn places(cpus: usize, threads_per_core: usize) -> Vec<Place> {
    let all = words(u64::MAX >> (64 - cpus));
    let place = |cpu: usize| {
        let core = (1 << threads_per_core) - 1;
        Place {
            known: 1,
            core: words(core << (cpu / threads_per_core * threads_per_core)),
            near: all,
            node: all,
            node_llcs: 1,
            ..Place::default()
        }
    };
    (0..cpus).map(place).collect()
}

impl Machine {
    pub fn new(cpus: usize, settings: HostSettings) -> Self {
        Self::on(&places(cpus, 1), settings)
    }

    pub fn on(places: &[Place], settings: HostSettings) -> Self {
        let mut sched = HostSched::new(places, &settings, 1);
        sched.set_now(1_000 * MS);
        Self {
            sched,
            threads: Vec::new(),
            now_ns: 1_000 * MS,
            cpus: vec![None; places.len()],
            slice_ends_ns: vec![u64::MAX; places.len()],
            by_task: Vec::new(),
            sleepers: BTreeSet::new(),
            began: Vec::new(),
            waits_ns: Vec::new(),
            wakeups_ns: Vec::new(),
            kick_ns: 0,
            arrives_ns: vec![u64::MAX; places.len()],
            ends_at_ticks: false,
            here: 0,
            kicks: 0,
        }
    }

    /// Starts a thread on the first CPU that it may run on.
    pub fn start(&mut self, program: Program) -> usize {
        self.start_on(program, program.cpus.trailing_zeros() as usize)
    }

    /// Starts a thread that is forked on a CPU.
    pub fn start_on(&mut self, program: Program, cpu: usize) -> usize {
        let parent = program.parent.map(|parent| self.threads[parent].task);
        let task = self.sched.new_task(&Task {
            is_forked: parent.is_some().into(),
            parent: parent.map_or(0, |parent| parent.index() as u32),
            mm: program.mm,
            weight: program.weight,
            cpu: cpu as u32,
            ran_ns: program.ran_ns,
            cgroup: program.cgroup,
            cpus: words(program.cpus),
            ..Task::default()
        });
        let number = self.threads.len();
        self.threads.push(Thread {
            program,
            task,
            state: State::Waiting,
            ran_ns: 0,
            left_ns: program.runs_ns,
            bursts: 0,
            has_woken: false,
            since_ns: self.now_ns,
            waited_ns: 0,
        });
        self.by_task
            .resize(self.by_task.len().max(task.index() + 1), 0);
        self.by_task[task.index()] = number;
        self.sched.wake_new(task, cpu);
        self.follow();
        number
    }

    /// Sets the CPU time of the next burst of a sleeping thread.
    pub fn set_burst(&mut self, number: usize, runs_ns: u64) {
        self.threads[number].left_ns = runs_ns;
    }

    /// Wakes a sleeping thread before the end of its sleep, for a burst of `runs_ns`.
    pub fn wake_for(&mut self, number: usize, runs_ns: u64) {
        self.sleepers.retain(|&(_, sleeper)| sleeper != number);
        self.threads[number].left_ns = runs_ns;
        self.wake(number);
    }

    pub fn follow(&mut self) {
        if self.kick_ns > 0 {
            return self.follow_late();
        }
        while let Some(cpu) = self.sched.next_resched() {
            self.schedule(cpu);
        }
    }

    /// Lets each CPU schedule at which a request has arrived.
    fn follow_late(&mut self) {
        while let Some(cpu) = (0..self.cpus.len()).find(|&cpu| self.has_arrived(cpu)) {
            self.arrives_ns[cpu] = u64::MAX;
            self.here = cpu;
            self.schedule(cpu);
        }
    }

    /// Returns whether a request to schedule has arrived at a CPU. A new request arrives after a
    /// delay, unless it is made on the CPU itself.
    fn has_arrived(&mut self, cpu: usize) -> bool {
        if self.sched.marked()[0] >> cpu & 1 == 0 {
            self.arrives_ns[cpu] = u64::MAX;
        } else if self.arrives_ns[cpu] == u64::MAX {
            self.kicks += 1;
            let random = self.kicks.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
            let late_ns = (random * self.kick_ns) >> 32;
            self.arrives_ns[cpu] = match cpu == self.here {
                true => self.now_ns,
                false => self.now_ns + late_ns,
            };
        }
        self.arrives_ns[cpu] <= self.now_ns
    }

    fn schedule(&mut self, cpu: usize) {
        let next = self.sched.schedule(cpu);
        let next = next.map(|task| self.by_task[task.index()]);
        let prev = self.cpus[cpu];
        if prev != next {
            if let Some(prev) = prev {
                self.account(prev);
                if self.threads[prev].state == State::Running(cpu) {
                    self.threads[prev].state = State::Waiting;
                }
            }
            if let Some(next) = next {
                let thread = &mut self.threads[next];
                assert!(
                    thread.program.cpus >> cpu & 1 == 1,
                    "runs on a CPU that its mask excludes"
                );
                assert_eq!(thread.state, State::Waiting);
                let waited_ns = self.now_ns - thread.since_ns;
                thread.waited_ns = thread.waited_ns.max(waited_ns);
                self.waits_ns.push((next, waited_ns));
                if std::mem::take(&mut thread.has_woken) {
                    self.wakeups_ns.push((next, waited_ns));
                }
                thread.since_ns = self.now_ns;
                thread.state = State::Running(cpu);
                self.began.push(next);
            }
            self.cpus[cpu] = next;
        }
        self.slice_ends_ns[cpu] = match next {
            Some(_) if self.ends_at_ticks => u64::MAX,
            Some(next) => self.now_ns + self.sched.slice_ns(self.threads[next].task),
            None => u64::MAX,
        };
    }

    /// Accounts for the CPU time until now.
    fn account(&mut self, number: usize) {
        let thread = &mut self.threads[number];
        let ran_ns = self.now_ns - thread.since_ns;
        thread.since_ns = self.now_ns;
        thread.ran_ns += ran_ns;
        thread.left_ns -= ran_ns;
    }

    /// Time of the next event of a CPU.
    fn event_ns(&self, cpu: usize) -> u64 {
        let Some(number) = self.cpus[cpu] else {
            return u64::MAX;
        };
        let thread = &self.threads[number];
        let burst_ends_ns = thread.since_ns.saturating_add(thread.left_ns);
        burst_ends_ns.min(self.slice_ends_ns[cpu])
    }

    fn cpu_event(&mut self, cpu: usize) {
        let Some(number) = self.cpus[cpu] else {
            return;
        };
        self.account(number);
        let thread = &mut self.threads[number];
        if thread.left_ns > 0 {
            return self.schedule(cpu);
        }
        thread.bursts += 1;
        thread.left_ns = thread.program.runs_ns;
        let task = thread.task;
        let ends = thread.bursts == thread.program.bursts;
        if !ends && thread.program.sleeps_ns == 0 {
            self.sched.yield_now(cpu);
            return;
        }
        let wakes_ns = self.now_ns + thread.program.sleeps_ns;
        thread.state = if ends { State::Ended } else { State::Sleeping };
        if !ends {
            self.sleepers.insert((wakes_ns, number));
        }
        self.sched.remove(task);
        self.schedule(cpu);
        if ends {
            self.sched.end_task(task);
        }
    }

    fn wake_those_due(&mut self) {
        while let Some(&(at_ns, number)) = self.sleepers.first() {
            if at_ns > self.now_ns {
                break;
            }
            self.sleepers.pop_first();
            self.wake(number);
        }
    }

    fn wake(&mut self, number: usize) {
        let thread = &mut self.threads[number];
        thread.state = State::Waiting;
        thread.has_woken = true;
        thread.since_ns = self.now_ns;
        let task = thread.task;
        let cpu = self.sched.task(task).cpu as usize;
        self.here = cpu;
        self.sched.wake(task, cpu);
        self.follow();
    }

    /// Executes the next event. Returns false, and advances the time to `until_ns`, if no event is
    /// due until then.
    pub fn step(&mut self, until_ns: u64) -> bool {
        let cpus = (0..self.cpus.len()).map(|cpu| self.event_ns(cpu));
        let sleeps = self.sleepers.first().map(|&(at_ns, _)| at_ns);
        let next_ns = cpus.chain(sleeps).min().unwrap_or(u64::MAX);
        let next_ns = next_ns.min(self.sched.next_timer_ns());
        let arrives = self.arrives_ns.iter().copied().min();
        let next_ns = next_ns.min(arrives.unwrap_or(u64::MAX)).max(self.now_ns);
        if next_ns > until_ns {
            self.now_ns = until_ns;
            self.sched.set_now(until_ns);
            return false;
        }
        self.now_ns = next_ns;
        self.sched.set_now(next_ns);
        for cpu in 0..self.cpus.len() {
            if self.event_ns(cpu) <= next_ns {
                self.here = cpu;
                self.cpu_event(cpu);
                self.follow();
            }
        }
        self.sched.run_timers();
        self.follow();
        self.wake_those_due();
        true
    }

    /// Advances the time by `for_ns`.
    pub fn run(&mut self, for_ns: u64) {
        let until_ns = self.now_ns + for_ns;
        while self.step(until_ns) {}
        for cpu in 0..self.cpus.len() {
            if let Some(number) = self.cpus[cpu] {
                self.account(number);
            }
        }
    }

    /// Runs the tick of all CPUs.
    pub fn tick(&mut self) {
        (0..self.cpus.len()).for_each(|cpu| self.sched.tick(cpu));
        self.follow();
    }

    /// Longest wait of any thread, including waits in progress.
    pub fn longest_wait_ns(&self) -> u64 {
        let waits = self.threads.iter().map(|thread| self.waited_ns(thread));
        waits.max().unwrap_or(0)
    }

    pub fn waited_ns(&self, thread: &Thread) -> u64 {
        match thread.state {
            State::Waiting => thread.waited_ns.max(self.now_ns - thread.since_ns),
            _ => thread.waited_ns,
        }
    }

    /// Virtual time of a thread, including its uncharged CPU time.
    pub fn vtime(&self, number: usize) -> u64 {
        let thread = &self.threads[number];
        let state = self.sched.task(thread.task);
        let weight = u64::from(thread.program.weight);
        let ran = usher_rules::share::virtual_ns(state.uncharged_ns, weight);
        state.vtime.wrapping_add(ran)
    }
}
