// SPDX-License-Identifier: MIT OR Apache-2.0
//! The event loop of the simulator: advances virtual time from event to event, and executes the
//! steps of the threads' scripts.
//!
//! There are two kinds of events. A CPU event is the end of the running thread's step or slice; a
//! tournament tree (module `clock`) holds the next event of each CPU. All other events are timers,
//! in a heap. Between two events of a CPU, its thread works at a constant rate, so that nothing has
//! to be computed in between.
//!
//! 1. [`Engine::run`] handles the earliest event: at a CPU event, the thread executes its next
//!    steps, and the kernel ([`SimKernel`]) selects the next thread if necessary.
//! 2. [`Engine::run`] repeats step 1 until the given time, or until an event is to be reported to
//!    the caller ([`SimEvent`]).
//!
//! An event takes O(log n) for n CPUs and timers. The kernel's selections (module `sim_kernel`),
//! and the steps that threads execute at the event, add their own time. The number of events is not
//! limited unless [`Engine::limit_events`] sets a limit. Runs that cannot continue end with a
//! [`Fault`].

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::{Deref, DerefMut};

use crate::clock::NEVER;
use crate::contention::PERIOD_NS;
use crate::fault::{DEADLOCK_CHECK_NS, Fault, FaultDetector};
use crate::job::{RunState, ThreadId};
use crate::kernel::{Kernel, QueueOrder};
use crate::machine::Machine;
use crate::sim_kernel::SimKernel;

/// A step counts as complete if less than this amount of work remains: a millionth of a nanosecond.
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

/// The programs of a simulated machine: their scripts, timers and events, on top of its
/// [`SimKernel`].
#[derive(Debug)]
pub struct Engine {
    pub(crate) os: SimKernel,
    timers: BinaryHeap<Reverse<(u64, u64, Timer)>>,
    timers_made: u64,
    pub(crate) sim_events: Vec<SimEvent>,
    events: u64,
    pub(crate) fault_detector: FaultDetector,
}

impl Deref for Engine {
    type Target = SimKernel;

    fn deref(&self) -> &SimKernel {
        &self.os
    }
}

impl DerefMut for Engine {
    fn deref_mut(&mut self) -> &mut SimKernel {
        &mut self.os
    }
}

impl Engine {
    /// Creates an idle machine. The kernel must support the machine ([`Kernel::check`]).
    pub fn new(machine: Machine, kernel: Kernel, seed: u64) -> Self {
        let balance_ns = kernel.balance_ns;
        let mut engine = Self {
            os: SimKernel::new(machine, kernel, seed),
            timers: BinaryHeap::new(),
            timers_made: 0,
            sim_events: Vec::new(),
            events: 0,
            fault_detector: FaultDetector::default(),
        };
        engine.after(balance_ns, Timer::Balance);
        engine.after(PERIOD_NS, Timer::Contention);
        engine.after(DEADLOCK_CHECK_NS, Timer::DeadlockCheck);
        engine
    }

    /// Limits the number of events; the run then ends with [`Fault::Events`].
    pub fn limit_events(&mut self, events_max: u64) {
        self.fault_detector.events_max = events_max;
    }

    /// Returns the reason why the run cannot continue, if any. Such a reason is permanent.
    pub fn fault(&self) -> Option<&Fault> {
        self.fault_detector.fault.as_ref()
    }

