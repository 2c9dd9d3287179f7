// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the steps of a thread do.

use std::sync::Arc;

use crate::clock::NEVER;
use crate::engine::{Engine, NOTHING, Timer};
use crate::job::{Doing, ThreadId};
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
        let script = Arc::clone(&self.jobs[self.threads[id].program].script.text);
        loop {
            if self.is_storm(id) {
                return false;
            }
            let thread = &self.threads[id];
            let steps = &script.roles[thread.role].steps;
            let Some(op) = steps.get(thread.step) else {
                return self.end(id, &script);
            };
            let step = match *op {
                Op::Work { ns, spread } => {
                    self.threads[id].step += 1;
                    self.give_work(id, ns, spread)
                }
                Op::Items { pool, ns, spread } => self.take_item(id, pool, ns, spread),
                Op::Serial { ns } => {
                    let first = thread.number == 0;
                    self.threads[id].step += 1;
                    self.give_work(id, if first { ns } else { 0.0 }, 0.0)
                }
                Op::Contend { ns, power } => self.contend(id, ns, power),
                Op::Lock(lock) => self.lock(id, lock),
                Op::Unlock(lock) => self.unlock(id, lock),
                Op::Barrier(barrier) => {
                    self.threads[id].step += 1;
                    self.arrive_at(id, barrier, script.wait)
                }
                Op::Put(queue) => self.put(id, queue),
                Op::Take(queue) => self.take(id, queue, steps.len()),
                Op::Sleep { ns } => self.sleep(id, ns),
                Op::Again { to, times } => self.again(id, to, times),
                Op::Memory(ref memory) => {
                    self.threads[id].step += 1;
                    let program = self.threads[id].program;
                    self.jobs[program].script.memory.clone_from(memory);
                    Step::Next
                }
            };
            match step {
                Step::Next => {}
                Step::Busy => return true,
                Step::Off => return false,
            }
        }
    }

    fn take_item(&mut self, id: ThreadId, pool: usize, ns: f64, spread: f64) -> Step {
        let thread = &mut self.threads[id];
        let left = &mut self.jobs[thread.program].pools[pool];
        if *left == 0 {
            thread.step += 1;
            return Step::Next;
        }
        *left -= 1;
        self.give_work(id, ns, spread)
    }

    fn sleep(&mut self, id: ThreadId, ns: u64) -> Step {
        let nap = self.next_timer();
        self.threads[id].step += 1;
        self.threads[id].nap = nap;
        self.after(ns, Timer::Wake(id, nap));
        Step::Off
    }

    fn again(&mut self, id: ThreadId, to: usize, times: u32) -> Step {
        let thread = &mut self.threads[id];
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

    fn contend(&mut self, id: ThreadId, ns: f64, power: f64) -> Step {
        let thread = &mut self.threads[id];
        thread.step += 1;
        let job = &self.jobs[thread.program];
        let sharers = f64::from(job.alive.min(job.mask.len()));
        thread.work = 0.0;
        thread.contended = ns * sharers * (sharers / 16.0).powf(power - 1.0);
        match thread.contended > NOTHING {
            true => Step::Busy,
            false => Step::Next,
        }
    }

    fn lock(&mut self, id: ThreadId, lock: usize) -> Step {
        let thread = &mut self.threads[id];
        let lock = &mut self.jobs[thread.program].locks[lock];
        if lock.held {
            lock.waiters.push_back(id);
            return Step::Off;
        }
        lock.held = true;
        thread.step += 1;
        Step::Next
    }

    fn unlock(&mut self, id: ThreadId, lock: usize) -> Step {
        let thread = &mut self.threads[id];
        thread.step += 1;
        let lock = &mut self.jobs[thread.program].locks[lock];
        lock.held = false;
        // Who is woken has it at once: a hand-off, in the order of arrival.
        if let Some(next) = lock.waiters.pop_front() {
            self.wake(next);
        }
        Step::Next
    }

    fn give_work(&mut self, id: ThreadId, ns: f64, spread: f64) -> Step {
        let thread = &mut self.threads[id];
        let off = match spread > 0.0 {
            true => spread * (2.0 * f64::from(thread.random.rand_float()) - 1.0),
            false => 0.0,
        };
        thread.work = ns * (1.0 + off);
        match thread.work > NOTHING {
            true => Step::Busy,
            false => Step::Next,
        }
    }

    /// A thread comes to a barrier: it goes on at once, spins there, or sleeps.
    fn arrive_at(&mut self, id: ThreadId, barrier: usize, wait: Wait) -> Step {
        let program = self.threads[id].program;
        let state = &mut self.jobs[program].barriers[barrier];
        state.arrived += 1;
        if state.arrived < state.parties {
            let thread = &mut self.threads[id];
            thread.spins_until_ns = match wait {
                Wait::Block => {
                    state.sleepers.push(id);
                    return Step::Off;
                }
                Wait::Spin => NEVER,
                Wait::SpinThenBlock(ns) => thread.cpu_ns.saturating_add(ns),
            };
            thread.spins_at = Some(barrier);
            state.spinners.push(id);
            return Step::Busy;
        }
        state.arrived = 0;
        let sleepers = std::mem::take(&mut state.sleepers);
        let spinners = std::mem::take(&mut state.spinners);
        let job = &mut self.jobs[program];
        job.pools.clone_from(&job.script.pools);
        for other in spinners {
            self.stop_spinning(other);
        }
        for other in sleepers {
            self.wake(other);
        }
        Step::Next
    }

    /// The barrier that a thread spins at has opened.
    fn stop_spinning(&mut self, id: ThreadId) {
        if let Doing::Running(cpu) = self.threads[id].doing {
            self.account(cpu);
        }
        self.threads[id].spins_at = None;
        // What it does next is found when it has the CPU: now, or later.
        self.threads[id].work = 0.0;
        if let Doing::Running(cpu) = self.threads[id].doing {
            self.clock.set(cpu, self.now_ns);
        }
    }

    /// Puts an item into a queue, or waits for a place.
    fn put(&mut self, id: ThreadId, queue: usize) -> Step {
        let state = &mut self.jobs[self.threads[id].program].queues[queue];
        if state.items >= state.places {
            state.putters.push_back(id);
            return Step::Off;
        }
        state.items += 1;
        self.threads[id].step += 1;
        if let Some(taker) = state.takers.pop_front() {
            self.wake(taker);
        }
        Step::Next
    }

    /// Takes an item, waits for one, or, when the queue is closed, goes to the
    /// end of its steps.
    fn take(&mut self, id: ThreadId, queue: usize, end: usize) -> Step {
        let state = &mut self.jobs[self.threads[id].program].queues[queue];
        if state.items == 0 {
            if state.writers == 0 {
                self.threads[id].step = end;
                return Step::Next;
            }
            state.takers.push_back(id);
            return Step::Off;
        }
        state.items -= 1;
        self.threads[id].step += 1;
        if let Some(putter) = state.putters.pop_front() {
            self.wake(putter);
        }
        Step::Next
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
