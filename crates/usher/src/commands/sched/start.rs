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

use super::record::Record;
use super::{GOES_ON, Switch, record};

/// Starts the scheduler, held by a process of its own
#[derive(Debug, clap::Args)]
#[command(after_help = "\
What it does is in docs/sched.md. With --foreground it ends with this command (Ctrl-C).

Examples:
  usher sched start
  usher sched start --smt off --turn-ms 50
  usher sched start --seats off            the daemon seats by affinity masks
  usher sched start --fifo --foreground
  usher sched start --o1 aggregate")]
pub struct Args {
    /// Idle physical cores first, no two threads on a core beside an idle one
    #[arg(long, value_enum, value_name = "ON|OFF", default_value_t = Switch::On)]
    smt: Switch,
    /// Threads of one address space one after another, in bounded turns
    #[arg(long, value_enum, value_name = "ON|OFF", default_value_t = Switch::On)]
    aggregate: Switch,
    /// Seats kept by the scheduler where a daemon gives them; off: affinity masks
    #[arg(long, value_enum, value_name = "ON|OFF", default_value_t = Switch::On)]
    seats: Switch,
    /// How long threads of one address space may follow one another, 1 to 200; 24 unless told
    #[arg(long, value_name = "MS", value_parser = super::limit_ms, allow_negative_numbers = true)]
    turn_ms: Option<u64>,
    /// How far they may get ahead of whoever waits, 1 to 200; as long as a turn unless told
    #[arg(long, value_name = "MS", value_parser = super::limit_ms, allow_negative_numbers = true)]
    lead_ms: Option<u64>,
    /// None of that: first come, first served; to compare with
    #[arg(long, value_enum, value_name = "BLIND|MINIMAL", num_args = 0..=1, require_equals = true, default_missing_value = "blind", conflicts_with_all = ["smt", "aggregate", "seats", "turn_ms", "lead_ms"])]
    fifo: Option<Fifo>,
    /// The order of Linux 2.6's O(1) scheduler instead, blind to SMT; to compare with
    #[arg(long, value_enum, value_name = "PLAIN|AGGREGATE", conflicts_with_all = ["smt", "aggregate", "seats", "turn_ms", "lead_ms", "fifo"])]
    o1: Option<O1>,
    /// Hold the scheduler in this process, and end it with this one
    #[arg(long)]
    foreground: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Fifo {
    /// Ours, with that order alone, and blind to SMT
    Blind,
    /// The least that a scheduler can be, with the kernel's choice of idle CPUs: nothing is
    /// counted, and nothing explained
    Minimal,
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
            lead_ns: ns(self.lead_ms).unwrap_or(turn_ns),
            ..Settings::default()
        }
    }
}

/// Set for the process that is to hold the scheduler, and to say on standard output when it
/// runs. No option, as shells complete those that are hidden, too.
const HOLDS: &str = "USHER_SCHED_HOLDS";

/// What the holder says when the scheduler runs.
const READY: &str = "ready";

/// After how long whoever looks on is told what takes so long.
const PATIENCE: Duration = Duration::from_secs(1);

/// Starts it.
pub fn run(args: &Args, dir: &Path, out: Output) -> Outcome {
    let settings = args.settings();
    if std::env::var_os(HOLDS).is_some() {
        return hold_for_another(dir, &settings);
    }
    let told = || {
        let does = super::described(&settings);
        let text = || format!("the scheduler runs: {does}\n");
        out.answer(&json!({ "scheduler": "usher", "does": does }), text)
    };
    check(&super::kernel(), dir, record::read(dir)?.as_ref())?;
    usher_scx::check_bpf_permitted()?;
    warnings().iter().for_each(|line| failure::complain(line));
    if let Some(line) = super::idle_turn([args.turn_ms, args.lead_ms], &settings) {
        failure::complain(line);
    }
    if args.foreground {
        super::hold::hold(dir, &settings, told)?;
        if !out.json {
            // Where the terminal is gone, that is no failure of the scheduler's.
            let _ = out.text(GOES_ON);
        }
        return Ok(0);
    }
    let mut holder = holder()?;
    let mut line = String::new();
    if let Some(says) = holder.stdout.take() {
        if std::io::stderr().is_terminal() && is_silent(&says, PATIENCE)? {
            failure::complain("the kernel looks the scheduler's programs over");
        }
        BufReader::new(says).read_line(&mut line)?;
    }
    if line.trim() == READY {
        told()?;
        return Ok(0);
    }
    let status = holder.wait();
    never_ran(status.context("waiting for the scheduler's process")?)
}

/// The process that is to hold the scheduler: this program once more, with the same options.
fn holder() -> anyhow::Result<Child> {
    let mut holder = Command::new(std::env::current_exe().context("finding this program")?);
    holder.args(std::env::args_os().skip(1)).env(HOLDS, "1");
    holder.stdin(Stdio::null()).stdout(Stdio::piped());
    holder.stderr(Stdio::inherit());
    // SAFETY: two system calls, which may be made between fork and exec.
    unsafe { holder.pre_exec(leave_caller) };
    holder.spawn().context("starting the scheduler's process")
}

/// Whether nothing is said, and nobody hangs up, for that time.
fn is_silent(says: &impl AsFd, within: Duration) -> anyhow::Result<bool> {
    let mut says = [PollFd::new(says, PollFlags::IN)];
    let within = Timespec::try_from(within).ok();
    match poll(&mut says, within.as_ref()) {
        Ok(said) => Ok(said == 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error).context("waiting for the scheduler's process"),
    }
}

