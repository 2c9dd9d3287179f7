// SPDX-License-Identifier: MIT OR Apache-2.0
//! The simulated kernel: decides which thread runs on which CPU, and at which speed.
//!
//! [`SimKernel`] handles threads that are runnable, running, waiting or stopped. It does not know
//! the steps that they execute: module `engine` executes scripts and calls the kernel.
//!
//! 1. A thread becomes ready (`ready`): select a CPU. The thread runs there at once, preempts the
//!    running thread, or is put into the CPU's queue.
//! 2. A thread blocks, or its slice ends (`dispatch`): select the next thread of the CPU's queue,
//!    or pull a thread from another CPU.
//! 3. A thread starts to run: charge the context switch and cache refills, and set the time of the
//!    CPU's next event.
//! 4. Periodically: balance loads (`balance`), and update the speed of programs.
//!
//! Each of steps 1 to 3 takes time in proportion to the CPUs and the waiting threads. A balancing
//! pass takes that time for each CPU (module `balance`); an update of speeds takes time of order
//! CPUs + programs x (domains + nodes). The kernel combines these parts, which get all data as
//! arguments:
//!
//! - `queue_order`: the order of a CPU's queue; `cpu_selection`: the CPU of a thread;
//! - `usher_sched`: an instance of Usher's scheduler, which replaces `queue_order` and
//!   `cpu_selection` (module `usher` passes it the events);
//! - `contention`: the speed of programs;
//! - `clock`: the next event of each CPU; `record`: traces.

mod balance;
mod usher;

use crate::clock::{Clock, NEVER};
use crate::contention::{MemoryContention, rate};
use crate::cpu::CpuState;
use crate::cpu_selection::CpuSelection;
use crate::job::{RunState, ThreadId};
use crate::kernel::{Kernel, QueueOrder};
use crate::machine::{Machine, Mask};
use crate::record::{Recorder, Recording};
use crate::task_table::TaskTable;
use crate::usher_sched::UsherSched;

/// The CPUs and threads of a simulated machine.
#[derive(Debug)]
pub struct SimKernel {
    pub(crate) machine: Machine,
    pub(crate) kernel: Kernel,
    pub(crate) cpus: Vec<CpuState>,
    pub(crate) tasks: TaskTable,
    pub(crate) now_ns: u64,
    pub(crate) clock: Clock,
    /// The CPU of the current event; `None` while a timer is handled.
    pub(crate) waker: Option<usize>,
    pub(crate) seed: u64,
    /// The instance of Usher's scheduler; `None` under other kernels.
    usher: Option<UsherSched>,
    contention: MemoryContention,
    recorder: Option<Box<Recorder>>,
    /// Number of threads that wait in the queues of all CPUs.
    waiting: usize,
    /// Programs with threads in queues, unordered.
    waiting_programs: Vec<usize>,
    /// Virtual time of the last load balancing between busy CPUs.
    balanced_ns: u64,
    /// Number of switches of a CPU from a thread of one program to a thread of another program.
    space_switches: u64,
}

impl SimKernel {
    /// Creates an idle machine.
    pub(crate) fn new(machine: Machine, kernel: Kernel, seed: u64) -> Self {
        let cpus = machine.places.len();
        Self {
            clock: Clock::new(cpus),
            contention: MemoryContention::new(&machine),
            usher: kernel
                .is_usher()
                .then(|| UsherSched::new(&machine, &kernel, seed)),
            cpus: vec![CpuState::idle(); cpus],
            machine,
            kernel,
            tasks: TaskTable::default(),
            now_ns: 0,
            waiting: 0,
            waiting_programs: Vec::new(),
            waker: None,
            balanced_ns: 0,
            space_switches: 0,
            seed,
            recorder: None,
        }
    }

    /// Returns the virtual time since the start, in nanoseconds.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Returns the number of switches of a CPU from a thread of one program to a thread of another.
    pub fn space_switches(&self) -> u64 {
        self.space_switches
    }

