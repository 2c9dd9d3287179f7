// SPDX-License-Identifier: MIT OR Apache-2.0
//! Executes the steps of a simulated thread's script: work, pools, sleeps, loops, locks, barriers
//! and queues.
//!
//! [`Engine::advance`] executes the steps of a thread one after another, until the thread needs a
//! CPU, waits or ends. The work of a step is done later, while the thread runs on a CPU (module
//! `engine`). A released lock goes to the waiting thread that arrived first. Module `fault` limits
//! the number of steps at one instant, and so ends scripts that would never advance virtual time. A
//! step takes constant time, plus the kernel's time for each thread that it wakes. The opening of a
//! barrier wakes all its threads, and the closing of a queue all its takers. The end of a thread
//! visits the steps of its role once per queue.

use std::sync::Arc;

use crate::clock::NEVER;
use crate::engine::{Engine, Timer, WORK_EPSILON};
use crate::job::{RunState, ThreadId};
use crate::script::{BarrierWait, Op, Script};

/// The result of a step.
enum Step {
    /// The thread continues with the next step.
    Next,
    /// The thread needs a CPU, to work or to spin.
    Busy,
    /// The thread waits or has ended.
    Blocked,
}

impl Engine {
    /// Executes the thread's steps until a step takes time. Returns true if the thread then needs a
    /// CPU to work or to spin; false if it waits or has ended.
    pub(crate) fn advance(&mut self, id: ThreadId) -> bool {
        let script = Arc::clone(
            &self.os.tasks.jobs[self.os.tasks.threads[id].program]
                .script
                .text,
        );
        loop {
            let os = &self.os;
            let detector = &mut self.fault_detector;
            if detector.exceeds_step_limit(id, os.now_ns, &os.tasks) {
                return false;
            }
            let thread = &self.os.tasks.threads[id];
            let steps = &script.roles[thread.role].steps;
            let Some(op) = steps.get(thread.step) else {
                return self.end(id, &script);
            };
            let step = match *op {
                Op::Work { ns, spread } => {
                    self.os.tasks.threads[id].step += 1;
                    self.give_work(id, ns, spread)
                }
                Op::Items { pool, ns, spread } => self.take_item(id, pool, ns, spread),
                Op::Serial { ns } => {
                    let first = thread.number == 0;
                    self.os.tasks.threads[id].step += 1;
                    self.give_work(id, if first { ns } else { 0.0 }, 0.0)
                }
                Op::CacheBounce { per_cpu, power } => self.cache_bounce(id, per_cpu, power),
                Op::Lock(lock) => self.lock(id, lock),
                Op::Unlock(lock) => self.unlock(id, lock),
                Op::Barrier(barrier) => {
                    self.os.tasks.threads[id].step += 1;
                    self.arrive_at_barrier(id, barrier, script.wait)
                }
                Op::Put(queue) => self.put(id, queue),
                Op::Take(queue) => self.take(id, queue, steps.len()),
                Op::Sleep { ns } => self.sleep(id, ns),
                Op::Loop { to, times } => self.loop_back(id, to, times),
                Op::Memory(ref memory) => {
                    self.os.tasks.threads[id].step += 1;
                    let program = self.os.tasks.threads[id].program;
                    self.os.tasks.jobs[program].script.memory.clone_from(memory);
                    Step::Next
                }
            };
            match step {
                Step::Next => {}
                Step::Busy => return true,
                Step::Blocked => return false,
            }
        }
    }

    fn take_item(&mut self, id: ThreadId, pool: usize, ns: f64, spread: f64) -> Step {
        let thread = &mut self.os.tasks.threads[id];
        let left = &mut self.os.tasks.jobs[thread.program].pools[pool];
        if *left == 0 {
            thread.step += 1;
            return Step::Next;
        }
        *left -= 1;
        self.give_work(id, ns, spread)
    }

    fn sleep(&mut self, id: ThreadId, ns: u64) -> Step {
        let sleep_timer = self.next_timer();
        self.os.tasks.threads[id].step += 1;
        self.os.tasks.threads[id].sleep_timer = sleep_timer;
        self.after(ns, Timer::Wake(id, sleep_timer));
        Step::Blocked
    }

    fn loop_back(&mut self, id: ThreadId, to: usize, times: u32) -> Step {
        let thread = &mut self.os.tasks.threads[id];
        let rounds = &mut thread.rounds[thread.step];
        *rounds += 1;
        if *rounds < times {
            thread.step = to;
        } else {
            *rounds = 0;
            thread.step += 1;
        }
        Step::Next
    }

    fn cache_bounce(&mut self, id: ThreadId, per_cpu_ns: f64, power: f64) -> Step {
        let thread = &mut self.os.tasks.threads[id];
        thread.step += 1;
        let job = &self.os.tasks.jobs[thread.program];
        let sharers = f64::from(job.alive.min(job.mask.len()));
        thread.work = 0.0;
        thread.bounce_work = per_cpu_ns * sharers * (sharers / 16.0).powf(power - 1.0);
        match thread.bounce_work > WORK_EPSILON {
            true => Step::Busy,
            false => Step::Next,
        }
    }

