// SPDX-License-Identifier: MIT OR Apache-2.0
//! The event loop: advances virtual time, runs threads on CPUs and executes the steps of their
//! scripts.
//!
//! There are two kinds of events. A CPU event marks the end of the current thread's step or slice;
//! the next CPU event comes from a tournament tree (module `clock`). All other events are timers.
//! Between two events of a CPU its thread works at a constant rate, so the engine needs no work
//! in between.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::clock::{Clock, NEVER};
use crate::contention::MemoryContention;
use crate::fault::{DEADLOCK_CHECK_NS, Fault, FaultDetector};
use crate::job::{Job, RunState, Thread, ThreadId};
use crate::kernel::Kernel;
use crate::machine::Machine;
use crate::queue_order::QueueOrder;
use crate::record::Recorder;
use crate::usher_sched::UsherSched;

/// Amount of work below which a step counts as complete: a millionth of a nanosecond of work.
pub(crate) const WORK_EPSILON: f64 = 1e-6;

/// An event that the engine reports to its caller.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum SimEvent {
    /// A program has completed its work once.
    Repeated {
        /// Index of the program, in the order of arrival.
        program: usize,
        /// Duration of the repetition in virtual seconds.
        seconds: f64,
    },
    /// A program has ended or was killed.
    Ended(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    Wake(ThreadId, u64),
    Balance,
    Contention,
    DeadlockCheck,
}

#[derive(Debug, Clone)]
pub(crate) struct CpuState {
    pub current: Option<ThreadId>,
    pub queue: Vec<ThreadId>,
    pub online: bool,
    /// Virtual time up to which the CPU's time has been charged.
    pub since_ns: u64,
    /// Start of the current thread's run.
    pub started_ns: u64,
    pub slice_end_ns: u64,
    /// Work per nanosecond.
    pub rate: f64,
    /// Total time during which the CPU ran a thread.
    pub busy_ns: u64,
    /// Virtual time of the queue when it was last non-empty.
    pub vtime: f64,
    /// The thread that ran before on this CPU, and its program.
    pub before: Option<(ThreadId, usize)>,
}

/// The state of the simulated machine, its kernel and its programs.
#[derive(Debug)]
pub struct Engine {
    pub(crate) machine: Machine,
    pub(crate) kernel: Kernel,
    pub(crate) cpus: Vec<CpuState>,
    /// The instance of Usher's scheduler; `None` under other kernels.
    pub(crate) usher: Option<UsherSched>,
    pub(crate) threads: Vec<Thread>,
    pub(crate) jobs: Vec<Job>,
    pub(crate) now_ns: u64,
    pub(crate) contention: MemoryContention,
    /// Number of threads in queues.
    pub(crate) waiting: usize,
    /// Programs with threads in queues, unordered.
    pub(crate) waiting_programs: Vec<usize>,
    /// The CPU of the current event; none while a timer is handled.
    pub(crate) waker: Option<usize>,
    /// Virtual time of the last load balancing between busy CPUs.
    pub(crate) balanced_ns: u64,
    pub(crate) clock: Clock,
    timers: BinaryHeap<Reverse<(u64, u64, Timer)>>,
    timers_made: u64,
    pub(crate) free: Vec<ThreadId>,
    pub(crate) sim_events: Vec<SimEvent>,
    events: u64,
    /// Number of switches of a CPU to a thread of another program.
    space_switches: u64,
    /// Number of threads created so far.
    pub(crate) threads_created: u64,
    pub(crate) seed: u64,
    pub(crate) fault_detector: FaultDetector,
    pub(crate) recorder: Option<Box<Recorder>>,
}

impl Engine {
    /// Creates an idle machine. The kernel must support the machine ([`Kernel::check`]).
    pub fn new(machine: Machine, kernel: Kernel, seed: u64) -> Self {
        let cpu = CpuState {
            current: None,
            queue: Vec::new(),
            online: true,
            since_ns: 0,
            started_ns: 0,
            slice_end_ns: 0,
            rate: 0.0,
            busy_ns: 0,
            vtime: 0.0,
            before: None,
        };
        let cpus = vec![cpu; machine.places.len()];
        let mut engine = Self {
            clock: Clock::new(cpus.len()),
            contention: MemoryContention::new(&machine),
            usher: kernel
                .is_usher()
                .then(|| UsherSched::new(&machine, &kernel, seed)),
            cpus,
            machine,
            kernel,
            threads: Vec::new(),
            jobs: Vec::new(),
            now_ns: 0,
            waiting: 0,
            waiting_programs: Vec::new(),
            waker: None,
            balanced_ns: 0,
            timers: BinaryHeap::new(),
            timers_made: 0,
            free: Vec::new(),
            sim_events: Vec::new(),
            events: 0,
            space_switches: 0,
            threads_created: 0,
            seed,
            fault_detector: FaultDetector::default(),
            recorder: None,
        };
        engine.after(engine.kernel.balance_ns, Timer::Balance);
        engine.after(crate::contention::PERIOD_NS, Timer::Contention);
        engine.after(DEADLOCK_CHECK_NS, Timer::DeadlockCheck);
        engine
    }

