// SPDX-License-Identifier: GPL-2.0-only
//! `usher detach`: lets a program go.

use anyhow::Context;
use serde_json::json;

use crate::api;
use crate::cli::Global;
use crate::client::Daemon;
use crate::failure::{self, Outcome};
use crate::output::{Output, shown};

/// Lets managed programs go; they run on, wherever the kernel likes
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  usher detach 4711          by process: any process of the program
  usher detach x264          by name: every program of that name
  usher detach --id 3        by the number that `usher status` shows")]
pub struct Args {
    /// Processes or names of managed programs
    #[arg(value_name = "PID|NAME", required_unless_present = "ids")]
    programs: Vec<String>,
    /// The program's number, as `usher status` shows it
    #[arg(long = "id", value_name = "ID")]
    ids: Vec<i64>,
}

/// Detaches all that are meant.
pub fn run(args: &Args, global: &Global, out: Output) -> Outcome {
    let mut daemon = Daemon::need(global.runtime_dir.as_deref())?;
    let state = daemon.status()?;
    let mut ids = args.ids.clone();
    for wanted in &args.programs {
        let mut found: Vec<i64> = matching(&state.programs, wanted).collect();
        if let (true, Ok(pid)) = (found.is_empty(), wanted.parse()) {
            found.extend(daemon.find_program(pid)?);
        }
        let known = (!found.is_empty()).then_some(found);
        ids.extend(known.with_context(|| {
            format!(
                "no managed program has the process or name '{wanted}'; 'usher status' lists them"
            )
        })?);
    }
    // A program may be named twice.
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
    let told = out.answer(&json!({ "detached": gone }), lines);
    failure::of_parts(refused.into_iter().chain([told]))
}

/// What was let go, in a line.
fn line(programs: &[api::Program], id: i64) -> String {
    match programs.iter().find(|p| p.id == id) {
        Some(p) => format!(
            "{} (program {id}, process {}) is let go\n",
            shown(&p.name),
            p.pid
        ),
        None => format!("program {id} is let go\n"),
    }
}

fn matching<'a>(programs: &'a [api::Program], wanted: &'a str) -> impl Iterator<Item = i64> + 'a {
    let pid = wanted.parse::<i64>().ok();
    let means = move |p: &&api::Program| Some(p.pid) == pid || p.name == wanted;
    programs.iter().filter(means).map(|p| p.id)
}
