// SPDX-License-Identifier: GPL-2.0-only
//! `usher sched start`.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use serde_json::json;
use usher_scx::Settings;

use crate::failure::{self, Outcome};
use crate::output::Output;

use super::Switch;

/// Starts the scheduler, held by a process of its own
#[derive(Debug, clap::Args)]
#[command(after_help = "\
What it does is in docs/sched.md. With --foreground it ends with this command (Ctrl-C).

Examples:
  usher sched start
  usher sched start --smt off --turn-ms 50
  usher sched start --fifo --foreground
  usher sched start --o1 aggregate")]
pub struct Args {
    /// Idle physical cores first, no two threads on a core beside an idle one
    #[arg(long, value_enum, value_name = "ON|OFF", default_value_t = Switch::On)]
    smt: Switch,
    /// Threads of one address space one after another, in bounded turns
    #[arg(long, value_enum, value_name = "ON|OFF", default_value_t = Switch::On)]
    aggregate: Switch,
    /// How long a turn lasts at most, and how far ahead of others it may get
    #[arg(long, value_name = "MS", default_value_t = 24, value_parser = clap::value_parser!(u64).range(1..=1000))]
    turn_ms: u64,
    /// None of that: first come, first served, blind to SMT; to compare with
    #[arg(long, conflicts_with_all = ["smt", "aggregate", "turn_ms"])]
    fifo: bool,
    /// The order of Linux 2.6's O(1) scheduler instead, blind to SMT; to compare with
    #[arg(long, value_enum, value_name = "PLAIN|AGGREGATE", conflicts_with_all = ["smt", "aggregate", "turn_ms", "fifo"])]
    o1: Option<O1>,
    /// Hold the scheduler in this process, and end it with this one
    #[arg(long)]
    foreground: bool,
    /// Hold it, and say on standard output when it runs
    #[arg(long, hide = true)]
    held: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum O1 {
    /// As it was
    Plain,
    /// Threads of the address space that runs are a level better
    Aggregate,
}

impl Args {
    fn settings(&self) -> Settings {
        if let Some(o1) = self.o1 {
            return Settings::of_linux_26(o1 == O1::Aggregate);
        }
        let lead_ns = self.turn_ms * 1_000_000;
        Settings {
            smt: self.smt == Switch::On && !self.fifo,
            aggregate: self.aggregate == Switch::On && !self.fifo,
            fifo: self.fifo,
            turn_ns: lead_ns,
            lead_ns,
            ..Settings::default()
        }
    }
}

/// What the holder says when the scheduler runs.
const READY: &str = "ready";

/// Starts it.
pub fn run(args: &Args, dir: &Path, out: Output) -> Outcome {
    let settings = args.settings();
    if args.held {
        return hold_for_another(dir, &settings);
    }
    let told = || {
        let does = super::described(&settings);
        let text = || format!("the scheduler runs: {does}\n");
        out.answer(&json!({ "scheduler": "usher", "does": does }), text)
    };
    if args.foreground {
        super::hold::hold(dir, &settings, told)?;
        return Ok(0);
    }
    super::kernel().ready()?;
    let mut holder = Command::new(std::env::current_exe().context("finding this program")?);
    holder.args(std::env::args_os().skip(1)).arg("--held");
    holder.stdin(Stdio::null()).stdout(Stdio::piped());
    holder.stderr(Stdio::inherit()).process_group(0);
    let mut holder = holder.spawn().context("starting the scheduler's process")?;
    let mut line = String::new();
    if let Some(says) = holder.stdout.take() {
        BufReader::new(says).read_line(&mut line)?;
    }
    if line.trim() == READY {
        told()?;
        return Ok(0);
    }
    // It has said why, on our standard error.
    let status = holder
        .wait()
        .context("waiting for the scheduler's process")?;
    match status.code() {
        Some(code) => Ok(u8::try_from(code).unwrap_or(failure::OWN)),
        None => bail!("the scheduler's process was ended ({status})"),
    }
}

/// In the process that `usher sched start` leaves behind: it speaks to nobody's
/// terminal once the scheduler runs.
fn hold_for_another(dir: &Path, settings: &Settings) -> Outcome {
    rustix::process::setsid().ok();
    super::hold::hold(dir, settings, || {
        let mut says = std::io::stdout();
        writeln!(says, "{READY}").and_then(|()| says.flush())?;
        let mut null = OpenOptions::new();
        let null = null.read(true).write(true).open("/dev/null");
        let null = null.context("opening /dev/null")?;
        rustix::stdio::dup2_stdout(&null)?;
        rustix::stdio::dup2_stderr(&null)?;
        Ok(())
    })?;
    Ok(0)
}
