// SPDX-License-Identifier: MIT OR Apache-2.0
//! Formats the measurements of the colouring benchmark on this machine as tables, figures and bars:
//! walks of run queues, workloads, and cachegrind's miss counts.

use std::path::Path;

use anyhow::Result;
use serde_json::json;
use usher_report::stats::Estimate;

use super::chart::{Chart, Line};
use super::grind::{self, CachegrindRun, Misses};
use super::load::Pairs;
use super::region::Pages;
use super::walks::{VARIANTS, WalkTimes};
use crate::bars::{Bar, Figure, Part, Table};

/// The bar: smallest permitted ratio of the plain walk's time to the coloured walk's time.
const GAIN_LEAST: f64 = 2.0;
/// Numbers of structures on the queue for which the bar applies.
const SIZES_WITH_BARS: [usize; 2] = [1024, 2400];
/// Index of Usher's colours in the list of variants.
const OURS: usize = 2;

/// Returns the part with the walks of run queues.
pub fn walks(walks: &[WalkTimes]) -> Part {
    let mut part = Part::new("walks", "Walks over run queues, measured on this machine");
    let barred = walks
        .iter()
        .filter(|walk| SIZES_WITH_BARS.contains(&walk.structures) && walk.threads == 1);
    part.bars = barred
        .map(|walk| {
            let what = format!("{} structures, {}", walk.structures, condition(walk));
            let gain = walk.gain(OURS).map(|gain| gain.value);
            Bar::at_least(
                format!("{what}: time without colouring / time with colouring"),
                gain,
                GAIN_LEAST,
                "x",
            )
        })
        .collect();
    for threads in [1, 2] {
        let of: Vec<&WalkTimes> = walks
            .iter()
            .filter(|walk| walk.threads == threads)
            .collect();
        part.figures.push(walk_figure(&of, threads));
        part.tables.push(walk_table(&of));
    }
    part.notes = walk_notes(walks);
    part.raw = json!(walks);
    part
}

fn condition(walk: &WalkTimes) -> String {
    let threads = if walk.threads == 1 {
        "1 thread"
    } else {
        "2 threads with 1 lock"
    };
    format!("{}, {threads}", walk.pages.name())
}

fn walk_figure(walks: &[&WalkTimes], threads: usize) -> Figure {
    let line = |pages: Pages, variant: usize, class| {
        let of = walks.iter().filter(|walk| walk.pages == pages);
        Line {
            class,
            name: format!("{}, {}", VARIANTS[variant].name(), pages.name()),
            points: of
                .map(|walk| (walk.structures as f64, walk.ns(variant)))
                .collect(),
            compared: pages == Pages::Small,
        }
    };
    let pages = [Pages::Huge, Pages::Small];
    let classes = ["p5", "p1", "p0"];
    let lines = pages.iter().flat_map(|&p| (0..3).map(move |v| (p, v)));
    let title = match threads {
        1 => "One thread walks: ns per structure (dashed: 4 KiB pages)",
        _ => "Two threads walk alternately under one lock: ns per structure (dashed: 4 KiB pages)",
    };
    let chart = Chart {
        title: title.to_owned(),
        x: "number of structures on the queue",
        y: "ns a structure",
        logarithmic: true,
        mark: None,
        lines: lines.map(|(p, v)| line(p, v, classes[v])).collect(),
    };
    Figure {
        caption: title.to_owned(),
        svg: chart.svg(),
    }
}

fn interval(estimate: Option<Estimate>) -> String {
    match estimate {
        Some(Estimate {
            value,
            low: Some(low),
            high: Some(high),
            ..
        }) => format!("{value:.2}\u{a0}[{low:.2},\u{a0}{high:.2}]"),
        Some(estimate) => format!("{:.2}", estimate.value),
        None => "–".to_owned(),
    }
}

