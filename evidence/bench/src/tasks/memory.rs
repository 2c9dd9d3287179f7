// SPDX-License-Identifier: MIT OR Apache-2.0
//! Part `memory`: measures the wavefront of a 4K frame with tasks that wait for memory. If the next
//! stage of a macroblock runs soon, the state of the macroblock is still in the cache. The order of
//! tasks therefore determines the time.
//!
//! Bars, each on the median of a ratio over the rounds:
//!
//! - the fastest other runtime with its default order takes at least 1.9 times the time of
//!   usher-tasks;
//! - usher-tasks takes at most 1.05 times the time of the best plain loop with a fixed order;
//! - without hints, usher-tasks keeps at least 0.9 of the time that it saves with hints.

use serde_json::json;

use super::contestants::{
    BY_HAND, Contestant, HINTED, ORDERS, PAPER, PLAIN, SPAWNING_PEERS, WAVEFRONT_PEERS,
    is_ordered_by_pool,
};
use super::rounds::{self, RoundSettings};
use super::show;
use super::study::{Samples, ratio_text};
use super::toolchain::Programs;
use crate::bars::{Bar, Part};

/// Workload: 3840 x 2160 pixels in macroblocks, with eight stages.
const FRAME_4K: [&str; 4] = ["wavefront", "240", "135", "8"];
/// Sizes in bytes of the state of a macroblock. Each stage of the macroblock reads and writes the
/// whole state.
const BYTES: [u32; 2] = [4096, 8192];
/// Bar: smallest permitted ratio of the time of the fastest peer to the time of usher-tasks.
const FASTER_LEAST: f64 = 1.9;
/// Bar: largest permitted ratio of the time of usher-tasks to the time of the best fixed order.
const ORDER_MOST: f64 = 1.05;
/// Bar: smallest permitted share of the gain from hints that remains without hints.
const GAIN_LEAST: f64 = 0.9;

fn contestants() -> Vec<Contestant> {
    let ours = [HINTED, PLAIN, PAPER];
    ours.into_iter()
        .chain(peers())
        .chain(ORDERS)
        .chain([BY_HAND])
        .collect()
}

fn peers() -> impl Iterator<Item = Contestant> {
    WAVEFRONT_PEERS.into_iter().chain(SPAWNING_PEERS)
}

/// Returns the peers in the forms in which their pools determine the order of tasks.
fn by_default(threads: u32) -> Vec<Contestant> {
    let ordered = |one: &Contestant| is_ordered_by_pool(one, threads);
    peers().filter(ordered).collect()
}

/// Runs the rounds, and computes the part. With `quick`, only the smaller state is measured.
pub fn run(programs: &Programs, settings: &RoundSettings, quick: bool) -> Part {
    let bytes = if quick { &BYTES[..1] } else { &BYTES[..] };
    let cases = bytes.iter().map(|bytes| format!("memory:{bytes}"));
    let workload: Vec<String> = FRAME_4K
        .into_iter()
        .map(str::to_owned)
        .chain(cases)
        .collect();
    let samples = rounds::run("memory", programs, &contestants(), settings, &workload);
    format(&samples, &settings.threads, bytes)
}

fn format(samples: &Samples, threads: &[u32], bytes: &[u32]) -> Part {
    let mut part = Part::new("memory", "Tasks that are limited by memory");
    let mut notes = Vec::new();
    let all = contestants();
    for &bytes in bytes {
        let case = format!("memory:{bytes}");
        let size = format!("{} KB", bytes / 1024);
        for &n in threads {
            part.bars.extend(bars(samples, n, &case, &size));
            notes.extend(against_any(samples, n, &case, &size));
        }
        let order = samples.best(&ORDERS, 1, &case);
        let ratio = order.and_then(|order| samples.ratio((HINTED, 1), (order, 1), &case));
        let order = order.map_or("no order", |order| order.label);
        part.bars.push(Bar::at_most(
            format!("{size}, 1 thread: time with hints / time in {order}"),
            ratio.map(|ratio| ratio.value),
            ORDER_MOST,
            "times",
        ));
        let caption = format!("A 4K frame with {size} of state per macroblock");
        part.figures
            .push(show::figure(&caption, samples, &all, threads, &case));
        part.tables
            .push(show::table(samples, &all, threads, &case, &[HINTED]));
    }
    part.notes = vec![
        show::method(samples),
        "A frame has 259,200 tasks; each task reads and writes one word of every cache line of \
         the state of its macroblock. The loops run all tasks in a precomputed order on one \
         thread."
            .to_owned(),
        "The default order of a peer is the order in which its pool runs ready tasks; it applies \
         to graphs, 'depend', and counters with 'all spawned'. With plain 'counters' the program \
         itself immediately runs the first successor of a task, here the next stage of the same \
         macroblock, so the program chooses the order. OpenMP on one thread has no pool, except \
         for GCC's 'depend': a task runs as soon as it is created, in the order of the program."
            .to_owned(),
        "The saving by hints is the time of the best peer minus the time with hints. 'Gain kept \
         without hints' is the share of this saving that remains without hints; figures are \
         medians over the rounds. Without hints, timing starts only after the runtime has chosen \
         an order by trial, separately for each case."
            .to_owned(),
    ];
    part.notes.extend(notes);
    show::failures(&mut part, samples);
    part.raw = json!(samples);
    part
}

