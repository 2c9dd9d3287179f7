// SPDX-License-Identifier: GPL-2.0-only
//! `usher detach`: lets a program go.

use anyhow::Context;
use serde_json::json;

use crate::api;
use crate::cli::Global;
use crate::client::Daemon;
use crate::failure::Outcome;
use crate::output::Output;

/// Lets managed programs go; they run on, wherever the kernel likes
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  usher detach 4711          by process
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
        let found: Vec<i64> = matching(&state.programs, wanted).collect();
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
    for &id in &ids {
        daemon.detach(id)?;
    }
    out.answer(&json!({ "detached": ids }), String::new)?;
    Ok(0)
}

fn matching<'a>(programs: &'a [api::Program], wanted: &'a str) -> impl Iterator<Item = i64> + 'a {
    let pid = wanted.parse::<i64>().ok();
    let means = move |p: &&api::Program| Some(p.pid) == pid || p.name == wanted;
    programs.iter().filter(means).map(|p| p.id)
}
