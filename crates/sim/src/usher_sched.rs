// SPDX-License-Identifier: MIT OR Apache-2.0
//! Simulated machines under Usher's own scheduler. All decisions come from the C source of its BPF
//! programs, which is compiled for the host ([`HostSched`]).
//!
//! This module maps the engine's threads to the tasks of a [`HostSched`], and the engine's events
//! to the kernel's calls: wake, sleep, schedule, tick. It decides nothing itself. After each event
//! every CPU that the scheduler has kicked calls the scheduler, until no kick is left
//! ([`Engine::follow`]).
//!
//! The engine counts a waiting thread in the queue of its domain's first CPU, whichever of the
//! scheduler's queues holds it. Not modelled: soft seats, because the control loop's seats are
//! affinities here, and weights.
//!
//! While no thread waits, a slice simply follows the last one, so the ends of slices have no
//! events. A CPU accounts for the slices that have passed ([`Engine::end_slices`]) before its
//! thread stops or others begin to wait.

use usher_rules::sched::{HostSched, HostSettings, Task, TaskId};
use usher_rules::select_cpu::{CPU_WORDS, CpuWords, Place};

use crate::clock::NEVER;
use crate::engine::Engine;
use crate::job::{RunState, ThreadId};
use crate::kernel::{Kernel, QueueOrder, mix};
use crate::machine::{Machine, Mask};

/// A thread as the scheduler knows it.
#[derive(Debug, Clone, Default)]
pub(crate) struct SchedEntity {
    task: Option<TaskId>,
    /// Whether the thread was enqueued before.
    has_begun: bool,
    /// Whether the thread has slept since it last ran.
    pub slept: bool,
}

/// The scheduler's instance.
#[derive(Debug)]
pub(crate) struct UsherSched {
    host: HostSched,
    /// The thread of each task, by number.
    threads: Vec<ThreadId>,
}

impl UsherSched {
    /// Creates the scheduler of an idle machine.
    pub fn new(machine: &Machine, kernel: &Kernel, seed: u64) -> Self {
        let settings = HostSettings {
            slice_ns: kernel.slice_ns,
            turn_ns: kernel.turn_ns,
            max_lag_ns: kernel.max_lag_ns,
            smt: kernel.smt_aware.into(),
            aggregate: kernel.aggregate.into(),
            llcs: machine.domains.len() as u32,
            ..HostSettings::default()
        };
        Self {
            host: HostSched::new(&places(machine), &settings, seed),
            threads: Vec::new(),
        }
    }
}

/// The position of each CPU in the caches and NUMA nodes, for the scheduler.
fn places(machine: &Machine) -> Vec<Place> {
    let cpus = machine.places.iter().enumerate();
    let place = |(at, cpu): (usize, &crate::machine::Place)| {
        let node = machine.node_of[cpu.domain];
        let domains = 0..machine.domains.len();
        let domains = domains.filter(|&domain| machine.node_of[domain] == node);
        let node_cpus = domains.clone().flat_map(|domain| &machine.domains[domain]);
        Place {
            known: 1,
            llc: cpu.domain as u32,
            node_number: node as u32,
            node_llcs: domains.fold(0, |all, domain| all | 1 << (domain % 64)),
            core: words(cpu.siblings.iter().copied().chain([at])),
            near: words(machine.domains[cpu.domain].iter().copied()),
            node: words(node_cpus.copied()),
            ..Place::default()
        }
    };
    cpus.map(place).collect()
}

fn words(cpus: impl Iterator<Item = usize>) -> CpuWords {
    let mut words = [0; CPU_WORDS];
    for cpu in cpus {
        if let Some(word) = words.get_mut(cpu / 64) {
            *word |= 1 << (cpu % 64);
        }
    }
    words
}

fn words_of(mask: &Mask, cpus: usize) -> CpuWords {
    words((0..cpus).filter(|&cpu| mask.has(cpu)))
}

/// The number of a program's address space.
fn mm_of(program: usize) -> u64 {
    (program as u64 + 1) << 6
}

impl Engine {
    fn domain(&self, cpu: usize) -> usize {
        self.machine.places[cpu].domain
    }

