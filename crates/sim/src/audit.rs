// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a check may ask of the simulated machine: its real state, not what
//! anybody planned.

use usher_model::{CpuId, CpuSet};

use crate::engine::Engine;
use crate::job::{Doing, ThreadId};

/// What a program has had so far.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ledger {
    /// CPU time of all its threads.
    pub cpu_ns: u64,
    /// Work that it had done when its last complete repetition ended.
    pub work_finished_ns: f64,
    /// Complete repetitions.
    pub repetitions: u32,
    /// Time during which a thread of it that would run had no CPU.
    pub wait_ns: u64,
    /// Threads that run or would if they had a CPU; not those that are stopped.
    pub runnable: u32,
    /// Those of them that wait for a CPU.
    pub queued: u32,
    /// Threads that would run and are stopped.
    pub stopped: u32,
}

/// A CPU as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuLedger {
    /// Its number.
    pub os: CpuId,
    /// Whether it is on line.
    pub online: bool,
    /// Time in all that somebody ran on it.
    pub busy_ns: u64,
}

impl Engine {
    /// Credits everybody with what was done until now.
    pub fn settle(&mut self) {
        for cpu in 0..self.cpus.len() {
            self.account(cpu);
        }
    }

    /// What a program has had, as of the last [`Self::settle`].
    pub fn ledger(&self, program: usize) -> Ledger {
        let job = &self.jobs[program];
        let waits_now = job.wait_since_ns.map_or(0, |since| self.now_ns - since);
        let stopped = |&&thread: &&ThreadId| self.threads[thread].doing == Doing::Stopped;
        Ledger {
            cpu_ns: job.cpu_ns,
            work_finished_ns: job.work_finished,
            repetitions: job.repetitions,
            wait_ns: job.wait_ns + waits_now,
            runnable: job.runnable,
            queued: job.queued,
            stopped: job.threads.iter().filter(stopped).count() as u32,
        }
    }

    /// Programs that ever arrived.
    pub fn programs(&self) -> usize {
        self.jobs.len()
    }

    /// All CPUs, as of the last [`Self::settle`].
    pub fn cpu_ledgers(&self) -> Vec<CpuLedger> {
        let cpus = self.machine.topology().cpus.iter().zip(&self.cpus);
        cpus.map(|(cpu, state)| CpuLedger {
            os: cpu.os,
            online: state.online,
            busy_ns: state.busy_ns,
        })
        .collect()
    }

    fn living(&self, program: usize) -> impl Iterator<Item = ThreadId> {
        let threads = self.jobs[program].threads.iter().copied();
        threads.filter(|&thread| self.threads[thread].doing != Doing::Ended)
    }

    /// CPUs that some thread of a program may run on now.
    pub fn mask_of(&self, program: usize) -> CpuSet {
        self.machine.cpus(&self.jobs[program].mask)
    }

    /// Whether its threads differ in where they may run.
    pub fn is_split(&self, program: usize) -> bool {
        let differs = |&thread: &ThreadId| self.threads[thread].allowed.is_some();
        self.living(program).any(|thread| differs(&thread))
    }

    /// Whether a program is stopped as a whole.
    pub fn is_frozen(&self, program: usize) -> bool {
        let job = &self.jobs[program];
        let mut living = self.living(program).peekable();
        job.frozen || living.peek().is_some() && living.all(|thread| self.threads[thread].held)
    }

    /// Whether anything stands that somebody did to it: a seat, a stop, or a
    /// thread whose affinity is not the one that it would have; says what.
    pub fn is_bothered(&self, program: usize, own: Option<&CpuSet>) -> Option<&'static str> {
        let job = &self.jobs[program];
        let own = own.and_then(|cpus| self.narrowing(cpus));
        let living: Vec<_> = self.living(program).collect();
        let mut threads = living.iter().map(|&thread| &self.threads[thread]);
        match () {
            () if job.frozen => Some("is still frozen"),
            () if job.seat.is_some() => Some("is still narrowed"),
            () if threads.clone().any(|thread| thread.held) => Some("has a thread still stopped"),
            () if threads.any(|thread| thread.affinity != own) => {
                Some("has a thread that has not got its affinity back")
            }
            () => None,
        }
    }

    /// Checks that nobody runs where, or when, it must not.
    ///
    /// # Errors
    /// Who does.
    pub fn audit(&self) -> Result<(), String> {
        for (at, state) in self.cpus.iter().enumerate() {
            let cpu = self.machine.topology().cpus[at].os;
            for &thread in state.current.iter().chain(&state.queue) {
                let program = self.threads[thread].program;
                let running = Some(thread) == state.current;
                let (doing, place) = match running {
                    true => ("runs", Doing::Running(at)),
                    false => ("waits", Doing::Queued(at)),
                };
                let say = |what: &str| {
                    format!("thread {thread} of job {program} {doing} on CPU {cpu} {what}")
                };
                if self.threads[thread].doing != place {
                    return Err(say("and is said to be elsewhere"));
                }
                if self.is_stopped(thread) {
                    return Err(say("although it is stopped"));
                }
                if running && !self.may_run(thread, at) {
                    return Err(say("where it may not"));
                }
                if running && !state.online {
                    return Err(say("which is off line"));
                }
            }
        }
        Ok(())
    }
}
