// SPDX-License-Identifier: MIT OR Apache-2.0
//! `usher bench coloring` (paper 3a): measures the cost when the frequently read fields of many
//! structures share a few cache sets, and the gain from colouring, which shifts each structure by
//! some cache lines.
//!
//! Parts:
//!
//! - walks of run queues on this machine: `walks`;
//! - workloads on this machine: `load`, `cpus`;
//! - cache misses of walks, simulated by cachegrind with this machine's cache sizes: `grind`;
//! - simulation of the paper's machine: `simulated`. Only this part is compared with the paper's
//!   figures.

pub mod chart;
mod cpus;
mod grind;
mod load;
mod lock;
mod region;
mod show;
mod simulated;
mod walks;
mod work;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;
use usher_coloring::machine::{Colors, WorkloadKind};

use crate::bars::{Bar, Part};
use crate::machine;
use cpus::{EndCondition, RunPlan};
use region::Pages;
use walks::LENGTHS;

/// The parts, in the order in which they run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ColoringPart {
    /// Walks over run queues on this machine
    Walks,
    /// Chat and web loads on this machine, under a scheduler like that of Linux 2.4
    Loads,
    /// Cache misses of walks over run queues, simulated by cachegrind with the caches of this
    /// machine
    Misses,
    /// Simulation of the machine of the paper, with 1 to 8 CPUs
    Simulated,
}

/// Measures the gain by coloured structures, with hot fields in different cache sets (paper 3a)
///
/// In blocks whose size is a power of two and which are aligned to their size, the same field of
/// all structures has the same low address bits, so these fields compete for a few cache sets.
/// Linux 2.4 kept its task structures in such blocks and walked all of them at each scheduling
/// decision; nearly every step missed the cache. Colouring shifts each structure by a number of
/// whole cache lines, which is a hash of the address of its block (`usher_tasks::color`).
///
/// walks      Run queues of 64 to 8192 structures are walked with and without colouring, in the
///            same blocks and order, by one thread, and by two threads under one lock.
/// loads      A chat of 2400 tasks and a web server of 256 tasks run under a scheduler like that of
///            Linux 2.4, on threads of this machine, in real memory.
/// misses     The chat and the web server run under valgrind, which counts first-level and
///            second-level misses.
/// simulated  The machine of the paper, with 8 CPUs of 550 MHz, is simulated and compared with
///            the paper's gains of +23.3 % and +86.3 %. No figure of this part is measured.
///
/// Exit status: 0 if every bar is met, 1 if a bar is missed, 125 if the benchmark could not run.
#[derive(Debug, Clone, clap::Args)]
#[command(
    verbatim_doc_comment,
    after_help = "Examples:
  usher bench coloring                        runs all parts in some minutes
  usher bench coloring --quick                runs fewer rounds and lengths in half a minute
  usher bench coloring --only simulated --json | jq '.parts[0].bars'
More: docs/coloring.md"
)]
pub struct ColoringArgs {
    /// Run only these parts
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<ColoringPart>,
    /// Run fewer lengths, rounds and CPUs, and shorter runs
    #[arg(long)]
    quick: bool,
    /// Run this many rounds of each walk; 41 by default, or 9 with --quick
    #[arg(long, value_parser = clap::value_parser!(u32).range(3..))]
    rounds: Option<u32>,
    /// Run this many pairs of each workload; 7 by default, or 3 with --quick
    #[arg(long, value_parser = clap::value_parser!(u32).range(3..))]
    pairs: Option<u32>,
    /// Let an operation of a task take this time in ns, without its cache misses
    #[arg(long, default_value_t = 6_000, value_name = "NS")]
    operation_ns: u64,
    /// Simulate with this many seeds, from 1; 5 by default, or 1 with --quick. The result is the
    /// median
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: Option<u64>,
    /// Print the saved result as JSON
    #[arg(long)]
    json: bool,
    /// Create the dated directory of the results in this directory
    #[arg(long, default_value = "out/bench", value_name = "DIR")]
    out: PathBuf,
}

impl ColoringArgs {
    fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.quick { 9 } else { 41 }) as usize
    }

    fn pairs(&self) -> usize {
        self.pairs.unwrap_or(if self.quick { 3 } else { 7 }) as usize
    }

    fn seeds(&self) -> u64 {
        self.seeds.unwrap_or(if self.quick { 1 } else { 5 })
    }

    fn lengths(&self) -> Vec<usize> {
        match self.quick {
            true => vec![64, 256, 1024, 2400],
            false => LENGTHS.to_vec(),
        }
    }
}

