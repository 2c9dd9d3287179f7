// SPDX-License-Identifier: MIT OR Apache-2.0
//! Affinity and stopping of single threads: the effects of `sched_setaffinity` and `SIGSTOP`, which
//! serve where cgroups are not available.
//!
//! CPU selection (module `kernel`) uses a program's mask, the union of its threads' allowed CPUs.
//! The threads' sets differ only while an operation is incomplete. A thread may then be queued on a
//! CPU that it must not use; it is requeued elsewhere when it is picked, and therefore never runs
//! outside its set.

use usher_model::CpuSet;

use crate::engine::Engine;
use crate::job::{RunState, ThreadId};
use crate::machine::Mask;

/// A thread as an outside observer identifies it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ThreadHandle {
    /// Index of the thread; reused after its end.
    pub number: usize,
    /// Distinguishes successive threads with the same index.
    pub generation: u64,
}

impl Engine {
    /// A program's living threads.
    pub fn threads_of(&self, program: usize) -> Vec<ThreadHandle> {
        let living = |&&thread: &&ThreadId| self.threads[thread].run_state != RunState::Ended;
        let name = |&number: &ThreadId| ThreadHandle {
            number,
            generation: self.threads[number].generation,
        };
        let threads = self.jobs[program].threads.iter();
        threads.filter(living).map(name).collect()
    }

    fn find(&self, name: ThreadHandle) -> Option<&crate::job::Thread> {
        let thread = self.threads.get(name.number)?;
        (thread.generation == name.generation && thread.run_state != RunState::Ended)
            .then_some(thread)
    }

    /// A thread's affinity, including offline CPUs; `None` if the thread has ended.
    pub fn affinity(&self, name: ThreadHandle) -> Option<CpuSet> {
        let thread = self.find(name)?;
        Some(match &thread.affinity {
            Some(mask) => self.machine.cpus(mask),
            None => self.machine.topology().all_cpus(),
        })
    }

    /// Sets a thread's affinity; no effect if the thread has ended.
    pub fn set_affinity(&mut self, name: ThreadHandle, cpus: &CpuSet) {
        let Some(program) = self.find(name).map(|thread| thread.program) else {
            return;
        };
        let mask = self.restricting_mask(cpus);
        // The next repetition inherits the affinity of the program's first thread.
        if self.threads_of(program).first() == Some(&name) {
            self.jobs[program].inherited.clone_from(&mask);
        }
        self.threads[name.number].affinity = mask;
        self.apply_masks(program);
    }

    /// The mask of these CPUs; `None` if they are all CPUs of the machine.
    pub(crate) fn restricting_mask(&self, cpus: &CpuSet) -> Option<Mask> {
        let all = self.machine.topology().all_cpus();
        (*cpus != all).then(|| self.machine.mask(cpus))
    }

    /// Binds a program to these CPUs, as it would bind itself: all its threads, and those created
    /// later.
    pub fn bind(&mut self, program: usize, cpus: &CpuSet) {
        self.jobs[program].inherited = self.restricting_mask(cpus);
        for thread in self.threads_of(program) {
            self.set_affinity(thread, cpus);
        }
    }

    /// Returns whether a thread itself has been stopped.
    pub fn is_signal_stopped(&self, name: ThreadHandle) -> bool {
        self.find(name).is_some_and(|thread| thread.signal_stopped)
    }

    /// Stops or continues one thread.
    pub fn set_signal_stopped(&mut self, name: ThreadHandle, stopped: bool) {
        if self.find(name).is_none() {
            return;
        }
        self.threads[name.number].signal_stopped = stopped;
        match self.threads[name.number].run_state {
            RunState::Running(_) | RunState::Queued(_) if stopped => {
                self.deactivate(name.number);
                self.stop(name.number);
            }
            RunState::Stopped if !self.is_stopped(name.number) => self.ready(name.number),
            _ => {}
        }
    }

    /// Stops a runnable thread. For the scheduler, the thread sleeps.
    pub(crate) fn stop(&mut self, thread: ThreadId) {
        self.threads[thread].run_state = RunState::Stopped;
        self.threads[thread].entity.slept = true;
    }

