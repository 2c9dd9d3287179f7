// SPDX-License-Identifier: MIT OR Apache-2.0
//! A simulated machine of any shape, with the host build of the scheduler, for tests that wake,
//! stop and preempt threads themselves.
//!
//! [`Rig::wake`] and [`Rig::stop`] act at once. [`Rig::pass`] advances the time, in which slices
//! end. After each of these calls, all CPUs that have to schedule have scheduled.

use usher_rules::sched::{
    HostSched, HostSettings, HostTally, HostVariant, Task, TaskId, TaskState,
};
use usher_rules::select_cpu::{CPU_WORDS, CpuWords, Place};

use super::{MS, SETTINGS};

/// Values of `enum why` in shared.h.
pub const WHY_ONLY_HERE: u32 = 1;
pub const WHY_IDLE_CORE: u32 = 2;
pub const WHY_IDLE_THREAD: u32 = 3;
pub const WHY_RETURNED: u32 = 4;
pub const WHY_TURN: u32 = 5;
pub const WHY_URGENT: u32 = 6;
pub const WHY_STOLEN: u32 = 7;
pub const WHY_ALONE: u32 = 8;

/// Numbers of nodes, of LLCs per node, of cores per LLC and of hardware threads per core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape(pub usize, pub usize, pub usize, pub usize);

impl Shape {
    pub fn cpus(self) -> usize {
        self.0 * self.1 * self.2 * self.3
    }

    pub fn core_of(self, cpu: usize) -> usize {
        cpu / self.3
    }

    pub fn llc_of(self, cpu: usize) -> usize {
        cpu / self.3 / self.2
    }

    pub fn node_of(self, cpu: usize) -> usize {
        cpu / self.3 / self.2 / self.1
    }

    /// Returns the CPUs of a CPU's core.
    pub fn core(self, cpu: usize) -> impl Iterator<Item = usize> {
        (0..self.cpus()).filter(move |&other| self.core_of(other) == self.core_of(cpu))
    }

    /// Returns the distance of two CPUs: 0 is the same CPU, 1 the same LLC, 2 the same node, 3
    /// another node.
    pub fn distance(self, a: usize, b: usize) -> usize {
        match () {
            () if a == b => 0,
            () if self.llc_of(a) == self.llc_of(b) => 1,
            () if self.node_of(a) == self.node_of(b) => 2,
            () => 3,
        }
    }

    /// Returns the place of each CPU in the topology.
    pub fn places(self) -> Vec<Place> {
        (0..self.cpus()).map(|cpu| self.place(cpu)).collect()
    }

    fn place(self, cpu: usize) -> Place {
        let cpus_like =
            |is_like: &dyn Fn(usize) -> bool| set((0..self.cpus()).filter(|&c| is_like(c)));
        let node = self.node_of(cpu);
        Place {
            known: 1,
            llc: self.llc_of(cpu) as u32,
            node_number: node as u32,
            node_llcs: ((1 << self.1) - 1) << (node * self.1),
            core: cpus_like(&|other| self.core_of(other) == self.core_of(cpu)),
            near: cpus_like(&|other| self.llc_of(other) == self.llc_of(cpu)),
            node: cpus_like(&|other| self.node_of(other) == node),
            ..Place::default()
        }
    }
}

pub fn set(cpus: impl IntoIterator<Item = usize>) -> CpuWords {
    let mut words = [0; CPU_WORDS];
    for cpu in cpus {
        words[cpu / 64] |= 1 << (cpu % 64);
    }
    words
}

pub fn has(words: &CpuWords, cpu: usize) -> bool {
    words[cpu / 64] >> (cpu % 64) & 1 == 1
}

/// State of a thread. `On` contains the CPU on which the thread runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Asleep,
    Waiting,
    On(usize),
    Ended,
}

pub struct RigThread {
    pub id: TaskId,
    pub cpus: CpuWords,
    pub state: State,
    /// CPU time of the thread until the last time that its CPU scheduled.
    pub ran_ns: u64,
}

pub struct Rig {
    pub sched: HostSched,
    pub shape: Shape,
    pub threads: Vec<RigThread>,
    /// The running thread of each CPU.
    pub running: Vec<Option<usize>>,
    pub now_ns: u64,
    /// Threads in the order in which they began to run, each with its CPU.
    pub began: Vec<(usize, usize)>,
    by_task: Vec<usize>,
    slice_ends_ns: Vec<u64>,
    since_ns: Vec<u64>,
    /// CPUs that a real-time thread has taken.
    taken: Vec<bool>,
}

