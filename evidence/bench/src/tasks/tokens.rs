// SPDX-License-Identifier: MIT OR Apache-2.0
//! Part `tokens`: measures the cost of an empty task that is registered and resolved by its token,
//! in comparison with oneTBB. The workload is that of the part `overhead`.
//!
//! Bars, as medians over the rounds of the ratios of the times:
//!
//! - Tokens of a declared range take at most 1.5 times the time of oneTBB with an array of counters.
//! - Other tokens take at most 1.2 times the time of oneTBB with counters that it finds through a
//!   `concurrent_hash_map`.

use serde_json::json;

use super::contestants::{Contestant, DENSE, FREE, TBB_COUNTERS, TBB_MAP, TOKENS};
use super::overhead::FRAME_720P;
use super::rounds::{self, RoundSettings};
use super::show;
use super::study::{Samples, ratio_text};
use super::toolchain::Programs;
use crate::bars::{Bar, Part};

const CASE: &str = "empty";
/// The compared pairs, with the largest permitted ratios of their times.
const LIMITS: [(Contestant, Contestant, f64); 2] =
    [(DENSE, TBB_COUNTERS, 1.5), (FREE, TBB_MAP, 1.2)];

/// Runs the rounds, and computes the part.
pub fn run(programs: &Programs, settings: &RoundSettings) -> Part {
    let workload: Vec<String> = FRAME_720P
        .into_iter()
        .chain([CASE])
        .map(str::to_owned)
        .collect();
    let samples = rounds::run("tokens", programs, &TOKENS, settings, &workload);
    format(&samples, &settings.threads)
}

fn format(samples: &Samples, threads: &[u32]) -> Part {
    let mut part = Part::new("tokens", "Cost of an empty task by token");
    for (ours, peer, limit) in LIMITS {
        for &n in threads {
            let ratio = samples.ratio((ours, n), (peer, n), CASE);
            let what = format!(
                "{}: time / time of {} ({})",
                show::threads_text(n),
                peer.label,
                ratio_text(ratio)
            );
            let what = format!("{}, {what}", ours.label);
            part.bars
                .push(Bar::at_most(what, ratio.map(|r| r.value), limit, "times"));
        }
    }
    part.figures = vec![show::figure(
        "frames of 28,800 empty tasks with up to four dependencies each",
        samples,
        &TOKENS,
        threads,
        CASE,
    )];
    part.tables = vec![show::table(samples, &TOKENS, threads, CASE, &[DENSE])];
    part.notes = vec![
        show::method(samples),
        "usher-tasks is called through its Rust API. A frame of usher-tasks registers all tasks, \
         by the thread of the program, which then waits. A frame of oneTBB with a map inserts all \
         counters. oneTBB with an array resets each counter when its task runs, so that its frame \
         registers nothing. In both forms of oneTBB, the thread that resolves the last dependency \
         of a task runs the first such task itself immediately."
            .to_owned(),
    ];
    show::failures(&mut part, samples);
    part.raw = json!(samples);
    part
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::study::tests::samples;

    #[test]
    fn each_kind_of_token_is_compared_with_its_peer() {
        let of = samples(&[
            ((DENSE, 1), CASE, &[15.0, 15.0, 15.0]),
            ((FREE, 1), CASE, &[25.0, 25.0, 25.0]),
            ((TBB_COUNTERS, 1), CASE, &[10.0, 10.0, 10.0]),
            ((TBB_MAP, 1), CASE, &[20.0, 20.0, 20.0]),
        ]);
        let part = format(&of, &[1, 2]);
        let measured: Vec<_> = part.bars.iter().map(|bar| bar.measured).collect();
        assert_eq!(measured[..4], [Some(1.5), None, Some(1.25), None]);
        assert!(part.bars[0].is_met() && !part.bars[1].is_met() && !part.bars[2].is_met());
    }
}
