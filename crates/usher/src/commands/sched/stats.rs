// SPDX-License-Identifier: GPL-2.0-only
//! `usher sched stats`.

use std::path::Path;
use std::process::Command;

use anyhow::Context;
use serde::Serialize;
use usher_scx::{Counted, Counter, Held, Seat, State, Tally};
use usher_topology::Source;

use crate::failure::Outcome;
use crate::output::{self, Output};

use super::record;

/// Counts what the scheduler that runs does, ours or any other
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Without a command: what ours has done since it began. With one: what happens on the
machine while the command runs, under whichever scheduler runs; its exit status is
passed on.

Examples:
  usher sched stats
  usher sched stats -- sleep 10
  usher sched stats --json -- make -j8")]
pub struct Args {
    /// The command to run meanwhile
    #[arg(last = true, value_name = "CMD")]
    command: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Answer {
    scheduler: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    counted: Option<Counted>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ours: Option<Tally>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    seats: Vec<Seat>,
}

/// Counts and tells.
pub fn run(args: &Args, dir: &Path, out: Output) -> Outcome {
    let ours = record::read(dir)?.filter(|(_, lives)| *lives);
    let scheduler = match super::kernel().state() {
        Ok(State::Enabled { name }) => Some(name),
        _ => None,
    };
    let mut status = 0;
    let mut counted = None;
    if args.command.is_empty() {
        anyhow::ensure!(
            ours.is_some(),
            "no scheduler of Usher's runs; 'usher sched stats -- CMD' counts under any"
        );
    } else {
        let (code, counts) = count(&args.command)?;
        (status, counted) = (code, Some(counts));
    }
    let held = ours
        .map(|(record, _)| Held::open(&record.maps))
        .transpose()?;
    let tally = held.as_ref().map(Held::tally).transpose()?;
    let seats = held.as_ref().map(Held::seats).transpose()?;
    let answer = Answer {
        scheduler,
        counted,
        ours: tally,
        seats: seats.unwrap_or_default(),
    };
    out.answer(&answer, || text(&answer))?;
    Ok(status)
}

fn count(command: &[String]) -> anyhow::Result<(u8, Counted)> {
    let machine = usher_topology::load(Source::ThisMachine)?;
    let counter = Counter::start(&machine)?;
    let (program, args) = command.split_first().context("a command is due")?;
    let before = counter.read()?;
    let status = Command::new(program).args(args).status();
    let counted = counter.read()?.since(&before);
    let status = status.with_context(|| format!("running '{program}'"))?;
    let code = std::os::unix::process::ExitStatusExt::signal(&status)
        .map_or(status.code().unwrap_or(0), |signal| 128 + signal);
    Ok((u8::try_from(code).unwrap_or(1), counted))
}

fn ms(ns: u64) -> String {
    format!("{:.1} ms", ns as f64 / 1e6)
}

fn text(answer: &Answer) -> String {
    let name = answer.scheduler.as_deref().unwrap_or("the kernel's own");
    let mut rows = vec![vec!["scheduler".to_owned(), name.to_owned()]];
    let mut row = |name: &str, value: String| rows.push(vec![name.to_owned(), value]);
    if let Some(counted) = &answer.counted {
        row("context switches", counted.switches.to_string());
        row("address-space switches", counted.space_switches.to_string());
        row("two on a core", ms(counted.shared_ns));
        row("  while a core was idle", ms(counted.needless_ns));
        row(
            "migrations within a core",
            counted.migrations_core.to_string(),
        );
        row("  within an LLC", counted.migrations_llc.to_string());
        row("  within a NUMA node", counted.migrations_node.to_string());
        row("  farther", counted.migrations_far.to_string());
        for (share, name) in [(0.5, "half of wake-ups within"), (0.99, "99 % within")] {
            let below = counted.latency_below_ns(share);
            row(name, below.map_or("-".to_owned(), ms));
        }
    }
    if let Some(tally) = &answer.ours {
        row("ours: switches", tally.switches.to_string());
        row("  of address spaces", tally.space_switches.to_string());
        row("  to idle cores", tally.idle_cores.to_string());
        row(
            "  to idle CPUs of working cores",
            tally.idle_threads.to_string(),
        );
        row("  waited in a queue", tally.queued.to_string());
        row("  waited among urgent ones", tally.soon.to_string());
        row("  preempted by urgent ones", tally.preempted.to_string());
        row(
            "  slices prolonged, nobody waiting",
            tally.prolonged.to_string(),
        );
        row("  slices prolonged in a turn", tally.turns_kept.to_string());
        row(
            "  moved to an idle core while running",
            tally.moved.to_string(),
        );
        row("  taken from another LLC", tally.stolen.to_string());
        row("  guests of idle cores", tally.borrowed.to_string());
        row("  CPUs that guests gave back", tally.returned.to_string());
    }
    for seat in &answer.seats {
        let tally = &seat.tally;
        row("seat", format!("{} on {}", seat.name, seat.cpus));
        row("  at home", ms(tally.home_ns));
        row("  as a guest", ms(tally.guest_ns));
        row("  CPUs had back", tally.returns.to_string());
        if let Some(ns) = tally.return_below_ns(0.99) {
            row("    99 % of them within", ms(ns));
        }
    }
    output::columns(&rows)
}
