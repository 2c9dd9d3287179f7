// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command line of `usher-bench`: one subcommand per benchmark, and hidden subcommands for
//! programs that benchmarks start. The exit status is 0 if every bar was met, 1 if not, 125 if the
//! benchmark could not run.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::{
    background, chip, coloring, first, here, hosts, machine, media, progress, sched, seats, sim,
    tasks, worker,
};

/// Runs Usher's benchmarks and compares the results with their limits (bars)
///
/// Each run saves its results and a description of the machine as JSON in a dated directory,
/// together with a report page.
#[derive(Debug, Parser)]
#[command(name = "usher-bench", bin_name = "usher bench", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Here(here::HereArgs),
    /// Measures seats: planning, overhead, latency, lending, kills, mixes of real programs
    Seats(Box<seats::SeatsArgs>),
    /// Measures what a new user meets first: the automatic start of a daemon, measurements
    /// on a busy machine, and the examples of `examples/`
    First(Box<first::FirstArgs>),
    Hosts(Box<hosts::HostsArgs>),
    /// Measures how well each source of progress (heartbeats, instructions) agrees with wall time
    /// (paper 1, table 1)
    Progress(progress::ProgressArgs),
    /// Runs the simulator: accuracy, all 210 mixes, speed, ranges of parameters, fuzzing
    Sim(sim::SimArgs),
    /// Simulates the chip of paper 5: Tables 2 and 3 and Figure 4
    Chip(chip::ChipArgs),
    /// Measures how much background work slows the foreground down (paper 2)
    Background(Box<background::BackgroundArgs>),
    /// Measures the thresholds of contention of this machine (paper 2, figure 1)
    Calibrate(background::CalibrateArgs),
    /// Compares the task runtime with five others: cost, task length, order, memory
    Tasks(Box<tasks::TasksArgs>),
    Coloring(coloring::ColoringArgs),
    Media(media::MediaArgs),
    Sched(sched::SchedArgs),
    /// Writes the report page of a saved result
    Format {
        /// Saved result.json
        result: PathBuf,
    },
    /// Computes and sleeps alternately, for the other commands
    #[command(hide = true)]
    Worker(worker::WorkerArgs),
    /// Runs a program of the generated mixes of `here`
    #[command(name = here::PROGRAM, hide = true)]
    HereProgram(here::ProgramArgs),
    /// Runs chains of short-lived threads or processes, for `hosts`
    #[command(name = hosts::CHAINS, hide = true)]
    HostsChains(hosts::ChainsArgs),
    /// Measures one kind of these chains
    #[command(name = hosts::KIND, hide = true)]
    HostsChurnKind(hosts::KindArgs),
    /// Runs a load generator of `background`
    #[command(hide = true)]
    Load(background::load::LoadArgs),
    /// Runs the workload of `tasks` on a runtime in Rust, or without a runtime
    #[command(name = tasks::INSIDE, hide = true)]
    TasksInside(tasks::InsideArgs),
    /// Runs the partner process of the part `switches` of `sched`
    #[command(name = sched::PARTNER, hide = true)]
    SwitchPartner(sched::PartnerArgs),
    /// Runs the measurements of `sched` in a guest
    #[command(name = sched::INSIDE, hide = true)]
    SchedInside(sched::InsideArgs),
    /// Runs a small sched_ext scheduler in a guest of `sched`
    #[command(name = sched::BASELINE, hide = true)]
    SchedBaseline(sched::BaselineArgs),
    /// Computes in a guest of `sched`
    #[command(name = sched::WORKER, hide = true)]
    SchedWorker(sched::WorkerArgs),
    /// Runs a program of the loads in a guest of `sched`
    #[command(name = sched::LOAD, hide = true)]
    SchedLoad(sched::LoadArgs),
    /// Runs a load of `coloring` once, under valgrind
    #[command(hide = true)]
    ColoringRun(coloring::RunArgs),
}

/// Runs the command. Returns the exit status: 0 if every bar was met, 1 if a bar was missed, 125 if
/// the benchmark could not run.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refuse(&error),
    };
    match run(cli.command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("usher bench: {error:#}");
            ExitCode::from(125)
        }
    }
}

/// Prints help, or an error in the arguments. Help that cannot be written is an error too, unless
/// the reader has closed the pipe.
fn refuse(error: &clap::Error) -> ExitCode {
    let printed = error.print().and_then(|()| io::stdout().flush());
    match printed {
        _ if error.use_stderr() => ExitCode::from(125),
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            eprintln!("usher bench: writing to standard output: {error}");
            ExitCode::from(125)
        }
        _ => ExitCode::SUCCESS,
    }
}

fn run(command: Command) -> Result<bool> {
    match command {
        Command::Here(args) => here::run(&args),
        Command::HereProgram(args) => here::run_program(&args).map(|()| true),
        Command::Seats(args) => seats::run(&args),
        Command::First(args) => first::run(&args),
        Command::Hosts(args) => hosts::run(&args),
        Command::HostsChains(args) => hosts::run_chains(&args).map(|()| true),
        Command::HostsChurnKind(args) => hosts::run_kind(&args).map(|()| true),
        Command::Progress(args) => progress::run(&args),
        Command::Sim(args) => sim::run(&args),
        Command::Chip(args) => chip::run(&args),
        Command::Background(args) => background::run(&args),
        Command::Calibrate(args) => background::calibrate(&args),
        Command::Coloring(args) => coloring::run(&args),
        Command::Media(args) => media::run(&args),
        Command::Format { result } => {
            machine::print_line(machine::format_saved(&result)?.display()).map(|()| true)
        }
        Command::Worker(args) => worker::run(&args).map(|()| true),
        Command::Load(args) => background::load::run(&args).map(|()| true),
        Command::Tasks(args) => tasks::run(&args),
        Command::TasksInside(args) => tasks::run_inside(&args).map(|()| true),
        Command::Sched(args) => sched::run(&args),
        Command::SwitchPartner(args) => sched::partner(&args).map(|()| true),
        Command::SchedInside(args) => sched::run_inside(&args).map(|()| true),
        Command::SchedBaseline(args) => sched::run_baseline(&args).map(|()| true),
        Command::SchedWorker(args) => sched::work(&args).map(|()| true),
        Command::SchedLoad(args) => sched::run_load(&args).map(|()| true),
        Command::ColoringRun(args) => coloring::run_one(&args).map(|()| true),
    }
}
