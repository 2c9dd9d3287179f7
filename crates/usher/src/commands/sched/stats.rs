// SPDX-License-Identifier: GPL-2.0-only
//! `usher sched stats`: prints the counters of the running scheduler since its start, or their
//! differences over the run of a command.
//!
//! 1. Without a command, the counters of Usher's scheduler are read once. If the scheduler does not
//!    run, the subcommand fails.
//! 2. With a command, the counters are sampled before and after the command. A separate counter
//!    counts the context switches and migrations of the whole machine while the command runs, under
//!    any scheduler.
//! 3. If another scheduler started while the command ran, the counts of the new scheduler since its
//!    start are shown. Counts of Usher's scheduler that cannot be read are left out.
//!
//! The command runs without a time limit, and its exit status is returned. A daemon that does not
//! answer within 10 s (`remote`) is an error before the command runs.

use std::ffi::OsString;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, anyhow};
use schemars::JsonSchema;
use serde::Serialize;
use usher_host::launch::{Exit, Forwarder, LaunchSpec, hold};
use usher_scx::{Counted, Counter, MapIds, SchedulerHandle, SoftSeat, State, Tally};
use usher_topology::Source;

use crate::daemon::scheduler::kernel;
use crate::failure::Outcome;
use crate::launch;
use crate::output::{self, Output};

use super::remote;

/// Counts switches, migrations and wake-ups under Usher's scheduler or any other
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Without CMD, the command prints the counts of Usher's scheduler since its start. With CMD, it
prints the counts of the whole machine while CMD runs, under any scheduler. Signals are
forwarded to CMD, and its exit status is returned. The output of CMD comes first; with
--json the counts are the last line.

Examples:
  usher sched stats
  usher sched stats -- sleep 10
  usher sched stats --json -- make -j8 | tail -n 1 | jq .counted")]
pub struct Args {
    /// Command to run and count
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

const KERNELS_OWN: &str = "the kernel's own";

#[derive(Debug, Serialize, JsonSchema)]
pub struct StatsAnswer {
    /// The name of the loaded scheduler; `None` for the kernel's own.
    scheduler: Option<String>,
    /// The scheduler at the end of the command, if it is not the scheduler of the beginning.
    #[serde(skip_serializing_if = "Option::is_none")]
    scheduler_after: Option<String>,
    /// Duration of the command.
    #[serde(skip_serializing_if = "Option::is_none")]
    elapsed_ns: Option<u64>,
    /// Counts of any scheduler during the command.
    #[serde(skip_serializing_if = "Option::is_none")]
    counted: Option<Counted>,
    /// Counts of Usher's scheduler.
    #[serde(skip_serializing_if = "Option::is_none")]
    ours: Option<Tally>,
    /// The start of the interval that `ours` and `seats` count.
    #[serde(skip_serializing_if = "Option::is_none")]
    ours_since: Option<Since>,
    /// The preferences of Usher's scheduler for the CPUs of programs, with their counts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    seats: Vec<SoftSeat>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum Since {
    /// The start of the scheduler.
    Start,
    /// The start of the command.
    Command,
}

/// Counts of Usher's scheduler since its start.
#[derive(Debug)]
struct SchedSample {
    maps: MapIds,
    tally: Tally,
    seats: Vec<SoftSeat>,
}

impl SchedSample {
    fn read(dir: &Path) -> anyhow::Result<Self> {
        let running = remote::running(dir)?;
        let maps = running.maps;
        let held = SchedulerHandle::open(&maps)?;
        Ok(Self {
            maps,
            tally: held.tally()?,
            seats: held.seats()?,
        })
    }

