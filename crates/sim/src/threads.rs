// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operations that restrict simulated programs and threads: seats, CPU hotplug and freezing of
//! programs, and the effects of `sched_setaffinity` and `SIGSTOP` on single threads, which Usher
//! uses where cgroups are not available.
//!
//! CPU selection (module `cpu_selection`) uses a program's mask, which is the union of its threads'
//! allowed CPUs. The sets of the threads differ only while an operation is incomplete. In this
//! case, a thread may wait in the queue of a CPU that it may not use. When it is selected there, it
//! is moved to another queue, so that it never runs outside its set.
//!
//! *Cost.* Let T be the threads of the program, C the CPUs, and Q the waiting threads of all
//! programs.
//!
//! - [`SimKernel::set_affinity`], for one thread, and [`SimKernel::seat`] compute the masks of all
//!   threads of the program: T x C / 64 steps. Each thread that leaves its CPU, and each idle CPU
//!   of the mask, then causes one selection of order C + Q.
//! - [`SimKernel::bind`] calls [`SimKernel::set_affinity`] for each thread: T^2 x C / 64 steps, and
//!   T times the selections.
//! - [`SimKernel::set_online`] does the work of a seat for every program that has ever arrived.
//! - [`SimKernel::freeze`] visits T threads, [`SimKernel::set_signal_stopped`] one thread, with one
//!   selection for each thread that stops or continues.
//!
//! Calls for a thread that has ended have no effect. An affinity without an allowed CPU is replaced
//! by the seat, and a seat without an online CPU by all online CPUs.

use usher_model::CpuSet;

use crate::job::{RunState, Thread, ThreadId};
use crate::machine::Mask;
use crate::sim_kernel::SimKernel;

/// Identifier of a thread for code outside the engine, as a thread number with a start time is on a
/// real machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ThreadHandle {
    /// Index of the thread. It is reused after the thread has ended.
    pub number: usize,
    /// Distinguishes successive threads with the same index.
    pub generation: u64,
}

impl SimKernel {
    /// Returns the threads of a program that have not ended.
    pub fn threads_of(&self, program: usize) -> Vec<ThreadHandle> {
        let name = |number: ThreadId| ThreadHandle {
            number,
            generation: self.tasks.threads[number].generation,
        };
        self.tasks.living(program).map(name).collect()
    }

    fn find(&self, name: ThreadHandle) -> Option<&Thread> {
        let thread = self.tasks.threads.get(name.number)?;
        (thread.generation == name.generation && thread.run_state != RunState::Ended)
            .then_some(thread)
    }

    /// Returns a thread's affinity, including offline CPUs; `None` if the thread has ended.
    pub fn affinity(&self, name: ThreadHandle) -> Option<CpuSet> {
        let thread = self.find(name)?;
        Some(match &thread.affinity {
            Some(mask) => self.machine.cpus(mask),
            None => self.machine.topology().all_cpus(),
        })
    }

    /// Sets a thread's affinity. The call has no effect if the thread has ended.
    pub fn set_affinity(&mut self, name: ThreadHandle, cpus: &CpuSet) {
        let Some(program) = self.find(name).map(|thread| thread.program) else {
            return;
        };
        let mask = self.restricting_mask(cpus);
        // The next repetition inherits the affinity of the program's first thread.
        if self.threads_of(program).first() == Some(&name) {
            self.tasks.jobs[program].inherited.clone_from(&mask);
        }
        self.tasks.threads[name.number].affinity = mask;
        self.apply_masks(program);
    }

    /// Returns the mask of these CPUs; `None` if the set contains all CPUs of the machine.
    pub(crate) fn restricting_mask(&self, cpus: &CpuSet) -> Option<Mask> {
        let all = self.machine.topology().all_cpus();
        (*cpus != all).then(|| self.machine.mask(cpus))
    }

    /// Binds a program to these CPUs, as if the program had called `sched_setaffinity` itself: all
    /// its threads, and threads that are created later.
    pub fn bind(&mut self, program: usize, cpus: &CpuSet) {
        self.tasks.jobs[program].inherited = self.restricting_mask(cpus);
        for thread in self.threads_of(program) {
            self.set_affinity(thread, cpus);
        }
    }

    /// Returns whether a thread itself has been stopped, independently of its program.
    pub fn is_signal_stopped(&self, name: ThreadHandle) -> bool {
        self.find(name).is_some_and(|thread| thread.signal_stopped)
    }

    /// Stops or continues one thread.
    pub fn set_signal_stopped(&mut self, name: ThreadHandle, stopped: bool) {
        if self.find(name).is_none() {
            return;
        }
        self.tasks.threads[name.number].signal_stopped = stopped;
        match self.tasks.threads[name.number].run_state {
            RunState::Running(_) | RunState::Queued(_) if stopped => {
                self.deactivate(name.number);
                self.stop(name.number);
            }
            RunState::Stopped if !self.tasks.is_stopped(name.number) => self.ready(name.number),
            _ => {}
        }
    }

    /// Sets or removes a program's seat.
    pub fn seat(&mut self, program: usize, cpus: Option<&CpuSet>) {
        self.tasks.jobs[program].seat = cpus.map(|cpus| self.machine.mask(cpus));
        self.apply_masks(program);
    }

    /// Sets the online CPUs.
    pub fn set_online(&mut self, cpus: &CpuSet) {
        let online = self.machine.mask(cpus);
        for cpu in 0..self.cpus.len() {
            self.cpus[cpu].online = online.has(cpu);
        }
        self.set_online_usher();
        for program in 0..self.tasks.jobs.len() {
            self.apply_masks(program);
        }
    }

    /// Freezes or thaws a program.
    pub fn freeze(&mut self, program: usize, frozen: bool) {
        self.tasks.jobs[program].frozen = frozen;
        for thread in self.tasks.jobs[program].threads.clone() {
            self.tasks.threads[thread].resumed |= frozen;
            match self.tasks.threads[thread].run_state {
                RunState::Running(_) | RunState::Queued(_) if frozen => {
                    self.deactivate(thread);
                    self.stop(thread);
                }
                RunState::Stopped if !frozen && !self.tasks.threads[thread].signal_stopped => {
                    self.ready(thread)
                }
                _ => {}
            }
        }
    }

    /// Updates the allowed CPUs of a program and of each of its threads.
    pub(crate) fn update_masks(&mut self, program: usize) {
        let online = self.online();
        self.tasks.update_masks(program, online);
    }

    /// Updates the allowed CPUs of a program and moves its threads accordingly.
    pub(crate) fn apply_masks(&mut self, program: usize) {
        self.update_masks(program);
        match self.kernel.is_usher() {
            true => self.apply_masks_usher(program),
            false => self.leave_forbidden_cpus(program),
        }
        // The new CPUs may be idle, and can pull waiting threads.
        for cpu in 0..self.cpus.len() {
            if self.tasks.jobs[program].mask.has(cpu) && self.cpus[cpu].current.is_none() {
                self.dispatch(cpu);
            }
        }
    }

    /// Moves threads that run or wait on a CPU outside their mask.
    fn leave_forbidden_cpus(&mut self, program: usize) {
        for thread in self.tasks.jobs[program].threads.clone() {
            let (RunState::Running(cpu) | RunState::Queued(cpu)) =
                self.tasks.threads[thread].run_state
            else {
                continue;
            };
            if !self.tasks.may_run(thread, cpu) {
                self.deactivate(thread);
                self.ready(thread);
            }
        }
    }
}
