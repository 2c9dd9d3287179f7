// SPDX-License-Identifier: MIT OR Apache-2.0
//! Trace of a simulated run: the program on every CPU, and the seat of every program, over time.
//!
//! The trace has two processes. *CPUs* has a track for each CPU with the programs that ran on it.
//! *programs* has a track for each program with its seats. The trace of a real run (`perfetto`)
//! contains only the seats, because the program on each CPU at each time is not known.
//!
//! Times are nanoseconds in the input and microseconds in the trace. The caller limits the number
//! of slices; [`Tracks::ran_until_ns`] states up to which time the CPUs' tracks are complete. The
//! cost is proportional to the number of slices and notes.

use serde_json::{Value, json};

const CPUS: u32 = 1;
const PROGRAMS: u32 = 2;

/// A slice of a track, in nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slice {
    /// Index of the track.
    pub track: usize,
    /// Label.
    pub name: String,
    /// Start.
    pub from_ns: u64,
    /// End.
    pub to_ns: u64,
}

/// The content of a trace.
#[derive(Debug, Clone, PartialEq)]
pub struct Tracks<'a> {
    /// Title of the mix.
    pub title: &'a str,
    /// Name of the scheduler.
    pub policy: &'a str,
    /// Names of the CPUs' tracks.
    pub cpus: Vec<String>,
    /// Names of the programs' tracks.
    pub programs: Vec<String>,
    /// Programs on the CPUs' tracks.
    pub ran: Vec<Slice>,
    /// Time up to which `ran` is complete.
    pub ran_until_ns: u64,
    /// Seats on the programs' tracks.
    pub seats: Vec<Slice>,
    /// Notes of the policy, each with its time in seconds since the start of the run.
    pub notes: &'a [(f64, String)],
}

/// The trace of a simulated run, in Chrome's JSON trace event format.
pub fn simulated(tracks: &Tracks<'_>) -> Value {
    let mut events = vec![
        meta(CPUS, 0, "process_name", json!({"name": "CPUs"})),
        meta(CPUS, 0, "process_sort_index", json!({"sort_index": 1})),
        meta(PROGRAMS, 0, "process_name", json!({"name": "programs"})),
        meta(PROGRAMS, 0, "process_sort_index", json!({"sort_index": 0})),
    ];
    for (pid, names) in [(CPUS, &tracks.cpus), (PROGRAMS, &tracks.programs)] {
        for (track, name) in names.iter().enumerate() {
            events.push(meta(pid, track + 1, "thread_name", json!({"name": name})));
            let order = json!({"sort_index": track});
            events.push(meta(pid, track + 1, "thread_sort_index", order));
        }
    }
    events.extend(tracks.ran.iter().map(|slice| complete(CPUS, slice)));
    events.extend(tracks.seats.iter().map(|slice| complete(PROGRAMS, slice)));
    let finite = tracks.notes.iter().filter(|note| note.0.is_finite());
    events.extend(finite.map(super::note));
    json!({
        "displayTimeUnit": "ms",
        "otherData": {
            "mix": tracks.title,
            "policy": tracks.policy,
            "simulated": true,
            "cpus_recorded_until_s": tracks.ran_until_ns as f64 / 1e9,
        },
        "traceEvents": events,
    })
}

fn meta(pid: u32, tid: usize, what: &str, args: Value) -> Value {
    json!({"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args})
}

fn complete(pid: u32, slice: &Slice) -> Value {
    json!({
        "ph": "X", "name": slice.name, "cat": "simulated", "pid": pid, "tid": slice.track + 1,
        "ts": slice.from_ns as f64 / 1e3,
        "dur": slice.to_ns.saturating_sub(slice.from_ns) as f64 / 1e3,
    })
}