    /// Virtual nanoseconds since the start.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Number of handled events.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Number of switches of a CPU from a thread of one program to a thread of another.
    pub fn space_switches(&self) -> u64 {
        self.space_switches
    }

    /// The simulated machine.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Advances virtual time to `until_ns`, or until an event is to be reported.
    ///
    /// # Errors
    /// The run cannot continue: all threads of a program wait for one another, or a program repeats
    /// steps or events without end. Every later call then returns the same error.
    pub fn run(&mut self, until_ns: u64) -> Result<(), Fault> {
        loop {
            if let Some(fault) = self.fault() {
                return Err(fault.clone());
            }
            if !self.sim_events.is_empty() {
                return Ok(());
            }
            let (cpu_ns, cpu) = self.clock.first();
            let timer_ns = self.timers.peek().map_or(NEVER, |Reverse((at, ..))| *at);
            let next_ns = cpu_ns.min(timer_ns);
            if next_ns > until_ns {
                self.now_ns = self.now_ns.max(until_ns);
                return Ok(());
            }
            self.events += 1;
            self.now_ns = next_ns;
            if self.exceeds_event_limit(self.events) {
                continue;
            }
            if cpu_ns <= timer_ns {
                self.waker = Some(cpu);
                self.cpu_event(cpu);
                self.waker = None;
            } else if let Some(Reverse((_, _, timer))) = self.timers.pop() {
                self.fire(timer);
            }
        }
    }

    /// Removes and returns the events since the last call.
    pub fn take_sim_events(&mut self) -> Vec<SimEvent> {
        std::mem::take(&mut self.sim_events)
    }

    pub(crate) fn after(&mut self, ns: u64, timer: Timer) {
        self.timers_made += 1;
        let at_ns = self.now_ns.saturating_add(ns);
        self.timers.push(Reverse((at_ns, self.timers_made, timer)));
    }

    /// The identifier that the next timer will get.
    pub(crate) fn next_timer(&self) -> u64 {
        self.timers_made + 1
    }

    fn fire(&mut self, timer: Timer) {
        match timer {
            Timer::Wake(thread, sleep_timer) if self.threads[thread].sleep_timer == sleep_timer => {
                self.threads[thread].sleep_timer = 0;
                self.wake(thread);
            }
            Timer::Wake(..) => {}
            Timer::Balance => {
                self.balance();
                self.after(self.kernel.balance_ns, Timer::Balance);
            }
            Timer::Contention => {
                self.update_contention();
                self.after(crate::contention::PERIOD_NS, Timer::Contention);
            }
            Timer::DeadlockCheck => {
                self.check_for_deadlocks();
                self.after(DEADLOCK_CHECK_NS, Timer::DeadlockCheck);
            }
        }
    }

    // Thread states.

    /// Starts a new thread.
    pub(crate) fn start(&mut self, thread: ThreadId) {
        match self.advance(thread) {
            true => self.ready(thread),
            false => self.end_or_block(thread),
        }
    }

    /// Resumes a waiting thread.
    pub(crate) fn wake(&mut self, thread: ThreadId) {
        if self.threads[thread].run_state != RunState::Waiting {
            return;
        }
        if !self.exceeds_wakeup_limit(thread) {
            match self.advance(thread) {
                true => self.ready(thread),
                false => self.end_or_block(thread),
            }
        }
        self.end_wakeup();
    }

    fn end_or_block(&mut self, thread: ThreadId) {
        if self.threads[thread].finished {
            self.threads[thread].run_state = RunState::Ended;
            self.end_task(thread);
            let program = self.threads[thread].program;
            self.jobs[program].alive -= 1;
            if self.jobs[program].alive == 0 {
                self.end_repetition(program);
            }
        } else {
            self.threads[thread].run_state = RunState::Waiting;
            self.threads[thread].entity.slept = true;
        }
    }