/// Runs the selected parts, saves and prints their results. Returns whether every bar was met.
pub fn run(args: &ColoringArgs) -> Result<bool> {
    let folder = machine::run_folder(&args.out, "coloring")?;
    let mut parts = Vec::new();
    for &which in ColoringPart::value_variants() {
        if !args.only.is_empty() && !args.only.contains(&which) {
            continue;
        }
        let part = match which {
            ColoringPart::Walks => walked(args),
            ColoringPart::Loads => loaded(args),
            ColoringPart::Misses => ground(args),
            ColoringPart::Simulated => simulated::part(args.quick, args.seeds()),
        };
        let part = part.with_context(|| format!("part {which:?}"))?;
        if !args.json {
            machine::print_line(part.lines())?;
        }
        parts.push(part);
    }
    let facts = crate::machine::facts()?;
    let page = machine::save(&folder, "Coloured structures", &facts, &parts)?;
    match args.json {
        true => machine::print_line(std::fs::read_to_string(folder.join("result.json"))?)?,
        false => machine::print_line(format_args!(
            "results saved in {}, report page {}",
            folder.display(),
            page.display()
        ))?,
    }
    Ok(parts.iter().all(|part| part.bars.iter().all(Bar::is_met)))
}

fn walked(args: &ColoringArgs) -> Result<Part> {
    let mut walks = Vec::new();
    for threads in [1, 2] {
        for &pages in Pages::value_variants() {
            for structures in args.lengths() {
                eprintln!(
                    "  walking {structures} structures, {}, threads: {threads}",
                    pages.name()
                );
                walks.push(walks::measure(structures, pages, threads, args.rounds())?);
            }
        }
    }
    Ok(show::walks(&walks))
}

fn loaded(args: &ColoringArgs) -> Result<Part> {
    let turns = work::turns_for(args.operation_ns);
    let (warm, time) = if args.quick {
        (300, 500)
    } else {
        (1_000, 2_000)
    };
    let (warm, time) = (Duration::from_millis(warm), Duration::from_millis(time));
    let mut pairs = Vec::new();
    for workload in WorkloadKind::ALL {
        for cpus in [1, 2] {
            eprintln!("  {}, threads: {cpus}", workload.name());
            let plan = RunPlan {
                load: workload,
                colors: Colors::Plain,
                pages: Pages::Huge,
                cpus,
                until: EndCondition::Time(warm, time),
                turns,
                seed: 1,
            };
            pairs.push(load::measure(&plan, args.pairs())?);
        }
    }
    Ok(show::loads(&pairs, args.operation_ns))
}

fn ground(args: &ColoringArgs) -> Result<Part> {
    let scratch = tempfile::tempdir()?;
    let operations = if args.quick { 6_000 } else { 20_000 };
    let mut grinds = Vec::new();
    for workload in WorkloadKind::ALL {
        for colors in walks::VARIANTS {
            eprintln!(
                "  running {}, {}, under valgrind",
                workload.name(),
                colors.name()
            );
            grinds.push(grind::run(workload, colors, operations, scratch.path())?);
        }
    }
    show::misses(&grinds)
}

/// Options of a single run, for valgrind.
#[derive(Debug, Clone, clap::Args)]
pub struct RunArgs {
    /// Run this load: chat or web
    #[arg(long)]
    load: String,
    /// Use this layout: plain, modulo or ours
    #[arg(long)]
    colors: String,
    /// Execute this many operations
    #[arg(long)]
    operations: u64,
}

/// Executes one run, and prints its counts as JSON.
pub fn run_one(args: &RunArgs) -> Result<()> {
    let load = WorkloadKind::ALL
        .into_iter()
        .find(|load| load.name() == args.load);
    let colors = walks::VARIANTS
        .into_iter()
        .find(|&c| grind::variant(c) == args.colors);
    let plan = RunPlan {
        load: load.with_context(|| format!("no workload '{}'", args.load))?,
        colors: colors.with_context(|| format!("no colours '{}'", args.colors))?,
        pages: Pages::Small,
        cpus: 1,
        until: EndCondition::Operations(args.operations),
        // The arithmetic causes no cache misses and takes long under valgrind. Therefore no
        // arithmetic is executed.
        turns: 0,
        seed: 1,
    };
    crate::machine::print_line(serde_json::to_string(&cpus::run(&plan)?)?)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        args: ColoringArgs,
    }

    #[test]
    fn quick_means_less_and_numbers_given_win() {
        let args = |words: &[&str]| {
            let words = std::iter::once("coloring").chain(words.iter().copied());
            Cli::try_parse_from(words).unwrap().args
        };
        let (whole, quick) = (args(&[]), args(&["--quick"]));
        assert!(quick.rounds() < whole.rounds() && quick.pairs() < whole.pairs());
        assert!(quick.lengths().iter().all(|n| whole.lengths().contains(n)));
        assert_eq!((whole.seeds(), quick.seeds()), (5, 1));
        let given = args(&["--quick", "--rounds", "30", "--seeds", "3"]);
        assert_eq!((given.rounds(), given.seeds()), (30, 3));
    }
}
