// SPDX-License-Identifier: MIT OR Apache-2.0
//! A round as a trace for <https://ui.perfetto.dev> or `chrome://tracing`.
//!
//! The format is Chrome's JSON trace event format. Times are microseconds since the start of the
//! round, rounded to nanoseconds.
//!
//! - A program is a process, and each of its CPUs a thread.
//! - A span is a complete event (`X`), one per CPU of the span.
//! - A note of the policy is a global instant (`i`).
//! - The numbers of owned and borrowed cores are counters (`C`).
//!
//! Empty, reversed and non-finite spans, and notes without a time, are left out. The size of the
//! trace is proportional to spans times CPUs, without a limit. The counters of a program cost the
//! square of the number of its spans.

mod cpus;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use usher_model::CpuSet;

pub use self::cpus::{Slice, Tracks, simulated};
use crate::data::{Lender, MixResult, PolicyResult, RoundResult, SeatSpan, SpanMode};

/// The trace of one round of one policy.
pub fn perfetto(mix: &MixResult, policy: &PolicyResult, round: &RoundResult) -> Value {
    let mut events = Vec::new();
    let names = crate::layout::layout(mix, round).names;
    for (index, name) in names.iter().enumerate() {
        let spans: Vec<_> = round
            .timeline
            .iter()
            .filter(|s| s.program == *name && sane(s))
            .collect();
        events.extend(program(index + 1, name, &spans));
    }
    events.extend(round.notes.iter().filter(|n| n.0.is_finite()).map(note));
    json!({
        "displayTimeUnit": "ms",
        "otherData": {
            "mix": mix.title,
            "policy": policy.name,
            "host": mix.machine.host,
            "simulated": mix.simulated,
            "abstained": round.abstained,
        },
        "traceEvents": events,
    })
}

fn sane(span: &SeatSpan) -> bool {
    span.start_s.is_finite() && span.end_s.is_finite() && span.end_s > span.start_s
}

fn micros(seconds: f64) -> f64 {
    // Rounds to a thousandth of a microsecond, the finest step of the format.
    (seconds * 1e9).round() / 1e3
}

/// Names, slices and counters of one program.
fn program(pid: usize, name: &str, spans: &[&SeatSpan]) -> Vec<Value> {
    let meta = |what: &str, tid: u32, args: Value| json!({"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args});
    let mut events = vec![
        meta("process_name", 0, json!({"name": name})),
        meta("process_sort_index", 0, json!({"sort_index": pid})),
    ];
    let cpus: BTreeSet<u32> = spans.iter().flat_map(|s| s.cpus.iter()).collect();
    for &cpu in &cpus {
        // Thread numbers start at 1, because viewers take thread 0 for the idle thread.
        events.push(meta(
            "thread_name",
            cpu + 1,
            json!({"name": format!("CPU {cpu}")}),
        ));
        events.push(meta(
            "thread_sort_index",
            cpu + 1,
            json!({"sort_index": cpu}),
        ));
    }
    for span in spans {
        events.extend(span.cpus.iter().map(|cpu| slice(pid, cpu, span)));
    }
    events.extend(counters(pid, spans));
    events
}

fn slice(pid: usize, cpu: u32, span: &SeatSpan) -> Value {
    let (name, category) = match (span.mode, &span.borrowed_from) {
        (SpanMode::Frozen, _) => ("stopped".to_owned(), "frozen"),
        (SpanMode::Shared, _) => ("shared".to_owned(), "shared"),
        (SpanMode::InTurn, _) => ("in turn".to_owned(), "turn"),
        (SpanMode::Seated, None) => ("seated".to_owned(), "seat"),
        (SpanMode::Seated, Some(Lender::Program(owner))) => {
            (format!("CPUs borrowed from {owner}"), "loan")
        }
        (SpanMode::Seated, Some(Lender::Unowned)) => ("borrowed, unowned".to_owned(), "loan"),
    };
    let start = micros(span.start_s);
    json!({
        "ph": "X", "name": name, "cat": category, "pid": pid, "tid": cpu + 1,
        "ts": start, "dur": micros(span.end_s) - start,
        "args": {"cpus": span.cpus.to_string()},
    })
}

/// Owned and borrowed cores, at every time of a change.
fn counters(pid: usize, spans: &[&SeatSpan]) -> Vec<Value> {
    let seated = || spans.iter().filter(|s| s.mode == SpanMode::Seated);
    let mut moments: Vec<f64> = seated().flat_map(|s| [s.start_s, s.end_s]).collect();
    moments.sort_by(f64::total_cmp);
    moments.dedup();
    let held = |at: f64, borrowed: bool| {
        let now = seated().filter(|s| s.start_s <= at && at < s.end_s);
        let such = now.filter(|s| s.borrowed_from.is_some() == borrowed);
        such.fold(CpuSet::new(), |set, s| set.or(&s.cpus)).len()
    };
    let counts = moments
        .into_iter()
        .map(|at| (at, [held(at, false), held(at, true)]));
    let mut last: BTreeMap<usize, [usize; 2]> = BTreeMap::new();
    counts
        .filter(|(_, now)| last.insert(pid, *now) != Some(*now))
        .map(|(at, [owned, borrowed])| {
            json!({
                "ph": "C", "name": "CPUs", "pid": pid, "tid": 0, "ts": micros(at),
                "args": {"owned": owned, "borrowed": borrowed},
            })
        })
        .collect()
}

fn note(note: &(f64, String)) -> Value {
    json!({
        "ph": "i", "s": "g", "name": note.1, "cat": "note",
        "pid": 0, "tid": 0, "ts": micros(note.0),
    })
}
