// SPDX-License-Identifier: MIT OR Apache-2.0
//! Records which program ran on which CPU, for traces.
//!
//! Recording is off by default and its size is limited. Consecutive threads of one program on a CPU
//! form one span. At the requested number of spans the recording stops and stores the time.

use serde::{Deserialize, Serialize};

use crate::engine::Engine;

/// A period in which threads of one program ran on a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunSpan {
    /// Index of the CPU in the topology.
    pub cpu: usize,
    /// Index of the program, in the order of arrival.
    pub program: usize,
    /// Start in virtual nanoseconds.
    pub from_ns: u64,
    /// End in virtual nanoseconds.
    pub to_ns: u64,
}

/// The recorded spans.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recording {
    /// The spans, in the order of their ends.
    pub spans: Vec<RunSpan>,
    /// Time up to which the recording is complete.
    pub until_ns: u64,
}

/// A recording in progress.
#[derive(Debug, Clone)]
pub(crate) struct Recorder {
    /// The program running on each CPU, with the start of its span.
    open: Vec<Option<(usize, u64)>>,
    spans: Vec<RunSpan>,
    spans_max: usize,
    full_ns: Option<u64>,
}

impl Recorder {
    /// Notes the program, or none, that runs on a CPU from now on.
    pub fn set_current(&mut self, cpu: usize, program: Option<usize>, now_ns: u64) {
        if self.full_ns.is_some() {
            return;
        }
        let before = self.open[cpu];
        if before.map(|(program, _)| program) == program {
            return;
        }
        self.open[cpu] = program.map(|program| (program, now_ns));
        self.spans.extend(span(cpu, before, now_ns));
        if self.spans.len() >= self.spans_max {
            self.full_ns = Some(now_ns);
        }
    }
}

fn span(cpu: usize, open: Option<(usize, u64)>, to_ns: u64) -> Option<RunSpan> {
    let (program, from_ns) = open?;
    (to_ns > from_ns).then_some(RunSpan {
        cpu,
        program,
        from_ns,
        to_ns,
    })
}

impl Engine {
    /// Starts recording, up to `spans_max` spans.
    pub fn record(&mut self, spans_max: usize) {
        let owner = |cpu: usize| {
            let thread = self.cpus[cpu].current?;
            Some((self.threads[thread].program, self.now_ns))
        };
        self.recorder = Some(Box::new(Recorder {
            open: (0..self.cpus.len()).map(owner).collect(),
            spans: Vec::new(),
            spans_max,
            full_ns: None,
        }));
    }

    /// The recording so far; empty if recording was not started.
    pub fn recording(&self) -> Recording {
        let Some(recorder) = &self.recorder else {
            return Recording::default();
        };
        let until_ns = recorder.full_ns.unwrap_or(self.now_ns);
        let open = recorder.open.iter().enumerate();
        let open = open.filter_map(|(cpu, &open)| span(cpu, open, until_ns));
        Recording {
            spans: recorder.spans.iter().copied().chain(open).collect(),
            until_ns,
        }
    }

    /// Passes a change of the CPU's current thread to the recorder.
    pub(crate) fn record_current(&mut self, cpu: usize) {
        if let Some(recorder) = &mut self.recorder {
            let thread = self.cpus[cpu].current;
            let program = thread.map(|thread| self.threads[thread].program);
            recorder.set_current(cpu, program, self.now_ns);
        }
    }
}
