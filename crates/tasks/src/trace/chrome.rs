// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes traces in the Trace Event Format, which Perfetto and Chrome's tracing open: a track for
//! each worker and a span for each task, with times in microseconds. Writing takes time linear in
//! the number of spans, about 100 bytes each. The first error of the output ends the writing.

use std::io::{self, Write};

use serde::Serialize;

use super::Trace;

/// An event of the format: the name of a track, or a span on a track.
#[derive(Serialize)]
#[serde(tag = "ph")]
enum Event<'a> {
    #[serde(rename = "M")]
    Name {
        name: &'a str,
        pid: u32,
        tid: usize,
        args: Name,
    },
    #[serde(rename = "X")]
    Span {
        name: String,
        cat: &'a str,
        pid: u32,
        tid: usize,
        /// Start of the span in microseconds, as the format requires.
        ts: f64,
        dur: f64,
        args: Args,
    },
}

#[derive(Serialize)]
struct Name {
    name: String,
}

#[derive(Serialize)]
struct Args {
    task: u64,
    t: u32,
    s: u32,
}

impl Trace {
    /// Writes a JSON file of the Trace Event Format, which ui.perfetto.dev and
    /// `chrome://tracing` open: a track for each worker, a span for each task.
    ///
    /// # Errors
    /// If `to` returns an error.
    pub fn write_chrome(&self, mut to: impl Write) -> io::Result<()> {
        to.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n")?;
        let names = (0..self.workers).map(|worker| Event::Name {
            name: "thread_name",
            pid: 1,
            tid: worker,
            args: Name {
                name: format!("worker {worker}"),
            },
        });
        let spans = self.spans.iter().map(|span| Event::Span {
            name: format!("T{} S{}", span.groups.t, span.groups.s),
            cat: "task",
            pid: 1,
            tid: span.worker,
            ts: span.start_ns as f64 / 1e3,
            dur: span.end_ns.saturating_sub(span.start_ns) as f64 / 1e3,
            args: Args {
                task: span.task,
                t: span.groups.t,
                s: span.groups.s,
            },
        });
        for (at, event) in names.chain(spans).enumerate() {
            if at > 0 {
                to.write_all(b",\n")?;
            }
            serde_json::to_writer(&mut to, &event)?;
        }
        to.write_all(b"\n]}\n")
    }
}