    /// Returns the simulated machine.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    fn weight(&self, thread: ThreadId) -> f64 {
        self.tasks.weight(thread, self.kernel.group_by)
    }

    fn selection(&self) -> CpuSelection<'_> {
        CpuSelection {
            machine: &self.machine,
            kernel: &self.kernel,
            cpus: &self.cpus,
            tasks: &self.tasks,
            waker: self.waker,
            seed: self.seed,
        }
    }

    /// Returns the online CPUs.
    pub(crate) fn online(&self) -> Mask {
        let mut online = Mask::new(self.cpus.len());
        for (cpu, state) in self.cpus.iter().enumerate() {
            if state.online {
                online.insert(cpu);
            }
        }
        online
    }

    // Queues.

    /// Puts a thread into a CPU's queue.
    fn enqueue(&mut self, thread: ThreadId, cpu: usize) {
        let (cpus, tasks) = (&mut self.cpus, &mut self.tasks);
        self.kernel.enqueue(cpus, tasks, thread, cpu);
    }

    /// Stores the lag of a thread that leaves a CPU.
    pub(crate) fn leave(&mut self, thread: ThreadId, cpu: usize) {
        match self.kernel.is_usher() {
            true => self.leave_usher(thread),
            false => self
                .kernel
                .leave(&mut self.cpus[cpu], &mut self.tasks, thread),
        }
    }

    /// Returns whether a woken thread preempts the running thread of the CPU.
    fn preempts(&self, thread: ThreadId, cpu: usize) -> bool {
        let cpu = &self.cpus[cpu];
        self.kernel.preempts(cpu, &self.tasks, thread, self.now_ns)
    }

    /// Returns the end of the current slice, which applies if other threads wait; at least the
    /// current time.
    pub(crate) fn slice_ends_at_ns(&self, cpu: usize) -> u64 {
        self.kernel.slice_ends_at_ns(&self.cpus[cpu], self.now_ns)
    }

    /// Selects the next thread of a CPU's queue. Threads that may not run on the CPU are moved to
    /// other queues.
    fn pick_allowed(&mut self, cpu: usize) -> Option<ThreadId> {
        loop {
            let thread = self.kernel.pick(&mut self.cpus[cpu], &self.tasks)?;
            if self.tasks.may_run(thread, cpu) {
                return Some(thread);
            }
            self.leave(thread, cpu);
            self.requeue_allowed(thread);
        }
    }

    /// Moves a thread, which has just left a queue, to the queue of an allowed CPU.
    fn requeue_allowed(&mut self, thread: ThreadId) {
        // The set of a thread's allowed CPUs is never empty.
        let to = self.selection().shortest_allowed_queue(thread).unwrap_or(0);
        self.account(to);
        self.enqueue(thread, to);
        match self.cpus[to].current {
            None => self.dispatch(to),
            Some(_) => self.arm(to),
        }
    }

    /// Adds `by` to the number of a program's threads in queues, and updates the time during which
    /// the program had threads in queues.
    pub(crate) fn queued(&mut self, program: usize, by: i32) {
        self.waiting = self.waiting.wrapping_add_signed(by as isize);
        let job = &mut self.tasks.jobs[program];
        let before = job.queued;
        job.delay_ns += u64::from(before) * (self.now_ns - job.queued_ns);
        job.queued_ns = self.now_ns;
        job.queued = job.queued.wrapping_add_signed(by);
        match (before > 0, job.queued > 0) {
            (false, true) => self.waiting_programs.push(program),
            (true, false) => self.remove_waiting_program(program),
            _ => {}
        }
        let job = &mut self.tasks.jobs[program];
        match (job.queued > 0, job.wait_since_ns) {
            (true, None) => job.wait_since_ns = Some(self.now_ns),
            (false, Some(since_ns)) => {
                job.wait_ns += self.now_ns - since_ns;
                job.wait_since_ns = None;
            }
            _ => {}
        }
    }

    /// Removes a program from the list of programs with threads in queues.
    pub(crate) fn remove_waiting_program(&mut self, program: usize) {
        // The search starts at the end, because the program that was added last usually leaves
        // first.
        if let Some(at) = self
            .waiting_programs
            .iter()
            .rposition(|&other| other == program)
        {
            self.waiting_programs.swap_remove(at);
        }
    }

    /// Returns whether any program with threads in queues may use the CPU.
    fn has_waiters_for(&self, cpu: usize) -> bool {
        let may = |&program: &usize| self.tasks.jobs[program].mask.has(cpu);
        self.waiting_programs.iter().any(may)
    }

    // Thread states.

    /// Puts a runnable thread on a CPU or into a queue.
    pub(crate) fn ready(&mut self, thread: ThreadId) {
        let program = self.tasks.threads[thread].program;
        let is_stopped = self.tasks.is_stopped(thread);
        if self.kernel.is_usher() && !is_stopped {
            return self.ready_usher(thread);
        }
        let cpu = match is_stopped {
            true => None,
            false => self.selection().select(thread),
        };
        let Some(cpu) = cpu else {
            self.stop(thread);
            return;
        };
        self.account(cpu);
        self.tasks.jobs[program].runnable += 1;
        self.enqueue(thread, cpu);
        self.queued(program, 1);
        if self.cpus[cpu].current.is_none() {
            self.dispatch(cpu);
        } else if self.preempts(thread, cpu) {
            self.preempt(cpu);
        } else {
            self.arm(cpu);
        }
    }

    /// Sets a runnable thread to stopped. For Usher's scheduler, a stopped thread sleeps.
    pub(crate) fn stop(&mut self, thread: ThreadId) {
        self.tasks.threads[thread].run_state = RunState::Stopped;
        self.tasks.threads[thread].entity.slept = true;
    }

    /// Takes a thread off its CPU or out of its queue. The caller then sets the thread's new state.
    pub(crate) fn deactivate(&mut self, thread: ThreadId) {
        match self.tasks.threads[thread].run_state {
            RunState::Running(cpu) => {
                self.account(cpu);
                self.leave(thread, cpu);
                self.tasks.jobs[self.tasks.threads[thread].program].runnable -= 1;
                self.tasks.threads[thread].run_state = RunState::Waiting;
                self.cpus[cpu].current = None;
                self.dispatch(cpu);
            }
            RunState::Queued(cpu) => {
                self.account(cpu);
                self.leave(thread, cpu);
                self.cpus[cpu].queue.retain(|&other| other != thread);
                self.queued(self.tasks.threads[thread].program, -1);
                self.tasks.jobs[self.tasks.threads[thread].program].runnable -= 1;
                self.tasks.threads[thread].run_state = RunState::Waiting;
                self.arm(cpu);
            }
            _ => {}
        }
    }

    /// Moves a running thread to an idle CPU.
    fn move_running(&mut self, thread: ThreadId, to: usize) {
        self.deactivate(thread);
        self.account(to);
        self.tasks.jobs[self.tasks.threads[thread].program].runnable += 1;
        self.enqueue(thread, to);
        self.queued(self.tasks.threads[thread].program, 1);
        if self.cpus[to].current.is_none() {
            self.dispatch(to);
        } else {
            self.arm(to);
        }
    }

    /// Puts the running thread of a CPU back into the queue, and runs the next thread.
    pub(crate) fn preempt(&mut self, cpu: usize) {
        if let Some(thread) = self.cpus[cpu].current.take() {
            let slice = self.kernel.slice_ns as f64 / self.weight(thread);
            let state = &mut self.tasks.threads[thread];
            if state.vruntime >= state.deadline {
                state.deadline = state.vruntime + slice;
            }
            state.run_state = RunState::Queued(cpu);
            self.cpus[cpu].queue.push(thread);
            self.queued(self.tasks.threads[thread].program, 1);
        }
        self.dispatch(cpu);
    }

    /// Selects the next thread of a CPU without a current thread.
    pub(crate) fn dispatch(&mut self, cpu: usize) {
        debug_assert!(self.cpus[cpu].current.is_none());
        if self.kernel.is_usher() {
            return self.schedule_usher(cpu);
        }
        self.account(cpu);
        if let Some(thread) = self.pick_or_pull(cpu) {
            self.queued(self.tasks.threads[thread].program, -1);
            return self.run_on(thread, cpu);
        }
        self.record_current(cpu);
        self.clock.set(cpu, NEVER);
        self.update_sibling_rates(cpu);
    }

    fn pick_or_pull(&mut self, cpu: usize) -> Option<ThreadId> {
        let thread = self.pick_allowed(cpu);
        if thread.is_some() || !self.cpus[cpu].online || !self.has_waiters_for(cpu) {
            return thread;
        }
        let thread = self.pull_allowed(cpu)?;
        let (cpus, tasks) = (&mut self.cpus, &mut self.tasks);
        self.kernel.join(cpus, tasks, thread, cpu);
        Some(thread)
    }

    /// Pulls a waiting thread from another CPU, for a CPU that would be idle.
    fn pull_allowed(&mut self, cpu: usize) -> Option<ThreadId> {
        if self.waiting == 0 {
            return None;
        }
        let (other, at) = self.selection().waiting_near(cpu)?;
        self.account(other);
        let thread = self.cpus[other].queue.remove(at);
        self.leave(thread, other);
        if self.tasks.may_run(thread, cpu) {
            return Some(thread);
        }
        self.requeue_allowed(thread);
        None
    }

    /// Runs a thread on a CPU without a running thread. The thread is in no queue.
    fn run_on(&mut self, thread: ThreadId, cpu: usize) {
        debug_assert!(self.cpus[cpu].current.is_none());
        self.account(cpu);
        self.cpus[cpu].current = Some(thread);
        self.record_current(cpu);
        self.cpus[cpu].started_ns = self.now_ns;
        self.cpus[cpu].slice_end_ns = self.now_ns + self.kernel.slice_ns;
        self.tasks.threads[thread].run_state = RunState::Running(cpu);
        self.warm_up(thread, cpu);
        self.update_sibling_rates(cpu);
        self.set_rate(cpu);
        self.arm(cpu);
    }

    /// Charges a thread for its start on a CPU: for the context switch, and for the refill of
    /// caches that contain the data of other threads.
    fn warm_up(&mut self, thread: ThreadId, cpu: usize) {
        let costs = &self.machine.costs;
        let now = (thread, self.tasks.threads[thread].program);
        let before = self.cpus[cpu].before.replace(now);
        let others = before.is_some_and(|(_, program)| program != now.1);
        // Other programs have used the last-level cache while the program was suspended.
        let resumed = std::mem::take(&mut self.tasks.threads[thread].resumed) && others;
        self.space_switches += u64::from(others);
        if before == Some(now) && self.tasks.threads[thread].last == cpu {
            return;
        }
        let memory = &self.tasks.jobs[self.tasks.threads[thread].program]
            .script
            .memory;
        let (from, to) = (
            &self.machine.places[self.tasks.threads[thread].last],
            &self.machine.places[cpu],
        );
        // The refill is limited to the data that the thread uses.
        let own = (memory.private_bytes / 512e3).min(1.0);
        let mut cold = costs.switch_ns + own * costs.private_refill_ns;
        if from.domain != to.domain || resumed {
            cold += memory.private_bytes.min(self.machine.llc_bytes[to.domain]) / costs.refill_gbps;
        }
        let state = &mut self.tasks.threads[thread];
        // An unfinished earlier refill is discarded.
        state.cold = cold;
        state.last = cpu;
    }

    // Time and speed.

    /// Charges the running thread of a CPU for the time since the last charge.
    pub(crate) fn account(&mut self, cpu: usize) {
        let state = &mut self.cpus[cpu];
        let elapsed_ns = self.now_ns - state.since_ns;
        state.since_ns = self.now_ns;
        let Some(id) = state.current.filter(|_| elapsed_ns > 0) else {
            return;
        };
        let rate = state.rate;
        let weight = self.weight(id);
        let thread = &mut self.tasks.threads[id];
        let job = &mut self.tasks.jobs[thread.program];
        self.cpus[cpu].busy_ns += elapsed_ns;
        thread.cpu_ns += elapsed_ns;
        job.cpu_ns += elapsed_ns;
        thread.vruntime += elapsed_ns as f64 / weight;
        if thread.spins_at.is_some() {
            job.spun_ns += elapsed_ns as f64;
            return;
        }
        let done = elapsed_ns as f64 * rate;
        job.done_ns[self.machine.places[cpu].domain] += done;
        let warming = thread.cold.min(done);
        thread.cold -= warming;
        let bouncing = thread.bounce_work.min(done - warming);
        thread.bounce_work -= bouncing;
        let worked = (done - warming - bouncing).min(thread.work);
        thread.work -= worked;
        job.work += worked;
        job.busy_ns[self.machine.places[cpu].domain] += elapsed_ns as f64;
    }

    /// Returns whether another thread may run on the CPU when the slice ends.
    pub(crate) fn may_switch(&self, cpu: usize) -> bool {
        match self.kernel.order {
            // Under Usher's scheduler, a CPU may also take threads that wait in other domains.
            QueueOrder::Usher => self.waiting > 0,
            QueueOrder::Eevdf | QueueOrder::Cfs => !self.cpus[cpu].queue.is_empty(),
        }
    }

    /// Sets the time of the CPU's next event.
    pub(crate) fn arm(&mut self, cpu: usize) {
        let state = &self.cpus[cpu];
        let Some(id) = state.current else {
            self.clock.set(cpu, NEVER);
            return;
        };
        let thread = &self.tasks.threads[id];
        let mut at_ns = match thread.spins_at {
            Some(_) if thread.spins_until_ns == NEVER => NEVER,
            Some(_) => self.now_ns + thread.spins_until_ns.saturating_sub(thread.cpu_ns),
            None => {
                let left = (thread.cold + thread.bounce_work + thread.work) / state.rate;
                self.now_ns.saturating_add(left.ceil() as u64)
            }
        };
        if self.may_switch(cpu) {
            at_ns = at_ns.min(self.slice_ends_at_ns(cpu));
        }
        self.clock.set(cpu, at_ns);
    }

    /// Sets the rate at which the running thread of a CPU works.
    fn set_rate(&mut self, cpu: usize) {
        if let Some(rate) = rate(&self.machine, &self.cpus, &self.tasks, cpu) {
            self.cpus[cpu].rate = rate;
        }
    }

    /// Updates the rates of the threads on the CPU's SMT siblings, after the CPU became busy or
    /// idle.
    fn update_sibling_rates(&mut self, cpu: usize) {
        for at in 0..self.machine.places[cpu].siblings.len() {
            let other = self.machine.places[cpu].siblings[at];
            if self.cpus[other].current.is_some() {
                self.account(other);
                self.set_rate(other);
                self.arm(other);
            }
        }
    }

    /// Updates the speed of all programs from the threads that ran since the last update.
    pub(crate) fn update_contention(&mut self) {
        self.charge_all();
        let jobs = &mut self.tasks.jobs;
        if !self.contention.update(self.now_ns, &self.machine, jobs) {
            return;
        }
        for cpu in 0..self.cpus.len() {
            if self.cpus[cpu].current.is_some() {
                self.set_rate(cpu);
                self.arm(cpu);
            }
        }
    }

    /// Charges all running threads up to the current time.
    pub fn charge_all(&mut self) {
        for cpu in 0..self.cpus.len() {
            self.account(cpu);
        }
    }

    /// Starts to record up to `spans_max` spans.
    pub fn record(&mut self, spans_max: usize) {
        let running = self.cpus.iter().map(|cpu| {
            let thread = cpu.current?;
            Some(self.tasks.threads[thread].program)
        });
        let recorder = Recorder::new(running, self.now_ns, spans_max);
        self.recorder = Some(Box::new(recorder));
    }

    /// Returns the recording until now; it is empty if recording was not started.
    pub fn recording(&self) -> Recording {
        let recorder = self.recorder.as_ref();
        recorder.map_or_else(Recording::default, |recorder| {
            recorder.recording(self.now_ns)
        })
    }

    /// Passes a change of the CPU's running thread to the recorder.
    fn record_current(&mut self, cpu: usize) {
        if let Some(recorder) = &mut self.recorder {
            let thread = self.cpus[cpu].current;
            let program = thread.map(|thread| self.tasks.threads[thread].program);
            recorder.set_current(cpu, program, self.now_ns);
        }
    }
}
