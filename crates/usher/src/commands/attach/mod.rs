// SPDX-License-Identifier: GPL-2.0-only
//! `usher attach`: the daemon starts to manage running processes, each with its descendants as one
//! program.
//!
//! 1. For each pid, in the given order and each pid once, find a daemon, or start one. If several
//!    daemons listen, check that none of them manages the process.
//! 2. Send an `Attach` call and a `Status` call. The second call provides the name and the seat for
//!    the output.
//!    With `--match`, the processes are those that match a pattern (`matching`).
//! 3. If the daemon refuses a pid, the command still attaches the other pids. The exit status is
//!    then 125.
//!
//! Each call has the time limit of `client`, 10 s for each read and write.

mod matching;

use std::collections::BTreeSet;
use std::path::Path;

use usher_model::CpuSet;
use usher_report::text as words;

use crate::answers::{AttachAnswer, AttachedProgram, Candidate};
use crate::api::Program_mode;
use crate::autostart::{self, DaemonOptions};
use crate::cli::options::{self, Global};
use crate::client::{self, AttachOptions, WaitLimits};
use crate::failure::{self, Outcome};
use crate::output::{Output, shown};

/// Puts running programs under the management of the daemon
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The daemon assigns CPUs (a seat) to the process, all its threads and its children, present
and future. If no daemon listens, this command starts one. Only the owner of a process and
root may attach the process. When the process is detached, or when the daemon ends, the
process keeps running with its former affinity.

--match compares PATTERN with the file name of the executable, and with the whole command line:
'*' matches any characters, '?' one character. It attaches your own processes (as root: those of
all users), but never init, session managers, login shells and processes of Usher; a process whose
ancestor matches belongs to the program of the ancestor. More than 64 programs are refused.

Examples:
  usher attach 4711
  usher attach --match ffmpeg              all programs with this executable
  usher attach --match '*train.py*' --dry-run     lists what would be attached
  usher attach --name nightly --weight 0.5 4711   its turnaround time counts half in the mean
  usher attach --bounds 0-15 --group 17.0 --job 17.0 4711 4712   two tasks of a job as one program")]
pub struct Args {
    /// Pids of running processes
    #[arg(
        required_unless_present = "pattern",
        value_name = "PID",
        value_parser = crate::cli::target::process,
        allow_negative_numbers = true
    )]
    pids: Vec<i32>,
    /// Attach the processes whose executable or command line matches PATTERN
    #[arg(long = "match", value_name = "PATTERN", conflicts_with = "pids")]
    pattern: Option<String>,
    /// List the processes that would be attached instead of attaching them
    #[arg(long)]
    dry_run: bool,
    /// Use this name for the program in reports and profiles; by default, the name of its command
    #[arg(long, value_parser = crate::cli::options::program_name)]
    name: Option<String>,
    /// Give the program's turnaround time this weight in the mean that Usher minimises, from 0.001
    /// to 1000; by default, 1
    #[arg(long, value_parser = crate::cli::numbers::weight, allow_negative_numbers = true)]
    weight: Option<f64>,
    /// Restrict the seats of the program to CPUS, a list such as 0-3,8; all must be online
    #[arg(long, value_name = "CPUS", value_parser = options::cpu_list, allow_hyphen_values = true)]
    bounds: Option<CpuSet>,
    /// Make the process a part of the program with this group, if one of the same user is managed,
    /// for the tasks of a parallel job
    #[arg(long, value_name = "NAME", value_parser = options::job_name)]
    group: Option<String>,
    /// Show the program as a part of this job of a batch system
    #[arg(long, value_name = "ID", value_parser = options::job_name)]
    job: Option<String>,
}

/// Attaches the processes one after another. A refused process does not prevent the attachment of
/// the other processes.
pub fn run(args: &Args, global: &Global, out: Output) -> Outcome {
    let dir = global.runtime_dir.as_deref();
    let pids = match &args.pattern {
        Some(pattern) => matching::find(pattern, dir)?,
        None => distinct(&args.pids),
    };
    let (mut answer, mut refused) = (AttachAnswer::default(), Vec::new());
    for pid in pids {
        match args.dry_run {
            true => match matching::checked_candidate(pid, dir) {
                Ok(candidate) => answer.would_attach.push(candidate),
                Err(error) => refused.push(Err(error)),
            },
            false => match args.attach(pid, dir) {
                Ok(attached) => answer.attached.push(attached),
                Err(error) => refused.push(Err(error)),
            },
        }
    }
    let printed = out.answer(&answer, || text(&answer));
    failure::combine(refused.into_iter().chain([printed]))
}

/// Returns the pids in the given order, each once.
pub fn distinct(pids: &[i32]) -> Vec<i32> {
    let mut seen = BTreeSet::new();
    pids.iter()
        .copied()
        .filter(|&pid| seen.insert(pid))
        .collect()
}

fn text(answer: &AttachAnswer) -> String {
    let attached = |one: &AttachedProgram| {
        let place = match one.cpus.is_empty() {
            true => "runs on every CPU of its affinity mask".to_owned(),
            false => format!("has a seat on {}", words::cpus(&one.cpus)),
        };
        let name = one.name.as_deref().unwrap_or("the program");
        format!(
            "{} (process {}) is program {} and {place}\n",
            shown(name),
            one.pid,
            one.id
        )
    };
    let candidate = |one: &Candidate| {
        format!(
            "would attach process {}: {}\n",
            one.pid,
            shown(&one.command)
        )
    };
    let candidates = answer.would_attach.iter().map(candidate);
    (answer.attached.iter().map(attached))
        .chain(candidates)
        .collect()
}

impl Args {
    fn options(&self) -> AttachOptions {
        AttachOptions {
            name: self.name.clone(),
            weight: self.weight,
            background: None,
            bounds: self.bounds.clone(),
            group: self.group.clone(),
            job: self.job.clone(),
        }
    }

    fn attach(&self, pid: i32, dir: Option<&Path>) -> anyhow::Result<AttachedProgram> {
        client::check_unmanaged(dir, pid)?;
        let (options, limits) = (DaemonOptions::default(), WaitLimits::default());
        let (mut daemon, reply) = autostart::call(dir, &options, &limits, |daemon| {
            daemon.attach(pid, self.options())
        })?;
        let state = daemon.status()?;
        let known = state.programs.iter().find(|p| p.id == reply.id);
        // The reply has no CPUs if the seat consists of all CPUs, because no thread has to move.
        let seat = known.filter(|p| matches!(p.mode, Program_mode::seated));
        let cpus = match reply.cpus.is_empty() {
            true => seat.map_or("", |p| &p.cpus),
            false => &reply.cpus,
        };
        Ok(AttachedProgram {
            pid,
            id: reply.id,
            name: known.map(|p| p.name.clone()),
            cpus: cpus.to_owned(),
            runtime_dir: daemon.dir().to_owned(),
        })
    }
}
