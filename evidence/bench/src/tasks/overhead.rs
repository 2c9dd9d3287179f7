// SPDX-License-Identifier: MIT OR Apache-2.0
//! Part `overhead`: measures the cost of an empty task for each runtime, and the cost of tracing,
//! in nanoseconds per task of a 720p frame with 28,800 tasks.
//!
//! Cost of a task = time of the median frame of a process / number of tasks; the result is the
//! median over the rounds. With several threads, the time is wall time, not CPU time. Cost of a
//! trace = cost of usher-tasks with a trace - cost without a trace in the same round.

use serde_json::json;
use usher_report::stats::Estimate;

use super::contestants::{Contestant, HINTED, PAPER, PLAIN, Runtime, TRACED, WAVEFRONT_PEERS};
use super::rounds::{self, RoundSettings};
use super::show;
use super::study::{Samples, estimate_text};
use super::toolchain::Programs;
use crate::bars::{Bar, Part, Table};

/// Workload: 1280 x 720 pixels in macroblocks, with eight stages: 28,800 tasks.
pub const FRAME_720P: [&str; 4] = ["wavefront", "80", "45", "8"];
/// The forms of usher-tasks that are compared with the peers.
pub const OURS: [Contestant; 2] = [PLAIN, HINTED];

const CASE: &str = "empty";
/// Bars: a number of threads, and the largest permitted cost in nanoseconds per task.
const LIMITS: [(u32, f64); 2] = [(1, 25.0), (2, 20.0)];
/// Bars of tracing: largest permitted additional cost in nanoseconds per task, of an active trace
/// and of an inactive trace.
const TRACE_LIMITS_NS: (f64, f64) = (30.0, 10.0);

/// Returns all runtimes that run the wavefront.
pub fn contestants() -> Vec<Contestant> {
    let ours = [PLAIN, HINTED, PAPER];
    ours.into_iter().chain(WAVEFRONT_PEERS).collect()
}

/// Runs the rounds, and computes the part.
pub fn run(programs: &Programs, settings: &RoundSettings) -> Part {
    let workload: Vec<String> = FRAME_720P
        .into_iter()
        .chain([CASE])
        .map(str::to_owned)
        .collect();
    let mut all = contestants();
    // The form with a trace runs directly after the form without a trace, so that a disturbance
    // affects both forms.
    all.insert(1, TRACED);
    let samples = rounds::run("overhead", programs, &all, settings, &workload);
    format(&samples, &settings.threads)
}

fn format(samples: &Samples, threads: &[u32]) -> Part {
    let mut part = Part::new("overhead", "Cost of an empty task");
    for (n, limit) in LIMITS {
        let ours = samples.best(&OURS, n, CASE).unwrap_or(PLAIN);
        let figure = samples.figure((ours, n), CASE);
        let what = format!("{}, {}", ours.label, show::threads_text(n));
        let ns = figure.map(|figure| figure.median_ns);
        part.bars.push(Bar::at_most(what, ns, limit, "ns a task"));
        let bars = show::peer_bars(samples, (ours, n), &WAVEFRONT_PEERS, CASE, 1.0);
        part.bars.extend(bars);
    }
    part.bars.extend(trace_bars(samples));
    let all = contestants();
    part.figures = vec![show::figure(
        "frames of 28,800 empty tasks with up to four dependencies each",
        samples,
        &all,
        threads,
        CASE,
    )];
    part.tables = vec![
        show::table(samples, &all, threads, CASE, &OURS),
        trace_table(samples, threads),
    ];
    part.notes = vec![
        show::method(samples),
        "Runtimes with graphs build the graph once and run it for each frame. 'Counters' are \
         hand-written atomic counters of dependencies for plain tasks of a runtime: the thread \
         that resolves the last dependency of a task spawns the task, but runs the first such \
         task itself immediately. With OpenMP's 'depend' every frame declares its tasks again."
            .to_owned(),
        "With a trace, each worker records the start and the end of its last 28,800 tasks. The \
         additional time is the median of the differences over the rounds, multiplied by the \
         number of threads, because each worker records its own tasks. A trace that is off costs \
         one load and one branch per task, which are part of all other figures of usher-tasks. \
         The load and the branch therefore cost at most the time of an empty task in the fastest \
         frame on 1 thread. The table shows this upper bound: if the bound misses its bar, the \
         cost of the trace remains unknown."
            .to_owned(),
    ];
    if samples.all.iter().all(|s| s.runtime != Runtime::Taskflow) {
        part.notes.push("Taskflow was not measured.".to_owned());
    }
    show::failures(&mut part, samples);
    part.raw = json!(samples);
    part
}