    /// The CPU with the queue in which the engine counts threads that wait in the domain of `cpu`.
    fn line(&self, cpu: usize) -> usize {
        self.machine.domains[self.domain(cpu)][0]
    }

    /// The scheduler's instance, at the present time.
    fn host(&mut self) -> Option<&mut HostSched> {
        let usher = self.usher.as_mut()?;
        usher.host.set_now(self.now_ns);
        Some(&mut usher.host)
    }

    /// Creates the tasks of a new program's threads on the CPU of its parent.
    pub(crate) fn create_tasks(&mut self, program: usize) {
        let any = mix(self.seed, self.threads_created, program as u64) % self.cpus.len() as u64;
        let parent = self.waker.unwrap_or(any as usize);
        for thread in self.jobs[program].threads.clone() {
            let task = Task {
                mm: mm_of(program),
                cpu: parent as u32,
                cpus: words_of(self.where_allowed(thread), self.cpus.len()),
                ..Task::default()
            };
            self.threads[thread].last = parent;
            let Some(task) = self.host().map(|host| host.new_task(&task)) else {
                return;
            };
            self.threads[thread].entity = SchedEntity {
                task: Some(task),
                ..SchedEntity::default()
            };
            if let Some(usher) = &mut self.usher {
                usher
                    .threads
                    .resize(usher.threads.len().max(task.index() + 1), 0);
                usher.threads[task.index()] = thread;
            }
        }
    }

    /// Removes the task of a thread that has ended.
    pub(crate) fn end_task(&mut self, thread: ThreadId) {
        if let Some(task) = self.threads[thread].entity.task.take()
            && let Some(host) = self.host()
        {
            host.end_task(task);
        }
    }

    /// Wakes a thread, or enqueues one that was taken off its CPU.
    pub(crate) fn ready_usher(&mut self, thread: ThreadId) {
        let Some(task) = self.threads[thread].entity.task else {
            return;
        };
        if self.where_allowed(thread).is_empty() {
            self.stop(thread);
            return;
        }
        self.jobs[self.threads[thread].program].runnable += 1;
        let waiting = self.waiting;
        let goes_at_once = self.host().is_some_and(|host| host.has_idle_for(task));
        if waiting == 0 && !goes_at_once {
            (0..self.cpus.len()).for_each(|cpu| self.end_slices(cpu));
        }
        let last = self.threads[thread].last;
        let by_cpu = self.waker.unwrap_or(last);
        self.count_as_waiting(thread, last);
        let entity = &mut self.threads[thread].entity;
        let has_begun = std::mem::replace(&mut entity.has_begun, true);
        let slept = std::mem::take(&mut entity.slept);
        if let Some(host) = self.host() {
            match (has_begun, slept) {
                (false, _) => host.wake_new(task, by_cpu),
                (true, true) => host.wake(task, by_cpu),
                (true, false) => host.requeue(task),
            }
        }
        self.follow();
        if waiting == 0 && self.waiting > 0 {
            self.arm_all();
        }
    }

    /// Schedules the ends of all slices, after a first thread began to wait.
    fn arm_all(&mut self) {
        for cpu in 0..self.cpus.len() {
            self.account(cpu);
            self.arm(cpu);
        }
    }

    fn count_as_waiting(&mut self, thread: ThreadId, cpu: usize) {
        let line = self.line(cpu);
        self.threads[thread].run_state = RunState::Queued(line);
        self.cpus[line].queue.push(thread);
        self.queued(self.threads[thread].program, 1);
    }

    /// Calls the scheduler on each CPU that it has kicked, until no kick is left.
    fn follow(&mut self) {
        while let Some(cpu) = self.host().and_then(|host| host.next_resched()) {
            self.schedule(cpu);
        }
    }

    /// Calls the scheduler on a CPU, then on the CPUs that it kicks.
    pub(crate) fn schedule_usher(&mut self, cpu: usize) {
        self.schedule(cpu);
        self.follow();
    }