    /// Returns the counts since an earlier sample, and the start of the interval: for a scheduler
    /// that started in between, all counts.
    fn since(mut self, before: Option<Self>) -> (Self, Since) {
        let Some(before) = before.filter(|before| before.maps == self.maps) else {
            return (self, Since::Start);
        };
        self.tally = self.tally.since(before.tally);
        for seat in &mut self.seats {
            let earlier = before.seats.iter().find(|old| old.cgroup == seat.cgroup);
            if let Some(earlier) = earlier {
                seat.tally = std::mem::take(&mut seat.tally).since(earlier.tally.clone());
            }
        }
        (self, Since::Command)
    }
}

/// Counts and prints.
pub fn run(args: &Args, dir: &Path, out: Output) -> Outcome {
    let (status, answer) = match args.command.is_empty() {
        true => (0, until_now(dir)?),
        false => meanwhile(&args.command, dir)?,
    };
    out.answer(&answer, || text(&answer))?;
    Ok(status)
}

fn scheduler() -> Option<String> {
    match kernel().state() {
        Ok(State::Enabled { name }) => Some(name),
        _ => None,
    }
}

/// Returns the scheduler after the command, if it has changed.
fn changed(before: &Option<String>, after: Option<String>) -> Option<String> {
    (*before != after).then(|| after.unwrap_or_else(|| KERNELS_OWN.to_owned()))
}

fn until_now(dir: &Path) -> anyhow::Result<StatsAnswer> {
    let ours = SchedSample::read(dir).map_err(|error| {
        anyhow!("{error:#}; 'usher sched stats -- CMD' counts the events of any scheduler")
    })?;
    let answer = StatsAnswer {
        scheduler: scheduler(),
        scheduler_after: None,
        elapsed_ns: None,
        counted: None,
        ours: None,
        ours_since: None,
        seats: Vec::new(),
    };
    Ok(answer.with(ours, Since::Start))
}

impl StatsAnswer {
    fn with(self, ours: SchedSample, since: Since) -> Self {
        Self {
            ours: Some(ours.tally),
            ours_since: Some(since),
            seats: ours.seats,
            ..self
        }
    }
}

fn meanwhile(command: &[OsString], dir: &Path) -> anyhow::Result<(u8, StatsAnswer)> {
    // A daemon that does not answer is reported before the command runs.
    remote::Found::at(dir)?;
    let scheduler = scheduler();
    let mut samples = Vec::new();
    let exit = run_between(command, |counter| {
        // If Usher's scheduler is just starting or ending, its counts are left out.
        samples.push((Instant::now(), counter.read()?, SchedSample::read(dir).ok()));
        Ok(())
    })?;
    let [(began, before, ours_before), (ended, after, ours)] = <[_; 2]>::try_from(samples)
        .map_err(|_| anyhow!("no events were counted, because the command did not run"))?;
    let answer = StatsAnswer {
        scheduler_after: changed(&scheduler, self::scheduler()),
        scheduler,
        elapsed_ns: u64::try_from((ended - began).as_nanos()).ok(),
        counted: Some(after.since(&before)),
        ours: None,
        ours_since: None,
        seats: Vec::new(),
    };
    let answer = match ours.map(|ours| ours.since(ours_before)) {
        Some((ours, since)) => answer.with(ours, since),
        None => answer,
    };
    Ok((exit.code(), answer))
}

/// Runs a command to its end, and samples the counters before and after.
fn run_between(
    command: &[OsString],
    mut sample: impl FnMut(&Counter) -> anyhow::Result<()>,
) -> anyhow::Result<Exit> {
    let spec = spec(command)?;
    let machine = usher_topology::load(Source::ThisMachine)?;
    let counter = Counter::start(&machine)?;
    run_heeding(&spec, || sample(&counter))
}

/// Returns the launch specification of the command, if the command exists.
fn spec(command: &[OsString]) -> anyhow::Result<LaunchSpec> {
    launch::check_named(command)?;
    let spec = LaunchSpec::new(command);
    spec.resolve()?;
    Ok(spec)
}

/// Runs the command between two samples, and forwards this process's signals to it.
fn run_heeding(
    spec: &LaunchSpec,
    mut sample: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<Exit> {
    let mut signals = Forwarder::new(false).context("catching signals")?;
    signals.keep_pending();
    let held = hold(spec)?;
    sample()?;
    let exit = held.release()?.wait_forwarding(&mut signals);
    let exit = exit.context("waiting for the command")?;
    sample()?;
    Ok(exit)
}

/// Formats a duration in a readable unit.
fn time(ns: u64) -> String {
    match ns {
        0 => "0 ms".to_owned(),
        1..1_000_000 => format!("{:.1} µs", ns as f64 / 1e3),
        1_000_000..10_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.1} s", ns as f64 / 1e9),
    }
}

type Rows = Vec<Vec<String>>;

fn row(rows: &mut Rows, name: &str, value: impl ToString) {
    rows.push(vec![name.to_owned(), value.to_string()]);
}

fn text(answer: &StatsAnswer) -> String {
    let mut name = answer
        .scheduler
        .as_deref()
        .unwrap_or(KERNELS_OWN)
        .to_owned();
    if let Some(after) = &answer.scheduler_after {
        name = format!("{name}, later {after}");
    }
    let mut rows = Rows::new();
    row(&mut rows, "scheduler", name);
    if let Some(counted) = &answer.counted {
        of_command(&mut rows, counted, answer.elapsed_ns.unwrap_or(0));
    }
    if let Some(tally) = &answer.ours {
        let since = match answer.ours_since {
            Some(Since::Command) => "while the command ran",
            _ => "since it started",
        };
        row(&mut rows, "Usher's scheduler", since);
        of_ours(&mut rows, tally);
    }
    for seat in &answer.seats {
        of_seat(&mut rows, seat);
    }
    output::columns(&rows)
}

fn of_command(rows: &mut Rows, counted: &Counted, elapsed_ns: u64) {
    row(rows, "the command ran", time(elapsed_ns));
    row(rows, "context switches", counted.switches);
    row(rows, "address-space switches", counted.space_switches);
    row(
        rows,
        "time with two threads on one core",
        time(counted.shared_ns),
    );
    row(
        rows,
        "  of that time while another core was idle",
        time(counted.needless_ns),
    );
    row(rows, "migrations within a core", counted.migrations_core);
    row(rows, "  within an LLC", counted.migrations_llc);
    row(rows, "  within a NUMA node", counted.migrations_node);
    row(rows, "  farther", counted.migrations_far);
    row(rows, "wake-ups", counted.wakeups);
    for (share, name) in [
        (0.5, "  median latency"),
        (0.99, "  99th percentile of the latency"),
    ] {
        let below = counted.latency_below_ns(share);
        row(rows, name, below.map_or("-".to_owned(), time));
    }
}

fn of_ours(rows: &mut Rows, tally: &Tally) {
    row(rows, "  threads dispatched", tally.switches);
    row(
        rows,
        "    after a thread of another address space",
        tally.space_switches,
    );
    row(rows, "  threads sent to idle cores", tally.idle_cores);
    row(
        rows,
        "  threads sent to idle CPUs of busy cores",
        tally.idle_threads,
    );
    row(rows, "  threads that waited for a turn", tally.queued);
    row(
        rows,
        "  threads that waited in the queue of urgent threads",
        tally.soon,
    );
    row(rows, "  CPUs preempted by urgent threads", tally.preempted);
    row(
        rows,
        "  slices extended because no thread waited",
        tally.prolonged,
    );
    row(rows, "  slices extended in a turn", tally.turns_kept);
    row(
        rows,
        "  threads moved to an idle CPU while running",
        tally.moved,
    );
    row(rows, "  threads taken from another LLC", tally.stolen);
    row(
        rows,
        "  threads sent to idle CPUs outside their seats",
        tally.borrowed,
    );
    row(rows, "  CPUs reclaimed from borrowers", tally.returned);
}

fn of_seat(rows: &mut Rows, seat: &SoftSeat) {
    let tally = &seat.tally;
    row(
        rows,
        "seat",
        format!("{} on {}", output::shown(&seat.name), seat.cpus),
    );
    row(rows, "  CPU time in the seat", time(tally.home_ns));
    row(rows, "  CPU time outside the seat", time(tally.guest_ns));
    row(rows, "  CPUs reclaimed", tally.returns);
    if let Some(ns) = tally.return_below_ns(0.99) {
        row(rows, "    99th percentile of the delay", time(ns));
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use usher_host::launch::LaunchError;

    use super::*;

    fn code(words: &[&str]) -> Option<u8> {
        let words: Vec<OsString> = words.iter().map(Into::into).collect();
        let ran = spec(&words).and_then(|spec| run_heeding(&spec, || Ok(())));
        match ran {
            Ok(exit) => Some(exit.code()),
            Err(error) => Some(error.downcast_ref::<LaunchError>()?.code()),
        }
    }

    #[test]
    fn exit_statuses_and_signals_are_passed_on_as_by_run() {
        assert_eq!(code(&["sh", "-c", "exit 7"]), Some(7));
        assert_eq!(code(&["sh", "-c", "kill -TERM $$"]), Some(128 + 15));
        assert_eq!(code(&["no-such-command"]), Some(127));
        assert_eq!(code(&[""]), Some(127));
        let file = tempfile::NamedTempFile::new().unwrap();
        let mode = std::fs::Permissions::from_mode(0o644);
        std::fs::set_permissions(file.path(), mode).unwrap();
        assert_eq!(code(&[file.path().to_str().unwrap()]), Some(126));
        // A signal to this process is forwarded to the command. This is part of another test,
        // because all commands that tests of this process run would get the signal.
        let script = "trap 'exit 9' TERM; kill -TERM $PPID; while :; do :; done";
        let words = ["sh", "-c", script].map(OsString::from);
        let mut samples = 0;
        let exit = run_heeding(&spec(&words).unwrap(), || {
            samples += 1;
            Ok(())
        });
        assert_eq!((exit.unwrap().code(), samples), (9, 2));
    }

    #[test]
    fn prints_times_in_a_readable_unit() {
        let actual = [0, 7_000, 999_000, 1_500_000, 12_000_000_000].map(time);
        assert_eq!(actual, ["0 ms", "7.0 µs", "999.0 µs", "1.5 ms", "12.0 s"]);
    }

    fn ours(seats: u32, switches: u64) -> SchedSample {
        SchedSample {
            maps: MapIds {
                seats,
                ..MapIds::default()
            },
            tally: Tally {
                switches,
                ..Tally::default()
            },
            seats: vec![],
        }
    }

    #[test]
    fn reports_a_changed_scheduler() {
        let [none, ours] = [None, Some("usher".to_owned())];
        assert_eq!(changed(&ours, ours.clone()), None);
        assert_eq!(changed(&ours, none).as_deref(), Some(KERNELS_OWN));
    }

    #[test]
    fn counts_of_another_scheduler_are_not_subtracted() {
        let (later, since) = ours(1, 9).since(Some(ours(1, 5)));
        assert_eq!((later.tally.switches, since), (4, Since::Command));
        let (another, since) = ours(2, 9).since(Some(ours(1, 5)));
        assert_eq!((another.tally.switches, since), (9, Since::Start));
        let answer = StatsAnswer {
            scheduler: None,
            scheduler_after: changed(&None, Some("usher".to_owned())),
            elapsed_ns: Some(5),
            counted: None,
            ours: None,
            ours_since: None,
            seats: vec![],
        };
        let actual = text(&answer.with(another, since));
        assert!(actual.contains("since it started"), "{actual}");
        assert!(actual.contains("the kernel's own, later usher"), "{actual}");
    }
}
