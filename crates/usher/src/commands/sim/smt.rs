// SPDX-License-Identifier: GPL-2.0-only
//! `usher sim smt`: repeats the SMT test of paper 3b on a simulated machine with two cores of two
//! hardware threads.
//!
//! Two loops of 2 s and two of 10 s run under a kernel without SMT awareness, a kernel that prefers
//! idle cores, and Usher's scheduler. The command prints minimum, maximum and mean completion times
//! over all seeds beside the paper's, in virtual seconds.
//!
//! The number of seeds is 1 to 1,000,000, by default 1,000. The three kernels are simulated one
//! after another, and the result depends only on the number of seeds.

use schemars::JsonSchema;
use serde_derive::Serialize;
use usher_report::text as words;
use usher_sim::smt::CompletionTimes;

use crate::cli::numbers::whole;
use crate::failure::Outcome;
use crate::machine;
use crate::output::{self, Output, STRONG};

/// The machine of paper 3b.
const PAPER_3B: &str = "package:2 core:1 pu:2";

#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
Four loops, two with 2 s of work and two with 10 s, start together on two cores with two
hardware threads each. The table shows the time until all four loops have ended: minimum,
maximum and mean over the runs. The table compares a kernel without SMT awareness, a kernel
that prefers idle cores, and Usher's scheduler with the published measurements
(docs/glossary.md, paper 3b).

Examples:
  usher sim smt
  usher sim smt --seeds 50 --json | jq .usher_sched.mean")]
pub struct Args {
    /// Simulate this many runs, each with a different seed
    #[arg(long, default_value_t = 1000, value_parser = whole::<u64>(1..=1_000_000))]
    seeds: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct SmtAnswer {
    /// Always true.
    simulated: bool,
    /// Number of simulated seeds.
    seeds: u64,
    /// Completion times under a kernel that does not consider SMT.
    smt_unaware: CompletionTimes,
    /// Completion times under a kernel that considers SMT.
    smt_aware: CompletionTimes,
    /// Completion times under Usher's scheduler.
    usher_sched: CompletionTimes,
}

/// Runs the command.
pub fn run(args: &Args, out: Output) -> Outcome {
    let seeds = args.seeds;
    let topology = machine::synthetic(PAPER_3B)?;
    let kernels = usher_sim::smt::kernels();
    let [smt_unaware, smt_aware, usher_sched] =
        kernels.map(|of| usher_sim::smt::test(&topology, &of, seeds));
    let answer = SmtAnswer {
        simulated: true,
        seeds,
        smt_unaware,
        smt_aware,
        usher_sched,
    };
    let row = |name: &str, times: &CompletionTimes, paper: &str| {
        let CompletionTimes { min, max, mean } = times;
        vec![
            name.to_owned(),
            format!("{min:.1}"),
            format!("{max:.1}"),
            format!("{mean:.1}"),
            paper.to_owned(),
        ]
    };
    out.answer(&answer, || {
        let head = ["KERNEL", "MIN", "MAX", "MEAN", "PAPER 3B"].map(|t| out.paint(STRONG, t));
        let rows = [
            head.to_vec(),
            row(
                "kernel without SMT awareness",
                &answer.smt_unaware,
                "12.6 / 19.8 / 15.5",
            ),
            row(
                "kernel that prefers idle cores",
                &answer.smt_aware,
                "12.6 / 12.7 / 12.6",
            ),
            row("Usher's scheduler", &answer.usher_sched, ""),
        ];
        format!(
            "Simulated seconds until two loops of 2 s and two loops of 10 s have ended, over \
             {}\n\n{}",
            words::count(seeds as usize, "seed"),
            output::columns(&rows)
        )
    })?;
    Ok(0)
}
