// SPDX-License-Identifier: GPL-2.0-only
//! `usher detach`: ends the management of programs, which keep running with their former affinity.
//!
//! 1. Programs are given by pid, name or (`--id`) the number in `usher status`; a name selects
//!    every program of that name. For a pid that is not the first process of a program, the daemon
//!    finds the program that contains the process.
//! 2. If an argument selects no program, the command fails before it releases any program.
//! 3. Each selected program is released by one call. If the daemon refuses to release a program,
//!    the command still releases the other programs. The exit status is then 125.
//!
//! Requires a daemon. Each call has the time limit of `client`, 10 s for each read and write.

use std::ffi::OsString;

use anyhow::Context;
use serde_json::json;

use crate::api;
use crate::cli::options::Global;
use crate::client::Daemon;
use crate::failure::{self, Outcome};
use crate::output::{self, Output, shown};

/// Releases managed programs; they keep running, with their former affinity
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  usher detach 4711          the program to which process 4711 belongs
  usher detach x264          every program named x264
  usher detach --id 3        the program with number 3 in `usher status`")]
pub struct Args {
    /// Pids or names of managed programs
    #[arg(value_name = "PID|NAME", required_unless_present = "ids")]
    programs: Vec<OsString>,
    /// Release the program with this number in `usher status`; may be repeated
    #[arg(
        long = "id",
        value_name = "ID",
        value_parser = crate::cli::numbers::whole::<i64>(1..=i64::MAX),
        allow_negative_numbers = true
    )]
    ids: Vec<i64>,
}

/// Detaches all given programs.
pub fn run(args: &Args, global: &Global, out: Output) -> Outcome {
    let mut daemon = Daemon::need(global.runtime_dir.as_deref())?;
    let state = daemon.status()?;
    let mut ids = args.ids.clone();
    for wanted in &args.programs {
        // The daemon replaces bytes of names that are not UTF-8 in the same way.
        let wanted = wanted.to_string_lossy();
        let mut found = matching(&state.programs, &wanted);
        if let (true, Ok(pid)) = (found.is_empty(), wanted.parse()) {
            found.extend(daemon.find_program(pid)?);
        }
        let known = (!found.is_empty()).then_some(found);
        ids.extend(known.with_context(|| {
            format!(
                "no managed program has the pid or name '{wanted}': 'usher status' lists the \
                 managed programs"
            )
        })?);
    }
    // The arguments may name a program twice.
    ids.sort_unstable();
    ids.dedup();
    let (mut gone, mut refused) = (Vec::new(), Vec::new());
    for id in ids {
        match daemon.detach(id) {
            Ok(()) => gone.push(id),
            Err(error) => refused.push(Err(error)),
        }
    }
    let lines = || gone.iter().map(|&id| line(&state.programs, id)).collect();
    let printed = out.answer(&json!({ "detached": gone }), lines);
    failure::combine(refused.into_iter().chain([printed]))
}

/// Returns the report of a released program, in one line.
fn line(programs: &[api::Program], id: i64) -> String {
    match programs.iter().find(|p| p.id == id) {
        Some(p) => format!(
            "{} (program {id}, process {}) is no longer managed\n",
            shown(&p.name),
            p.pid
        ),
        None => format!("program {id} is no longer managed\n"),
    }
}

/// Returns the numbers of the programs with this pid, or else with this name.
fn matching(programs: &[api::Program], wanted: &str) -> Vec<i64> {
    let pid = wanted.parse::<i64>().ok();
    let by_pid = programs.iter().filter(|p| Some(p.pid) == pid);
    let by_name = output::named(programs, |p| &p.name, wanted);
    let mut found: Vec<i64> = by_pid.chain(by_name).map(|p| p.id).collect();
    found.sort_unstable();
    found.dedup();
    found
}