    fn schedule(&mut self, cpu: usize) {
        self.account(cpu);
        let next = self.host().and_then(|host| host.schedule(cpu));
        let next = next.and_then(|task| Some(self.usher.as_ref()?.threads[task.index()]));
        let prev = self.cpus[cpu].current;
        if let Some(prev) = prev.filter(|_| prev != next) {
            self.cpus[cpu].current = None;
            if self.threads[prev].run_state == RunState::Running(cpu) {
                self.count_as_waiting(prev, cpu);
            }
        }
        match next {
            Some(next) if prev == Some(next) => {}
            Some(next) => {
                if let RunState::Queued(line) = self.threads[next].run_state {
                    self.cpus[line].queue.retain(|&other| other != next);
                    self.queued(self.threads[next].program, -1);
                }
                self.run_on(next, cpu);
            }
            None => {
                self.record_current(cpu);
                self.clock.set(cpu, NEVER);
                self.update_sibling_rates(cpu);
            }
        }
        self.begin_slice(cpu);
    }

    fn begin_slice(&mut self, cpu: usize) {
        let Some(task) = self.task_on(cpu) else {
            return;
        };
        if let Some(slice_ns) = self.host().map(|host| host.slice_ns(task)) {
            self.cpus[cpu].slice_end_ns = self.now_ns + slice_ns;
            self.arm(cpu);
        }
    }

    fn task_on(&self, cpu: usize) -> Option<TaskId> {
        self.threads[self.cpus[cpu].current?].entity.task
    }

    /// Ends the slices that have passed on a CPU while no thread waited.
    pub(crate) fn end_slices(&mut self, cpu: usize) {
        let (slice_ns, ends_ns) = (self.kernel.slice_ns, self.cpus[cpu].slice_end_ns);
        if self.usher.is_none() || self.now_ns < ends_ns || self.cpus[cpu].current.is_none() {
            return;
        }
        let last_ns = ends_ns + (self.now_ns - ends_ns) / slice_ns * slice_ns;
        if let Some(host) = self.host() {
            host.end_slice(cpu, last_ns);
        }
        self.cpus[cpu].slice_end_ns = last_ns + slice_ns;
    }

    /// Removes a thread from its CPU or its queue; it stays off until it is made ready again.
    pub(crate) fn leave_usher(&mut self, thread: ThreadId) {
        if let RunState::Running(cpu) = self.threads[thread].run_state
            && self.waiting == 0
        {
            self.end_slices(cpu);
        }
        if let Some(task) = self.threads[thread].entity.task
            && let Some(host) = self.host()
        {
            host.remove(task);
        }
    }

    /// Ticks the clock of all busy CPUs. Without an idle CPU a tick changes nothing.
    pub(crate) fn tick_usher(&mut self) {
        if !self.host().is_some_and(|host| host.any_idle()) {
            return;
        }
        for cpu in 0..self.cpus.len() {
            if self.cpus[cpu].current.is_some()
                && let Some(host) = self.host()
            {
                host.tick(cpu);
            }
        }
        self.follow();
    }

    /// Passes a program's changed affinities to the scheduler.
    pub(crate) fn apply_masks_usher(&mut self, program: usize) {
        let waiting = self.waiting;
        for thread in self.jobs[program].threads.clone() {
            let cpus = words_of(self.where_allowed(thread), self.cpus.len());
            if let Some(task) = self.threads[thread].entity.task
                && let Some(host) = self.host()
            {
                host.set_cpus(task, &cpus);
            }
            self.follow();
            if let RunState::Running(cpu) = self.threads[thread].run_state
                && !self.may_run(thread, cpu)
            {
                self.deactivate(thread);
                self.ready(thread);
            }
        }
        if waiting == 0 && self.waiting > 0 {
            self.arm_all();
        }
    }

    /// Passes the set of online CPUs to the scheduler.
    pub(crate) fn set_online_usher(&mut self) {
        for cpu in 0..self.cpus.len() {
            let online = self.cpus[cpu].online;
            if let Some(host) = self.host() {
                host.set_online(cpu, online);
            }
        }
    }
}

impl Kernel {
    /// Returns whether this kernel runs Usher's scheduler.
    pub(crate) fn is_usher(&self) -> bool {
        self.order == QueueOrder::Usher
    }
}