/// Returns a note that compares usher-tasks with the fastest peer in any form.
fn against_any(samples: &Samples, n: u32, case: &str, size: &str) -> Option<String> {
    let peers: Vec<Contestant> = peers().collect();
    let best = samples.best(&peers, n, case)?;
    let ratio = samples.ratio((best, n), (HINTED, n), case)?;
    Some(format!(
        "{size}, {}: the best peer in any form is {}; it takes {} times as long as usher-tasks \
         with hints.",
        show::threads_text(n),
        best.label,
        ratio_text(Some(ratio))
    ))
}

fn bars(samples: &Samples, n: u32, case: &str, size: &str) -> Vec<Bar> {
    let of = format!("{size}, {}", show::threads_text(n));
    let peer = samples.best(&by_default(n), n, case);
    let label = peer.map_or("no peer", |peer| peer.label);
    let faster = peer.and_then(|peer| samples.ratio((peer, n), (HINTED, n), case));
    let kept = peer.and_then(|peer| gain_kept(samples, peer, n, case));
    vec![
        Bar::at_least(
            format!("{of}: time of {label} / time with hints"),
            faster.map(|faster| faster.value),
            FASTER_LEAST,
            "times",
        ),
        Bar::at_least(
            format!("{of}: share of the gain kept without hints"),
            kept,
            GAIN_LEAST,
            "of it",
        ),
    ]
}

/// Returns the time that usher-tasks without hints saves compared with the peer / the time that it
/// saves with hints. Both saved times are medians over the rounds. `None` if usher-tasks with hints
/// saves no time.
fn gain_kept(samples: &Samples, peer: Contestant, n: u32, case: &str) -> Option<f64> {
    let time = |one, round| samples.in_round((one, n), case, round);
    let saved_by = |one: Contestant| {
        let saved = samples.over_rounds(|round| {
            // A round counts only if it has all three samples.
            let of = [HINTED, PLAIN, one].map(|one| time(one, round));
            let [Some(_), Some(_), Some(own)] = of else {
                return None;
            };
            Some(time(peer, round)? - own)
        });
        saved.map(|saved| saved.value)
    };
    let saved = saved_by(HINTED)?;
    (saved > 0.0).then_some(saved_by(PLAIN)? / saved)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::study::tests::samples;

    #[test]
    fn the_gain_kept_is_a_share_of_what_hints_save() {
        let [_, flow, ..] = WAVEFRONT_PEERS;
        let case = "memory:4096";
        let samples = samples(&[
            ((flow, 1), case, &[100.0, 200.0, 100.0]),
            ((HINTED, 1), case, &[50.0, 100.0, 50.0]),
            ((PLAIN, 1), case, &[55.0, 110.0, 70.0]),
        ]);
        let kept = gain_kept(&samples, flow, 1, case).unwrap();
        assert!((kept - 0.9).abs() < 1e-12);
        let part = format(&samples, &[1], &[4096]);
        let met: Vec<bool> = part.bars.iter().map(crate::bars::Bar::is_met).collect();
        assert_eq!(met, [true, true, false, true], "no order was measured");
    }

    #[test]
    fn nothing_is_kept_where_hints_help_in_one_round_of_five() {
        let [_, flow, ..] = WAVEFRONT_PEERS;
        let case = "memory:4096";
        let samples = samples(&[
            ((flow, 1), case, &[100.0; 5]),
            ((HINTED, 1), case, &[120.0, 130.0, 50.0, 120.0, 110.0]),
            ((PLAIN, 1), case, &[150.0, 150.0, 55.0, 150.0, 150.0]),
        ]);
        assert_eq!(gain_kept(&samples, flow, 1, case), None);
        let bars = bars(&samples, 1, case, "4 KB");
        assert!(!bars[1].is_met(), "{}", bars[1].what);
    }
}
