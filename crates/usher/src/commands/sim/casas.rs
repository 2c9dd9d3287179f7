// SPDX-License-Identifier: GPL-2.0-only
//! `usher sim casas`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, bail};
use serde_derive::Serialize;
use usher_sim::campaign::{Campaign, Class, MixRow, Scheduler, cast, class_of, mixes};
use usher_sim::kernel::Kernel;
use usher_sim::machine::{Costs, Machine};
use usher_sim::parsec::programs;

use super::machine;
use crate::failure::Outcome;
use crate::output::{self, Output, STRONG};
use crate::progress::Progress;

/// The machine of paper 1: four packages of two dies of six cores.
const PAPER_1: &str = "package:4 die:2 numa:1 core:6 pu:1";
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Work of each program, in seconds on one core of the machine
    #[arg(long, default_value_t = 60.0)]
    seconds: f64,
    /// Only every so manieth mix of the 210
    #[arg(long, default_value_t = 1)]
    every: usize,
    /// Repetitions of each program in a mix, at least
    #[arg(long, default_value_t = 3)]
    repetitions: usize,
    /// Seed of everything random
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write every mix to a file, as JSON
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Debug, Serialize)]
struct CasasAnswer {
    simulated: bool,
    classes: BTreeMap<String, Class>,
    mixes: Vec<MixRow>,
}

/// Simulates and prints.
pub fn run(args: &Args, out: Output) -> Outcome {
    if args.every == 0 || args.repetitions == 0 {
        bail!("--every and --repetitions must be 1 or more");
    }
    if !(args.seconds.is_finite() && args.seconds > 0.0) {
        bail!("--seconds must be a positive number, not {}", args.seconds);
    }
    let machine = Machine::new(machine(PAPER_1)?, Costs::default());
    let threads = machine.topology().cores.len() as u32;
    let kernel = Kernel::cfs();
    let cast = cast(
        &programs()?,
        &machine,
        &kernel,
        threads,
        args.seconds,
        args.seed,
    );
    let class = |entrant| class_of(entrant, machine.topology());
    let classes = cast.iter().map(|e| (e.name.clone(), class(e))).collect();
    let campaign = Campaign {
        machine: &machine,
        kernel: &kernel,
        cast: &cast,
        schedulers: &Scheduler::ALL,
        repetitions: args.repetitions,
        seed: args.seed,
    };
    let all: Vec<_> = mixes(cast.len(), 4)
        .into_iter()
        .step_by(args.every)
        .collect();
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let progress = Progress::new();
    progress.steps(all.len() as u64);
    let done = |_: usize, row: &MixRow| {
        progress.step();
        progress.doing(row.programs.join(" "));
    };
    let answer = CasasAnswer {
        simulated: true,
        classes,
        mixes: campaign.run(&all, workers, &done),
    };
    progress.end();
    if let Some(file) = &args.out {
        let text = serde_json::to_vec(&answer).context("writing JSON")?;
        std::fs::write(file, text).with_context(|| format!("writing '{}'", file.display()))?;
    }
    out.answer(&answer, || table(&answer, out))?;
    Ok(0)
}

/// A kind of mixes: its name, and which belong to it.
type Group<'a> = (&'a str, &'a dyn Fn(&MixRow) -> bool);

/// Geometric means of ANTT by scheduler and class of mix.
fn table(answer: &CasasAnswer, out: Output) -> String {
    let classes = |row: &MixRow| {
        let mut classes: Vec<_> = row.programs.iter().map(|p| answer.classes[p]).collect();
        classes.sort();
        classes
    };
    use Class::{G, R, Y};
    let groups: [Group<'_>; 4] = [
        ("ALL", &|_| true),
        ("YYRR", &|row| classes(row) == [Y, Y, R, R]),
        ("GGYY", &|row| classes(row) == [G, G, Y, Y]),
        ("NO G", &|row| !classes(row).contains(&G)),
    ];
    let mut head = vec![out.paint(STRONG, "SCHEDULER")];
    for (name, is_in) in &groups {
        let count = answer.mixes.iter().filter(|row| is_in(row)).count();
        head.push(out.paint(STRONG, &format!("{name} ({count})")));
    }
    head.push(out.paint(STRONG, "WORST / LINUX"));
    let mut rows = vec![head];
    for scheduler in Scheduler::ALL {
        let mut row = vec![scheduler.name().to_owned()];
        for (_, is_in) in &groups {
            let of = answer.mixes.iter().filter(|row| is_in(row));
            row.push(geometric_mean(of.map(|row| row.antt[&scheduler])));
        }
        let ratio = |row: &MixRow| row.antt[&scheduler] / row.antt[&Scheduler::Linux];
        let worst = answer.mixes.iter().map(ratio).fold(0.0, f64::max);
        row.push(format!("{worst:.2}"));
        rows.push(row);
    }
    let classes: Vec<String> = answer
        .classes
        .iter()
        .map(|(p, c)| format!("{p} {c:?}"))
        .collect();
    format!(
        "Simulated: mean ANTT of mixes of four programs on {PAPER_1}\n{}\n\n{}",
        classes.join(", "),
        output::columns(&rows)
    )
}

fn geometric_mean(values: impl Iterator<Item = f64>) -> String {
    let logs: Vec<f64> = values.map(f64::ln).collect();
    match logs.len() {
        0 => "–".to_owned(),
        n => format!("{:.2}", (logs.iter().sum::<f64>() / n as f64).exp()),
    }
}