    /// Puts a runnable thread on a CPU or into a queue.
    pub(crate) fn ready(&mut self, thread: ThreadId) {
        let program = self.threads[thread].program;
        let is_stopped = self.is_stopped(thread);
        if self.kernel.is_usher() && !is_stopped {
            return self.ready_usher(thread);
        }
        let cpu = match is_stopped {
            true => None,
            false => self.select_allowed_cpu(thread),
        };
        let Some(cpu) = cpu else {
            self.stop(thread);
            return;
        };
        self.account(cpu);
        self.jobs[program].runnable += 1;
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

    /// Updates the number of a program's threads in queues, and the time during which the program
    /// had any.
    pub(crate) fn queued(&mut self, program: usize, by: i32) {
        self.waiting = self.waiting.wrapping_add_signed(by as isize);
        let job = &mut self.jobs[program];
        let before = job.queued;
        job.queued = job.queued.wrapping_add_signed(by);
        match (before > 0, job.queued > 0) {
            (false, true) => self.waiting_programs.push(program),
            (true, false) => self.remove_waiting_program(program),
            _ => {}
        }
        let job = &mut self.jobs[program];
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
        // The program that was added last usually leaves first; search from the end.
        if let Some(at) = self
            .waiting_programs
            .iter()
            .rposition(|&other| other == program)
        {
            self.waiting_programs.swap_remove(at);
        }
    }

    /// Returns whether a program with queued threads may use the CPU.
    pub(crate) fn has_waiters_for(&self, cpu: usize) -> bool {
        let may = |&program: &usize| self.jobs[program].mask.has(cpu);
        self.waiting_programs.iter().any(may)
    }

    /// Takes a thread off its CPU or out of its queue. The caller then sets the thread's new state.
    pub(crate) fn deactivate(&mut self, thread: ThreadId) {
        match self.threads[thread].run_state {
            RunState::Running(cpu) => {
                self.account(cpu);
                self.leave(thread, cpu);
                self.jobs[self.threads[thread].program].runnable -= 1;
                self.threads[thread].run_state = RunState::Waiting;
                self.cpus[cpu].current = None;
                self.dispatch(cpu);
            }
            RunState::Queued(cpu) => {
                self.account(cpu);
                self.leave(thread, cpu);
                self.cpus[cpu].queue.retain(|&other| other != thread);
                self.queued(self.threads[thread].program, -1);
                self.jobs[self.threads[thread].program].runnable -= 1;
                self.threads[thread].run_state = RunState::Waiting;
                self.arm(cpu);
            }
            _ => {}
        }
    }

    /// Moves a running thread to an idle CPU.
    pub(crate) fn move_running(&mut self, thread: ThreadId, to: usize) {
        self.deactivate(thread);
        self.account(to);
        self.jobs[self.threads[thread].program].runnable += 1;
        self.enqueue(thread, to);
        self.queued(self.threads[thread].program, 1);
        if self.cpus[to].current.is_none() {
            self.dispatch(to);
        } else {
            self.arm(to);
        }
    }

    /// Returns the current thread to the queue and runs the next thread.
    fn preempt(&mut self, cpu: usize) {
        if let Some(thread) = self.cpus[cpu].current.take() {
            let slice = self.kernel.slice_ns as f64 / self.weight(thread);
            let state = &mut self.threads[thread];
            if state.vruntime >= state.deadline {
                state.deadline = state.vruntime + slice;
            }
            state.run_state = RunState::Queued(cpu);
            self.cpus[cpu].queue.push(thread);
            self.queued(self.threads[thread].program, 1);
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
            self.queued(self.threads[thread].program, -1);
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
        self.join(thread, cpu);
        Some(thread)
    }

    /// Runs a thread, which is in no queue, on a CPU without a current thread.
    pub(crate) fn run_on(&mut self, thread: ThreadId, cpu: usize) {
        debug_assert!(self.cpus[cpu].current.is_none());
        self.account(cpu);
        self.cpus[cpu].current = Some(thread);
        self.record_current(cpu);
        self.cpus[cpu].started_ns = self.now_ns;
        self.cpus[cpu].slice_end_ns = self.now_ns + self.kernel.slice_ns;
        self.threads[thread].run_state = RunState::Running(cpu);
        self.warm_up(thread, cpu);
        self.update_sibling_rates(cpu);
        self.set_rate(cpu);
        self.arm(cpu);
    }

    /// Charges a thread for starting on a CPU: the context switch, and the refill of caches that
    /// hold other data.
    fn warm_up(&mut self, thread: ThreadId, cpu: usize) {
        let costs = &self.machine.costs;
        let now = (thread, self.threads[thread].program);
        let before = self.cpus[cpu].before.replace(now);
        let others = before.is_some_and(|(_, program)| program != now.1);
        self.space_switches += u64::from(others);
        if before == Some(now) && self.threads[thread].last == cpu {
            return;
        }
        let memory = &self.jobs[self.threads[thread].program].script.memory;
        let (from, to) = (
            &self.machine.places[self.threads[thread].last],
            &self.machine.places[cpu],
        );
        // The refill is limited to the data that the thread uses.
        let own = (memory.private_bytes / 512e3).min(1.0);
        let mut cold = costs.switch_ns + own * costs.private_refill_ns;
        if from.domain != to.domain {
            cold += memory.private_bytes.min(self.machine.llc_bytes[to.domain]) / costs.refill_gbps;
        }
        let state = &mut self.threads[thread];
        // An unfinished earlier refill is discarded.
        state.cold = cold;
        state.last = cpu;
    }

    // Time.

    /// Charges the current thread for the time since the last charge.
    pub(crate) fn account(&mut self, cpu: usize) {
        let state = &mut self.cpus[cpu];
        let elapsed_ns = self.now_ns - state.since_ns;
        state.since_ns = self.now_ns;
        let Some(id) = state.current.filter(|_| elapsed_ns > 0) else {
            return;
        };
        let rate = state.rate;
        let weight = self.weight(id);
        let thread = &mut self.threads[id];
        let job = &mut self.jobs[thread.program];
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
    fn may_switch(&self, cpu: usize) -> bool {
        match self.kernel.order {
            // A CPU also takes threads from the queues of other domains.
            QueueOrder::Usher => self.waiting > 0,
            QueueOrder::Eevdf | QueueOrder::Cfs => !self.cpus[cpu].queue.is_empty(),
        }
    }

    /// Schedules the CPU's next event.
    pub(crate) fn arm(&mut self, cpu: usize) {
        let state = &self.cpus[cpu];
        let Some(id) = state.current else {
            self.clock.set(cpu, NEVER);
            return;
        };
        let thread = &self.threads[id];
        let mut at_ns = match thread.spins_at {
            Some(_) if thread.spins_until_ns == NEVER => NEVER,
            Some(_) => self.now_ns + thread.spins_until_ns.saturating_sub(thread.cpu_ns),
            None => {
                let left = (thread.cold + thread.bounce_work + thread.work) / state.rate;
                self.now_ns.saturating_add(left.ceil() as u64)
            }
        };
        if self.may_switch(cpu) {
            at_ns = at_ns.min(self.slice_ends_at_ns(cpu, self.now_ns));
        }
        self.clock.set(cpu, at_ns);
    }

    fn cpu_event(&mut self, cpu: usize) {
        self.account(cpu);
        let Some(id) = self.cpus[cpu].current else {
            self.clock.set(cpu, NEVER);
            return;
        };
        let thread = &self.threads[id];
        let done = match thread.spins_at {
            Some(_) => thread.cpu_ns >= thread.spins_until_ns,
            None => thread.work + thread.bounce_work + thread.cold <= WORK_EPSILON,
        };
        if done && !self.step_over(id, cpu) {
            return;
        }
        if self.slice_ends_at_ns(cpu, self.now_ns) <= self.now_ns && self.may_switch(cpu) {
            match self.kernel.order {
                QueueOrder::Usher => self.schedule_usher(cpu),
                QueueOrder::Eevdf | QueueOrder::Cfs => self.preempt(cpu),
            }
        } else {
            self.end_slices(cpu);
            if self.now_ns >= self.cpus[cpu].slice_end_ns {
                self.cpus[cpu].slice_end_ns = self.now_ns + self.kernel.slice_ns;
            }
            self.arm(cpu);
        }
    }

    /// Completes the running thread's step. Returns false if the thread stops running.
    fn step_over(&mut self, id: ThreadId, cpu: usize) -> bool {
        let goes_on = match self.threads[id].spins_at.take() {
            Some(barrier) => {
                // The spinning period is over; the thread blocks at the barrier.
                let program = self.threads[id].program;
                let barrier = &mut self.jobs[program].barriers[barrier];
                barrier.spinners.retain(|&other| other != id);
                barrier.sleepers.push(id);
                false
            }
            None => self.advance(id),
        };
        // A thread woken by this step may have preempted this thread.
        if goes_on {
            return self.cpus[cpu].current == Some(id);
        }
        match self.threads[id].run_state {
            RunState::Running(at) => {
                self.account(at);
                self.leave(id, at);
                self.cpus[at].current = None;
                self.threads[id].run_state = RunState::Waiting;
                self.jobs[self.threads[id].program].runnable -= 1;
                self.dispatch(at);
            }
            RunState::Queued(_) | RunState::Stopped => self.deactivate(id),
            RunState::Waiting | RunState::Ended => {}
        }
        self.end_or_block(id);
        false
    }
}