fn walk_table(walks: &[&WalkTimes]) -> Table {
    let two = walks.iter().any(|walk| walk.threads > 1);
    let mut head: Vec<String> = vec!["structures".to_owned(), "pages".to_owned()];
    head.extend(
        VARIANTS
            .iter()
            .map(|colors| format!("{}, ns", colors.name())),
    );
    head.extend(["plain / mod", "plain / Coloring [95 %]"].map(str::to_owned));
    if two {
        head.extend(["held, us: plain", "coloured"].map(str::to_owned));
        head.extend(["waited, us: plain", "coloured"].map(str::to_owned));
    }
    let row = |walk: &&WalkTimes| {
        let mut cells = vec![walk.structures.to_string(), walk.pages.name().to_owned()];
        cells.extend((0..3).map(|variant| format!("{:.1}", walk.ns(variant))));
        let modulo = walk.gain(1).map_or(f64::NAN, |gain| gain.value);
        cells.extend([format!("{modulo:.2}"), interval(walk.gain(OURS))]);
        if two {
            cells.extend([0, OURS].map(|v| format!("{:.1}", walk.hold_us(v))));
            cells.extend([0, OURS].map(|v| format!("{:.1}", walk.wait_us(v))));
        }
        cells
    };
    Table {
        head,
        rows: walks.iter().map(row).collect(),
    }
}

fn walk_notes(walks: &[WalkTimes]) -> Vec<String> {
    let rounds = walks.first().map_or(0, |walk| walk.rounds.len());
    let huge = |pages: Pages| {
        let of = walks.iter().filter(|walk| walk.pages == pages);
        let shares: Vec<f64> = of.map(|walk| walk.huge_share).collect();
        let least = shares.iter().copied().fold(f64::INFINITY, f64::min);
        if least.is_finite() {
            format!("{:.0} %", 100.0 * least)
        } else {
            "–".to_owned()
        }
    };
    vec![
        format!(
            "The structures are in 8 KiB-aligned blocks and form a list in random order. A walk \
             reads the fields at 0x20..=0x3f of each structure, as the scheduler of Linux 2.4 \
             does. Three layouts in the same blocks and the same list order are compared: plain, \
             shifted by (address >> 13) mod 64 lines, and shifted by `Coloring`. Each of the \
             {rounds} rounds measures the three layouts in alternating order. A figure of a \
             round is the shortest of 8 measurements, because other load can only make a \
             measurement longer. The table shows medians over the rounds; the gain is the median \
             of the ratios of the rounds with its 95 % bootstrap interval."
        ),
        format!(
            "With and without colouring, a walk touches one page per structure. In the layouts \
             'plain' and 'remainder' the walk touches only the first of the two pages of a block. \
             The first page has an even page number, so half of the sets of the translation \
             look-aside buffers (TLB) are unused; `Coloring` uses both pages. The unused sets \
             make a walk slower with 4 KiB pages, and also with huge pages (2 MiB; at least {} of \
             the memory, and {} where they were forbidden) in a virtual machine whose host maps \
             huge pages to small pages. Each structure has its own cache line, so with every \
             layout the first-level cache holds at most as many structures as the cache has \
             lines.",
            huge(Pages::Huge),
            huge(Pages::Small)
        ),
        "With two threads, each thread takes the same lock for one walk at a time. 'ns per \
         structure' is the wall time of the shortest measurement divided by the number of \
         structures visited. The times that the lock is held and waited for are means over all \
         measurements, including interruptions by other programs."
            .to_owned(),
    ]
}

