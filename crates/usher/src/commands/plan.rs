// SPDX-License-Identifier: GPL-2.0-only
//! `usher plan`: runs only the planner of `usher_policy`, for programs with given scalability
//! curves on any described machine. The command measures nothing and changes nothing.
//!
//! 1. Load the described machine, or the usable CPUs of this machine.
//! 2. Read the programs as JSON, of at most 64 MiB, from a regular file or standard input.
//! 3. Run the planner once, and print the plan as JSON or as a table.
//!
//! The cost is that of `usher_policy`'s planner, whose budget of steps bounds the time
//! (`seating::STEPS_MAX`); the command has no time limit of its own. Invalid input ends the command with an error that names the program and the field.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use usher_model::{CpuSet, SeatMode, Topology};
use usher_policy::planfile::{PlanOutput, plan_json};
use usher_topology::{Source, file};

use crate::failure::{self, Outcome};
use crate::machine;
use crate::output::{self, Output, STRONG};

/// Computes the best seats for programs with known scalability curves, for any machine
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Input (JSON): {\"programs\":[{\"name\":\"a\",\"curve\":{\"1\":1.0,\"6\":4.9,\"12\":7.2}}, …]}
A curve maps a number of cores to the program's progress per second, in any unit; the
curve is interpolated linearly between its points. Optional keys of each program: weight,
llc_bytes (working set in the last-level cache), bandwidth_gbps (memory traffic in GB/s),
spinners (number of threads that busy-wait), cpu_quota (CPU seconds per second that the
program may use).

Output (JSON): CPUs for each program that minimise the mean of the normalised turnaround
times (ANTT). The same input always gives the same output.

Examples:
  usher plan --programs mix.json                       plans for this machine
  usher plan --topology \"package:4 die:2 core:6 pu:1\" --programs mix.json
  usher plan --programs mix.json --table               prints a table
  generate-curves | usher plan --programs -")]
pub struct Args {
    /// Plan for the machine in this one-line description, hwloc XML file or copy of a /sys directory;
    /// by default, for this machine
    #[arg(long, value_name = "SPEC|FILE|DIR")]
    topology: Option<String>,
    /// Read the programs and their curves as JSON from FILE; - for standard input
    #[arg(long, value_name = "FILE")]
    programs: PathBuf,
    /// Print a table instead of JSON
    #[arg(long, conflicts_with = "json")]
    table: bool,
}

/// Plans and prints.
pub fn run(args: &Args, out: Output) -> Outcome {
    let topology = machine(args.topology.as_deref())?;
    let input = read(&args.programs)?;
    let named = || format!("planning the programs of '{}'", args.programs.display());
    let plan = plan_json(&topology, &input).with_context(named)?;
    match args.table {
        true => out.text(&table(&plan, &topology, out))?,
        false => out.json(&plan)?,
    }
    Ok(0)
}

/// Returns the usable part of the given machine, or of the present machine.
fn machine(text: Option<&str>) -> anyhow::Result<Topology> {
    match text {
        Some(text) => {
            let machine = usher_topology::describe(Source::parse(text)?)?;
            failure::print_notes(&machine.notes);
            Ok(machine.usable()?)
        }
        None => machine::usable_machine(),
    }
}

fn read(path: &Path) -> anyhow::Result<String> {
    if path != Path::new("-") {
        let doing = || format!("reading the programs from '{}'", path.display());
        return file::read_text(path).with_context(doing);
    }
    let doing = "reading the programs from standard input";
    let mut text = String::new();
    let mut input = std::io::stdin().take(file::TEXT_BYTES_MAX + 1);
    let length = input.read_to_string(&mut text).context(doing)?;
    if length as u64 > file::TEXT_BYTES_MAX {
        bail!(
            "{doing}: the input is larger than {} MiB",
            file::TEXT_BYTES_MAX >> 20
        );
    }
    Ok(text)
}

fn table(plan: &PlanOutput, topology: &Topology, out: Output) -> String {
    let head = ["PROGRAM", "NTT", "CORES", "DOMAINS", "CPUS"].map(|title| out.paint(STRONG, title));
    let rows = plan.programs.iter().map(|program| {
        // A `CpuSet` formats the list of domain numbers, because domains and CPUs have numbers of
        // the same kind.
        let numbers = program.domains.iter();
        let domains: CpuSet = numbers
            .filter_map(|&domain| domain.try_into().ok())
            .collect();
        let cpus = match program.mode {
            SeatMode::Seated => program.cpus.clone(),
            SeatMode::Shared => format!("{} (shared)", program.cpus),
            SeatMode::InTurn => format!("{} (in turn with other programs)", program.cpus),
        };
        vec![
            output::shown(&program.name),
            format!("{:.3}", program.ntt),
            program.cores.to_string(),
            domains.to_string(),
            cpus,
        ]
    });
    let rows: Vec<Vec<String>> = std::iter::once(head.to_vec()).chain(rows).collect();
    let gap = match plan.gap {
        Some(gap) if gap > 0.0 => {
            let reason = match plan.ended_by_budget {
                true => "; the search ended by its budget of steps",
                false => "",
            };
            format!(" (at most {gap:.3} above the least possible ANTT{reason})")
        }
        _ => String::new(),
    };
    format!(
        "{}\nANTT {:.3}{gap} on {}\n",
        output::columns(&rows),
        plan.antt,
        topology.name
    )
}
