// SPDX-License-Identifier: GPL-2.0-only
//! `usher sim smt`.

use serde_derive::Serialize;
use usher_report::text as words;
use usher_sim::smt::Spread;

use super::machine;
use crate::failure::Outcome;
use crate::output::{self, Output, STRONG};

/// That of paper 3b.
const PAPER_3B: &str = "package:2 core:1 pu:2";

#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
Two loops of 2 s and two of 10 s on two cores with two hardware threads each: until the last
has ended, at best, at worst and on average, under a kernel that does not tell cores from
hardware threads, one that does, and Usher's scheduler.

Examples:
  usher sim smt
  usher sim smt --seeds 50 --json | jq .ours.mean")]
pub struct Args {
    /// How often, each time from another seed
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    seeds: u64,
}

#[derive(Debug, Serialize)]
struct SmtAnswer {
    simulated: bool,
    seeds: u64,
    blind: Spread,
    aware: Spread,
    ours: Spread,
}

/// Simulates and prints.
pub fn run(args: &Args, out: Output) -> Outcome {
    let seeds = args.seeds;
    let topology = machine(PAPER_3B)?;
    let kernels = usher_sim::smt::kernels();
    let [blind, aware, ours] = kernels.map(|of| usher_sim::smt::test(&topology, &of, seeds));
    let answer = SmtAnswer {
        simulated: true,
        seeds,
        blind,
        aware,
        ours,
    };
    let row = |name: &str, spread: &Spread, paper: &str| {
        let Spread { min, max, mean } = spread;
        vec![
            name.to_owned(),
            format!("{min:.1}"),
            format!("{max:.1}"),
            format!("{mean:.1}"),
            paper.to_owned(),
        ]
    };
    out.answer(&answer, || {
        let head = ["KERNEL", "LEAST", "MOST", "MEAN", "PAPER 3B"].map(|t| out.paint(STRONG, t));
        let rows = [
            head.to_vec(),
            row(
                "blind to hardware threads",
                &answer.blind,
                "12.6 / 19.8 / 15.5",
            ),
            row("prefers idle cores", &answer.aware, "12.6 / 12.7 / 12.6"),
            row("Usher's scheduler", &answer.ours, ""),
        ];
        format!(
            "Simulated: seconds until two loops of 2 s and two of 10 s have ended, {}\n\n{}",
            words::count(seeds as usize, "seed"),
            output::columns(&rows)
        )
    })?;
    Ok(0)
}
