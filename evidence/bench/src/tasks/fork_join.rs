// SPDX-License-Identifier: MIT OR Apache-2.0
//! Part `fork-join`: measures the time of fib(25) by forks and joins, in comparison with rayon.
//! Every call forks, without a threshold for small calls. The time therefore consists almost only
//! of the overhead of the runtimes.
//!
//! Bar: usher-tasks takes at most 1.5 times the time of rayon's best form (median over the rounds
//! of the ratio).

use serde_json::json;

use super::contestants::{Contestant, FORK_JOIN, Runtime};
use super::rounds::{self, RoundSettings};
use super::show;
use super::study::{Samples, forms_of};
use super::toolchain::Programs;
use crate::bars::{Bar, Part};

const WORKLOAD: [&str; 2] = ["fib", "25"];
const CASE: &str = "fib:25";
/// Bar: largest permitted ratio of the time of usher-tasks to the time of rayon.
const LIMIT: f64 = 1.5;

/// Runs the rounds, and computes the part.
pub fn run(programs: &Programs, settings: &RoundSettings) -> Part {
    let workload: Vec<String> = WORKLOAD.map(str::to_owned).to_vec();
    let samples = rounds::run("fork-join", programs, &FORK_JOIN, settings, &workload);
    format(&samples, &settings.threads)
}

fn format(samples: &Samples, threads: &[u32]) -> Part {
    let mut part = Part::new("fork-join", "Forking and joining: fib(25)");
    let of = |runtime| -> Vec<Contestant> { forms_of(&FORK_JOIN, runtime) };
    let (ours, rayon) = (of(Runtime::Usher), of(Runtime::Rayon));
    for &n in threads {
        let best = |forms: &[Contestant]| samples.best(forms, n, CASE);
        let ratio = best(&ours)
            .zip(best(&rayon))
            .and_then(|(ours, rayon)| samples.ratio((ours, n), (rayon, n), CASE));
        part.bars.push(Bar::at_most(
            format!(
                "time of usher-tasks / time of rayon, {}",
                show::threads_text(n)
            ),
            ratio.map(|ratio| ratio.value),
            LIMIT,
            "times",
        ));
    }
    part.figures = vec![show::figure("fib(25)", samples, &FORK_JOIN, threads, CASE)];
    part.tables = vec![show::table(samples, &FORK_JOIN, threads, CASE, &ours)];
    part.notes = vec![
        show::method(samples),
        "fib(25) has 121,392 forks, because no call is too small to fork; each fork is a task. \
         With one worker usher-tasks does not fork, so its figure for one thread is that of \
         function calls."
            .to_owned(),
    ];
    show::failures(&mut part, samples);
    part.raw = json!(samples);
    part
}
