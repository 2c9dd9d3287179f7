// SPDX-License-Identifier: GPL-2.0-only
//! `usher top`: draws the machine with the seats of all programs, and the output of `usher status`
//! below, until Ctrl-C.
//!
//! 1. Request the daemon's state, with the time limit of `client`, 10 s for each read and write.
//! 2. Draw the picture on the terminal's alternate screen.
//! 3. Sleep for the interval, 1 s by default, in parts of at most 0.25 s, and repeat until SIGINT
//!    or SIGTERM.
//!
//! The interval begins after the drawing. If the daemon ends or does not answer, the command
//! restores the screen and fails. Without a terminal, or with `--json`, the state is printed once.
//! The topology is read once at the start.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use signal_hook::consts::{SIGINT, SIGTERM};
use usher_model::{CpuSet, Topology};

use crate::api::{Program_mode, State};
use crate::cli::options::Global;
use crate::client::Daemon;
use crate::failure::Outcome;
use crate::machine;
use crate::output::{Output, shown};

/// Shows the CPUs and the progress of each program, live, until Ctrl-C
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The picture shows the CPUs of the machine; the letter on a CPU identifies the program whose
seat contains that CPU. Below the picture, `usher top` prints the output of `usher status`.
If standard output is not a terminal, the picture and the table are printed once.

Examples:
  usher top
  usher top --interval 0.2")]
pub struct Args {
    /// Update the picture every SECONDS seconds
    #[arg(long, value_name = "SECONDS", default_value = "1", allow_negative_numbers = true, value_parser = crate::cli::numbers::seconds)]
    interval: f64,
}

/// Control sequences that are written before the first picture, between pictures, and after the
/// last picture.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const HOME: &str = "\x1b[H\x1b[2J";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// Draws repeatedly.
pub fn run(args: &Args, global: &Global, out: Output) -> Outcome {
    let mut daemon = Daemon::need(global.runtime_dir.as_deref())?;
    let topology = machine::usable_machine()?;
    if out.json || !out.is_terminal() {
        let state = daemon.status()?;
        out.answer(&state, || picture(&state, &topology, out))?;
        return Ok(0);
    }
    let end = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, end.clone()).context("catching signals")?;
    }
    out.control(ENTER)?;
    let outcome = watch(&mut daemon, &topology, args.interval, &end, out);
    out.control(LEAVE)?;
    outcome?;
    Ok(0)
}

fn watch(
    daemon: &mut Daemon,
    topology: &Topology,
    interval: f64,
    end: &AtomicBool,
    out: Output,
) -> anyhow::Result<()> {
    while !end.load(Ordering::Relaxed) {
        let state = daemon.status()?;
        let picture = picture(&state, topology, out);
        out.control(HOME)?;
        out.text(&picture)?;
        // On some platforms, a signal does not end a sleep early. The sleep is therefore divided
        // into quarters of a second, after which Ctrl-C takes effect.
        let mut left = interval;
        while left > 0.0 && !end.load(Ordering::Relaxed) {
            let nap = left.min(0.25);
            std::thread::sleep(Duration::from_secs_f64(nap));
            left -= nap;
        }
    }
    Ok(())
}

fn picture(state: &State, topology: &Topology, out: Output) -> String {
    let mut drawing = super::topo::drawing(out);
    for program in &state.programs {
        let seated = matches!(program.mode, Program_mode::seated);
        let cpus = program.cpus.parse::<CpuSet>().unwrap_or_default();
        for cpu in cpus.iter().filter(|_| seated) {
            drawing.seats.insert(cpu, shown(&program.name));
        }
    }
    let machine = usher_topology::draw(topology, &drawing);
    format!(
        "{}\n{}",
        machine.trim_end(),
        super::status::text(state, out)
    )
}
