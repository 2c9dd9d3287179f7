// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which program ran where and when, for traces.
//!
//! Off unless asked for, and then bounded: threads of one program that follow
//! one another on a CPU make one span, and when there are as many spans as were
//! asked for, recording ends and says when.

use serde::{Deserialize, Serialize};

use crate::engine::Engine;

/// A program had a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunSpan {
    /// The CPU, by index in the topology.
    pub cpu: usize,
    /// The program, in the order of arrival.
    pub program: usize,
    /// Virtual nanoseconds.
    pub from_ns: u64,
    /// The same, later.
    pub to_ns: u64,
}

/// What was recorded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recording {
    /// In the order in which they ended.
    pub spans: Vec<RunSpan>,
    /// Nothing is missing before then.
    pub until_ns: u64,
}

/// Recording under way.
#[derive(Debug, Clone)]
pub(crate) struct Recorder {
    /// Who has each CPU, and since when.
    open: Vec<Option<(usize, u64)>>,
    spans: Vec<RunSpan>,
    spans_max: usize,
    full_ns: Option<u64>,
}

impl Recorder {
    /// From now on a program, or nobody, has that CPU.
    pub fn has(&mut self, cpu: usize, program: Option<usize>, now_ns: u64) {
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
    /// Records from now on who has which CPU, in so many spans at most.
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

    /// What was recorded so far; nothing where nothing was to be.
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

    /// A CPU may have somebody else now.
    pub(crate) fn note_who_has(&mut self, cpu: usize) {
        if let Some(recorder) = &mut self.recorder {
            let thread = self.cpus[cpu].current;
            let program = thread.map(|thread| self.threads[thread].program);
            recorder.has(cpu, program, self.now_ns);
        }
    }
}
