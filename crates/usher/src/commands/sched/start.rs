// SPDX-License-Identifier: GPL-2.0-only
//! `usher sched start`: loads the scheduler in root's daemon, or with `--foreground` in this
//! process.
//!
//! 1. Check that no sched_ext scheduler runs, that the kernel has sched_ext, BTF and the functions
//!    that the BPF programs call, that the host has no obstacles (cgroup v1, core scheduling), and
//!    that BPF programs may be loaded. A failed check ends the command.
//! 2. With `--fifo`, refuse to start if a cgroup limits CPU time by `cpu.max`, unless
//!    `--ignore-cpu-max` is given. Print warnings: untested kernel, `--turn-ms` without an effect.
//! 3. With `--foreground`, hold the scheduler until a signal or a stop ends it. Otherwise start a
//!    daemon if none listens, and request the start.
//! 4. The reply arrives when the kernel has verified the BPF programs, or has rejected them.
//!
//! The request waits for at most 60 s (`remote`); the start of a daemon has limits of its own
//! (`daemon_launch`). After 1 s of waiting, the command prints the reason on a terminal.

use std::io::IsTerminal;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::bail;
use usher_scx::{Kernel, Settings};

use crate::answers::SchedStartAnswer;
use crate::cli::options::Global;
use crate::daemon::scheduler::{self, SchedulerState, kernel};
use crate::failure::{self, Outcome};
use crate::output::Output;
use crate::runtime;

use super::daemon_launch;
use super::limits;
use super::options::{Switch, limit_ms, turn_warning};
use super::remote::{self, Found, TAKES_OVER};

/// Starts Usher's scheduler in root's daemon, and starts that daemon if none listens
#[derive(Debug, clap::Args)]
#[command(after_help = "\
docs/sched.md describes the scheduler. If no daemon listens, the command starts the systemd
service usher. If the service is not installed, the command starts a daemon that ends after
'usher sched stop'.
With --foreground the scheduler runs without a daemon and ends with this command (Ctrl-C).

Examples:
  usher sched start
  usher sched start --smt off --turn-ms 50
  usher sched start --seats off            makes the daemon use affinity masks
  usher sched start --fifo --foreground")]
pub struct Args {
    /// Prefer idle cores: run no two threads on one core while another core is idle
    #[arg(long, value_enum, value_name = "ON|OFF", default_value_t = Switch::On)]
    smt: Switch,
    /// Run threads of one address space one after another, in turns of at most --turn-ms
    #[arg(long, value_enum, value_name = "ON|OFF", default_value_t = Switch::On)]
    aggregate: Switch,
    /// Let the scheduler enforce the seats of programs and lend their idle CPUs (soft seats); off:
    /// enforce seats by affinity masks
    #[arg(long, value_enum, value_name = "ON|OFF", default_value_t = Switch::On)]
    seats: Switch,
    /// Limit the turn of an address space to this time in ms, 1 to 200; 24 by default
    #[arg(long, value_name = "MS", value_parser = limit_ms, allow_negative_numbers = true)]
    turn_ms: Option<u64>,
    /// Limit how far the virtual time of a running thread may exceed that of waiting threads, in ms,
    /// 1 to 200; by default, the value of --turn-ms
    #[arg(long, value_name = "MS", value_parser = limit_ms, allow_negative_numbers = true)]
    max_lag_ms: Option<u64>,
    /// Run threads in first-come, first-served order, which ignores the options --smt, --aggregate,
    /// --seats, --turn-ms and --max-lag-ms, and all limits and weights of cgroups; for comparisons
    #[arg(long, conflicts_with_all = ["smt", "aggregate", "seats", "turn_ms", "max_lag_ms"])]
    fifo: bool,
    /// With --fifo, start although cgroups limit CPU time by cpu.max; these limits then have no effect
    #[arg(long, requires = "fifo")]
    ignore_cpu_max: bool,
    /// Run the scheduler in this process, without a daemon, and end it with this process
    #[arg(long)]
    foreground: bool,
}

impl Args {
    fn settings(&self) -> Settings {
        let fifo = self.fifo;
        let ns = |ms: Option<u64>| ms.map(|ms| ms * 1_000_000);
        let turn_ns = ns(self.turn_ms).unwrap_or(Settings::default().turn_ns);
        Settings {
            smt: self.smt.is_on() && !fifo,
            aggregate: self.aggregate.is_on() && !fifo,
            seats: self.seats.is_on() && !fifo,
            fifo,
            turn_ns,
            max_lag_ns: ns(self.max_lag_ms).unwrap_or(turn_ns),
            ..Settings::default()
        }
    }
}

/// Time of waiting for the reply after which the command prints on a terminal why it waits.
const NOTICE_AFTER: Duration = Duration::from_secs(1);