impl Rig {
    pub fn new(shape: Shape) -> Self {
        Self::with(shape, SETTINGS, HostVariant::default())
    }

    /// Creates a machine with these settings, except that the number of LLCs is that of the shape.
    pub fn with(shape: Shape, settings: HostSettings, variant: HostVariant) -> Self {
        Self::with_places(shape, &shape.places(), settings, variant)
    }

    /// Creates a machine with these places of its CPUs, which has as many CPUs and LLCs as the
    /// shape.
    pub fn with_places(
        shape: Shape,
        places: &[Place],
        settings: HostSettings,
        variant: HostVariant,
    ) -> Self {
        let llcs = (shape.0 * shape.1) as u32;
        let settings = HostSettings { llcs, ..settings };
        let mut sched = HostSched::with_variant(places, &settings, variant, 1);
        let now_ns = 1_000 * MS;
        sched.set_now(now_ns);
        Self {
            sched,
            shape,
            threads: Vec::new(),
            running: vec![None; shape.cpus()],
            now_ns,
            began: Vec::new(),
            by_task: Vec::new(),
            slice_ends_ns: vec![u64::MAX; shape.cpus()],
            since_ns: vec![now_ns; shape.cpus()],
            taken: vec![false; shape.cpus()],
        }
    }

    /// Creates a thread that sleeps.
    pub fn create(&mut self, task: Task) -> usize {
        let id = self.sched.new_task(&task);
        let number = self.threads.len();
        let len = self.by_task.len().max(id.index() + 1);
        self.by_task.resize(len, 0);
        self.by_task[id.index()] = number;
        self.threads.push(RigThread {
            id,
            cpus: task.cpus,
            state: State::Asleep,
            ran_ns: 0,
        });
        number
    }

    /// Creates a thread of the address space `mm` that has existed before and last ran on the first
    /// of `cpus`.
    pub fn add(&mut self, mm: u64, cpus: impl IntoIterator<Item = usize>) -> usize {
        let cpus = set(cpus);
        let cpu = (0..self.shape.cpus()).find(|&cpu| has(&cpus, cpu));
        self.create(Task {
            mm: mm << 12,
            cpu: cpu.unwrap_or(0) as u32,
            ran_ns: 1,
            cpus,
            ..Task::default()
        })
    }

    /// Creates a thread as [`Self::add`] does, and wakes it.
    pub fn start(&mut self, mm: u64, cpus: impl IntoIterator<Item = usize>) -> usize {
        let thread = self.add(mm, cpus);
        self.wake(thread);
        thread
    }

    pub fn all(&self) -> std::ops::Range<usize> {
        0..self.shape.cpus()
    }

    /// Wakes a thread by a call on its last CPU.
    pub fn wake(&mut self, thread: usize) {
        let by_cpu = self.task(thread).cpu as usize;
        self.wake_by(thread, by_cpu);
    }

    pub fn wake_by(&mut self, thread: usize, by_cpu: usize) {
        self.threads[thread].state = State::Waiting;
        self.sched.wake(self.threads[thread].id, by_cpu);
        self.settle();
    }

    /// Wakes a new thread for the first time, by a call on the CPU on which it was forked.
    pub fn wake_new(&mut self, thread: usize) {
        let by_cpu = self.task(thread).cpu as usize;
        self.threads[thread].state = State::Waiting;
        self.sched.wake_new(self.threads[thread].id, by_cpu);
        self.settle();
    }

    /// Lets a running or waiting thread sleep.
    pub fn stop(&mut self, thread: usize) {
        let state = self.threads[thread].state;
        self.threads[thread].state = State::Asleep;
        self.sched.remove(self.threads[thread].id);
        if let State::On(cpu) = state {
            self.schedule(cpu);
        }
        self.settle();
    }

    /// Lets each CPU schedule that has to, until no CPU is left.
    pub fn settle(&mut self) {
        let mut steps = 0;
        while let Some(cpu) = self.sched.next_resched() {
            self.schedule(cpu);
            steps += 1;
            assert!(steps < 100_000, "CPUs schedule without end");
        }
    }

