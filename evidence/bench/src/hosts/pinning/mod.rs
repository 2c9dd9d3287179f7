// SPDX-License-Identifier: MIT OR Apache-2.0
//! Part `pinning`: runs programs that pin their threads, while unpinned programs (programs that pin
//! no threads) start and end and seats change.
//!
//! - No run may fail.
//! - The seat of a program that pins its threads must contain all CPUs to which the threads are
//!   pinned, or the program has no seat and `usher status` gives the reason.
//! - Unpinned programs must spend 95 % of their CPU time inside their seats.
//!
//! A daemon with the policy `equal` and a runtime directory of its own gives the seats. `usher run`
//! starts the programs that pin their threads, one at a time: 200 runs, or 16 in quick runs. Each
//! program waits for up to 1 s, works for 4 s, and is killed after 60 s. At the same time, up to
//! two unpinned programs start and end at random times. Every program ends by itself within two
//! minutes, even if the benchmark is killed; the kernel then ends the daemon.
//!
//! A method whose tools are missing is left out with a note. A failed run counts and does not end
//! the part.

mod observer;
mod pin_watch;
mod programs;
mod run;
mod unpinned;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, ensure};

use self::observer::{Observer, SeatTimes};
use self::programs::{PinningMethod, ProgramTimes, Programs};
use self::run::{Outcome, Runner};
use self::unpinned::{UnpinnedPrograms, UnpinnedResults};
use crate::bars::{Bar, Part, Table};
use crate::processes::Daemon;

/// Working time of a program in seconds. Before it works, a program waits for up to one second and
/// then creates its threads.
const WORK_S: f64 = 4.0;
/// Total number of runs.
const RUNS: usize = 200;
const RUNS_QUICK: usize = 16;

/// Options of the part.
#[derive(Debug, Clone, clap::Args)]
pub struct PinningArgs {
    /// Run programs that pin their threads this many times; 200 by default, or 16 with --quick
    #[arg(long)]
    pub pinning_runs: Option<usize>,
    /// Seed the random lengths of programs and of the pauses between them
    #[arg(long, default_value_t = 1)]
    pub pinning_seed: u64,
}

/// The results of one kind of program.
#[derive(Debug, Default)]
struct MethodResult {
    runs: usize,
    failures: Vec<String>,
    wrong: Vec<String>,
    pinned: usize,
    contained: usize,
    reasoned: usize,
    moved: usize,
    noticed_ms: f64,
}

/// Checks that this machine can compile the programs and pin their threads.
///
/// # Errors
/// Only one CPU is usable, or there is no C compiler.
pub fn check() -> Result<()> {
    let usable = usable_cpus()?;
    ensure!(
        usable.len() > 1,
        "the part pinning needs two usable CPUs, but this machine has {}",
        usable.len()
    );
    programs::is_installed("cc", "--version")
}

fn usable_cpus() -> Result<usher_model::CpuSet> {
    Ok(usher_probe::usable_cpus(&usher_probe::Roots::default())?)
}

/// Runs the programs, and computes the result of the part.
pub fn run(binary: &Path, args: &PinningArgs, quick: bool) -> Result<Part> {
    let runs = if quick { RUNS_QUICK } else { RUNS };
    let runs = args.pinning_runs.unwrap_or(runs);
    let usable = usable_cpus()?;
    // When a launcher has ended, its processes become children of this process, which can then find
    // and end them.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let dir = tempfile::tempdir()?;
    let programs = Arc::new(Programs::compile(dir.path(), &usable)?);
    let (kinds, missing) = available(&programs);
    ensure!(
        !kinds.is_empty(),
        "no program that pins its threads is installed"
    );
    let daemon = Daemon::start(binary, dir.path(), &["--policy", "equal"])?;
    let observer = Observer::start(binary, dir.path())?;
    let visitors =
        UnpinnedPrograms::start(binary, dir.path(), programs.clone(), args.pinning_seed)?;
    let runner = Runner::new(binary, dir.path(), &programs, &observer, usable);
    let mut random = oorandom::Rand64::new(u128::from(args.pinning_seed) + 1);
    let mut rows: BTreeMap<PinningMethod, MethodResult> = BTreeMap::new();
    for turn in 0..runs {
        let kind = kinds[turn % kinds.len()];
        let length = ProgramTimes {
            wait_s: random.rand_float(),
            work_s: WORK_S,
        };
        let outcome = runner.run(kind, turn, length)?;
        rows.entry(kind).or_default().add(outcome);
        if turn % 20 == 19 {
            eprintln!("pinning: finished {} of {runs} runs", turn + 1);
        }
    }
    let visits = visitors.stop();
    let inside = observer.stop();
    drop(daemon);
    let left = run::end_descendants();
    let mut part = part(runs, &rows, &missing, &visits, &inside);
    part.bars
        .push(Bar::none("programs that had to be killed", left));
    Ok(part)
}

/// Returns the methods that can run on this machine, and the other methods with the reasons.
fn available(programs: &Programs) -> (Vec<PinningMethod>, Vec<(PinningMethod, String)>) {
    let mut kinds = Vec::new();
    let mut missing = Vec::new();
    for kind in PinningMethod::ALL {
        match programs.prepare(kind) {
            Ok(()) => kinds.push(kind),
            Err(error) => missing.push((kind, format!("{error:#}"))),
        }
    }
    (kinds, missing)
}

