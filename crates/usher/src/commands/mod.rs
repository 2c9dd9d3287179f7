// SPDX-License-Identifier: GPL-2.0-only
//! The commands of `usher`, one module per command. The function [`run()`] calls the module of the
//! parsed command.

pub mod advise;
pub mod attach;
pub mod bg;
pub mod calibration_worker;
pub mod complete;
pub mod completions;
pub mod daemon;
pub mod detach;
pub mod doctor;
pub mod explain;
pub mod external;
pub mod keeper;
pub mod man;
pub mod mix;
pub mod plan;
pub mod profile;
pub mod replay;
pub mod run;
pub mod sched;
pub mod schema;
pub mod sim;
pub mod slurm;
pub mod status;
pub mod top;
pub mod topo;
pub mod undo;
pub mod wait;

use anyhow::bail;

use crate::cli::{Cli, Command};
use crate::failure::Outcome;
use crate::output::Output;

/// Runs the given command.
pub fn run(cli: Cli, out: &Output) -> Outcome {
    let global = &cli.global;
    if let (true, Some(output)) = (out.json, cli.command.output_without_json()) {
        bail!(
            "--json has no effect on this command, whose standard output is {output}: omit --json"
        );
    }
    match cli.command {
        Command::Run(args) => run::run(&args, global),
        Command::Advise(args) => advise::run(&args, global, *out),
        Command::Bg(args) => bg::run(&args, global, *out),
        Command::Attach(args) => attach::run(&args, global, *out),
        Command::Detach(args) => detach::run(&args, global, *out),
        Command::Wait(args) => wait::run(&args, global, *out),
        Command::Status(args) => status::run(&args, global, *out),
        Command::Top(args) => top::run(&args, global, *out),
        Command::Explain(args) => explain::run(&args, global, *out),
        Command::Topo(args) => topo::run(&args, *out),
        Command::Daemon(args) => daemon::run(&args, global, *out),
        Command::Doctor(args) => doctor::run(&args, global, *out),
        Command::Profile(args) => profile::run(&args, global, *out),
        Command::Mix(args) => mix::run(&args, global, *out),
        Command::Plan(args) => plan::run(&args, *out),
        Command::Sched(args) => sched::run(&args, global, *out),
        Command::Sim(args) => sim::run(&args, *out),
        Command::Slurm(args) => slurm::run(&args, *out),
        Command::Undo(args) => undo::run(&args, global, *out),
        Command::Replay(args) => replay::run(&args, *out),
        Command::Completions(args) => completions::run(&args, *out),
        Command::Schema(args) => schema::run(&args, *out),
        Command::Man(args) => man::run(&args, *out),
        Command::Complete(args) => complete::run(&args, global, *out),
        Command::Keeper(args) => keeper::run(&args),
        Command::CalibrationWorker(args) => calibration_worker::run(&args),
        Command::External(words) => external::run(&words),
    }
}
