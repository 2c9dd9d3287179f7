// SPDX-License-Identifier: GPL-2.0-only
//! `usher attach`: takes a running program in.

use serde_json::json;

use crate::api::Program_mode;
use crate::cli::Global;
use crate::client::Daemon;
use crate::failure::{self, Outcome};
use crate::output::{Output, shown};

/// Takes running programs into managed seats
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The daemon seats the process with all its threads and children, now and later.
Only the owner of a process and root may have it managed. It goes on where it
was when it is detached, or when the daemon ends.

Examples:
  usher attach 4711
  usher attach $(pidof ffmpeg)
  usher attach --name nightly --weight 0.5 4711   counts half in the mean")]
pub struct Args {
    /// Numbers of running processes
    #[arg(required = true, value_name = "PID")]
    pids: Vec<i32>,
    /// What to call it; else its command's name
    #[arg(long, value_parser = crate::cli::program_name)]
    name: Option<String>,
    /// How much its turnaround counts in the mean; 1 unless told
    #[arg(long, value_parser = super::run::weight)]
    weight: Option<f64>,
}

/// Attaches one after the other; one that is refused does not keep the others
/// from being attached.
pub fn run(args: &Args, global: &Global, out: Output) -> Outcome {
    let mut daemon = Daemon::need(global.runtime_dir.as_deref())?;
    let attached = args
        .pids
        .iter()
        .map(|&pid| args.attach(pid, &mut daemon, out));
    failure::of_parts(attached)
}

impl Args {
    fn attach(&self, pid: i32, daemon: &mut Daemon, out: Output) -> anyhow::Result<()> {
        let reply = daemon.attach(pid, self.name.clone(), self.weight, None)?;
        let state = daemon.status()?;
        let known = state.programs.iter().find(|p| p.id == reply.id);
        let name = known.map_or("the program", |p| &p.name);
        // A seat on every CPU is none that it has to be moved to.
        let seat = known.filter(|p| matches!(p.mode, Program_mode::seated));
        let cpus = match reply.cpus.is_empty() {
            true => seat.map_or("", |p| &p.cpus),
            false => &reply.cpus,
        };
        let value = json!({ "pid": pid, "id": reply.id, "name": name, "cpus": cpus });
        out.answer(&value, || {
            let place = match cpus.is_empty() {
                true => "runs wherever it may".to_owned(),
                false => format!("sits on CPUs {cpus}"),
            };
            format!(
                "{} (process {pid}) is program {} and {place}",
                shown(name),
                reply.id
            )
        })
    }
}