    pub(crate) fn is_stopped(&self, thread: ThreadId) -> bool {
        let state = &self.threads[thread];
        state.signal_stopped || self.jobs[state.program].frozen
    }

    pub(crate) fn may_run(&self, thread: ThreadId, cpu: usize) -> bool {
        self.where_allowed(thread).has(cpu)
    }

    /// The CPUs that a thread may use.
    pub(crate) fn where_allowed(&self, thread: ThreadId) -> &Mask {
        let state = &self.threads[thread];
        let mask = state.allowed.as_ref();
        mask.unwrap_or(&self.jobs[state.program].mask)
    }

    /// The online CPUs.
    pub(crate) fn online(&self) -> Mask {
        let mut online = Mask::new(self.cpus.len());
        for (cpu, state) in self.cpus.iter().enumerate() {
            if state.online {
                online.insert(cpu);
            }
        }
        online
    }

    /// Updates the allowed CPUs of a program and of each of its threads. As in Linux, an empty set
    /// is replaced by the next wider one: first the seat, then all online CPUs.
    pub(crate) fn update_masks(&mut self, program: usize) {
        let online = self.online();
        let seat = self.jobs[program].seat.as_ref();
        let seat = seat
            .map(|seat| seat.and(&online))
            .filter(|mask| !mask.is_empty())
            .unwrap_or(online);
        let own = |affinity: &Mask| {
            let own = affinity.and(&seat);
            if own.is_empty() { seat.clone() } else { own }
        };
        let mut threads = self.jobs[program].threads.clone();
        threads.retain(|&thread| self.threads[thread].run_state != RunState::Ended);
        let mut whole: Option<Mask> = None;
        let mut same = true;
        for &thread in &threads {
            let affinity = self.threads[thread].affinity.as_ref();
            let mask = affinity.map_or_else(|| seat.clone(), own);
            whole = Some(match whole {
                Some(whole) if whole == mask => whole,
                Some(whole) => {
                    same = false;
                    whole.or(&mask)
                }
                None => mask.clone(),
            });
            self.threads[thread].allowed = Some(mask);
        }
        if same {
            for &thread in &threads {
                self.threads[thread].allowed = None;
            }
        }
        self.jobs[program].mask = whole.unwrap_or(seat);
    }

    /// Selects an allowed CPU for a woken thread.
    pub(crate) fn select_allowed_cpu(&self, thread: ThreadId) -> Option<usize> {
        let cpu = self.select_cpu(thread)?;
        match self.may_run(thread, cpu) {
            true => Some(cpu),
            false => self.shortest_allowed_queue(thread),
        }
    }

    /// The allowed CPU with the fewest threads.
    fn shortest_allowed_queue(&self, thread: ThreadId) -> Option<usize> {
        let length = |&cpu: &usize| {
            let state = &self.cpus[cpu];
            (
                state.queue.len() + usize::from(state.current.is_some()),
                cpu,
            )
        };
        let cpus = 0..self.cpus.len();
        cpus.filter(|&cpu| self.may_run(thread, cpu))
            .min_by_key(length)
    }

    /// Picks the next thread of a CPU among those that may run on it.
    pub(crate) fn pick_allowed(&mut self, cpu: usize) -> Option<ThreadId> {
        loop {
            let thread = self.pick(cpu)?;
            if self.may_run(thread, cpu) {
                return Some(thread);
            }
            self.leave(thread, cpu);
            self.requeue_allowed(thread);
        }
    }

    /// Pulls a thread for a CPU that would be idle.
    pub(crate) fn pull_allowed(&mut self, cpu: usize) -> Option<ThreadId> {
        let thread = self.pull(cpu)?;
        if self.may_run(thread, cpu) {
            return Some(thread);
        }
        self.requeue_allowed(thread);
        None
    }

    /// Moves a thread, which has just left a queue, to the queue of an allowed CPU.
    fn requeue_allowed(&mut self, thread: ThreadId) {
        // The set of allowed CPUs is never empty.
        let to = self.shortest_allowed_queue(thread).unwrap_or(0);
        self.account(to);
        self.enqueue(thread, to);
        match self.cpus[to].current {
            None => self.dispatch(to),
            Some(_) => self.arm(to),
        }
    }
}
