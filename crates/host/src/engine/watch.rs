// SPDX-License-Identifier: MIT OR Apache-2.0
//! Observes one program by a probe: samples its progress and CPU time, and detects that the program
//! is stopped or has ended. Errors of the probe are kept until the control loop collects them as
//! warnings.
//!
//! The loop collects the errors once a second. A sample takes time in proportion to the program's
//! processes and threads. On a machine without a PMU, instructions are not counted. If the program
//! cannot be read any more, a sample is `None`. No function waits.

use std::path::Path;

use rustix::event::PollFd;
use usher_heartbeat::Page;
use usher_model::{DemandReading, ProcessId, ProcessTree, ProgramSample, SourceErrors};
use usher_probe::{CounterKind, PerfCounters, ProbeConfig, ProgramProbe};

use super::clock::now_ns;
use super::config::EngineError;

/// The probe of one program, with the errors that have not been collected yet.
#[derive(Debug)]
pub(super) struct ProgramObserver {
    probe: ProgramProbe,
    /// Time at which the count of progress began, before the program's arrival.
    opened_ns: u64,
    warnings: Vec<String>,
}

impl ProgramObserver {
    /// Starts to observe a program. `held` means that the program's process waits before its
    /// `exec`. `trusts_bytes`: the bytes that the program reads and writes measure its progress.
    /// `source_errors`: the calibrated errors of the sources of progress.
    pub fn open(
        home: &ProcessTree,
        proc_root: &Path,
        heartbeat: Option<Page>,
        held: bool,
        trusts_bytes: bool,
        source_errors: SourceErrors,
    ) -> Result<Self, EngineError> {
        let config = ProbeConfig {
            proc_root: proc_root.to_owned(),
            source_errors,
            ..ProbeConfig::default()
        };
        let opened_ns = now_ns();
        let mut probe = ProgramProbe::open(home, config)?;
        heartbeat
            .into_iter()
            .for_each(|page| probe.use_heartbeat(page));
        probe.count_bytes(trusts_bytes);
        probe.count_delays();
        // The call fails on a machine without a PMU, which `usher doctor` reports.
        match held {
            true => {
                let counters = PerfCounters::on_exec(CounterKind::Instructions, home.root.pid);
                let _ = counters.map(|counters| probe.use_counters(counters));
            }
            false => drop(probe.count_instructions()),
        }
        Ok(Self {
            probe,
            opened_ns,
            warnings: Vec::new(),
        })
    }

    /// Returns the seconds for which the program's progress has been counted.
    pub fn seconds(&self, at_ns: u64) -> f64 {
        at_ns.saturating_sub(self.opened_ns) as f64 * 1e-9
    }

    /// Samples the program. Returns `None` if the program cannot be read any more.
    pub fn sample(&mut self, at_ns: u64, steal: f64) -> Option<ProgramSample> {
        let sample = self.probe.sample(at_ns, steal).ok();
        self.warnings.append(&mut self.probe.take_warnings());
        sample
    }

    /// Returns the bytes that the program has read and written; `None` if they are not counted.
    pub fn bytes(&self) -> Option<u64> {
        self.probe.bytes()
    }

    /// Returns the last reading of CPU time and waits for CPUs; `None` if waits are not counted.
    pub fn demand(&self) -> Option<DemandReading> {
        self.probe.demand()
    }

    /// Returns whether the program's last process has ended.
    pub fn has_ended(&mut self) -> bool {
        match self.probe.has_ended() {
            Ok(ended) => ended,
            Err(error) => {
                self.warnings.push(error.to_string());
                error.is_gone()
            }
        }
    }

    /// Adds processes that have left the program's cgroup to the observation.
    pub fn follow(&mut self, leavers: &[ProcessId]) {
        self.probe.follow(leavers);
    }

    /// Returns the pid of the program's oldest living process.
    pub fn oldest_process(&self) -> Option<i32> {
        self.probe.oldest_process()
    }

    /// Returns the CPU time that the kernel has summed up for the program; `None` if there is none.
    pub fn summed_cpu_ns(&mut self) -> Option<u64> {
        self.probe.summed_cpu_ns()
    }

    /// Returns whether all processes of the program are stopped by a signal.
    pub fn is_stopped(&self) -> bool {
        self.probe.is_stopped()
    }

    /// Returns the descriptor that must be polled for the program's end.
    pub fn poll_fd(&self) -> PollFd<'_> {
        let (fd, events) = self.probe.poll();
        PollFd::from_borrowed_fd(fd, events)
    }

    /// Returns the errors since the last call.
    pub fn take_warnings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.warnings)
    }
}