/// Returns the part with the workloads on this machine.
pub fn loads(all: &[Pairs], operation_ns: u64) -> Part {
    let mut part = Part::new(
        "loads",
        "Chat and web loads under a scheduler like that of Linux 2.4, measured on this machine",
    );
    let head = [
        "measured",
        "threads",
        "plain layout, operations per second",
        "coloured layout, operations per second",
        "gain [95 %]",
        "structures a walk",
        "lock held with the plain layout, us",
        "coloured",
        "waited, us: plain",
        "coloured",
        "lock contended with the plain layout",
        "coloured",
    ];
    let row = |pairs: &Pairs| {
        let both =
            |figure: fn(&super::cpus::RunTotals) -> f64| [0, 1].map(|w| pairs.median(w, figure));
        let rates = both(|t| t.operations as f64 / t.seconds);
        let held = both(|t| t.lock.held_ns as f64 / 1e3 / t.lock.acquisitions.max(1) as f64);
        let waited = both(|t| t.lock.waited_ns as f64 / 1e3 / t.lock.acquisitions.max(1) as f64);
        let taken = both(|t| 100.0 * t.lock.contended as f64 / t.lock.acquisitions.max(1) as f64);
        let length = pairs.median(0, |t| t.visits as f64 / t.decisions.max(1) as f64);
        let mut cells = vec![pairs.load.clone(), pairs.threads.to_string()];
        cells.extend(rates.map(|rate| format!("{rate:.0}")));
        cells.push(interval(pairs.gain()));
        cells.push(format!("{length:.0}"));
        cells.extend(held.into_iter().chain(waited).map(|us| format!("{us:.1}")));
        cells.extend(taken.map(|share| format!("{share:.0} %")));
        cells
    };
    part.tables.push(Table {
        head: head.map(str::to_owned).to_vec(),
        rows: all.iter().map(row).collect(),
    });
    let pairs = all.first().map_or(0, |pairs| pairs.pairs.len());
    part.notes = vec![format!(
        "Threads of this machine take the role of CPUs. A thread executes operations of tasks \
         ({operation_ns} ns of arithmetic, 32 lines of the task written, 48 common lines read), \
         and schedules by walking the whole queue under one spin lock, in huge pages. The chat \
         load has 30 rooms with 20 members of 4 tasks each; the web load has 256 tasks. Each of \
         the {pairs} pairs consists of a plain and a coloured run, directly one after the other; \
         the table shows medians, and the gain with its 95 % bootstrap interval. An operation is \
         one hop of a message, or a fourteenth of a request. The ratio of the time of an \
         operation to the time of a visit is about that of the simulated machine. This part has \
         no bar."
    )];
    part.raw = json!({ "operation_ns": operation_ns, "pairs": all });
    part
}

/// Returns the part with cachegrind's counts.
pub fn misses(grinds: &[CachegrindRun]) -> Result<Part> {
    let mut part = Part::new(
        "misses",
        "Cache misses of the walks, simulated by cachegrind with the caches of this machine",
    );
    let (first, second) = grind::shapes(Path::new("/sys"))?;
    let head = [
        "counted by cachegrind",
        "",
        "structures a walk",
        "walk: first-level misses per structure",
        "walk: second-level misses per structure",
        "first-level misses of the whole program",
        "second-level misses",
    ];
    let row = |grind: &CachegrindRun| {
        let per = |count: u64| format!("{:.3}", count as f64 / grind.tally.visits.max(1) as f64);
        let length = grind.tally.visits as f64 / grind.tally.decisions.max(1) as f64;
        let share = |count: u64, all: Misses| {
            format!("{:.2} %", 100.0 * count as f64 / all.accesses.max(1) as f64)
        };
        vec![
            grind.load.clone(),
            grind.colors.clone(),
            format!("{length:.0}"),
            per(grind.walk.first),
            per(grind.walk.second),
            share(grind.all.first, grind.all),
            share(grind.all.second, grind.all),
        ]
    };
    part.tables.push(Table {
        head: head.map(str::to_owned).to_vec(),
        rows: grinds.iter().map(row).collect(),
    });
    part.notes = vec![format!(
        "One thread, {} operations. The first-level cache has {}, the second-level cache {} \
         (those of this machine, from sysfs; the second level is cachegrind's last level). The \
         fields of a structure share one line, so a walk that always misses has 1.000 misses per \
         structure. The whole program includes its start, in which all memory is written once. \
         Cachegrind derives the set of a line directly from its address; a processor may spread \
         lines by a hash of more bits, and then has fewer misses.",
        grinds.first().map_or(0, |grind| grind.tally.operations),
        first.describe(),
        second.describe()
    )];
    part.raw = json!(grinds);
    Ok(part)
}
