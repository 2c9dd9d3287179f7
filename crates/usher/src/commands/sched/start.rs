// SPDX-License-Identifier: GPL-2.0-only
//! `usher sched start`.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, ErrorKind, IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde_json::json;
use usher_scx::{Kernel, Settings};

use crate::failure::{self, Outcome};
use crate::output::Output;

use super::record::SchedulerRecord;
use super::{Switch, TAKES_OVER, record};

/// Starts the scheduler in a process of its own
#[derive(Debug, clap::Args)]
#[command(after_help = "\
docs/sched.md describes the scheduler. With --foreground it ends with this command (Ctrl-C).

Examples:
  usher sched start
  usher sched start --smt off --turn-ms 50
  usher sched start --seats off            the daemon seats by affinity masks
  usher sched start --fifo --foreground
  usher sched start --o1 aggregate")]
pub struct Args {
    /// Prefer idle physical cores; no two threads on one core while another core is idle
    #[arg(long, value_enum, value_name = "ON|OFF", default_value_t = Switch::On)]
    smt: Switch,
    /// Run threads of one address space one after another, in bounded turns
    #[arg(long, value_enum, value_name = "ON|OFF", default_value_t = Switch::On)]
    aggregate: Switch,
    /// Let the scheduler keep the seats that a daemon gives; off: affinity masks
    #[arg(long, value_enum, value_name = "ON|OFF", default_value_t = Switch::On)]
    seats: Switch,
    /// Longest turn of an address space, 1 to 200; 24 by default
    #[arg(long, value_name = "MS", value_parser = super::limit_ms, allow_negative_numbers = true)]
    turn_ms: Option<u64>,
    /// Largest lead over waiting threads in virtual time, 1 to 200; by default one turn
    #[arg(long, value_name = "MS", value_parser = super::limit_ms, allow_negative_numbers = true)]
    max_lag_ms: Option<u64>,
    /// First come, first served, without the above; for comparisons
    #[arg(long, value_enum, value_name = "BLIND|MINIMAL", num_args = 0..=1, require_equals = true, default_missing_value = "blind", conflicts_with_all = ["smt", "aggregate", "seats", "turn_ms", "max_lag_ms"])]
    fifo: Option<Fifo>,
    /// The order of Linux 2.6's O(1) scheduler, without SMT; for comparisons
    #[arg(long, value_enum, value_name = "PLAIN|AGGREGATE", conflicts_with_all = ["smt", "aggregate", "seats", "turn_ms", "max_lag_ms", "fifo"])]
    o1: Option<O1>,
    /// Run the scheduler in this process, and end it with this process
    #[arg(long)]
    foreground: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Fifo {
    /// Usher's scheduler with that order only, without SMT
    Blind,
    /// A minimal scheduler with the kernel's selection of idle CPUs, without statistics or
    /// explanations
    Minimal,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum O1 {
    /// The original order
    Plain,
    /// Threads of the running address space are one level better
    Aggregate,
}

impl Args {
    fn settings(&self) -> Settings {
        if let Some(o1) = self.o1 {
            return Settings::of_linux_26(o1 == O1::Aggregate);
        }
        let fifo = self.fifo.is_some();
        let ns = |ms: Option<u64>| ms.map(|ms| ms * 1_000_000);
        let turn_ns = ns(self.turn_ms).unwrap_or(Settings::default().turn_ns);
        Settings {
            smt: self.smt.is_on() && !fifo,
            aggregate: self.aggregate.is_on() && !fifo,
            seats: self.seats.is_on() && !fifo,
            fifo,
            minimal: self.fifo == Some(Fifo::Minimal),
            turn_ns,
            max_lag_ns: ns(self.max_lag_ms).unwrap_or(turn_ns),
            ..Settings::default()
        }
    }
}

/// Set for the process that holds the scheduler and reports on standard output when it runs. Not an
/// option, because shells also complete hidden options.
const HOLDS: &str = "USHER_SCHED_HOLDS";

/// The holder's report when the scheduler runs.
const READY: &str = "ready";

/// Time after which the user is informed about the reason of the wait.
const NOTICE_AFTER: Duration = Duration::from_secs(1);

/// Starts the scheduler.
pub fn run(args: &Args, dir: &Path, out: Output) -> Outcome {
    let settings = args.settings();
    if std::env::var_os(HOLDS).is_some() {
        return hold_for_another(dir, &settings);
    }
    let report = || {
        let does = super::described(&settings);
        let text = || format!("the scheduler runs: {does}\n");
        out.answer(&json!({ "scheduler": "usher", "does": does }), text)
    };
    check(&super::kernel(), dir, record::read(dir)?.as_ref())?;
    usher_scx::check_bpf_permitted()?;
    warnings()
        .iter()
        .for_each(|line| failure::print_error(line));
    if let Some(line) = super::turn_warning([args.turn_ms, args.max_lag_ms], &settings) {
        failure::print_error(line);
    }
    if args.foreground {
        super::hold::hold(dir, &settings, report)?;
        if !out.json {
            // A closed terminal is no failure of the scheduler.
            let _ = out.text(TAKES_OVER);
        }
        return Ok(0);
    }
    let mut holder = holder()?;
    let mut line = String::new();
    if let Some(output) = holder.stdout.take() {
        if std::io::stderr().is_terminal() && is_silent(&output, NOTICE_AFTER)? {
            failure::print_error("the kernel is verifying the scheduler's BPF programs");
        }
        BufReader::new(output).read_line(&mut line)?;
    }
    if line.trim() == READY {
        report()?;
        return Ok(0);
    }
    let status = holder.wait();
    never_ran(status.context("waiting for the scheduler's process")?)
}

/// Starts the process that holds the scheduler: this program again, with the same options.
fn holder() -> anyhow::Result<Child> {
    let mut holder = Command::new(std::env::current_exe().context("finding this program")?);
    holder.args(std::env::args_os().skip(1)).env(HOLDS, "1");
    holder.stdin(Stdio::null()).stdout(Stdio::piped());
    holder.stderr(Stdio::inherit());
    // SAFETY: two system calls, which may be made between fork and exec.
    unsafe { holder.pre_exec(leave_caller) };
    holder.spawn().context("starting the scheduler's process")
}

/// Returns whether the stream stays silent and open for that time.
fn is_silent(output: &impl AsFd, within: Duration) -> anyhow::Result<bool> {
    let mut output = [PollFd::new(output, PollFlags::IN)];
    let within = Timespec::try_from(within).ok();
    match poll(&mut output, within.as_ref()) {
        Ok(ready) => Ok(ready == 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error).context("waiting for the scheduler's process"),
    }
}

/// Moves to a session of its own, and closes everything that the caller has open, such as a lock: a
/// process that waits for the end of such a file does not wait for the scheduler's end.
fn leave_caller() -> std::io::Result<()> {
    rustix::process::setsid()?;
    // SAFETY: marks descriptors to be closed by exec; a kernel without this flag leaves them open.
    unsafe {
        libc::syscall(
            libc::SYS_close_range,
            3u32,
            u32::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
    Ok(())
}

/// Returns the result of a holder that ended before it reported that the scheduler runs.
fn never_ran(status: ExitStatus) -> Outcome {
    match status.code() {
        Some(0) => bail!("the scheduler was stopped while it was starting"),
        // It has reported the reason on this process's standard error.
        Some(code) => Ok(u8::try_from(code).unwrap_or(failure::OWN)),
        None => bail!("the scheduler's process was ended ({status})"),
    }
}

/// Checks whether a scheduler can be started now.
///
/// # Errors
/// One of Usher's runs already; there is no sched_ext or BTF; or another scheduler runs.
pub fn check(kernel: &Kernel, dir: &Path, last: Option<&SchedulerRecord>) -> anyhow::Result<()> {
    record::refuse_beside(last)?;
    if let Some(unknown) = record::unknown(kernel, dir, last) {
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
            "this scheduler is not tested with Linux {release}, only with {old}.{older} to \
             {new}.{newer}"
        )
    });
    untested
        .into_iter()
        .chain(super::limits::warning())
        .collect()
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

/// Runs in the process that `usher sched start` leaves behind. It writes to no terminal once the
/// scheduler runs.
fn hold_for_another(dir: &Path, settings: &Settings) -> Outcome {
    let dir = std::path::absolute(dir).with_context(|| format!("finding {}", dir.display()))?;
    // The caller's directory may be unmounted meanwhile.
    rustix::process::chdir("/").context("leaving the caller's directory")?;
    super::hold::hold(&dir, settings, || {
        report_ready(&mut std::io::stdout())?;
        let mut null = OpenOptions::new();
        let null = null.read(true).write(true).open("/dev/null");
        let null = null.context("opening /dev/null")?;
        rustix::stdio::dup2_stdout(&null)?;
        rustix::stdio::dup2_stderr(&null)?;
        Ok(())
    })?;
    Ok(0)
}

/// Notifies the waiting process.
fn report_ready(output: &mut impl Write) -> anyhow::Result<()> {
    match writeln!(output, "{READY}").and_then(|()| output.flush()) {
        // No `context`: a broken pipe is no useful message.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {
            bail!("'usher sched start' was interrupted while it waited")
        }
        written => written.context("reporting that the scheduler runs"),
    }
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
        assert!(fifo.fifo && !fifo.smt && !fifo.seats && !fifo.minimal);
        let minimal = settings("--fifo=minimal --foreground").unwrap();
        assert!(minimal.fifo && minimal.minimal && !minimal.smt);
        for refused in [
            "--fifo --seats off",
            "--o1 plain --max-lag-ms 3",
            "--fifo=o1",
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
    fn a_scheduler_that_never_ran_is_no_success() {
        use std::os::unix::process::ExitStatusExt;

        let ended = |raw| never_ran(ExitStatus::from_raw(raw)).map_err(|e| e.to_string());
        assert_eq!(ended(125 << 8), Ok(125));
        assert!(
            ended(0)
                .unwrap_err()
                .contains("stopped while it was starting")
        );
        assert!(ended(9).unwrap_err().contains("was ended"));
    }

    #[test]
    fn a_holder_that_writes_or_closes_is_not_silent() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let is_silent = |within| is_silent(&reader, Duration::from_millis(within)).unwrap();
        assert!(is_silent(1));
        report_ready(&mut writer).unwrap();
        assert!(!is_silent(30_000));
        BufReader::new(&reader)
            .read_line(&mut String::new())
            .unwrap();
        assert!(is_silent(1));
        drop(writer);
        assert!(!is_silent(30_000));
    }

    #[test]
    fn a_holder_without_a_waiting_caller_reports_it() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        report_ready(&mut writer).unwrap();
        drop(reader);
        let error = report_ready(&mut writer).unwrap_err();
        let report = failure::line(&error);
        assert!(
            report.ends_with("was interrupted while it waited"),
            "{report}"
        );
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