/// Starts the scheduler.
pub fn run(args: &Args, global: &Global, out: Output) -> Outcome {
    let settings = args.settings();
    let dir = runtime::sched_dir(global.runtime_dir.as_deref());
    let report = || {
        let does = scheduler::described(&settings);
        let text = || format!("Usher's scheduler runs with: {does}\n");
        let answer = SchedStartAnswer {
            scheduler: remote::NAME,
            does: does.clone(),
        };
        out.answer(&answer, text)
    };
    let found = Found::at(&dir)?;
    check(&kernel(), &dir, found.state.as_ref())?;
    usher_scx::check_bpf_permitted()?;
    usher_scx::check_functions()?;
    usher_scx::check_cpu_numbers(&kernel())?;
    if args.fifo {
        limits::check_ignored(args.ignore_cpu_max)?;
    }
    warnings()
        .iter()
        .for_each(|line| failure::print_error(line));
    if let Some(line) = turn_warning([args.turn_ms, args.max_lag_ms], &settings) {
        failure::print_error(line);
    }
    if args.foreground {
        scheduler::hold(&dir, settings, report)?;
        if !out.json {
            // A closed terminal is no failure of the scheduler.
            let _ = out.text(TAKES_OVER);
        }
        return Ok(0);
    }
    let found = match found.client {
        Some(_) => found,
        None => daemon_launch::start_daemon(global)?,
    };
    let Some(mut client) = found.client else {
        bail!("no daemon listens in {}", dir.display());
    };
    noticing_delay(|| client.start(&settings))?;
    report()?;
    Ok(0)
}

/// Calls `action`. If the call takes longer than [`NOTICE_AFTER`], prints why the command waits.
fn noticing_delay<T>(action: impl FnOnce() -> T) -> T {
    let (done, is_done) = channel::<()>();
    std::thread::scope(|threads| {
        threads.spawn(move || {
            let waited = is_done.recv_timeout(NOTICE_AFTER);
            if waited == Err(RecvTimeoutError::Timeout) && std::io::stderr().is_terminal() {
                failure::print_error("the kernel is verifying the scheduler's BPF programs");
            }
        });
        let result = action();
        drop(done);
        result
    })
}

/// Checks whether a scheduler can be started now.
///
/// # Errors
/// A scheduler of Usher's or another sched_ext scheduler runs already, the kernel has no sched_ext
/// or BTF, or the host has an obstacle.
pub fn check(kernel: &Kernel, dir: &Path, last: Option<&SchedulerState>) -> anyhow::Result<()> {
    scheduler::refuse_beside(last)?;
    if let Some(unknown) = remote::unknown(kernel, dir) {
        bail!(unknown);
    }
    Ok(kernel.ready()?)
}

/// Returns the warnings before a start on this machine.
pub fn warnings() -> Vec<String> {
    let release = release();
    let ((old, older), (new, newer)) = TESTED;
    let untested = untested(&release).map(|release| {
        format!(
            "Usher's scheduler is tested with Linux {old}.{older} to {new}.{newer}, but not with \
             Linux {release}"
        )
    });
    untested.into_iter().collect()
}

/// The oldest and the newest kernel on which the tests in guests have run.
const TESTED: ((u32, u32), (u32, u32)) = ((6, 16), (7, 3));

fn release() -> String {
    let system = rustix::system::uname();
    system.release().to_string_lossy().into_owned()
}

/// Returns the release if it is outside the tested range.
fn untested(release: &str) -> Option<&str> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next()?.parse().ok();
    let version = (number()?, number()?);
    (version < TESTED.0 || version > TESTED.1).then_some(release)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn settings(words: &str) -> Result<Settings, clap::Error> {
        let words = ["start"].into_iter().chain(words.split_whitespace());
        Line::try_parse_from(words).map(|line| line.args.settings())
    }

    #[test]
    fn features_are_on_by_default() {
        assert_eq!(settings("").unwrap(), Settings::default());
        let without = settings("--smt off --aggregate off --seats off").unwrap();
        assert!(!without.smt && !without.aggregate && !without.seats);
        let fifo = settings("--fifo").unwrap();
        assert!(fifo.fifo && !fifo.smt && !fifo.seats);
        for refused in [
            "--fifo --seats off",
            "--fifo --max-lag-ms 3",
            "--o1 plain",
            "--fifo=minimal",
        ] {
            assert!(settings(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn the_max_lag_is_one_turn_by_default() {
        let ms = |words: &str| {
            let settings = settings(words).ok()?;
            Some((
                settings.turn_ns / 1_000_000,
                settings.max_lag_ns / 1_000_000,
            ))
        };
        assert_eq!(ms("--turn-ms 200"), Some((200, 200)));
        assert_eq!(ms("--turn-ms 8 --max-lag-ms 4"), Some((8, 4)));
        assert_eq!(ms("--max-lag-ms 4"), Some((24, 4)));
        for refused in ["--turn-ms 0", "--turn-ms 201", "--max-lag-ms 201"] {
            assert_eq!(ms(refused), None, "{refused}");
        }
    }

    #[test]
    fn warns_of_untested_kernel_releases() {
        for known in ["6.16.0", "6.18.44-fc", "7.0.1", "7.3.4-rc1", "odd"] {
            assert_eq!(untested(known), None, "{known}");
        }
        for unknown in ["6.12.95+deb13-amd64", "6.15", "7.4.0-rc1", "8.0.1"] {
            assert_eq!(untested(unknown), Some(unknown));
        }
    }
}
