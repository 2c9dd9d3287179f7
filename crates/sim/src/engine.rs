// SPDX-License-Identifier: MIT OR Apache-2.0
//! The event loop: virtual time, threads that run, and what happens when a
//! step of one ends.
//!
//! Two kinds of events: on a CPU (its thread's step or turn ends), kept in a
//! tournament (module `clock`), and timers. Between two events of a CPU its
//! thread works at a constant rate, so nothing has to be looked at in between.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::clock::{Clock, NEVER};
use crate::fault::{Fault, WATCH_NS, Watch};
use crate::job::{Doing, Job, Thread, ThreadId};
use crate::kernel::Kernel;
use crate::machine::Machine;
use crate::ours::Ours;
use crate::record::Recorder;
use crate::turns::Order;
use crate::weather::Weather;

/// Work below this is done: a millionth of a nanosecond's.
pub(crate) const NOTHING: f64 = 1e-6;

/// Something that the outside may want to know of.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum News {
    /// A program has completed its work once, in so many seconds.
    Repeated {
        /// Which, in the order of arrival.
        program: usize,
        /// Virtual seconds that it took.
        seconds: f64,
    },
    /// A program has ended, or was killed.
    Ended(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    Wake(ThreadId, u64),
    Balance,
    Weather,
    Watch,
}

#[derive(Debug, Clone)]
pub(crate) struct CpuState {
    pub current: Option<ThreadId>,
    pub queue: Vec<ThreadId>,
    pub online: bool,
    /// Accounted for until then.
    pub since_ns: u64,
    /// Since when the current thread runs.
    pub started_ns: u64,
    pub slice_end_ns: u64,
    /// Work a nanosecond.
    pub rate: f64,
    /// Time in all that somebody ran.
    pub busy_ns: u64,
    /// Virtual time when the queue last had somebody.
    pub vtime: f64,
    /// Who ran before, and of which program.
    pub before: Option<(ThreadId, usize)>,
}

/// The simulated machine at work.
#[derive(Debug, Clone)]
pub struct Engine {
    pub(crate) machine: Machine,
    pub(crate) kernel: Kernel,
    pub(crate) cpus: Vec<CpuState>,
    pub(crate) ours: Ours,
    pub(crate) threads: Vec<Thread>,
    pub(crate) jobs: Vec<Job>,
    pub(crate) now_ns: u64,
    pub(crate) weather: Weather,
    /// Threads in queues.
    pub(crate) waiting: usize,
    /// Programs that have some there, in no order.
    pub(crate) waiters: Vec<usize>,
    /// The CPU whose event is being handled, if it is one's.
    pub(crate) waker: Option<usize>,
    /// When the loads of busy CPUs were last evened out.
    pub(crate) evened_ns: u64,
    pub(crate) clock: Clock,
    timers: BinaryHeap<Reverse<(u64, u64, Timer)>>,
    timers_made: u64,
    pub(crate) free: Vec<ThreadId>,
    pub(crate) news: Vec<News>,
    events: u64,
    /// Threads that began on a CPU after one of another program.
    space_switches: u64,
    /// Threads that were ever born.
    pub(crate) births: u64,
    pub(crate) seed: u64,
    pub(crate) watch: Watch,
    pub(crate) recorder: Option<Box<Recorder>>,
}

