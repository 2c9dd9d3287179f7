// SPDX-License-Identifier: GPL-2.0-only
//! `usher detach`: ends the management of programs, which keep running with their former affinity.
//!
//! 1. Programs are given by name, number or pid (`crate::cli::target`); a name selects every program
//!    of that name.
//! 2. If an argument selects no program, the command fails before it releases any program.
//! 3. Each selected program is released by one call. If the daemon refuses to release a program,
//!    the command still releases the other programs. The exit status is then 125.
//!
//! Requires a daemon. The command searches the programs of all daemons that listen; a word that
//! selects programs of several daemons is an error. Each call has the time limit of `client`, 10 s
//! for each read and write.

use crate::answers::{DetachAnswer, DetachedProgram};
use crate::cli::options::Global;
use crate::cli::target::{self, Selection, Target};
use crate::client::Daemons;
use crate::failure::{self, Outcome};
use crate::output::{Output, shown};

/// Releases managed programs; they keep running, with their former affinity
#[derive(Debug, clap::Args)]
#[command(after_help = format!("\
{}

Examples:
  usher detach 4711          the program to which process 4711 belongs
  usher detach x264          every program named x264
  usher detach 3             the program with number 3 in `usher status`", target::HELP))]
pub struct Args {
    /// Names, numbers or pids of managed programs
    #[arg(
        required = true,
        value_name = "PROGRAM",
        value_parser = Target::parser(),
        allow_negative_numbers = true
    )]
    programs: Vec<Target>,
}

/// Detaches all given programs.
pub fn run(args: &Args, global: &Global, out: Output) -> Outcome {
    let daemons = Daemons::query_all(global.runtime_dir.as_deref())?;
    let found = target::find_all(&args.programs, daemons.answered)?;
    let (mut detached, mut refused) = (Vec::new(), Vec::new());
    for Selection {
        mut daemon,
        programs,
    } in found
    {
        for program in programs {
            match daemon.detach(program.id) {
                Ok(()) => detached.push(DetachedProgram {
                    id: program.id,
                    name: program.name,
                    pid: program.pid,
                    runtime_dir: daemon.dir().to_owned(),
                }),
                Err(error) => refused.push(Err(error)),
            }
        }
    }
    let answer = DetachAnswer { detached };
    let printed = out.answer(&answer, || answer.detached.iter().map(line).collect());
    failure::combine(refused.into_iter().chain([printed]))
}

/// Returns the report of a released program, in one line.
fn line(program: &DetachedProgram) -> String {
    format!(
        "{} (program {}, process {}) is no longer managed\n",
        shown(&program.name),
        program.id,
        program.pid
    )
}
