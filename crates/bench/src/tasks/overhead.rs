// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a task costs that does nothing.

use serde_json::json;

use super::contestants::{Contestant, HINTED, PAPER, PLAIN, Runtime, WAVEFRONT_PEERS};
use super::rounds::{self, Extent};
use super::show;
use super::study::Samples;
use super::toolchain::Programs;
use crate::bars::{Bar, Part};

/// 1280 x 720 in macroblocks, eight stages: 28,800 tasks.
pub const FRAME_720P: [&str; 4] = ["wavefront", "80", "45", "8"];
/// Ours, in the forms that compete.
pub const OURS: [Contestant; 2] = [PLAIN, HINTED];

const CASE: &str = "empty";
/// What is asked: threads, nanoseconds a task.
const LIMITS: [(u32, f64); 2] = [(1, 25.0), (2, 20.0)];

/// All runtimes that run a wavefront.
pub fn contestants() -> Vec<Contestant> {
    let ours = [PLAIN, HINTED, PAPER];
    ours.into_iter().chain(WAVEFRONT_PEERS).collect()
}

/// Measures them.
pub fn run(programs: &Programs, extent: &Extent) -> Part {
    let workload: Vec<String> = FRAME_720P
        .into_iter()
        .chain([CASE])
        .map(str::to_owned)
        .collect();
    let samples = rounds::run("overhead", programs, &contestants(), extent, &workload);
    format(&samples, &extent.threads)
}

fn format(samples: &Samples, threads: &[u32]) -> Part {
    let mut part = Part::new("overhead", "What a task costs that does nothing");
    for (n, limit) in LIMITS {
        let ours = samples.best(&OURS, n, CASE).unwrap_or(PLAIN);
        let figure = samples.figure((ours, n), CASE);
        let what = format!("{}, {}", ours.label, show::threads_text(n));
        let ns = figure.map(|figure| figure.median_ns);
        part.bars.push(Bar::at_most(what, ns, limit, "ns a task"));
        let bars = show::peer_bars(samples, (ours, n), &WAVEFRONT_PEERS, CASE, 1.0);
        part.bars.extend(bars);
    }
    let all = contestants();
    part.figures = vec![show::figure(
        "28,800 empty tasks a frame, up to four dependencies each",
        samples,
        &all,
        threads,
        CASE,
    )];
    part.tables = vec![show::table(samples, &all, threads, CASE, &OURS)];
    part.notes = vec![
        show::method(samples),
        "Graphs are made once and run each frame, where a runtime has such. 'Counters' are atomic counters of dependencies by hand, beside a runtime's plain tasks: whoever resolves the last dependency of a task runs it, the first such task at once itself. With OpenMP's 'depend' every frame declares its tasks again.".to_owned(),
    ];
    if samples.all.iter().all(|s| s.runtime != Runtime::Taskflow) {
        part.notes.push("Taskflow was not measured.".to_owned());
    }
    show::failures(&mut part, samples);
    part.raw = json!(samples);
    part
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::study::tests::samples;

    #[test]
    fn whoever_is_slower_than_a_peers_best_form_misses_the_bar() {
        let [tbb, flow, ..] = WAVEFRONT_PEERS;
        let samples = samples(&[
            ((PLAIN, 1), "empty", &[15.0, 16.0, 15.0]),
            ((HINTED, 1), "empty", &[22.0, 22.0, 22.0]),
            ((tbb, 1), "empty", &[14.0, 15.0, 14.0]),
            ((flow, 1), "empty", &[90.0, 95.0, 90.0]),
        ]);
        let part = format(&samples, &[1]);
        let bar = |text: &str| -> &Bar {
            let mut bars = part.bars.iter().filter(|bar| bar.what.contains(text));
            bars.next().unwrap()
        };
        assert!(bar("no hints, 1 thread").is_met());
        assert!(!bar("/ oneTBB, task_group").is_met());
        assert!(
            !bar("/ rayon, 1 thread").is_met(),
            "what was not measured is not met"
        );
        assert_eq!(part.tables[0].rows.len(), 4);
        assert!(
            part.tables[0].rows[0][0].starts_with("oneTBB, task_group"),
            "the fastest first"
        );
    }
}
