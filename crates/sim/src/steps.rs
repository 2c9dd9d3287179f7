// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the steps of a thread do.

use std::sync::Arc;

use crate::clock::NEVER;
use crate::engine::{Engine, NOTHING, Timer};
use crate::job::{Doing, Spin, ThreadId};
use crate::script::{Op, Script, Wait};

/// What a step comes to.
enum Step {
    /// The thread goes on to the next one.
    Next,
    /// It has something to do on a CPU: work, or spinning.
    Busy,
    /// It waits, or has come to its end.
    Off,
}

impl Engine {
    /// Goes through the thread's steps until one takes time; true if it has
    /// something to do on a CPU now (work, or spinning), false if it waits or
    /// has come to its end.
    pub(crate) fn advance(&mut self, id: ThreadId) -> bool {
        let script = Arc::clone(&self.jobs[self.threads[id].program].script);
        loop {
            let thread = &self.threads[id];
            let steps = &script.roles[thread.role].steps;
            let step = match steps.get(thread.step) {
                None => return self.end(id, &script),
                Some(Op::Work { .. } | Op::Items { .. } | Op::Serial { .. } | Op::Again { .. }) => {
                    self.compute(id, &steps[thread.step])
                }
                Some(op) => self.synchronise(id, op, &script),
            };
            match step {
                Step::Next => {}
                Step::Busy => return true,
                Step::Off => return false,
            }
        }
    }

    /// A step that has to do with the thread alone.
    fn compute(&mut self, id: ThreadId, op: &Op) -> Step {
        let program = self.threads[id].program;
        let thread = &mut self.threads[id];
        let (ns, spread) = match *op {
            Op::Work { ns, spread } => {
                thread.step += 1;
                (ns, spread)
            }
            Op::Items { pool, ns, spread } => {
                let left = &mut self.jobs[program].pools[pool];
                if *left == 0 {
                    thread.step += 1;
                    return Step::Next;
                }
                *left -= 1;
                (ns, spread)
            }
            Op::Serial { ns } => {
                thread.step += 1;
                (if thread.number == 0 { ns } else { 0.0 }, 0.0)
            }
            Op::Again { to, times } => {
                let step = thread.step;
                thread.rounds[step] += 1;
                if thread.rounds[step] < times {
                    thread.step = to;
                } else {
                    thread.rounds[step] = 0;
                    thread.step += 1;
                }
                return Step::Next;
            }
            _ => return Step::Next,
        };
        match self.give_work(id, ns, spread) {
            true => Step::Busy,
            false => Step::Next,
        }
    }

    /// A step that has to do with other threads, or with time.
    fn synchronise(&mut self, id: ThreadId, op: &Op, script: &Script) -> Step {
        let program = self.threads[id].program;
        match *op {
            Op::Lock(lock) => {
                let lock = &mut self.jobs[program].locks[lock];
                if lock.held {
                    lock.waiters.push_back(id);
                    return Step::Off;
                }
                lock.held = true;
                self.threads[id].step += 1;
            }
            Op::Unlock(lock) => {
                self.threads[id].step += 1;
                let lock = &mut self.jobs[program].locks[lock];
                lock.held = false;
                // Whoever is woken tries again: somebody who runs may be
                // quicker, as with a futex.
                if let Some(next) = lock.waiters.pop_front() {
                    self.wake(next);
                }
            }
            Op::Barrier(barrier) => {
                self.threads[id].step += 1;
                return match self.arrive_at(id, barrier, script.wait) {
                    None => Step::Next,
                    Some(true) => Step::Busy,
                    Some(false) => Step::Off,
                };
            }
            Op::Put(queue) if !self.put(id, queue) => return Step::Off,
            Op::Take(queue) => match self.take(id, queue) {
                Some(true) => {}
                Some(false) => return Step::Off,
                None => {
                    let role = self.threads[id].role;
                    self.threads[id].step = script.roles[role].steps.len();
                }
            },
            Op::Sleep { ns } => {
                self.threads[id].step += 1;
                let nap = self.next_timer();
                self.threads[id].nap = nap;
                self.after(ns, Timer::Wake(id, nap));
                return Step::Off;
            }
            _ => {}
        }
        Step::Next
    }

