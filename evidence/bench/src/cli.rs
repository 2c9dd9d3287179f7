// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command line of `usher-bench`: one subcommand per benchmark, and hidden subcommands for
//! programs that benchmarks start. The exit status is 0 if every bar was met, 1 if not, 125 if the
//! benchmark could not run.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::{
    background, chip, coloring, here, hosts, machine, progress, sched, seats, sim, tasks, worker,
};

/// Usher's benchmarks: the bars it holds itself to
///
/// Each run saves what it measured as JSON in a dated folder, with the machine
/// described, and a page made from it.
#[derive(Debug, Parser)]
#[command(name = "usher-bench", bin_name = "usher bench", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Here(here::HereArgs),
    /// Seating: planning, overhead, latency, lending, kills, real mixes
    Seats(Box<seats::SeatsArgs>),
    Hosts(Box<hosts::HostsArgs>),
    /// Progress sources against wall time (paper 1, table 1)
    Progress(progress::ProgressArgs),
    /// The simulator: fidelity, the 210 mixes, speed, ranges, fuzzing
    Sim(sim::SimArgs),
    /// The chip of paper 5, simulated: its Tables 2 and 3 and its Figure 4
    Chip(chip::ChipArgs),
    /// Background work: what the foreground feels of it (paper 2)
    Background(Box<background::BackgroundArgs>),
    /// The thresholds of contention of this machine (paper 2, figure 1)
    Calibrate(background::CalibrateArgs),
    /// The task runtime against five others: cost, grain, order, memory
    Tasks(Box<tasks::TasksArgs>),
    Coloring(coloring::ColoringArgs),
    Sched(sched::SchedArgs),
    /// Makes the page of a saved result again
    Format {
        /// The saved result.json
        result: PathBuf,
    },
    /// A program that computes and sleeps in turns, for the other commands
    #[command(hide = true)]
    Worker(worker::WorkerArgs),
    /// A program of the generated mixes of `here`
    #[command(name = here::PROGRAM, hide = true)]
    HereProgram(here::ProgramArgs),
    /// Chains of short-lived threads or processes, for `hosts`
    #[command(name = hosts::CHAINS, hide = true)]
    HostsChains(hosts::ChainsArgs),
    /// One kind of these chains
    #[command(name = hosts::KIND, hide = true)]
    HostsChurnKind(hosts::KindArgs),
    /// Load generators of `background`
    #[command(hide = true)]
    Load(background::load::LoadArgs),
    /// A runtime in Rust, or none, running the workload of `tasks`
    #[command(name = tasks::INSIDE, hide = true)]
    TasksInside(tasks::InsideArgs),
    /// The other process of `sched`
    #[command(name = sched::PARTNER, hide = true)]
    SwitchPartner(sched::PartnerArgs),
    /// What `sched` runs in guests
    #[command(name = sched::INSIDE, hide = true)]
    SchedInside(sched::InsideArgs),
    /// A program that computes there
    #[command(name = sched::WORKER, hide = true)]
    SchedWorker(sched::WorkerArgs),
    /// A run of `coloring`, for valgrind
    #[command(hide = true)]
    ColoringRun(coloring::RunArgs),
}

/// Runs the command; 0 when every bar was met, 1 when not, 125 when the
/// benchmark could not be run.
pub fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("usher bench: {error:#}");
            ExitCode::from(125)
        }
    }
}

fn run(command: Command) -> Result<bool> {
    match command {
        Command::Here(args) => here::run(&args),
        Command::HereProgram(args) => here::run_program(&args).map(|()| true),
        Command::Seats(args) => seats::run(&args),
        Command::Hosts(args) => hosts::run(&args),
        Command::HostsChains(args) => hosts::run_chains(&args).map(|()| true),
        Command::HostsChurnKind(args) => hosts::run_kind(&args).map(|()| true),
        Command::Progress(args) => progress::run(&args),
        Command::Sim(args) => sim::run(&args),
        Command::Chip(args) => chip::run(&args),
        Command::Background(args) => background::run(&args),
        Command::Calibrate(args) => background::calibrate(&args),
        Command::Coloring(args) => coloring::run(&args),
        Command::Format { result } => {
            println!("{}", machine::format_saved(&result)?.display());
            Ok(true)
        }
        Command::Worker(args) => worker::run(&args).map(|()| true),
        Command::Load(args) => background::load::run(&args).map(|()| true),
        Command::Tasks(args) => tasks::run(&args),
        Command::TasksInside(args) => tasks::run_inside(&args).map(|()| true),
        Command::Sched(args) => sched::run(&args),
        Command::SwitchPartner(args) => sched::partner(&args).map(|()| true),
        Command::SchedInside(args) => sched::run_inside(&args).map(|()| true),
        Command::SchedWorker(args) => sched::work(&args).map(|()| true),
        Command::ColoringRun(args) => coloring::run_one(&args).map(|()| true),
    }
}