    /// Returns the number of handled events.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Advances virtual time to `until_ns`, or until an event is to be reported to the caller.
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
            let (cpu_ns, cpu) = self.os.clock.first();
            let timer_ns = self.timers.peek().map_or(NEVER, |Reverse((at, ..))| *at);
            let next_ns = cpu_ns.min(timer_ns);
            if next_ns > until_ns {
                self.os.now_ns = self.os.now_ns.max(until_ns);
                return Ok(());
            }
            self.events += 1;
            self.os.now_ns = next_ns;
            let detector = &mut self.fault_detector;
            if detector.exceeds_event_limit(self.events, next_ns) {
                continue;
            }
            if cpu_ns <= timer_ns {
                self.os.waker = Some(cpu);
                self.cpu_event(cpu);
                self.os.waker = None;
            } else if let Some(Reverse((_, _, timer))) = self.timers.pop() {
                self.fire(timer);
            }
        }
    }

    /// Removes and returns the reported events since the last call.
    pub fn take_sim_events(&mut self) -> Vec<SimEvent> {
        std::mem::take(&mut self.sim_events)
    }

    pub(crate) fn after(&mut self, ns: u64, timer: Timer) {
        self.timers_made += 1;
        let at_ns = self.os.now_ns.saturating_add(ns);
        self.timers.push(Reverse((at_ns, self.timers_made, timer)));
    }

    /// Returns the identifier that the next timer will get.
    pub(crate) fn next_timer(&self) -> u64 {
        self.timers_made + 1
    }

    fn fire(&mut self, timer: Timer) {
        match timer {
            Timer::Wake(thread, sleep_timer)
                if self.os.tasks.threads[thread].sleep_timer == sleep_timer =>
            {
                self.os.tasks.threads[thread].sleep_timer = 0;
                self.wake(thread);
            }
            Timer::Wake(..) => {}
            Timer::Balance => {
                self.os.balance();
                self.after(self.os.kernel.balance_ns, Timer::Balance);
            }
            Timer::Contention => {
                self.os.update_contention();
                self.after(PERIOD_NS, Timer::Contention);
            }
            Timer::DeadlockCheck => {
                let os = &self.os;
                self.fault_detector
                    .check_for_deadlocks(os.now_ns, &os.tasks);
                self.after(DEADLOCK_CHECK_NS, Timer::DeadlockCheck);
            }
        }
    }

    // Thread states.

    /// Starts a new thread: executes its first steps.
    pub(crate) fn start(&mut self, thread: ThreadId) {
        match self.advance(thread) {
            true => self.os.ready(thread),
            false => self.end_or_block(thread),
        }
    }

    /// Resumes a waiting thread: executes its next steps. A thread that does not wait is left
    /// unchanged.
    pub(crate) fn wake(&mut self, thread: ThreadId) {
        if self.os.tasks.threads[thread].run_state != RunState::Waiting {
            return;
        }
        let os = &self.os;
        let detector = &mut self.fault_detector;
        if !detector.exceeds_wakeup_limit(thread, os.now_ns, &os.tasks) {
            match self.advance(thread) {
                true => self.os.ready(thread),
                false => self.end_or_block(thread),
            }
        }
        self.fault_detector.end_wakeup();
    }

    fn end_or_block(&mut self, thread: ThreadId) {
        if self.os.tasks.threads[thread].finished {
            self.os.tasks.threads[thread].run_state = RunState::Ended;
            self.os.end_task(thread);
            let program = self.os.tasks.threads[thread].program;
            self.os.tasks.jobs[program].alive -= 1;
            if self.os.tasks.jobs[program].alive == 0 {
                self.end_repetition(program);
            }
        } else {
            self.os.tasks.threads[thread].run_state = RunState::Waiting;
            self.os.tasks.threads[thread].entity.slept = true;
        }
    }

    // CPU events.

    fn cpu_event(&mut self, cpu: usize) {
        self.os.account(cpu);
        let Some(id) = self.os.cpus[cpu].current else {
            self.os.clock.set(cpu, NEVER);
            return;
        };
        let thread = &self.os.tasks.threads[id];
        let done = match thread.spins_at {
            Some(_) => thread.cpu_ns >= thread.spins_until_ns,
            None => thread.work + thread.bounce_work + thread.cold <= WORK_EPSILON,
        };
        if done && !self.step_over(id, cpu) {
            return;
        }
        if self.os.slice_ends_at_ns(cpu) <= self.os.now_ns && self.os.may_switch(cpu) {
            match self.os.kernel.order {
                QueueOrder::Usher => self.os.schedule_usher(cpu),
                QueueOrder::Eevdf | QueueOrder::Cfs => self.os.preempt(cpu),
            }
        } else {
            self.os.end_slices(cpu);
            if self.os.now_ns >= self.os.cpus[cpu].slice_end_ns {
                self.os.cpus[cpu].slice_end_ns = self.os.now_ns + self.os.kernel.slice_ns;
            }
            self.os.arm(cpu);
        }
    }

    /// Completes the running thread's step. Returns false if the thread stops running.
    fn step_over(&mut self, id: ThreadId, cpu: usize) -> bool {
        let goes_on = match self.os.tasks.threads[id].spins_at.take() {
            Some(barrier) => {
                // The spinning period is over; the thread blocks at the barrier.
                let program = self.os.tasks.threads[id].program;
                let barrier = &mut self.os.tasks.jobs[program].barriers[barrier];
                barrier.spinners.retain(|&other| other != id);
                barrier.sleepers.push(id);
                false
            }
            None => self.advance(id),
        };
        // A thread that this step has woken may have preempted the running thread.
        if goes_on {
            return self.os.cpus[cpu].current == Some(id);
        }
        match self.os.tasks.threads[id].run_state {
            RunState::Running(at) => {
                self.os.account(at);
                self.os.leave(id, at);
                self.os.cpus[at].current = None;
                self.os.tasks.threads[id].run_state = RunState::Waiting;
                self.os.tasks.jobs[self.os.tasks.threads[id].program].runnable -= 1;
                self.os.dispatch(at);
            }
            RunState::Queued(_) | RunState::Stopped => self.os.deactivate(id),
            RunState::Waiting | RunState::Ended => {}
        }
        self.end_or_block(id);
        false
    }
}