    pub fn schedule(&mut self, cpu: usize) {
        let next = self.sched.schedule(cpu).map(|id| self.by_task[id.index()]);
        let prev = self.running[cpu];
        if let Some(prev) = prev {
            self.threads[prev].ran_ns += self.now_ns - self.since_ns[cpu];
        }
        self.since_ns[cpu] = self.now_ns;
        if prev != next {
            if let Some(prev) = prev
                && self.threads[prev].state == State::On(cpu)
            {
                self.threads[prev].state = State::Waiting;
            }
            if let Some(next) = next {
                let thread = &mut self.threads[next];
                assert!(has(&thread.cpus, cpu), "{next} may not run on CPU {cpu}");
                assert_eq!(thread.state, State::Waiting, "{next} runs on CPU {cpu}");
                thread.state = State::On(cpu);
                self.began.push((next, cpu));
            }
            self.running[cpu] = next;
        }
        let slice_ns = next.map(|next| self.sched.slice_ns(self.threads[next].id));
        self.slice_ends_ns[cpu] =
            slice_ns.map_or(u64::MAX, |slice_ns| self.now_ns.saturating_add(slice_ns));
    }

    /// Advances the time by `ns`, and handles the ends of slices in that period.
    pub fn pass(&mut self, ns: u64) {
        let until_ns = self.now_ns + ns;
        loop {
            let ends = self.slice_ends_ns.iter().copied().enumerate();
            let next = ends.map(|(cpu, at_ns)| (at_ns, cpu)).min();
            let Some((at_ns, cpu)) = next.filter(|(at_ns, _)| *at_ns <= until_ns) else {
                break;
            };
            self.set_now(at_ns);
            self.schedule(cpu);
            self.settle();
        }
        self.set_now(until_ns);
    }

    pub fn set_now(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        self.sched.set_now(now_ns);
    }

    pub fn tick(&mut self, cpu: usize) {
        self.sched.tick(cpu);
        self.settle();
    }

    pub fn task(&self, thread: usize) -> TaskState {
        self.sched.task(self.threads[thread].id)
    }

    pub fn state(&self, thread: usize) -> State {
        self.threads[thread].state
    }

    pub fn is_idle(&self, cpu: usize) -> bool {
        self.running[cpu].is_none() && !self.taken[cpu]
    }

    /// Marks a CPU as taken by a real-time thread.
    pub fn take(&mut self, cpu: usize) {
        self.taken[cpu] = true;
        if let Some(prev) = self.running[cpu].take() {
            self.threads[prev].ran_ns += self.now_ns - self.since_ns[cpu];
            self.threads[prev].state = State::Waiting;
        }
        self.slice_ends_ns[cpu] = u64::MAX;
        self.sched.set_realtime(cpu, true);
        self.settle();
    }

    /// The real-time thread releases a CPU, if it has taken it.
    pub fn release(&mut self, cpu: usize) {
        self.taken[cpu] = false;
        self.sched.set_realtime(cpu, false);
        self.settle();
    }

    pub fn is_taken(&self, cpu: usize) -> bool {
        self.taken[cpu]
    }

    pub fn is_core_idle(&self, cpu: usize) -> bool {
        self.shape.core(cpu).all(|cpu| self.is_idle(cpu))
    }

    /// CPU time of a thread until now.
    pub fn ran_ns(&self, thread: usize) -> u64 {
        let since = match self.threads[thread].state {
            State::On(cpu) => self.now_ns - self.since_ns[cpu],
            _ => 0,
        };
        self.threads[thread].ran_ns + since
    }

    pub fn tally(&self) -> HostTally {
        self.sched.tally()
    }

    /// Checks that the scheduler's counts are right, and that no CPU is idle while a thread waits
    /// that may run on it.
    pub fn check(&mut self, has_seats: bool) {
        let mut queued = 0;
        for number in 0..self.threads.len() {
            let state = self.threads[number].state;
            if state == State::Ended {
                continue;
            }
            let is_queued = self.task(number).is_queued == 1;
            assert_eq!(is_queued, state == State::Waiting, "{number} is {state:?}");
            queued += u32::from(is_queued);
            if !is_queued || has_seats {
                continue;
            }
            let cpus = self.threads[number].cpus;
            let idle = self.all().find(|&cpu| has(&cpus, cpu) && self.is_idle(cpu));
            assert_eq!(idle, None, "{number} waits beside an idle CPU");
        }
        let local = self.threads.iter().filter(|thread| {
            thread.state == State::Waiting && self.sched.task(thread.id).why == WHY_ONLY_HERE
        });
        let local = local.count() as u32;
        let llcs = self.shape.0 * self.shape.1;
        let counted = (0..llcs).map(|llc| self.sched.llc(llc));
        let counted: u32 = counted.map(|llc| llc.waiting + llc.urgent).sum();
        assert!(
            counted <= queued && queued <= counted + local,
            "{counted} of {queued} counted"
        );
    }
}
