// SPDX-License-Identifier: MIT OR Apache-2.0
//! Single threads: each has an affinity of its own and can be stopped alone,
//! as `sched_setaffinity` and `SIGSTOP` do where there is no cgroup.
//!
//! The kernel's choices (module `kernel`) look at a program's mask, the union
//! of what its threads may use. Where the threads of one differ, which they do
//! only while something has gone half-way, a thread that was put into the queue
//! of a CPU that it may not use is sent on when its turn comes; so none ever
//! runs where it must not.

use usher_model::CpuSet;

use crate::engine::Engine;
use crate::job::{Doing, ThreadId};
use crate::machine::Mask;

/// A thread of a program, as somebody outside would name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ThreadName {
    /// Its number, which another has after it.
    pub number: usize,
    /// Which bearer of that number.
    pub born: u64,
}

impl Engine {
    /// A program's living threads.
    pub fn threads_of(&self, program: usize) -> Vec<ThreadName> {
        let living = |&&thread: &&ThreadId| self.threads[thread].doing != Doing::Ended;
        let name = |&number: &ThreadId| ThreadName {
            number,
            born: self.threads[number].born,
        };
        let threads = self.jobs[program].threads.iter();
        threads.filter(living).map(name).collect()
    }

    fn find(&self, name: ThreadName) -> Option<&crate::job::Thread> {
        let thread = self.threads.get(name.number)?;
        (thread.born == name.born && thread.doing != Doing::Ended).then_some(thread)
    }

    /// A thread's affinity, CPUs that are off line included; `None` where the
    /// thread has gone.
    pub fn affinity(&self, name: ThreadName) -> Option<CpuSet> {
        let thread = self.find(name)?;
        Some(match &thread.affinity {
            Some(mask) => self.machine.cpus(mask),
            None => self.machine.topology().all_cpus(),
        })
    }

    /// Gives a thread an affinity; nothing where it has gone.
    pub fn set_affinity(&mut self, name: ThreadName, cpus: &CpuSet) {
        let Some(program) = self.find(name).map(|thread| thread.program) else {
            return;
        };
        let mask = self.narrowing(cpus);
        // Who starts the program again has what its first thread has.
        if self.threads_of(program).first() == Some(&name) {
            self.jobs[program].inherited.clone_from(&mask);
        }
        self.threads[name.number].affinity = mask;
        self.new_mask(program);
    }

    /// The mask of these CPUs; `None` where they are all there are.
    pub(crate) fn narrowing(&self, cpus: &CpuSet) -> Option<Mask> {
        let all = self.machine.topology().all_cpus();
        (*cpus != all).then(|| self.machine.mask(cpus))
    }

    /// Binds a program to these CPUs, as it would itself: all its threads, and
    /// those that are born later.
    pub fn bind(&mut self, program: usize, cpus: &CpuSet) {
        self.jobs[program].inherited = self.narrowing(cpus);
        for thread in self.threads_of(program) {
            self.set_affinity(thread, cpus);
        }
    }

    /// Whether a thread has been stopped by itself.
    pub fn is_held(&self, name: ThreadName) -> bool {
        self.find(name).is_some_and(|thread| thread.held)
    }

    /// Stops one thread, or lets it go on.
    pub fn hold(&mut self, name: ThreadName, held: bool) {
        if self.find(name).is_none() {
            return;
        }
        self.threads[name.number].held = held;
        match self.threads[name.number].doing {
            Doing::Running(_) | Doing::Queued(_) if held => {
                self.withdraw(name.number);
                self.stop(name.number);
            }
            Doing::Stopped if !self.is_stopped(name.number) => self.ready(name.number),
            _ => {}
        }
    }

    /// A thread that would run is not to. It sleeps, as far as the scheduler knows.
    pub(crate) fn stop(&mut self, thread: ThreadId) {
        self.threads[thread].doing = Doing::Stopped;
        self.threads[thread].standing.slept = true;
    }

    pub(crate) fn is_stopped(&self, thread: ThreadId) -> bool {
        let state = &self.threads[thread];
        state.held || self.jobs[state.program].frozen
    }

    pub(crate) fn may_run(&self, thread: ThreadId, cpu: usize) -> bool {
        self.where_allowed(thread).has(cpu)
    }

    /// Where a thread may run.
    pub(crate) fn where_allowed(&self, thread: ThreadId) -> &Mask {
        let state = &self.threads[thread];
        let mask = state.allowed.as_ref();
        mask.unwrap_or(&self.jobs[state.program].mask)
    }

    /// CPUs that are on line.
    pub(crate) fn online(&self) -> Mask {
        let mut online = Mask::new(self.cpus.len());
        for (cpu, state) in self.cpus.iter().enumerate() {
            if state.online {
                online.insert(cpu);
            }
        }
        online
    }

    /// Works out where a program and each of its threads may run. As the kernel
    /// does, who would be left without any CPU may run on all of the next wider
    /// set: the seat, then whatever is on line.
    pub(crate) fn work_out_masks(&mut self, program: usize) {
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
        threads.retain(|&thread| self.threads[thread].doing != Doing::Ended);
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

    /// Where a thread that wakes goes.
    pub(crate) fn place_allowed(&self, thread: ThreadId) -> Option<usize> {
        let cpu = self.place(thread)?;
        match self.may_run(thread, cpu) {
            true => Some(cpu),
            false => self.shortest(thread),
        }
    }

    /// The CPU with the fewest threads of those that this one may use.
    fn shortest(&self, thread: ThreadId) -> Option<usize> {
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

    /// Who runs next on a CPU, of those who may.
    pub(crate) fn pick_allowed(&mut self, cpu: usize) -> Option<ThreadId> {
        loop {
            let thread = self.pick(cpu)?;
            if self.may_run(thread, cpu) {
                return Some(thread);
            }
            self.leave(thread, cpu);
            self.send_on(thread);
        }
    }

    /// A thread for a CPU that would idle.
    pub(crate) fn pull_allowed(&mut self, cpu: usize) -> Option<ThreadId> {
        let thread = self.pull(cpu)?;
        if self.may_run(thread, cpu) {
            return Some(thread);
        }
        self.send_on(thread);
        None
    }

    /// Puts a thread that has just been taken out of a queue into that of a CPU
    /// that it may use.
    fn send_on(&mut self, thread: ThreadId) {
        // Its mask is never empty.
        let to = self.shortest(thread).unwrap_or(0);
        self.account(to);
        self.enqueue(thread, to);
        match self.cpus[to].current {
            None => self.dispatch(to),
            Some(_) => self.arm(to),
        }
    }
}
