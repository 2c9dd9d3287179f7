// SPDX-License-Identifier: MIT OR Apache-2.0
//! A simulated run as a trace: who had every CPU, and where every program was.
//!
//! Two processes: *CPUs*, with a track for each CPU on which the programs that
//! ran there stand one after the other; and *programs*, with a track for each
//! on which its places stand. A simulation knows both; of a real run only the
//! places are known (`perfetto`).

use serde_json::{Value, json};

const CPUS: u32 = 1;
const PROGRAMS: u32 = 2;

/// A slice of a track, in nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slice {
    /// Which track.
    pub track: usize,
    /// What it says.
    pub name: String,
    /// From when.
    pub from_ns: u64,
    /// Until when.
    pub to_ns: u64,
}

/// What such a trace shows.
#[derive(Debug, Clone, PartialEq)]
pub struct Tracks<'a> {
    /// The mix's name.
    pub title: &'a str,
    /// The scheduler's.
    pub policy: &'a str,
    /// The name of each CPU's track.
    pub cpus: Vec<String>,
    /// The name of each program's track.
    pub programs: Vec<String>,
    /// Who had a CPU, on the CPUs' tracks.
    pub ran: Vec<Slice>,
    /// Until when that is complete.
    pub ran_until_ns: u64,
    /// Where programs were, on the programs' tracks.
    pub places: Vec<Slice>,
    /// What the policy said, by seconds.
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
    events.extend(tracks.places.iter().map(|slice| complete(PROGRAMS, slice)));
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
