// SPDX-License-Identifier: MIT OR Apache-2.0
//! Part `loops`: measures parallel loops and reductions over ten million items, in comparison with
//! rayon and oneTBB. An item has 4 steps of arithmetic on average. The costs of the items are equal,
//! grow with the number of the item, or are concentrated in the last 64th of the items.
//!
//! Bar: usher-tasks takes at most the time of the fastest form of rayon and oneTBB (median over the
//! rounds of the ratio).

use serde_json::json;

use super::contestants::{Contestant, LOOPS, Runtime};
use super::rounds::{self, RoundSettings};
use super::show;
use super::study::{Samples, forms_of, ratio_text};
use super::toolchain::Programs;
use crate::bars::{Bar, Part};

const ITEMS: &str = "10000000";
/// Cases and their labels. The number after the colon is the mean number of steps of an item.
const CASES: [(&str, &str); 6] = [
    ("for-equal:4", "loop, equal costs"),
    ("for-ramp:4", "loop, growing costs"),
    ("for-cluster:4", "loop, half of the work in the last 64th"),
    ("sum-equal:4", "reduction, equal costs"),
    ("sum-ramp:4", "reduction, growing costs"),
    (
        "sum-cluster:4",
        "reduction, half of the work in the last 64th",
    ),
];
/// Bar: largest permitted ratio of the time of usher-tasks to the time of the fastest peer.
const LIMIT: f64 = 1.0;

/// Runs the rounds, and computes the part.
pub fn run(programs: &Programs, settings: &RoundSettings) -> Part {
    let cases = CASES.map(|(case, _)| case);
    let workload: Vec<String> = ["loop", ITEMS]
        .into_iter()
        .chain(cases)
        .map(str::to_owned)
        .collect();
    let samples = rounds::run("loops", programs, &LOOPS, settings, &workload);
    format(&samples, &settings.threads)
}

/// Returns the forms of rayon and oneTBB.
fn peers() -> Vec<Contestant> {
    let peers = LOOPS.iter().filter(|one| one.runtime != Runtime::Usher);
    peers.copied().collect()
}

/// Returns the bar of a case with this number of threads.
fn bar(samples: &Samples, threads: u32, case: &str, label: &str) -> Bar {
    let ours = samples.best(&forms_of(&LOOPS, Runtime::Usher), threads, case);
    let is_measured = |runtime| {
        let best = samples.best(&forms_of(&LOOPS, runtime), threads, case);
        best.is_some()
    };
    // Without one of the two peers, the better of them is unknown.
    let both = is_measured(Runtime::Rayon) && is_measured(Runtime::OneTbb);
    let peer = samples.best(&peers(), threads, case).filter(|_| both);
    let ratio = ours
        .zip(peer)
        .and_then(|(ours, peer)| samples.ratio((ours, threads), (peer, threads), case));
    let what = format!(
        "{label}, {}: time of usher-tasks / time of {} ({})",
        show::threads_text(threads),
        peer.map_or("rayon and oneTBB", |peer| peer.label),
        ratio_text(ratio),
    );
    Bar::at_most(what, ratio.map(|ratio| ratio.value), LIMIT, "times")
}

fn format(samples: &Samples, threads: &[u32]) -> Part {
    let mut part = Part::new("loops", "Parallel loops and reductions");
    let ours = forms_of(&LOOPS, Runtime::Usher);
    for (case, label) in CASES {
        for &n in threads {
            part.bars.push(bar(samples, n, case, label));
        }
        part.figures
            .push(show::figure(label, samples, &LOOPS, threads, case));
        part.tables
            .push(show::table(samples, &LOOPS, threads, case, &ours));
    }
    part.notes = vec![
        show::method(samples),
        "A task in the tables is an item. The fastest form of usher-tasks is compared with the \
         fastest form of rayon and oneTBB. The forms for blocks and chunks, and all forms of \
         oneTBB, call the same C function for a range of items; the other forms call a C function \
         for each item. Only rayon's chunks have a size that the program has chosen. With one \
         thread, all runtimes run nearly the same code."
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

    fn form(name: &str) -> Contestant {
        let mut of = LOOPS.iter().filter(|one| one.form == name);
        *of.next().unwrap()
    }

    #[test]
    fn the_fastest_forms_are_compared() {
        let case = "sum-equal:4";
        let run = |name: &str| (form(name), 2);
        let both = samples(&[
            (run("usher"), case, &[2.0, 2.2, 2.0]),
            (run("usher-blocks"), case, &[1.0, 1.1, 1.0]),
            (run("rayon"), case, &[1.5, 1.5, 1.5]),
            (run("loop-auto"), case, &[9.0, 9.0, 9.0]),
            (run("loop-static"), case, &[2.0, 2.2, 2.0]),
        ]);
        let found = bar(&both, 2, case, "sum");
        assert!(found.is_met());
        assert!(found.what.contains("time of rayon, parallel"), "{found:?}");
        let one = samples(&[
            (run("usher"), case, &[1.0, 1.0, 1.0]),
            (run("rayon"), case, &[1.5, 1.5, 1.5]),
        ]);
        assert!(!bar(&one, 2, case, "sum").is_met(), "oneTBB is missing");
    }

    #[test]
    fn a_slower_result_misses_its_bar() {
        let case = "for-ramp:4";
        let of = samples(&[
            ((form("usher"), 1), case, &[1.01, 1.01, 1.01]),
            ((form("rayon"), 1), case, &[1.5, 1.5, 1.5]),
            ((form("loop-static"), 1), case, &[1.0, 1.0, 1.0]),
        ]);
        let part = format(&of, &[1]);
        assert_eq!(part.bars.len(), CASES.len() + 1);
        let bar = part.bars.iter().find(|bar| bar.what.contains("growing"));
        assert!(!bar.unwrap().is_met());
    }
}