impl MethodResult {
    fn add(&mut self, outcome: Outcome) {
        self.runs += 1;
        self.failures.extend(outcome.failure);
        self.moved += usize::from(outcome.moved);
        if let Some(watch) = outcome.watch {
            self.wrong.extend(watch.failure);
            self.pinned += watch.pinned;
            self.contained += watch.contained;
            self.reasoned += watch.reasoned;
            let noticed_ms = watch.noticed_after.as_secs_f64() * 1e3;
            self.noticed_ms = self.noticed_ms.max(noticed_ms);
        }
    }

    fn cells(&self, kind: PinningMethod) -> Vec<String> {
        let first = self.failures.iter().chain(&self.wrong).next();
        vec![
            kind.name().to_owned(),
            self.runs.to_string(),
            self.failures.len().to_string(),
            self.wrong.len().to_string(),
            self.pinned.to_string(),
            self.contained.to_string(),
            self.reasoned.to_string(),
            format!("{:.0}", self.noticed_ms),
            self.moved.to_string(),
            first.cloned().unwrap_or_default(),
        ]
    }
}

const HEAD: [&str; 10] = [
    "program",
    "runs",
    "failures",
    "runs with a seat that excludes a pinned CPU, or without a reported reason",
    "samples with a narrowed affinity mask",
    "within the seat",
    "runs without a seat, with the reason",
    "longest time until a pin was detected (ms)",
    "runs in which a pin equal to the seat moved with the seat",
    "first failure",
];

fn part(
    runs: usize,
    rows: &BTreeMap<PinningMethod, MethodResult>,
    missing: &[(PinningMethod, String)],
    visits: &UnpinnedResults,
    inside: &SeatTimes,
) -> Part {
    let mut part = Part::new("pinning", "Programs that pin their threads");
    let sum = |of: &dyn Fn(&MethodResult) -> usize| rows.values().map(of).sum::<usize>();
    let share = |part: u64, whole: u64| 100.0 * part as f64 / whole as f64;
    let seated = (inside.seated_ns > 0).then(|| share(inside.inside_ns, inside.seated_ns));
    part.bars = vec![
        Bar::none(
            format!("programs that failed, in {runs} runs"),
            sum(&|row| row.failures.len()),
        ),
        Bar::none(
            format!(
                "runs with a seat that excludes a pinned CPU, or without a reported reason, of \
                 {runs}"
            ),
            sum(&|row| row.wrong.len()),
        ),
        Bar::none(
            format!(
                "programs that failed, of {} programs that pin no threads",
                visits.count
            ),
            visits.failures.len(),
        ),
        Bar::at_least(
            "CPU time of programs without pins inside their seats",
            seated,
            95.0,
            "%",
        ),
    ];
    part.tables = vec![Table {
        head: HEAD.map(str::to_owned).to_vec(),
        rows: rows.iter().map(|(kind, row)| row.cells(*kind)).collect(),
    }];
    part.notes = notes(missing, visits, inside, sum(&|row| row.moved));
    part.raw = serde_json::json!({
        "runs": runs,
        "visitors": visits.count,
        "visitor_failures": visits.failures,
        "seated_ns": inside.seated_ns,
        "inside_ns": inside.inside_ns,
        "sampled_ns": inside.sampled_ns,
        "metered_ns": inside.metered_ns,
        "seats": inside.seats,
        "failures": rows.values().flat_map(|row| &row.failures).collect::<Vec<_>>(),
        "wrong": rows.values().flat_map(|row| &row.wrong).collect::<Vec<_>>(),
    });
    part
}

fn notes(
    missing: &[(PinningMethod, String)],
    visits: &UnpinnedResults,
    inside: &SeatTimes,
    moved: usize,
) -> Vec<String> {
    let seconds = |ns: u64| ns as f64 * 1e-9;
    let seats: Vec<&str> = inside.seats.iter().map(String::as_str).collect();
    let mut notes = vec![
        format!(
            "The policy is `equal`. OpenMP programs and `taskset` wait for up to 1 s before they \
             pin threads; the other programs pin threads at their start. Each program works for \
             {WORK_S} s. Meanwhile {} programs with one or two busy threads started and ended; \
             the seats of all programs were {}.",
            visits.count,
            seats.join("; ")
        ),
        format!(
            "Programs that pin no threads used {:.1} s of CPU time in seats. Their threads were \
             sampled every 10 ms; the samples cover {:.1} s of the {:.1} s of CPU time that the \
             meter counted.",
            seconds(inside.seated_ns),
            seconds(inside.sampled_ns),
            seconds(inside.metered_ns)
        ),
    ];
    if moved > 0 {
        notes.push(format!(
            "In {moved} runs a thread was pinned to exactly the CPUs of its seat. Usher cannot \
             distinguish such a pin from the seat, so the thread moved with the seat \
             (docs/seats.md, Known limits)."
        ));
    }
    let skipped = missing.iter();
    notes.extend(skipped.map(|(kind, why)| format!("Skipped: {}: {why}.", kind.name())));
    notes
}
