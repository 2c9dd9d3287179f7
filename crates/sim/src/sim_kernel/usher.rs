// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs Usher's own scheduler as the scheduler of a simulated machine. All decisions come from the
//! C source of its BPF programs, which is compiled for the host ([`HostSched`]).
//!
//! This module converts the events of simulated CPUs to calls of the scheduler: wake, sleep,
//! schedule, tick. It makes no decision itself. After each event, each CPU that the scheduler has
//! kicked schedules, until no kick is left ([`SimKernel::follow`]).
//!
//! A waiting thread counts as queued on the first CPU of its domain, in whichever queue of the
//! scheduler it waits. Two features are not modelled: weights, and soft seats, because the
//! simulated control loop implements seats as affinities.
//!
//! While no thread waits, the running thread gets slice after slice, so that the ends of slices are
//! no events. Before the thread stops or another thread begins to wait, [`SimKernel::end_slices`]
//! accounts for all slices that have passed since.
//!
//! Besides the time of the scheduler, a wake-up or a change of masks takes time in proportion to
//! the CPUs. Each schedule takes time in proportion to the waiting threads. The number of kicks
//! that one event causes is not limited here.

use usher_rules::sched::{HostSched, TaskId};

use super::SimKernel;
use crate::clock::NEVER;
use crate::job::{RunState, SchedEntity, ThreadId};
use crate::kernel::mix;

impl SimKernel {
    fn domain(&self, cpu: usize) -> usize {
        self.machine.places[cpu].domain
    }

    /// Returns the first CPU of the domain of `cpu`. Threads that wait in the domain count as
    /// queued on this CPU.
    fn line(&self, cpu: usize) -> usize {
        self.machine.domains[self.domain(cpu)][0]
    }

    /// Returns the scheduler, after setting its clock to the present time; `None` under other
    /// kernels.
    fn host(&mut self) -> Option<&mut HostSched> {
        Some(self.usher.as_mut()?.host(self.now_ns))
    }

    /// Creates the scheduler's tasks for the threads of a new program, on the CPU of the program's
    /// parent.
    pub(crate) fn create_tasks(&mut self, program: usize) {
        let created = self.tasks.threads_created;
        let any = mix(self.seed, created, program as u64) % self.cpus.len() as u64;
        let parent = self.waker.unwrap_or(any as usize);
        let Some(usher) = &mut self.usher else {
            return;
        };
        for thread in self.tasks.jobs[program].threads.clone() {
            self.tasks.threads[thread].last = parent;
            let allowed = self.tasks.where_allowed(thread);
            let task = usher.new_task(self.now_ns, thread, program, parent, allowed);
            self.tasks.threads[thread].entity = SchedEntity {
                task: Some(task),
                ..SchedEntity::default()
            };
        }
    }

    /// Removes the task of a thread that has ended.
    pub(crate) fn end_task(&mut self, thread: ThreadId) {
        if let Some(task) = self.tasks.threads[thread].entity.task.take()
            && let Some(host) = self.host()
        {
            host.end_task(task);
        }
    }

    /// Wakes a sleeping thread, or enqueues a runnable thread that was taken off its CPU.
    pub(crate) fn ready_usher(&mut self, thread: ThreadId) {
        let Some(task) = self.tasks.threads[thread].entity.task else {
            return;
        };
        if self.tasks.where_allowed(thread).is_empty() {
            self.stop(thread);
            return;
        }
        self.tasks.jobs[self.tasks.threads[thread].program].runnable += 1;
        let waiting = self.waiting;
        let goes_at_once = self.host().is_some_and(|host| host.has_idle_for(task));
        if waiting == 0 && !goes_at_once {
            (0..self.cpus.len()).for_each(|cpu| self.end_slices(cpu));
        }
        let last = self.tasks.threads[thread].last;
        let by_cpu = self.waker.unwrap_or(last);
        self.count_as_waiting(thread, last);
        let entity = &mut self.tasks.threads[thread].entity;
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

    /// Sets the events for the ends of all slices, after a first thread has begun to wait.
    fn arm_all(&mut self) {
        for cpu in 0..self.cpus.len() {
            self.account(cpu);
            self.arm(cpu);
        }
    }

    fn count_as_waiting(&mut self, thread: ThreadId, cpu: usize) {
        let line = self.line(cpu);
        self.tasks.threads[thread].run_state = RunState::Queued(line);
        self.cpus[line].queue.push(thread);
        self.queued(self.tasks.threads[thread].program, 1);
    }

    /// Lets each CPU schedule that the scheduler has kicked, until no kick is left.
    fn follow(&mut self) {
        while let Some(cpu) = self.host().and_then(|host| host.next_resched()) {
            self.schedule(cpu);
        }
    }

    /// Lets a CPU schedule, and then the CPUs that the scheduler kicks.
    pub(crate) fn schedule_usher(&mut self, cpu: usize) {
        self.schedule(cpu);
        self.follow();
    }

    fn schedule(&mut self, cpu: usize) {
        self.account(cpu);
        let usher = self.usher.as_mut();
        let next = usher.and_then(|usher| usher.schedule(self.now_ns, cpu));
        let prev = self.cpus[cpu].current;
        if let Some(prev) = prev.filter(|_| prev != next) {
            self.cpus[cpu].current = None;
            if self.tasks.threads[prev].run_state == RunState::Running(cpu) {
                self.count_as_waiting(prev, cpu);
            }
        }
        match next {
            Some(next) if prev == Some(next) => {}
            Some(next) => {
                if let RunState::Queued(line) = self.tasks.threads[next].run_state {
                    self.cpus[line].queue.retain(|&other| other != next);
                    self.queued(self.tasks.threads[next].program, -1);
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
        self.tasks.threads[self.cpus[cpu].current?].entity.task
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

    /// Removes a thread from its CPU or its queue. The thread does not run until it is made ready
    /// again.
    pub(crate) fn leave_usher(&mut self, thread: ThreadId) {
        if let RunState::Running(cpu) = self.tasks.threads[thread].run_state
            && self.waiting == 0
        {
            self.end_slices(cpu);
        }
        if let Some(task) = self.tasks.threads[thread].entity.task
            && let Some(host) = self.host()
        {
            host.remove(task);
        }
    }

    /// Calls the scheduler's tick on all busy CPUs, if any CPU is idle. Without an idle CPU, a tick
    /// changes nothing.
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
        for thread in self.tasks.jobs[program].threads.clone() {
            if let Some(task) = self.tasks.threads[thread].entity.task
                && let Some(usher) = &mut self.usher
            {
                usher.set_cpus(self.now_ns, task, self.tasks.where_allowed(thread));
            }
            self.follow();
            if let RunState::Running(cpu) = self.tasks.threads[thread].run_state
                && !self.tasks.may_run(thread, cpu)
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
