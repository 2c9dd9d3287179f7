// SPDX-License-Identifier: MIT OR Apache-2.0
//! Read access to the actual state of the simulated machine, for tests and checkers: CPU times,
//! work and waiting times of programs, masks, frozen threads. The state does not depend on plans,
//! or on the observations that the policy received. [`SimKernel::audit`] checks that no thread runs
//! on a CPU outside its mask or while it is stopped.
//!
//! Reads take linear time in the threads of the program, or in the CPUs; [`SimKernel::audit`]
//! visits all running and waiting threads. Times are in virtual nanoseconds.

use usher_model::{CpuId, CpuSet, DemandReading};

use crate::job::{RunState, ThreadId};
use crate::sim_kernel::SimKernel;

/// Totals and current state of a program.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ProgramTotals {
    /// CPU time of all its threads.
    pub cpu_ns: u64,
    /// Work done until the end of the last complete repetition.
    pub work_finished_ns: f64,
    /// Complete repetitions.
    pub repetitions: u32,
    /// Time during which at least one runnable thread had no CPU.
    pub wait_ns: u64,
    /// Threads that run or wait for a CPU; stopped threads do not count.
    pub runnable: u32,
    /// Threads that wait for a CPU.
    pub queued: u32,
    /// Threads that would be runnable, but are stopped.
    pub stopped: u32,
}

/// State of a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuTotals {
    /// Number of the CPU.
    pub os: CpuId,
    /// Whether the CPU is online.
    pub online: bool,
    /// Total time during which the CPU ran a thread.
    pub busy_ns: u64,
}

impl SimKernel {
    /// Returns the totals of a program, up to the last [`Self::charge_all`].
    pub fn totals(&self, program: usize) -> ProgramTotals {
        let job = &self.tasks.jobs[program];
        let waits_now = job.wait_since_ns.map_or(0, |since| self.now_ns - since);
        let stopped =
            |&&thread: &&ThreadId| self.tasks.threads[thread].run_state == RunState::Stopped;
        ProgramTotals {
            cpu_ns: job.cpu_ns,
            work_finished_ns: job.work_finished,
            repetitions: job.repetitions,
            wait_ns: job.wait_ns + waits_now,
            runnable: job.runnable,
            queued: job.queued,
            stopped: job.threads.iter().filter(stopped).count() as u32,
        }
    }

    /// Returns the number of programs that have arrived.
    pub fn programs(&self) -> usize {
        self.tasks.jobs.len()
    }

    /// Returns the state of all CPUs, up to the last [`Self::charge_all`].
    pub fn cpu_totals(&self) -> Vec<CpuTotals> {
        let cpus = self.machine.topology().cpus.iter().zip(&self.cpus);
        cpus.map(|(cpu, state)| CpuTotals {
            os: cpu.os,
            online: state.online,
            busy_ns: state.busy_ns,
        })
        .collect()
    }

    /// Returns the CPUs that at least one thread of the program may use now.
    pub fn mask_of(&self, program: usize) -> CpuSet {
        self.machine.cpus(&self.tasks.jobs[program].mask)
    }

    /// Returns whether the program's threads may use different CPUs.
    pub fn is_split(&self, program: usize) -> bool {
        let differs = |&thread: &ThreadId| self.tasks.threads[thread].allowed.is_some();
        self.tasks.living(program).any(|thread| differs(&thread))
    }

    /// Returns whether the whole program is stopped.
    pub fn is_frozen(&self, program: usize) -> bool {
        let job = &self.tasks.jobs[program];
        let mut living = self.tasks.living(program).peekable();
        job.frozen
            || living.peek().is_some()
                && living.all(|thread| self.tasks.threads[thread].signal_stopped)
    }

    /// Returns the first effect of Usher that is left on the program, if any: a freeze, a seat, a
    /// stopped thread, or a thread with an affinity other than `own`.
    pub fn remaining_effect(&self, program: usize, own: Option<&CpuSet>) -> Option<&'static str> {
        let job = &self.tasks.jobs[program];
        let own = own.and_then(|cpus| self.restricting_mask(cpus));
        let living: Vec<_> = self.tasks.living(program).collect();
        let mut threads = living.iter().map(|&thread| &self.tasks.threads[thread]);
        match () {
            () if job.frozen => Some("is still frozen"),
            () if job.seat.is_some() => Some("still has a seat"),
            () if threads.clone().any(|thread| thread.signal_stopped) => {
                Some("has a thread that is still stopped")
            }
            () if threads.any(|thread| thread.affinity != own) => {
                Some("has a thread without its original affinity")
            }
            () => None,
        }
    }

    /// Checks that no thread runs on a CPU outside its mask, or while it is stopped.
    ///
    /// # Errors
    /// A description of the first violation.
    pub fn audit(&self) -> Result<(), String> {
        for (at, state) in self.cpus.iter().enumerate() {
            let cpu = self.machine.topology().cpus[at].os;
            for &thread in state.current.iter().chain(&state.queue) {
                let program = self.tasks.threads[thread].program;
                let running = Some(thread) == state.current;
                let (verb, expected) = match running {
                    true => ("runs", RunState::Running(at)),
                    false => ("waits", RunState::Queued(at)),
                };
                let report = |what: &str| {
                    format!("thread {thread} of job {program} {verb} on CPU {cpu} {what}")
                };
                if self.tasks.threads[thread].run_state != expected {
                    return Err(report(
                        "although the thread's state names another CPU or queue",
                    ));
                }
                if self.tasks.is_stopped(thread) {
                    return Err(report("although the thread is stopped"));
                }
                if running && !self.tasks.may_run(thread, at) {
                    return Err(report("outside the CPUs that the thread may use"));
                }
                if running && !state.online {
                    return Err(report("although the CPU is offline"));
                }
            }
        }
        Ok(())
    }

    /// Returns the work that a program has done since its arrival, in nanoseconds of an undisturbed
    /// core.
    pub(crate) fn work_ns(&self, program: usize) -> f64 {
        self.tasks.jobs[program].work
    }

    /// Returns the CPU time and the waits of a program since its arrival. The number of threads
    /// that have not ended shows whether a later reading is complete.
    pub(crate) fn demand(&self, program: usize) -> (DemandReading, u32) {
        let job = &self.tasks.jobs[program];
        let waiting_ns = u64::from(job.queued) * (self.now_ns - job.queued_ns);
        let reading = DemandReading {
            at_ns: self.now_ns,
            cpu_ns: job.cpu_ns,
            delay_ns: job.delay_ns + waiting_ns,
            is_complete: true,
        };
        (reading, job.alive)
    }

    /// Returns the CPU time that a program has used since its arrival.
    pub(crate) fn cpu_ns(&self, program: usize) -> f64 {
        self.tasks.jobs[program].cpu_ns as f64
    }
}