impl Engine {
    /// An idle machine, which the kernel can have ([`Kernel::check`]).
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
            weather: Weather::new(&machine),
            ours: match kernel.order {
                Order::Usher => Ours::new(&machine),
                Order::Eevdf | Order::Cfs => Ours::default(),
            },
            cpus,
            machine,
            kernel,
            threads: Vec::new(),
            jobs: Vec::new(),
            now_ns: 0,
            waiting: 0,
            waiters: Vec::new(),
            waker: None,
            evened_ns: 0,
            timers: BinaryHeap::new(),
            timers_made: 0,
            free: Vec::new(),
            news: Vec::new(),
            events: 0,
            space_switches: 0,
            births: 0,
            seed,
            watch: Watch::default(),
            recorder: None,
        };
        engine.after(engine.kernel.balance_ns, Timer::Balance);
        engine.after(crate::weather::PERIOD_NS, Timer::Weather);
        engine.after(WATCH_NS, Timer::Watch);
        engine
    }

    /// Virtual nanoseconds since the start.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Events so far.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// How often a CPU went from a thread of one program to one of another.
    pub fn space_switches(&self) -> u64 {
        self.space_switches
    }

    /// The machine.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Lets virtual time pass until then, or until there is news.
    ///
    /// # Errors
    /// The run cannot go on: a program's threads wait for one another, or
    /// steps or events have no end. It never can again, then.
    pub fn run(&mut self, until_ns: u64) -> Result<(), Fault> {
        loop {
            if let Some(fault) = self.fault() {
                return Err(fault.clone());
            }
            if !self.news.is_empty() {
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
            if self.is_event_too_many(self.events) {
                continue;
            }
            if cpu_ns <= timer_ns {
                self.waker = Some(cpu);
                self.cpu_event(cpu);
                self.waker = None;
            } else if let Some(Reverse((_, _, timer))) = self.timers.pop() {
                self.ring(timer);
            }
        }
    }

    /// What has happened since the last call.
    pub fn take_news(&mut self) -> Vec<News> {
        std::mem::take(&mut self.news)
    }

    pub(crate) fn after(&mut self, ns: u64, timer: Timer) {
        self.timers_made += 1;
        let at_ns = self.now_ns.saturating_add(ns);
        self.timers.push(Reverse((at_ns, self.timers_made, timer)));
    }

    /// The number of the next timer.
    pub(crate) fn next_timer(&self) -> u64 {
        self.timers_made + 1
    }

    fn ring(&mut self, timer: Timer) {
        match timer {
            Timer::Wake(thread, nap) if self.threads[thread].nap == nap => {
                self.threads[thread].nap = 0;
                self.wake(thread);
            }
            Timer::Wake(..) => {}
            Timer::Balance => {
                self.balance();
                self.after(self.kernel.balance_ns, Timer::Balance);
            }
            Timer::Weather => {
                self.look_at_memory();
                self.after(crate::weather::PERIOD_NS, Timer::Weather);
            }
            Timer::Watch => {
                self.look_for_deadlocks();
                self.after(WATCH_NS, Timer::Watch);
            }
        }
    }

    // Threads come and go on CPUs.

    /// A thread that begins.
    pub(crate) fn start(&mut self, thread: ThreadId) {
        match self.advance(thread) {
            true => self.ready(thread),
            false => self.ended_or_waits(thread),
        }
    }

    /// A thread that waited for something goes on.
    pub(crate) fn wake(&mut self, thread: ThreadId) {
        if self.threads[thread].doing != Doing::Waiting {
            return;
        }
        if !self.is_chain_too_long(thread) {
            match self.advance(thread) {
                true => self.ready(thread),
                false => self.ended_or_waits(thread),
            }
        }
        self.chain_ends();
    }

    fn ended_or_waits(&mut self, thread: ThreadId) {
        if self.threads[thread].over {
            self.threads[thread].doing = Doing::Ended;
            let program = self.threads[thread].program;
            self.jobs[program].alive -= 1;
            if self.jobs[program].alive == 0 {
                self.over(program);
            }
        } else {
            self.threads[thread].doing = Doing::Waiting;
            self.threads[thread].standing.slept = true;
        }
    }

    /// Puts a thread that has something to do on a CPU or into a queue.
    pub(crate) fn ready(&mut self, thread: ThreadId) {
        let program = self.threads[thread].program;
        let is_stopped = self.is_stopped(thread);
        if self.kernel.order == Order::Usher && !is_stopped {
            return self.ready_ours(thread);
        }
        let cpu = match is_stopped {
            true => None,
            false => self.place_allowed(thread),
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

    /// Keeps count of a program's threads in queues, and of the time when
    /// there were any.
    pub(crate) fn queued(&mut self, program: usize, by: i32) {
        self.waiting = self.waiting.wrapping_add_signed(by as isize);
        let job = &mut self.jobs[program];
        let before = job.queued;
        job.queued = job.queued.wrapping_add_signed(by);
        match (before > 0, job.queued > 0) {
            (false, true) => self.waiters.push(program),
            (true, false) => self.waits_no_more(program),
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

    /// A program has no threads in queues any more.
    pub(crate) fn waits_no_more(&mut self, program: usize) {
        // Who began to wait last is mostly the first to be done with it.
        if let Some(at) = self.waiters.iter().rposition(|&other| other == program) {
            self.waiters.swap_remove(at);
        }
    }

    /// Whether somebody waits who may run there.
    pub(crate) fn is_waited_for(&self, cpu: usize) -> bool {
        let may = |&program: &usize| self.jobs[program].mask.has(cpu);
        self.waiters.iter().any(may)
    }

    /// Takes a thread off its CPU or out of its queue; what it was doing is
    /// for the caller to say.
    pub(crate) fn withdraw(&mut self, thread: ThreadId) {
        match self.threads[thread].doing {
            Doing::Running(cpu) => {
                self.account(cpu);
                self.leave(thread, cpu);
                self.jobs[self.threads[thread].program].runnable -= 1;
                self.threads[thread].doing = Doing::Waiting;
                self.cpus[cpu].current = None;
                self.dispatch(cpu);
            }
            Doing::Queued(cpu) => {
                self.account(cpu);
                self.leave(thread, cpu);
                self.cpus[cpu].queue.retain(|&other| other != thread);
                self.queued(self.threads[thread].program, -1);
                self.jobs[self.threads[thread].program].runnable -= 1;
                self.threads[thread].doing = Doing::Waiting;
                self.arm(cpu);
            }
            _ => {}
        }
    }

    /// Moves a running thread to an idle CPU.
    pub(crate) fn move_running(&mut self, thread: ThreadId, to: usize) {
        self.withdraw(thread);
        if self.kernel.order == Order::Usher {
            return self.arrive_ours(thread, to);
        }
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

    /// The current thread goes back into the queue and another one runs.
    fn preempt(&mut self, cpu: usize) {
        if let Some(thread) = self.cpus[cpu].current.take() {
            let slice = self.kernel.slice_ns as f64 / self.weight(thread);
            let state = &mut self.threads[thread];
            if state.vruntime >= state.deadline {
                state.deadline = state.vruntime + slice;
            }
            state.doing = Doing::Queued(cpu);
            self.cpus[cpu].queue.push(thread);
            self.queued(self.threads[thread].program, 1);
        }
        self.dispatch(cpu);
    }

    /// Chooses who runs on a CPU that has nobody.
    pub(crate) fn dispatch(&mut self, cpu: usize) {
        debug_assert!(self.cpus[cpu].current.is_none());
        self.account(cpu);
        let thread = match self.kernel.order {
            Order::Usher => self.pick_ours(cpu),
            Order::Eevdf | Order::Cfs => self.pick_or_pull(cpu),
        };
        if let Some(thread) = thread {
            self.queued(self.threads[thread].program, -1);
            return self.run_on(thread, cpu);
        }
        self.note_who_has(cpu);
        self.clock.set(cpu, NEVER);
        self.siblings_speed(cpu);
        if self.kernel.order == Order::Usher {
            self.invite(cpu);
        }
    }

    fn pick_or_pull(&mut self, cpu: usize) -> Option<ThreadId> {
        let thread = self.pick_allowed(cpu);
        if thread.is_some() || !self.cpus[cpu].online || !self.is_waited_for(cpu) {
            return thread;
        }
        let thread = self.pull_allowed(cpu)?;
        self.join(thread, cpu);
        Some(thread)
    }

    /// A thread that is in no queue runs on a CPU that has nobody.
    pub(crate) fn run_on(&mut self, thread: ThreadId, cpu: usize) {
        debug_assert!(self.cpus[cpu].current.is_none());
        self.account(cpu);
        self.note_running(thread, cpu);
        self.cpus[cpu].current = Some(thread);
        self.note_who_has(cpu);
        self.cpus[cpu].started_ns = self.now_ns;
        self.cpus[cpu].slice_end_ns = self.now_ns + self.kernel.slice_ns;
        self.threads[thread].doing = Doing::Running(cpu);
        self.warm_up(thread, cpu);
        self.siblings_speed(cpu);
        self.set_rate(cpu);
        self.arm(cpu);
    }

    /// What it costs a thread to begin on this CPU: the switch, and caches
    /// that hold other data.
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
        // A thread cannot have more in the private caches than it uses.
        let own = (memory.private_bytes / 512e3).min(1.0);
        let mut cold = costs.switch_ns + own * costs.private_refill_ns;
        if from.domain != to.domain {
            cold += memory.private_bytes.min(self.machine.llc_bytes[to.domain]) / costs.refill_gbps;
        }
        let state = &mut self.threads[thread];
        // What was not refilled before it went on is lost again.
        state.cold = cold;
        state.last = cpu;
    }

    // Time.

    /// Credits the current thread with what it did since the last look.
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
        let reaching = thread.contended.min(done - warming);
        thread.contended -= reaching;
        let worked = (done - warming - reaching).min(thread.work);
        thread.work -= worked;
        job.work += worked;
        job.busy_ns[self.machine.places[cpu].domain] += elapsed_ns as f64;
    }

    /// Whether the end of a slice there may be somebody else's turn.
    fn asks_who_is_next(&self, cpu: usize) -> bool {
        match self.kernel.order {
            // Other domains are looked at, too.
            Order::Usher => self.waiting > 0,
            Order::Eevdf | Order::Cfs => !self.cpus[cpu].queue.is_empty(),
        }
    }

    /// Sets when the CPU's next event is.
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
                let left = (thread.cold + thread.contended + thread.work) / state.rate;
                self.now_ns.saturating_add(left.ceil() as u64)
            }
        };
        if self.asks_who_is_next(cpu) {
            at_ns = at_ns.min(self.turn_ends_ns(cpu, self.now_ns));
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
            None => thread.work + thread.contended + thread.cold <= NOTHING,
        };
        if done && !self.step_over(id, cpu) {
            return;
        }
        if self.turn_ends_ns(cpu, self.now_ns) <= self.now_ns && self.asks_who_is_next(cpu) {
            match self.kernel.order {
                Order::Usher => self.ask_again(cpu),
                Order::Eevdf | Order::Cfs => self.preempt(cpu),
            }
        } else {
            self.prolong(cpu);
            if self.now_ns >= self.cpus[cpu].slice_end_ns {
                self.cpus[cpu].slice_end_ns = self.now_ns + self.kernel.slice_ns;
            }
            self.arm(cpu);
        }
    }

    /// The running thread's step is over; false when it runs no more.
    fn step_over(&mut self, id: ThreadId, cpu: usize) -> bool {
        let goes_on = match self.threads[id].spins_at.take() {
            Some(barrier) => {
                // It has spun long enough and sleeps at the barrier.
                let program = self.threads[id].program;
                let barrier = &mut self.jobs[program].barriers[barrier];
                barrier.spinners.retain(|&other| other != id);
                barrier.sleepers.push(id);
                false
            }
            None => self.advance(id),
        };
        // Whoever it woke may have taken the CPU from it.
        if goes_on {
            return self.cpus[cpu].current == Some(id);
        }
        match self.threads[id].doing {
            Doing::Running(at) => {
                self.account(at);
                self.leave(id, at);
                self.cpus[at].current = None;
                self.threads[id].doing = Doing::Waiting;
                self.jobs[self.threads[id].program].runnable -= 1;
                self.dispatch(at);
            }
            Doing::Queued(_) | Doing::Stopped => self.withdraw(id),
            Doing::Waiting | Doing::Ended => {}
        }
        self.ended_or_waits(id);
        false
    }
}