    fn lock(&mut self, id: ThreadId, lock: usize) -> Step {
        let thread = &mut self.os.tasks.threads[id];
        let lock = &mut self.os.tasks.jobs[thread.program].locks[lock];
        if lock.held {
            lock.waiters.push_back(id);
            return Step::Blocked;
        }
        lock.held = true;
        thread.step += 1;
        Step::Next
    }

    fn unlock(&mut self, id: ThreadId, lock: usize) -> Step {
        let thread = &mut self.os.tasks.threads[id];
        thread.step += 1;
        let lock = &mut self.os.tasks.jobs[thread.program].locks[lock];
        lock.held = false;
        // The lock goes to the waiting thread that arrived first.
        if let Some(next) = lock.waiters.pop_front() {
            self.wake(next);
        }
        Step::Next
    }

    fn give_work(&mut self, id: ThreadId, ns: f64, spread: f64) -> Step {
        let thread = &mut self.os.tasks.threads[id];
        let off = match spread > 0.0 {
            true => spread * (2.0 * f64::from(thread.random.rand_float()) - 1.0),
            false => 0.0,
        };
        thread.work = ns * (1.0 + off);
        match thread.work > WORK_EPSILON {
            true => Step::Busy,
            false => Step::Next,
        }
    }

    /// Arrives at a barrier: the thread continues, spins or blocks.
    fn arrive_at_barrier(&mut self, id: ThreadId, barrier: usize, wait: BarrierWait) -> Step {
        let program = self.os.tasks.threads[id].program;
        let state = &mut self.os.tasks.jobs[program].barriers[barrier];
        state.arrived += 1;
        if state.arrived < state.parties {
            let thread = &mut self.os.tasks.threads[id];
            thread.spins_until_ns = match wait {
                BarrierWait::Block => {
                    state.sleepers.push(id);
                    return Step::Blocked;
                }
                BarrierWait::Spin => NEVER,
                BarrierWait::SpinThenBlock(ns) => thread.cpu_ns.saturating_add(ns),
            };
            thread.spins_at = Some(barrier);
            state.spinners.push(id);
            return Step::Busy;
        }
        state.arrived = 0;
        let sleepers = std::mem::take(&mut state.sleepers);
        let spinners = std::mem::take(&mut state.spinners);
        let job = &mut self.os.tasks.jobs[program];
        job.pools.clone_from(&job.script.pools);
        for other in spinners {
            self.stop_spinning(other);
        }
        for other in sleepers {
            self.wake(other);
        }
        Step::Next
    }

    /// Ends a thread's spinning after its barrier has opened.
    fn stop_spinning(&mut self, id: ThreadId) {
        if let RunState::Running(cpu) = self.os.tasks.threads[id].run_state {
            self.os.account(cpu);
        }
        self.os.tasks.threads[id].spins_at = None;
        // The thread executes its next step when it runs on a CPU, now or later.
        self.os.tasks.threads[id].work = 0.0;
        if let RunState::Running(cpu) = self.os.tasks.threads[id].run_state {
            self.os.clock.set(cpu, self.os.now_ns);
        }
    }

    /// Puts an item into a queue, or waits until the queue has space.
    fn put(&mut self, id: ThreadId, queue: usize) -> Step {
        let state = &mut self.os.tasks.jobs[self.os.tasks.threads[id].program].queues[queue];
        if state.items >= state.capacity {
            state.putters.push_back(id);
            return Step::Blocked;
        }
        state.items += 1;
        self.os.tasks.threads[id].step += 1;
        if let Some(taker) = state.takers.pop_front() {
            self.wake(taker);
        }
        Step::Next
    }

    /// Takes an item from a queue, or waits for an item. If the queue is empty and closed, skips
    /// the remaining steps of the thread.
    fn take(&mut self, id: ThreadId, queue: usize, end: usize) -> Step {
        let state = &mut self.os.tasks.jobs[self.os.tasks.threads[id].program].queues[queue];
        if state.items == 0 {
            if state.writers == 0 {
                self.os.tasks.threads[id].step = end;
                return Step::Next;
            }
            state.takers.push_back(id);
            return Step::Blocked;
        }
        state.items -= 1;
        self.os.tasks.threads[id].step += 1;
        if let Some(putter) = state.putters.pop_front() {
            self.wake(putter);
        }
        Step::Next
    }

    /// Ends a thread that has done all its steps.
    fn end(&mut self, id: ThreadId, script: &Script) -> bool {
        let program = self.os.tasks.threads[id].program;
        let role = &script.roles[self.os.tasks.threads[id].role];
        for queue in 0..self.os.tasks.jobs[program].queues.len() {
            if !role.steps.contains(&Op::Put(queue)) {
                continue;
            }
            let state = &mut self.os.tasks.jobs[program].queues[queue];
            state.writers -= 1;
            if state.writers == 0 {
                for taker in std::mem::take(&mut state.takers) {
                    self.wake(taker);
                }
            }
        }
        self.os.tasks.threads[id].finished = true;
        false
    }
}
