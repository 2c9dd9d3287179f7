// SPDX-License-Identifier: MIT OR Apache-2.0
//! Formats the samples of the task benchmark as bars, tables and figures. Failures of processes and
//! the method are added as notes.

use usher_report::text;

use super::contestants::{Contestant, Runtime};
use super::study::{self, ContestantRun, Samples, forms_of, ratio_text};
use crate::bars::{Bar, Figure, Part, Table};
use crate::chart::{self, Bundle};

/// Returns the number of threads as text: `1 thread`, `2 threads`.
pub fn threads_text(threads: u32) -> String {
    text::count(threads as usize, "thread")
}

/// Returns bars on the ratio of the time of usher-tasks to the time of each peer's best form; the
/// ratio must be at most `limit`.
pub fn peer_bars(
    samples: &Samples,
    ours: ContestantRun,
    peers: &[Contestant],
    case: &str,
    limit: f64,
) -> Vec<Bar> {
    let threads = ours.1;
    let bar = |runtime: Runtime| {
        let best = samples.best(&forms_of(peers, runtime), threads, case);
        let ratio = best.and_then(|best| samples.ratio(ours, (best, threads), case));
        let label = best.map_or(runtime.name(), |best| best.label);
        let what = format!(
            "time of usher-tasks / time of {label}, {}",
            threads_text(threads)
        );
        Bar::at_most(what, ratio.map(|ratio| ratio.value), limit, "times")
    };
    Runtime::PEERS.into_iter().map(bar).collect()
}

/// Returns a table with a row for each contestant, the fastest first: the times of a task, and the
/// ratios of the time of usher-tasks to these times.
pub fn table(
    samples: &Samples,
    contestants: &[Contestant],
    threads: &[u32],
    case: &str,
    ours: &[Contestant],
) -> Table {
    let mut head = vec!["ns a task".to_owned()];
    for &n in threads {
        let of = threads_text(n);
        head.extend([
            of.clone(),
            format!("{of}, least"),
            "usher-tasks / this runtime".to_owned(),
        ]);
    }
    let cells = |one: Contestant, n: u32| {
        let figure = samples.figure((one, n), case);
        let Some(least) = figure.map(|figure| figure.least_ns) else {
            return [text::NONE; 3].map(str::to_owned);
        };
        let own = samples.best(ours, n, case);
        let ratio = own.and_then(|own| samples.ratio((own, n), (one, n), case));
        [figure_text(figure), ns(least), ratio_text(ratio)]
    };
    let row = |one: Contestant| {
        let cells = threads.iter().flat_map(|&n| cells(one, n));
        std::iter::once(one.label.to_owned()).chain(cells).collect()
    };
    Table {
        head,
        rows: sorted(samples, contestants, threads, case)
            .into_iter()
            .map(row)
            .collect(),
    }
}

/// Returns the measured contestants in the order of their times with the highest number of threads,
/// the fastest first.
fn sorted(
    samples: &Samples,
    contestants: &[Contestant],
    threads: &[u32],
    case: &str,
) -> Vec<Contestant> {
    let time = |one: Contestant| {
        let mut figures = threads
            .iter()
            .rev()
            .filter_map(|&n| samples.figure((one, n), case));
        figures.next().map(|figure| figure.median_ns)
    };
    let mut timed: Vec<_> = contestants
        .iter()
        .filter_map(|&one| Some((one, time(one)?)))
        .collect();
    timed.sort_by(|a, b| a.1.total_cmp(&b.1));
    timed.into_iter().map(|(one, _)| one).collect()
}

/// Formats the time of a task with its quartiles.
pub fn figure_text(figure: Option<study::Figure>) -> String {
    let Some(figure) = figure else {
        return text::NONE.to_owned();
    };
    let (low, high) = figure.quartiles_ns;
    format!("{} ({}..{})", ns(figure.median_ns), ns(low), ns(high))
}

/// Formats a time in nanoseconds with about three significant digits.
pub fn ns(value: f64) -> String {
    let decimals = match value.abs() {
        v if v < 9.95 => 2,
        v if v < 99.5 => 1,
        _ => 0,
    };
    text::number(value, decimals)
}

/// Draws a figure with the times of a task, the fastest contestant first.
pub fn figure(
    caption: &str,
    samples: &Samples,
    contestants: &[Contestant],
    threads: &[u32],
    case: &str,
) -> Figure {
    let bundle = |one: Contestant| Bundle {
        label: one.label.to_owned(),
        bars: (0..)
            .zip(threads)
            .filter_map(|(place, &n)| {
                let figure = samples.figure((one, n), case)?;
                Some(chart::Bar {
                    class: class_of(one.runtime, place),
                    name: match one.runtime {
                        Runtime::Usher => format!("usher-tasks, {}", threads_text(n)),
                        Runtime::None => format!("no runtime, {}", threads_text(n)),
                        _ => format!("peers, {}", threads_text(n)),
                    },
                    value: figure.median_ns,
                    interval: Some(figure.quartiles_ns),
                    is_least: false,
                })
            })
            .collect(),
    };
    let bundles: Vec<Bundle> = sorted(samples, contestants, threads, case)
        .into_iter()
        .map(bundle)
        .collect();
    Figure {
        caption: caption.to_owned(),
        svg: chart::times(
            "ns per task (whiskers: middle half of the rounds)",
            caption,
            &bundles,
        ),
    }
}

/// Returns the CSS class of a runtime's bars for the number of threads with the index `place`.
fn class_of(runtime: Runtime, place: usize) -> String {
    let number = match runtime {
        Runtime::Usher => [1, 5],
        Runtime::None => [10, 2],
        _ => [4, 0],
    };
    format!("p{}", number[place.min(1)])
}

/// Adds the failures to the part: their number as a bar, and the first 8 failures as notes.
pub fn failures(part: &mut Part, samples: &Samples) {
    part.bars.push(Bar::none(
        "processes that failed or had a wrong result",
        samples.failed.len(),
    ));
    part.notes.extend(samples.failed.iter().take(8).cloned());
}

/// Returns a part that contains only the error because of which it could not be measured.
pub fn not_measured(name: &str, error: &anyhow::Error) -> Part {
    let mut part = Part::new(&name.to_lowercase(), name);
    part.bars = vec![Bar::at_most("measured at all", None, 0.0, "")];
    part.notes = vec![format!("{error:#}")];
    part
}

/// Returns the note about the method that every part with rounds has.
pub fn method(samples: &Samples) -> String {
    format!(
        "{}; each round runs each runtime once, in a process that checks its own result, in \
         rotating order. A figure is the median over the rounds of the median frame of a process \
         (the middle half of the rounds in brackets); 'least' is the fastest of all frames. A \
         ratio is the median of the ratios of the rounds, with its 95 % bootstrap interval.",
        text::count(samples.rounds() as usize, "round")
    )
}
