// SPDX-License-Identifier: MIT OR Apache-2.0
//! Records which program ran on which CPU, for traces.
//!
//! A span is a period in which threads of one program run on a CPU without interruption by another
//! program. Recording is off by default. When the requested number of spans is reached, the
//! recording stops and stores the time. The spans that are open at this time are added: at most one
//! per CPU. Each change of the running program takes constant time.

use serde::{Deserialize, Serialize};

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

/// State of a recording in progress.
#[derive(Debug, Clone)]
pub(crate) struct Recorder {
    /// For each CPU, the running program and the start of its span.
    open: Vec<Option<(usize, u64)>>,
    spans: Vec<RunSpan>,
    spans_max: usize,
    full_ns: Option<u64>,
}

impl Recorder {
    /// Starts a recording of up to `spans_max` spans. `running` contains the program that runs on
    /// each CPU at present, if any.
    pub fn new(
        running: impl Iterator<Item = Option<usize>>,
        now_ns: u64,
        spans_max: usize,
    ) -> Self {
        Self {
            open: running.map(|program| Some((program?, now_ns))).collect(),
            spans: Vec::new(),
            spans_max,
            full_ns: None,
        }
    }

    /// Returns the recording until now.
    pub fn recording(&self, now_ns: u64) -> Recording {
        let until_ns = self.full_ns.unwrap_or(now_ns);
        let open = self.open.iter().enumerate();
        let open = open.filter_map(|(cpu, &open)| span(cpu, open, until_ns));
        Recording {
            spans: self.spans.iter().copied().chain(open).collect(),
            until_ns,
        }
    }

    /// Records which program, if any, runs on a CPU from now on.
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
