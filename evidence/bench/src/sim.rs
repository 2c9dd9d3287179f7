// SPDX-License-Identifier: MIT OR Apache-2.0
//! `usher bench sim`: measures accuracy and speed of the simulator, and the results of the policies
//! in the simulator. Parts: comparison with published figures (`fidelity`), speed (`speed`), the
//! 210 mixes of paper 1 (`mixes`), the same mixes with half of the work (`halving`), parameters at
//! the ends of their ranges (`ranges`), and random runs with injected faults (`fuzz`).

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context, Result};
use clap::ValueEnum;
use serde_json::json;
use usher_model::Topology;
use usher_sim::campaign::Scheduler;
use usher_sim::evaluation::{Evaluation, MixKind, SAMPLE_OFF_MAX, SimulationSize};
use usher_sim::fidelity::{PHI, XEON, fits, machine};
use usher_sim::fuzz::{FuzzCase, MACHINES};
use usher_sim::parsec::programs;
use usher_sim::sample;
use usher_sim::setup::{EvaluationSetup, FREE_PARAMETERS, PAPER_1};
use usher_sim::smt::CompletionTimes;
use usher_topology::Source;

use crate::bars::{Bar, Part};

/// Arguments of `usher bench sim`.
#[derive(Debug, clap::Args)]
pub struct SimArgs {
    /// Run only these parts
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<SimPart>,
    /// Run only every Nth of the 210 mixes
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    stride: u32,
    /// Run every Nth mix with each parameter at both ends of its range
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    ranges_stride: u32,
    /// Run the fuzzer with this many seeds
    #[arg(long, default_value_t = 10_000)]
    seeds: u64,
    /// Create the dated directory of the results in this directory
    #[arg(long, default_value = "out/bench", value_name = "DIR")]
    out: std::path::PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum SimPart {
    /// Programs alone, the sample mix and the SMT test, compared with the published figures
    Fidelity,
    /// Simulated events per second
    Speed,
    /// All mixes under all schedulers
    Mixes,
    /// All mixes with half of the work per repetition
    Halving,
    /// Unpublished parameters at both ends of their ranges
    Ranges,
    /// Random runs with injected faults
    Fuzz,
}

/// Runs the selected parts, saves and prints their results. Returns whether every bar was met.
pub fn run(args: &SimArgs) -> Result<bool> {
    let folder = crate::machine::run_folder(&args.out, "sim")?;
    let mut parts = Vec::new();
    for &which in SimPart::value_variants() {
        if !args.only.is_empty() && !args.only.contains(&which) {
            continue;
        }
        let part = match which {
            SimPart::Fidelity => fidelity(),
            SimPart::Speed => speed(),
            SimPart::Mixes => mixes(args),
            SimPart::Halving => halving(args),
            SimPart::Ranges => ranges(args),
            SimPart::Fuzz => fuzz(args),
        };
        let part = part.with_context(|| format!("part {which:?}"))?;
        crate::machine::print_line(part.lines())?;
        parts.push(part);
    }
    crate::machine::finish(&folder, "The simulator", &parts)
}

fn topology(spec: &str) -> Result<Topology> {
    Ok(usher_topology::load(Source::Synthetic(spec.to_owned()))?)
}

/// Returns the size of the simulations with which Usher's documented figures were computed.
fn simulation_size(stride: u32) -> SimulationSize {
    SimulationSize {
        repetition_s: 24.0,
        steady_s: 20.0,
        stride: stride as usize,
        seed: 1,
        workers: std::thread::available_parallelism().map_or(1, usize::from),
    }
}

/// Returns a bar that limits the deviation of `value` from the published value `paper`, in per
/// cent.
fn off(what: &str, value: f64, paper: f64, limit: f64) -> Bar {
    let what = format!("{what}: {value:.3}, paper {paper}");
    Bar::at_most(what, 100.0 * (value / paper - 1.0).abs(), limit, "% off")
}

/// Simulated results of the test of paper 3b.
pub struct SmtResult {
    /// Results under a kernel that does not distinguish cores from hardware threads.
    pub blind: CompletionTimes,
    /// Results under a kernel that prefers idle cores.
    pub aware: CompletionTimes,
    /// Results under Usher's scheduler.
    pub ours: CompletionTimes,
    /// Bars on the deviations from the paper's figures.
    pub bars: Vec<Bar>,
}

/// Simulates the test of paper 3b with `seeds` seeds. Programs on a shared core are slower by the
/// factors of the paper.
pub fn smt(seeds: u64) -> Result<SmtResult> {
    let machine = topology("package:2 core:1 pu:2")?;
    let kernels = usher_sim::smt::kernels();
    let [blind, aware, ours] = kernels.map(|of| usher_sim::smt::test(&machine, &of, seeds));
    let figures = [
        (
            "SMT test, kernel without SMT awareness, minimum",
            blind.min,
            12.6,
        ),
        (
            "SMT test, kernel without SMT awareness, maximum",
            blind.max,
            19.8,
        ),
        (
            "SMT test, kernel with SMT awareness, minimum",
            aware.min,
            12.6,
        ),
        (
            "SMT test, kernel with SMT awareness, maximum",
            aware.max,
            12.7,
        ),
        ("SMT test, Usher's scheduler, minimum", ours.min, 12.6),
        ("SMT test, Usher's scheduler, maximum", ours.max, 12.7),
    ];
    let bars = figures.map(|(what, value, paper)| off(what, value, paper, 5.0));
    Ok(SmtResult {
        blind,
        aware,
        ours,
        bars: bars.to_vec(),
    })
}

fn fidelity() -> Result<Part> {
    let mut part = Part::new("fidelity", "Accuracy of the simulation");
    let models = programs()?;
    let mut raw = serde_json::Map::new();
    for (name, spec) in [("xeon", XEON), ("phi", PHI)] {
        let Some(machine) = machine(name, &topology(spec)?) else {
            continue;
        };
        let fits = fits(&machine, name, &models)?;
        for fit in &fits {
            let (median, worst) = fit.median_and_worst().unwrap_or((f64::NAN, f64::NAN));
            let what = |which| {
                format!(
                    "curve of {} alone on the {name}, {which} point",
                    fit.program
                )
            };
            part.bars
                .push(Bar::at_most(what("median"), 100.0 * median, 5.0, "% off"));
            part.bars
                .push(Bar::at_most(what("worst"), 100.0 * worst, 10.0, "% off"));
        }
        raw.insert(name.to_owned(), json!(fits));
    }
    let setup = EvaluationSetup::new(models);
    let samples = sample::run(
        &setup,
        &topology(PAPER_1)?,
        &Scheduler::PAPER_1,
        &simulation_size(1),
    )?;
    for sample in &samples {
        if let Some(paper) = sample.paper {
            let what = format!("sample mix, {}", sample.name);
            part.bars.push(off(&what, sample.antt, paper, 10.0));
        }
    }
    raw.insert("sample".to_owned(), json!(samples));
    let SmtResult {
        blind,
        aware,
        ours,
        bars,
    } = smt(1000)?;
    part.bars.extend(bars);
    part.notes.push(format!(
        "The models of the programs were fitted to the curves of the xeon. The curves of the phi \
         were not used, except that of blackscholes, which determined the clock of the phi. The \
         bandwidth of a die and the memory traffic of ferret and streamcluster were fitted to \
         the sample mix. The slow-down of two loops on one core was fitted to the SMT test. \
         Means of the SMT test over 1,000 seeds: {:.1} s without SMT awareness (paper 15.5), \
         {:.1} s with SMT awareness (paper 12.6), {:.1} s under Usher's scheduler.",
        blind.mean, aware.mean, ours.mean
    ));
    raw.insert("smt".to_owned(), json!([blind, aware, ours]));
    part.raw = raw.into();
    Ok(part)
}

/// Measures the simulated events per second of one CPU: four programs with 48 or more threads each
/// on 48 simulated cores.
fn speed() -> Result<Part> {
    use usher_sim::campaign::measure_programs;
    use usher_sim::extrapolation::{Extrapolation, run};
    use usher_sim::machine::Machine;
    let setup = EvaluationSetup::new(programs()?);
    let machine = Machine::new(topology(PAPER_1)?, setup.costs.clone());
    let chosen = |name: &str| ["blackscholes", "bodytrack", "canneal", "raytrace"].contains(&name);
    let models: Vec<_> = setup
        .models
        .into_iter()
        .filter(|m| chosen(&m.name))
        .collect();
    let entries: Vec<_> = measure_programs(&models, &machine, &setup.kernel, 24.0, 1)?
        .into_iter()
        .map(|program| program.entry)
        .collect();
    let threads: u32 = entries.iter().map(|entry| entry.script.threads()).sum();
    let extrapolation = Extrapolation {
        settle_s: 1.0,
        steady_s: 60.0,
        repetitions: 3.0,
        scale: 1.0,
    };
    let mut rates = Vec::new();
    for _ in 0..5 {
        let policy = Scheduler::Linux.policy(&machine, &setup.kernel, &entries);
        let began = Instant::now();
        let forecast = run(&entries, &machine, &setup.kernel, policy, &extrapolation, 1)?;
        rates.push(forecast.events as f64 / began.elapsed().as_secs_f64() / 1e6);
    }
    rates.sort_by(f64::total_cmp);
    let mut part = Part::new("speed", "Speed of the simulation");
    part.bars.push(Bar::at_least(
        format!(
            "simulated events per second on one core; 48 cores, {threads} threads; median of 5"
        ),
        rates[2],
        2.0,
        "million",
    ));
    part.raw = json!(rates);
    Ok(part)
}

fn evaluate(
    setting: &str,
    setup: &EvaluationSetup,
    schedulers: &[Scheduler],
    size: &SimulationSize,
) -> Result<Evaluation> {
    let count = AtomicU64::new(0);
    let done = |all: usize, _: &usher_sim::campaign::MixRow| {
        let n = count.fetch_add(1, Ordering::Relaxed) + 1;
        if n.is_multiple_of(10) || n == all as u64 {
            eprintln!("  {setting} {n} of {all} mixes");
        }
    };
    let topology = topology(PAPER_1)?;
    Ok(Evaluation::run(
        setting, setup, &topology, schedulers, size, &done,
    )?)
}

/// Returns the bars of an evaluation of all mixes, for Usher with and without profiles.
fn usher_bars(evaluation: &Evaluation) -> Vec<Bar> {
    let classes = evaluation.classes();
    let mut bars = Vec::new();
    for scheduler in [Scheduler::Usher, Scheduler::UsherCold] {
        let name = |what: &str| {
            format!("{} {}: {what}", evaluation.setting, scheduler.name())
                .trim()
                .to_owned()
        };
        let ratio = |to, kind| evaluation.ratio((scheduler, to), kind, &classes);
        for (kind, limit) in [
            (MixKind::All, 0.80),
            (MixKind::Ggyy, 1.00),
            (MixKind::Yyrr, 0.85),
            (MixKind::NoG, 0.85),
        ] {
            if let Some(value) = ratio(Scheduler::Linux, kind) {
                bars.push(Bar::at_most(
                    name(&format!("{} mixes", kind.name())),
                    value,
                    limit,
                    "x Linux",
                ));
            }
        }
        if let Some((row, worst)) = evaluation.worst(scheduler, Scheduler::Linux) {
            let mix = row.programs.join(" ");
            bars.push(Bar::at_most(
                name(&format!("worst mix, {mix}")),
                worst,
                1.02,
                "x Linux",
            ));
        }
        if let Some(value) = ratio(Scheduler::OracleLending, MixKind::All) {
            bars.push(Bar::at_most(
                name("all mixes"),
                value,
                1.05,
                "ANTT / ANTT of the oracle with lending",
            ));
        }
    }
    bars
}

fn mixes(args: &SimArgs) -> Result<Part> {
    let mut part = Part::new("mixes", "All mixes of four of ten programs on 48 cores");
    let began = Instant::now();
    let setup = EvaluationSetup::new(programs()?);
    let evaluation = evaluate(
        "",
        &setup,
        &Scheduler::PAPER_1,
        &simulation_size(args.stride),
    )?;
    let minutes = began.elapsed().as_secs_f64() / 60.0;
    part.bars = usher_bars(&evaluation);
    let classes = evaluation.classes();
    // Whether CaSAS is better or worse than Linux in each class of mixes, as in the paper.
    for (kind, better) in [
        (MixKind::Yyrr, true),
        (MixKind::Ggyy, false),
        (MixKind::NoG, true),
    ] {
        let Some(ratio) = evaluation.ratio((Scheduler::Casas, Scheduler::Linux), kind, &classes)
        else {
            continue;
        };
        let (linux, casas) = kind.paper();
        let word = if better { "better" } else { "worse" };
        let what = format!(
            "ANTT of casas in {} mixes: {ratio:.2} x that of Linux, {word} as in the paper ({:.2})",
            kind.name(),
            casas / linux
        );
        part.bars
            .push(Bar::none(what, usize::from((ratio < 1.0) != better)));
    }
    part.bars.push(Bar::at_most(
        "duration of all mixes",
        minutes,
        20.0,
        "minutes",
    ));
    for kind in MixKind::ALL {
        let means = Scheduler::PAPER_1.map(|scheduler| {
            let mean = evaluation
                .mean(scheduler, kind, &classes)
                .unwrap_or(f64::NAN);
            format!("{} {mean:.2}", scheduler.name())
        });
        let (linux, casas) = kind.paper();
        part.notes.push(format!(
            "{} ({}): {}; in the paper: Linux {linux}, CaSAS {casas}",
            kind.name(),
            evaluation.of(kind, &classes).count(),
            means.join(", ")
        ));
    }
    part.notes.extend(other_class_notes(&evaluation));
    part.raw = json!(evaluation);
    Ok(part)
}

/// Returns a note for each alternative classification of the programs, with the mean ANTTs of the
/// classes.
fn other_class_notes(evaluation: &Evaluation) -> Vec<String> {
    let note = |(name, classes): (String, _)| {
        let ratio = |policy, kind| {
            evaluation
                .ratio((policy, Scheduler::Linux), kind, &classes)
                .unwrap_or(f64::NAN)
        };
        let both = |kind| {
            format!(
                "{} casas {:.2} usher {:.2}",
                MixKind::name(kind),
                ratio(Scheduler::Casas, kind),
                ratio(Scheduler::Usher, kind)
            )
        };
        format!(
            "ANTT with {name}, relative to Linux: {}",
            MixKind::ALL.map(both).join(", ")
        )
    };
    evaluation.other_classes().into_iter().map(note).collect()
}

/// Computes how the figures of the classes change when each repetition has half of the work.
fn halving(args: &SimArgs) -> Result<Part> {
    let mut part = Part::new("halving", "Repetitions with half of the work");
    let setup = EvaluationSetup::new(programs()?);
    let whole = simulation_size(args.stride);
    let half = SimulationSize {
        repetition_s: whole.repetition_s / 2.0,
        ..whole
    };
    let whole = evaluate("whole", &setup, &Scheduler::PAPER_1, &whole)?;
    let half = evaluate("half", &setup, &Scheduler::PAPER_1, &half)?;
    let classes = whole.classes();
    for kind in MixKind::ALL {
        for scheduler in Scheduler::PAPER_1 {
            let mean = |of: &Evaluation| of.mean(scheduler, kind, &classes);
            if let (Some(a), Some(b)) = (mean(&whole), mean(&half)) {
                let what = format!("{} {}: {a:.3}, {b:.3}", kind.name(), scheduler.name());
                part.bars.push(Bar::at_most(
                    what,
                    100.0 * (b / a - 1.0).abs(),
                    1.0,
                    "% moved",
                ));
            }
        }
    }
    part.raw = json!([whole, half]);
    Ok(part)
}

fn ranges(args: &SimArgs) -> Result<Part> {
    let mut part = Part::new(
        "ranges",
        "Unpublished parameters at the ends of their ranges",
    );
    let setup = EvaluationSetup::new(programs()?);
    let mut raw = Vec::new();
    for parameter in FREE_PARAMETERS {
        for value in [parameter.range.0, parameter.range.1] {
            let setting = format!("{} {value}", parameter.name);
            let evaluation = evaluate(
                &setting,
                &parameter.set(&setup, value),
                &Scheduler::RANGES,
                &simulation_size(args.ranges_stride),
            )?;
            let mut bars = usher_bars(&evaluation);
            let off = evaluation.sample_off();
            if off > SAMPLE_OFF_MAX {
                let mark = format!(
                    " (with this value, the sample mix deviates from the paper by {:.0} %)",
                    100.0 * off
                );
                bars.iter_mut().for_each(|bar| bar.what.push_str(&mark));
            }
            part.bars.extend(bars);
            raw.push(evaluation);
        }
    }
    let about = FREE_PARAMETERS.iter().map(|parameter| {
        format!(
            "{}, {} to {}: {}",
            parameter.name, parameter.range.0, parameter.range.1, parameter.what
        )
    });
    part.notes.extend(about);
    part.raw = json!(raw);
    Ok(part)
}

fn fuzz(args: &SimArgs) -> Result<Part> {
    let machines: Vec<Topology> = MACHINES
        .iter()
        .map(|spec| topology(spec))
        .collect::<Result<_>>()?;
    let next = AtomicU64::new(0);
    let violations = Mutex::new(Vec::new());
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= args.seeds {
                return;
            }
            if let Err(error) = FuzzCase::new(seed, &machines).run()
                && let Ok(mut violations) = violations.lock()
            {
                violations.push(error.to_string());
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..simulation_size(1).workers {
            scope.spawn(work);
        }
    });
    let violations = violations.into_inner().unwrap_or_default();
    let mut part = Part::new("fuzz", "Random runs with injected faults");
    part.bars.push(Bar::none(
        format!("invariants violated in the runs of {} seeds", args.seeds),
        violations.len(),
    ));
    part.notes.clone_from(&violations);
    part.raw = json!(violations);
    Ok(part)
}
