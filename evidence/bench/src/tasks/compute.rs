// SPDX-License-Identifier: MIT OR Apache-2.0
//! Part `compute`: measures the wavefront of a 720p frame with tasks that compute for 2 to 4
//! microseconds. In such tasks, the overhead of a runtime is a small share of the time.
//!
//! Bars: usher-tasks takes at most 1.02 times the time of the fastest other runtime (median over
//! the rounds of the ratio). A task takes at least 1.7 microseconds; with shorter tasks, the
//! comparison would show the overheads instead. Loops and threads without a runtime are measured
//! for reference, without a bar.

use serde_json::json;

use super::contestants::{BY_HAND, Contestant, ORDER_TS, PLAIN, WAVEFRONT_PEERS};
use super::overhead;
use super::overhead::{FRAME_720P, OURS};
use super::rounds::{self, RoundSettings};
use super::show::{self, ns};
use super::study::Samples;
use super::toolchain::Programs;
use crate::bars::{Bar, Part};

/// Numbers of arithmetic steps of a task. A step takes about a nanosecond.
const STEPS: [u32; 2] = [2048, 4096];
/// Bar: smallest permitted length of a task. With shorter tasks, the bar on the time would compare
/// overheads.
const LENGTH_LEAST_NS: f64 = 1_700.0;
/// Bar: largest permitted ratio of the time of usher-tasks to the time of the fastest peer.
const LIMIT: f64 = 1.02;

/// Returns the runtimes, and for reference a loop and threads without a runtime.
fn contestants() -> Vec<Contestant> {
    let references = [ORDER_TS, BY_HAND];
    overhead::contestants()
        .into_iter()
        .chain(references)
        .collect()
}

/// Runs the rounds, and computes the part.
pub fn run(programs: &Programs, settings: &RoundSettings) -> Part {
    let cases = STEPS.iter().map(|steps| format!("compute:{steps}"));
    let workload: Vec<String> = FRAME_720P
        .into_iter()
        .map(str::to_owned)
        .chain(cases)
        .collect();
    let samples = rounds::run("compute", programs, &contestants(), settings, &workload);
    format(&samples, &settings.threads)
}

fn format(samples: &Samples, threads: &[u32]) -> Part {
    let mut part = Part::new("compute", "Tasks that compute");
    let all: Vec<Contestant> = contestants();
    for steps in STEPS {
        let case = format!("compute:{steps}");
        let length_ns = samples
            .figure((ORDER_TS, 1), &case)
            .map(|figure| figure.median_ns);
        let length = length_ns.map_or(String::new(), |length| format!("{} ns", ns(length)));
        part.bars.push(Bar::at_least(
            format!("length of a task with {steps} steps of arithmetic"),
            length_ns,
            LENGTH_LEAST_NS,
            "ns",
        ));
        for &n in threads {
            let ours = samples.best(&OURS, n, &case).unwrap_or(PLAIN);
            let peer = samples.best(&WAVEFRONT_PEERS, n, &case);
            let ratio = peer.and_then(|peer| samples.ratio((ours, n), (peer, n), &case));
            let peer = peer.map_or("no peer", |peer| peer.label);
            part.bars.push(Bar::at_most(
                format!(
                    "tasks of {length}, {}: time of usher-tasks / time of {peer}",
                    show::threads_text(n)
                ),
                ratio.map(|ratio| ratio.value),
                LIMIT,
                "times",
            ));
        }
        let caption = format!("Tasks of {length}");
        part.figures
            .push(show::figure(&caption, samples, &all, threads, &case));
        part.tables
            .push(show::table(samples, &all, threads, &case, &OURS));
    }
    part.notes = vec![
        show::method(samples),
        "The best peer is the runtime and form with the least median time. With so large a \
         number of forms, noise favours the best peer."
            .to_owned(),
    ];
    show::failures(&mut part, samples);
    part.raw = json!(samples);
    part
}