    fn give_work(&mut self, id: ThreadId, ns: f64, spread: f64) -> bool {
        let thread = &mut self.threads[id];
        let off = match spread > 0.0 {
            true => spread * (2.0 * f64::from(thread.random.rand_float()) - 1.0),
            false => 0.0,
        };
        thread.work = ns * (1.0 + off);
        thread.work > NOTHING
    }

    /// A thread comes to a barrier: `None` if it goes on at once, else whether
    /// it spins there (true) or sleeps.
    fn arrive_at(&mut self, id: ThreadId, barrier: usize, wait: Wait) -> Option<bool> {
        let program = self.threads[id].program;
        let state = &mut self.jobs[program].barriers[barrier];
        state.arrived += 1;
        if state.arrived < state.parties {
            let round = state.round;
            let spins = |until_ns| (Some(Spin { barrier, round }), until_ns);
            let (spin, until_ns) = match wait {
                Wait::Block => (None, NEVER),
                Wait::Spin => spins(NEVER),
                Wait::SpinThenBlock(ns) => spins(self.threads[id].cpu_ns + ns),
            };
            let spinning = spin.is_some();
            match spinning {
                true => state.spinners.push(id),
                false => state.sleepers.push(id),
            }
            let thread = &mut self.threads[id];
            (thread.spin, thread.spins_until_ns) = (spin, until_ns);
            return Some(spinning);
        }
        state.arrived = 0;
        state.round += 1;
        let sleepers = std::mem::take(&mut state.sleepers);
        let spinners = std::mem::take(&mut state.spinners);
        let pools = self.jobs[program].script.pools.clone();
        self.jobs[program].pools = pools;
        for other in spinners {
            self.stop_spinning(other);
        }
        for other in sleepers {
            self.wake(other);
        }
        None
    }

    /// The barrier that a thread spins at has opened.
    fn stop_spinning(&mut self, id: ThreadId) {
        if let Doing::Running(cpu) = self.threads[id].doing {
            self.account(cpu);
        }
        self.threads[id].spin = None;
        // What it does next is found when it has the CPU: now, or later.
        self.threads[id].work = 0.0;
        if let Doing::Running(cpu) = self.threads[id].doing {
            self.clock.set(cpu, self.now_ns);
        }
    }

    /// Puts an item into a queue; false if the thread must wait first.
    fn put(&mut self, id: ThreadId, queue: usize) -> bool {
        let state = &mut self.jobs[self.threads[id].program].queues[queue];
        if state.items >= state.places {
            state.putters.push_back(id);
            return false;
        }
        state.items += 1;
        self.threads[id].step += 1;
        if let Some(taker) = state.takers.pop_front() {
            self.wake(taker);
        }
        true
    }

    /// Takes an item: `Some(false)` if the thread must wait, `None` if the
    /// queue is closed.
    fn take(&mut self, id: ThreadId, queue: usize) -> Option<bool> {
        let state = &mut self.jobs[self.threads[id].program].queues[queue];
        if state.items == 0 {
            if state.writers == 0 {
                return None;
            }
            state.takers.push_back(id);
            return Some(false);
        }
        state.items -= 1;
        self.threads[id].step += 1;
        if let Some(putter) = state.putters.pop_front() {
            self.wake(putter);
        }
        Some(true)
    }

    /// The thread has done all its steps.
    fn end(&mut self, id: ThreadId, script: &Script) -> bool {
        let program = self.threads[id].program;
        let role = &script.roles[self.threads[id].role];
        for queue in 0..self.jobs[program].queues.len() {
            if !role.steps.contains(&Op::Put(queue)) {
                continue;
            }
            let state = &mut self.jobs[program].queues[queue];
            state.writers -= 1;
            if state.writers == 0 {
                for taker in std::mem::take(&mut state.takers) {
                    self.wake(taker);
                }
            }
        }
        self.threads[id].over = true;
        false
    }
}