/// Returns the time in nanoseconds that a trace adds to each task: additional wall time x number of
/// threads.
fn trace_ns(samples: &Samples, threads: u32) -> Option<Estimate> {
    let of = |one, round| samples.in_round((one, threads), CASE, round);
    samples.over_rounds(|round| {
        let more = of(TRACED, round)? - of(PLAIN, round)?;
        Some(more * f64::from(threads))
    })
}

fn trace_bars(samples: &Samples) -> Vec<Bar> {
    let (on, off) = TRACE_LIMITS_NS;
    let adds = |(n, _)| {
        let what = format!(
            "additional time per task with a trace, {}",
            show::threads_text(n)
        );
        let more = trace_ns(samples, n).map(|more| more.value);
        Bar::at_most(what, more, on, "ns a task")
    };
    let mut bars = LIMITS.map(adds).to_vec();
    let whole = samples.figure((PLAIN, 1), CASE);
    bars.push(Bar::at_most(
        "upper bound of the cost of a trace that is off: an empty task of the fastest frame",
        whole.map(|whole| whole.least_ns),
        off,
        "ns a task",
    ));
    bars
}

/// Returns the table of the costs with and without a trace.
fn trace_table(samples: &Samples, threads: &[u32]) -> Table {
    let head = [
        "ns a task",
        "trace off",
        "trace on",
        "additional time, share of the time of each thread",
    ];
    let row = |&n: &u32| {
        let time = |one| show::figure_text(samples.figure((one, n), CASE));
        vec![
            show::threads_text(n),
            time(PLAIN),
            time(TRACED),
            estimate_text(trace_ns(samples, n), show::ns),
        ]
    };
    Table {
        head: head.map(str::to_owned).to_vec(),
        rows: threads.iter().map(row).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::study::tests::samples;

    #[test]
    fn a_result_slower_than_a_peers_best_form_misses_the_bar() {
        let [tbb, flow, ..] = WAVEFRONT_PEERS;
        let samples = samples(&[
            ((PLAIN, 1), "empty", &[15.0, 16.0, 15.0]),
            ((TRACED, 1), "empty", &[44.0, 47.0, 45.0]),
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
        assert!(!bar("time of oneTBB, task_group").is_met());
        assert!(
            !bar("time of rayon, 1 thread").is_met(),
            "what was not measured is not met"
        );
        assert_eq!(part.tables[0].rows.len(), 4);
        assert!(
            part.tables[0].rows[0][0].starts_with("oneTBB, task_group"),
            "the fastest first"
        );
        assert_eq!(
            bar("additional time per task with a trace, 1").measured,
            Some(30.0)
        );
        assert!(bar("additional time per task with a trace, 1").is_met());
        assert!(!bar("a trace that is off").is_met());
        assert_eq!(part.tables[1].rows[0][3], "30.0 [29.0, 31.0]");
    }

    #[test]
    fn trace_cost_is_measured_in_thread_time() {
        let samples = samples(&[
            ((PLAIN, 2), "empty", &[8.0, 30.0, 8.0]),
            ((TRACED, 2), "empty", &[20.0, 42.0, 21.0]),
        ]);
        let more = trace_ns(&samples, 2).unwrap();
        assert_eq!((more.value, more.n), (24.0, 3));
        assert_eq!(trace_ns(&samples, 1), None);
    }
}