/// In a session of its own, and without what the caller has open, a lock maybe: whoever waits
/// for that to be closed does not wait for the scheduler's end.
fn leave_caller() -> std::io::Result<()> {
    rustix::process::setsid()?;
    // SAFETY: marks descriptors to be closed by exec; a kernel that cannot leaves them open.
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

/// How the holder ended that did not say that the scheduler runs.
fn never_ran(status: ExitStatus) -> Outcome {
    match status.code() {
        Some(0) => bail!("the scheduler was stopped while it was starting"),
        // It has said why, on our standard error.
        Some(code) => Ok(u8::try_from(code).unwrap_or(failure::OWN)),
        None => bail!("the scheduler's process was ended ({status})"),
    }
}

/// Refuses where none can be started now.
///
/// # Errors
/// One of ours is there already; there is no sched_ext, no BTF, or another scheduler.
pub fn check(kernel: &Kernel, dir: &Path, last: Option<&Record>) -> anyhow::Result<()> {
    record::refuse_beside(last)?;
    if let Some(unknown) = record::unknown(kernel, dir, last) {
        bail!(unknown);
    }
    Ok(kernel.ready()?)
}

/// What is said before one is started on this machine.
pub fn warnings() -> Vec<String> {
    let release = release();
    let ((old, older), (new, newer)) = TESTED;
    let untested = untested(&release).map(|release| {
        format!(
            "Linux {release} is untested with this scheduler, which is tried from {old}.{older} to \
             {new}.{newer}"
        )
    });
    untested
        .into_iter()
        .chain(super::limits::warning())
        .collect()
}

/// The oldest and the newest kernel that the tests in guests have run on.
const TESTED: ((u32, u32), (u32, u32)) = ((6, 16), (7, 3));

fn release() -> String {
    let system = rustix::system::uname();
    system.release().to_string_lossy().into_owned()
}

/// The release, if none of its age was tested.
fn untested(release: &str) -> Option<&str> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next()?.parse().ok();
    let version = (number()?, number()?);
    (version < TESTED.0 || version > TESTED.1).then_some(release)
}

/// In the process that `usher sched start` leaves behind: it speaks to nobody's
/// terminal once the scheduler runs.
fn hold_for_another(dir: &Path, settings: &Settings) -> Outcome {
    let dir = std::path::absolute(dir).with_context(|| format!("finding {}", dir.display()))?;
    // The caller's folder may be unmounted meanwhile.
    rustix::process::chdir("/").context("leaving the caller's folder")?;
    super::hold::hold(&dir, settings, || {
        say_ready(&mut std::io::stdout())?;
        let mut null = OpenOptions::new();
        let null = null.read(true).write(true).open("/dev/null");
        let null = null.context("opening /dev/null")?;
        rustix::stdio::dup2_stdout(&null)?;
        rustix::stdio::dup2_stderr(&null)?;
        Ok(())
    })?;
    Ok(0)
}

/// Tells whoever waits for it.
fn say_ready(says: &mut impl Write) -> anyhow::Result<()> {
    match writeln!(says, "{READY}").and_then(|()| says.flush()) {
        // No `context`: that a pipe broke says nothing to anybody.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {
            bail!("the 'usher sched start' that waited for it was interrupted")
        }
        said => said.context("saying that the scheduler runs"),
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
    fn features_are_on_unless_they_are_switched_off() {
        assert_eq!(settings("").unwrap(), Settings::default());
        let without = settings("--smt off --aggregate off --seats off").unwrap();
        assert!(!without.smt && !without.aggregate && !without.seats);
        let fifo = settings("--fifo").unwrap();
        assert!(fifo.fifo && !fifo.smt && !fifo.seats && !fifo.minimal);
        let minimal = settings("--fifo=minimal --foreground").unwrap();
        assert!(minimal.fifo && minimal.minimal && !minimal.smt);
        for refused in ["--fifo --seats off", "--o1 plain --lead-ms 3", "--fifo=o1"] {
            assert!(settings(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn the_lead_is_as_long_as_a_turn_unless_told() {
        let ms = |words: &str| {
            let settings = settings(words).ok()?;
            Some((settings.turn_ns / 1_000_000, settings.lead_ns / 1_000_000))
        };
        assert_eq!(ms("--turn-ms 200"), Some((200, 200)));
        assert_eq!(ms("--turn-ms 8 --lead-ms 4"), Some((8, 4)));
        assert_eq!(ms("--lead-ms 4"), Some((24, 4)));
        for refused in ["--turn-ms 0", "--turn-ms 201", "--lead-ms 201"] {
            assert_eq!(ms(refused), None, "{refused}");
        }
    }

    #[test]
    fn one_that_never_ran_is_no_success() {
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
    fn one_that_speaks_or_hangs_up_is_not_silent() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let is_silent = |within| is_silent(&reader, Duration::from_millis(within)).unwrap();
        assert!(is_silent(1));
        say_ready(&mut writer).unwrap();
        assert!(!is_silent(30_000));
        BufReader::new(&reader)
            .read_line(&mut String::new())
            .unwrap();
        assert!(is_silent(1));
        drop(writer);
        assert!(!is_silent(30_000));
    }

    #[test]
    fn one_for_whom_nobody_waits_any_more_says_so() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        say_ready(&mut writer).unwrap();
        drop(reader);
        let error = say_ready(&mut writer).unwrap_err();
        let told = failure::line(&error);
        assert!(told.ends_with("was interrupted"), "{told}");
    }

    #[test]
    fn releases_beyond_those_tested_are_named() {
        for known in ["6.16.0", "6.18.44-fc", "7.0.1", "7.3.4-rc1", "odd"] {
            assert_eq!(untested(known), None, "{known}");
        }
        for unknown in ["6.12.95+deb13-amd64", "6.15", "7.4.0-rc1", "8.0.1"] {
            assert_eq!(untested(unknown), Some(unknown));
        }
    }
}
