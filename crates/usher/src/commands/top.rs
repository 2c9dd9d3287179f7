// SPDX-License-Identifier: GPL-2.0-only
//! `usher top`: a live view of the machine with the seats of all programs, until `q` or Ctrl-C.
//!
//! 1. A thread requests the state of each daemon that listens (the system's, the user's own) at each
//!    interval, 1 s by default, with the time limit of `client`. A daemon that does not answer
//!    therefore does not block the keys.
//! 2. The main thread waits for a key, a signal or a new state, changes the view (`view`) and draws
//!    it (`draw`) on the terminal's alternate screen (`terminal`).
//! 3. `q`, Ctrl-C, SIGINT, SIGTERM, SIGHUP and SIGQUIT end the command; the terminal is restored
//!    then, after an error, and after a panic. Ctrl-Z and SIGTSTP stop it, and SIGCONT continues it.
//!
//! If the last daemon ends, the view states this, and waits up to 3 s for the next daemon, which the
//! keeper starts. If no daemon listens then, or if a daemon does not answer, the command restores the
//! screen and fails.
//! Without a terminal (also with `TERM=dumb`), or with `--json`, the state is printed once. The
//! topology is read once at the start.

mod draw;
mod key_line;
mod keys;
mod live;
mod notes;
mod sort_key;
mod terminal;
pub mod view;

use usher_model::{CpuSet, Topology};

use crate::answers::StatusAnswer;
use crate::api::Program_mode;
use crate::cli::options::Global;
use crate::client::Daemons;
use crate::failure::{self, Outcome};
use crate::machine;
use crate::output::{Output, shown};

/// Shows the CPUs and the progress of each program, live, until q or Ctrl-C
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The line CPUs contains one letter per CPU: the letter identifies the program whose seat contains
the CPU; brackets enclose the CPUs of a last-level cache. The columns are those of `usher status`;
HISTORY is the rate of progress at each update. Narrow terminals show fewer columns.
In a short terminal, the table has priority: reasons and warnings that do not fit are counted.
If the daemon ends and no other daemon starts within 3 s, the command fails.
If standard output is not a terminal, a picture of the machine and the table are printed once.

Keys:
  q, Ctrl-C         quit
  s, < >            sort by the next or previous column; r reverses the order
  /                 show only programs whose name, user or command contains a text
  Up, Down, j, k    select a program
  Space             update now
  ?                 help

Examples:
  usher top
  usher top --interval 0.2
  usher top --json | jq '.programs[].busy_cpus'")]
pub struct Args {
    /// Update the view every SECONDS seconds
    #[arg(long, value_name = "SECONDS", default_value = "1", allow_negative_numbers = true, value_parser = crate::cli::numbers::seconds)]
    interval: f64,
}

/// Shows the live view, or prints the state once.
pub fn run(args: &Args, global: &Global, out: Output) -> Outcome {
    let daemons = Daemons::query(global.runtime_dir.as_deref())?;
    let topology = machine::usable_machine()?;
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    if out.json || dumb || !out.is_terminal() {
        let answer = super::status::answer(&daemons.answered);
        let printed = out.answer(&answer, || picture(&answer, &topology, out));
        return failure::combine(daemons.errors.into_iter().map(Err).chain([printed]));
    }
    live::run(daemons, &topology, args.interval, out)?;
    Ok(0)
}

fn picture(answer: &StatusAnswer, topology: &Topology, out: Output) -> String {
    let mut drawing = super::topo::drawing(out);
    let daemons = std::iter::once(&answer.first).chain(&answer.other_daemons);
    for program in daemons.flat_map(|one| &one.state.programs) {
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
        super::status::texts(answer, false, out)
    )
}
