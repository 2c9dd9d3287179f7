// SPDX-License-Identifier: GPL-2.0-only
//! `usher sched explain`: shows for each thread of a process where it runs or waits, and why the
//! scheduler put it there.
//!
//! 1. Connect to the process that holds the scheduler, and open the BPF maps of the scheduler.
//! 2. For each thread in `/proc/PID/task`, combine the kernel's state with the scheduler's own
//!    record of the thread, read from the BPF maps.
//! 3. Omit values that the scheduler's settings make meaningless, and print one row per thread.
//!
//! The output is a snapshot: threads may move while they are read. The cost is one file and one map
//! entry per thread, and one pass over all seats per process. A process that does not exist is
//! reported, and the other processes are still shown; the exit status is then 125. Without a
//! running scheduler of Usher's, the command fails.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::anyhow;
use procfs::process::{Process, Stat, Task};
use schemars::JsonSchema;
use serde::Serialize;
use usher_scx::{Queue, SchedulerHandle, Settings, SoftSeat, ThreadState, Why};

use crate::failure::{self, Outcome};
use crate::output::{self, Output, shown};

use super::{placement, remote};

/// Shows where the threads of a process run or wait under Usher's scheduler, and why
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Columns, for each thread:
  state       the thread runs, waits for a CPU, or sleeps
  where       the CPU on which the thread runs or ran last, or the queue in which it waits; on a
              machine with cores of different speed, also the capacity of the CPU relative to
              1024, the capacity of the fastest CPUs
  why         the reason for that CPU or queue. 'may run only on isolated CPUs': the affinity of
              the thread contains only CPUs of isolcpus, nohz_full or isolated cpusets, which the
              scheduler leaves alone
  placement   the reason for the LLC in which the thread last woke or started
  lag         the virtual time of the thread minus that of the threads that it competes with,
              when the thread last ran or woke; a thread with a negative lag runs earlier
  avg burst   average CPU time of the thread between two sleeps
  cpu.weight  factor by which the shares of its cgroups (cpu.weight) multiply the weight of
              the thread, in per cent

The command reads the threads one after the other, so it may show two threads on one CPU.

Examples:
  usher sched explain 4711
  usher sched explain $(pidof firefox)
  usher sched explain 4711 --json | jq .processes[0].threads")]
pub struct Args {
    /// Processes, each by its pid or the number of one of its threads
    #[arg(value_name = "PID", required = true, value_parser = crate::cli::target::process, allow_negative_numbers = true)]
    pids: Vec<i32>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Thread {
    /// The number of the thread.
    tid: i32,
    /// The name of the thread.
    name: String,
    /// The kernel's state letter: R, S, D and so on.
    state: char,
    /// The kernel's policy.
    policy: Policy,
    /// The CPU of the last run, for a thread that Usher's scheduler does not know.
    #[serde(rename = "cpu", skip_serializing_if = "Option::is_none")]
    cpu_unknown: Option<u32>,
    /// Path of the cgroup whose CPU quota throttles the thread, below the root of the cgroups.
    #[serde(skip_serializing_if = "Option::is_none")]
    throttled_by: Option<String>,
    #[serde(flatten)]
    sched: Option<ThreadState>,
}

/// The kernel's `SCHED_*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum Policy {
    Other,
    Fifo,
    Rr,
    Batch,
    Idle,
    Deadline,
    Ext,
    Unknown,
}

impl Policy {
    fn of(number: Option<u32>) -> Self {
        match number {
            Some(0) => Self::Other,
            Some(1) => Self::Fifo,
            Some(2) => Self::Rr,
            Some(3) => Self::Batch,
            Some(5) => Self::Idle,
            Some(6) => Self::Deadline,
            Some(7) => Self::Ext,
            _ => Self::Unknown,
        }
    }

    /// Returns why a sched_ext scheduler does not run threads of this policy; `None` if it runs
    /// them.
    fn apart(self) -> Option<&'static str> {
        match self {
            Self::Fifo | Self::Rr => {
                Some("real-time thread, which the kernel schedules instead of this scheduler")
            }
            Self::Deadline => {
                Some("deadline thread, which the kernel schedules instead of this scheduler")
            }
            _ => None,
        }
    }
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ExplainedProcess {
    /// The process.
    pid: i32,
    /// The CPUs that the scheduler prefers for the process; `None` without a seat.
    seat: Option<SoftSeat>,
    /// The threads of the process.
    threads: Vec<Thread>,
    /// The scheduler's settings.
    #[serde(skip)]
    settings: Settings,
}

/// The threads of processes, and where they run.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SchedExplainAnswer {
    /// The processes that exist, in the given order.
    processes: Vec<ExplainedProcess>,
}

/// Reads the threads and prints them.
pub fn run(args: &Args, dir: &Path, out: Output) -> Outcome {
    let running = remote::running(dir)?;
    let held = SchedulerHandle::open(&running.maps)?;
    let (mut answers, mut missing) = (Vec::new(), Vec::new());
    for (at, &pid) in args.pids.iter().enumerate() {
        if args.pids[..at].contains(&pid) {
            continue;
        }
        match explained(&held, pid, running.settings)? {
            Some(answer) => answers.push(answer),
            None => missing.push(Err(anyhow!("process {pid} does not exist"))),
        }
    }
    let answer = SchedExplainAnswer { processes: answers };
    let printed = out.answer(&answer, || match &answer.processes[..] {
        [one] if args.pids.len() == 1 => text(one),
        several => texts(several),
    });
    failure::combine(missing.into_iter().chain([printed]))
}

/// Returns `None` if there is no such process.
fn explained(
    held: &SchedulerHandle,
    pid: i32,
    settings: Settings,
) -> anyhow::Result<Option<ExplainedProcess>> {
    let mut threads = Vec::new();
    // A process that has ended has no threads.
    if let Ok(tasks) = Process::new(pid).and_then(|process| process.tasks()) {
        for task in tasks.flatten() {
            threads.extend(thread(held, &task)?);
        }
    }
    if threads.is_empty() {
        return Ok(None);
    }
    let seats: Vec<_> = threads
        .iter()
        .filter_map(|t| t.sched.as_ref()?.seat)
        .collect();
    let all = held.seats()?;
    Ok(Some(ExplainedProcess {
        pid,
        seat: all.into_iter().find(|seat| seats.contains(&seat.cgroup)),
        threads,
        settings,
    }))
}

/// Returns `None` if the thread has just ended.
fn thread(held: &SchedulerHandle, task: &Task) -> anyhow::Result<Option<Thread>> {
    let Ok(stat) = task.stat() else {
        return Ok(None);
    };
    let known = held.thread(task.tid)?;
    let mut thread = Thread::of(task.tid, stat, known);
    if let Some(Queue::Throttled { cgroup }) = thread.sched.as_ref().and_then(|s| s.waits) {
        let path = format!("/proc/{}/task/{}/cgroup", task.pid, task.tid);
        let own = fs::read_to_string(path).unwrap_or_default();
        thread.throttled_by = ancestor_with(cgroup, &own, Path::new(CGROUPS));
    }
    Ok(Some(thread))
}

/// Mount point of the cgroups.
const CGROUPS: &str = "/sys/fs/cgroup";

/// Returns the path of the cgroup with this number, among the cgroup in `own`, the content of a file
/// `/proc/PID/task/TID/cgroup`, and its ancestors. `None` if the thread has moved since.
fn ancestor_with(number: u64, own: &str, root: &Path) -> Option<String> {
    let own = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let has_number = |path: &&Path| {
        let found = fs::metadata(root.join(path));
        found.is_ok_and(|found| found.ino() == number)
    };
    let path = Path::new(own).ancestors().find(has_number)?;
    Some(format!("/{}", path.display()))
}

impl Thread {
    fn of(tid: i32, stat: Stat, known: Option<ThreadState>) -> Self {
        let policy = Policy::of(stat.policy);
        let cpu = stat.processor.and_then(|cpu| u32::try_from(cpu).ok());
        // The scheduler's knowledge is outdated when another scheduling class runs the thread.
        let mut sched = known.filter(|_| policy.apart().is_none());
        if let Some(sched) = &mut sched {
            // For a sleeping thread the field is meaningless, because the scheduler decides when
            // the thread wakes whether it is urgent.
            sched.urgent &= stat.state == 'R';
        }
        if let (Some(sched), Some(cpu)) = (&mut sched, cpu)
            && sched.why == Why::Unknown
        {
            // The scheduler has no record of a CPU for this thread; the kernel's value replaces it.
            sched.cpu = cpu;
        }
        Self {
            tid,
            name: stat.comm,
            state: stat.state,
            policy,
            cpu_unknown: cpu.filter(|_| sched.is_none()),
            throttled_by: None,
            sched,
        }
    }
}

fn texts(answers: &[ExplainedProcess]) -> String {
    let each = answers
        .iter()
        .map(|answer| format!("process {}\n{}", answer.pid, text(answer)));
    each.collect::<Vec<_>>().join("\n")
}

fn text(answer: &ExplainedProcess) -> String {
    let mut lines = String::new();
    if let Some(seat) = &answer.seat {
        lines = format!(
            "the seat of '{}' consists of CPUs {}\n\n",
            shown(&seat.name),
            seat.cpus
        );
    }
    let head = [
        "thread",
        "name",
        "state",
        "where",
        "why",
        "placement",
        "lag",
        "avg burst",
        "cpu.weight",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(answer.threads.iter().map(|thread| row(thread, answer)));
    lines + &output::columns(&rows)
}

fn row(thread: &Thread, answer: &ExplainedProcess) -> Vec<String> {
    let waits = thread.sched.as_ref().and_then(|sched| sched.waits);
    let mut row = vec![
        thread.tid.to_string(),
        shown(&thread.name),
        word(thread.state, waits).to_owned(),
    ];
    let Some(sched) = &thread.sched else {
        let cpu = thread.cpu_unknown;
        row.push(cpu.map_or("-".to_owned(), |cpu| on_cpu(thread.state, cpu)));
        let why = match thread.state {
            'Z' | 'X' => "the thread has ended",
            _ => "the scheduler has not seen the thread yet",
        };
        row.push(thread.policy.apart().unwrap_or(why).to_owned());
        row.extend(["-"; 4].map(str::to_owned));
        return row;
    };
    row.extend([
        place(thread, sched, &answer.settings),
        reason(sched, thread.state, answer),
        placement::text(sched),
        match has_pace(thread.state, sched, &answer.settings) {
            true => format!("{:+.1} ms", sched.lag_ns as f64 / 1e6),
            false => "-".to_owned(),
        },
        match sched.burst_average_ns {
            0 if thread.state == 'R' && sched.why != Why::Unknown => "never slept".to_owned(),
            // The thread has not run yet, or has not woken after its first run: the scheduler
            // updates the average burst at a wake-up.
            0 => "-".to_owned(),
            ns => format!("{:.2} ms", ns as f64 / 1e6),
        },
        sched.group_weight.to_string(),
    ]);
    row
}

/// Returns whether the thread's lag is valid now.
fn has_pace(state: char, sched: &ThreadState, settings: &Settings) -> bool {
    // The lag is invalid in four cases: with FIFO order, which does not use virtual time; for a
    // thread pinned to its CPU; for a new thread; and for a sleeping thread, because its vtime is
    // clamped when it wakes.
    let goes_by_it = !settings.fifo && !matches!(sched.why, Why::Unknown | Why::OnlyHere);
    state == 'R' && goes_by_it
}

fn word(state: char, waits: Option<Queue>) -> &'static str {
    match (state, waits) {
        (_, Some(_)) => "waits",
        ('R', None) => "runs",
        ('T' | 't', None) => "stopped",
        ('Z' | 'X', None) => "ended",
        _ => "sleeps",
    }
}

fn place(thread: &Thread, sched: &ThreadState, settings: &Settings) -> String {
    match sched.waits {
        Some(Queue::Urgent { llc }) => format!("LLC {llc}, the queue of urgent threads"),
        Some(Queue::AddressSpace { llc, queue }) if settings.aggregate => {
            format!("LLC {llc}, the queue of its address space (queue {queue})")
        }
        Some(Queue::AddressSpace { llc, queue }) => format!("LLC {llc}, queue {queue}"),
        Some(Queue::Throttled { cgroup }) => match &thread.throttled_by {
            Some(path) => format!("the throttled threads of cgroup '{}'", shown(path)),
            None => format!("the throttled threads of cgroup {cgroup}"),
        },
        None => match sched.capacity {
            Some(capacity) => {
                let cpu = on_cpu(thread.state, sched.cpu);
                format!("{cpu}, capacity {capacity}")
            }
            None => on_cpu(thread.state, sched.cpu),
        },
    }
}

fn on_cpu(state: char, cpu: u32) -> String {
    match state {
        'R' => format!("CPU {cpu}"),
        _ => format!("last on CPU {cpu}"),
    }
}

fn reason(sched: &ThreadState, state: char, answer: &ExplainedProcess) -> String {
    let waits = sched.waits.is_some();
    let turn = |owner: &str| match (waits, state) {
        (true, _) => format!("waits for {owner} turn"),
        (_, 'R') => format!("runs in {owner} turn"),
        // The thread does not run now: the text describes its last run.
        _ => format!("ran in {owner} turn"),
    };
    let why: &str = match (sched.why, waits) {
        (Why::Turn, _) if answer.settings.aggregate => &turn("its address space's"),
        (Why::Turn, _) => &turn("its"),
        (Why::Urgent, true) => {
            "the thread waits for the next free CPU, because its bursts are short"
        }
        (Why::Unknown, _) => "the thread has not run since the scheduler started",
        (Why::OnlyHere, _) => "the thread may run only on this CPU",
        (Why::IdleCore, _) => "all hardware threads of the core were idle",
        (Why::IdleThread, _) => {
            "the CPU was idle, but another hardware thread of its core was busy"
        }
        (Why::Returned, _) => {
            "the CPU is in the seat of the thread and was reclaimed from a borrower"
        }
        (Why::Urgent, false) => {
            "the thread has short bursts and was the first urgent thread in the queue"
        }
        (Why::Stolen, _) => "the CPU took the thread from a queue of another LLC",
        (Why::Alone, _) => "no other thread waited for the CPU",
        (Why::Fifo, _) => "threads run in first-come, first-served order",
        (Why::Throttled, true) => "the cgroup has used up its CPU quota (cpu.max) of this period",
        (Why::FasterCore, _) => {
            "the core was idle and is faster than the core on which the thread ran before"
        }
        (Why::Isolated, _) => "the thread may run only on isolated CPUs",
        (Why::Throttled, false) => "the thread was throttled by a CPU quota (cpu.max)",
    };
    let is_guest = answer.seat.as_ref().is_some_and(|seat| {
        let has_run = !waits && sched.why != Why::Unknown;
        has_run && !sched.kept_from_seat && !seat.cpus.contains(sched.cpu)
    });
    match (is_guest, sched.kept_from_seat) {
        (true, _) => format!("{why}; the thread is a borrower"),
        (_, true) => format!("{why}; the affinity of the thread excludes its seat"),
        _ => why.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use procfs::FromRead;
    use usher_scx::Placement;

    use super::*;

    fn state(why: Why, waits: Option<Queue>) -> ThreadState {
        ThreadState {
            cpu: 3,
            why,
            waits,
            urgent: false,
            burst_average_ns: 2_000_000,
            lag_ns: -1_500_000,
            seat: Some(9),
            kept_from_seat: false,
            group_weight: 250,
            placed: Placement::NewIdlest,
            placed_llc: 1,
            capacity: Some(600),
        }
    }

    fn thread(tid: i32, state: char, sched: Option<ThreadState>) -> Thread {
        Thread {
            tid,
            name: "cc1".to_owned(),
            state,
            policy: Policy::Ext,
            cpu_unknown: None,
            throttled_by: None,
            sched,
        }
    }

    #[test]
    fn throttled_threads_are_shown_with_the_path_of_the_cgroup() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("a.slice/b/c")).unwrap();
        let number = |path| fs::metadata(root.path().join(path)).unwrap().ino();
        let path = |number| ancestor_with(number, "0::/a.slice/b/c\n", root.path());
        assert_eq!(path(number("a.slice/b")).as_deref(), Some("/a.slice/b"));
        assert_eq!(path(number("a.slice/b/c")).as_deref(), Some("/a.slice/b/c"));
        assert_eq!(path(0), None);
        let waits = Queue::Throttled { cgroup: 71 };
        let mut throttled = thread(10, 'R', Some(state(Why::Throttled, Some(waits))));
        let shown = |thread: &Thread| {
            let sched = thread.sched.as_ref().unwrap();
            place(thread, sched, &Settings::default())
        };
        assert_eq!(shown(&throttled), "the throttled threads of cgroup 71");
        throttled.throttled_by = path(number("a.slice/b"));
        assert_eq!(
            shown(&throttled),
            "the throttled threads of cgroup '/a.slice/b'"
        );
    }

    /// Returns the kernel's data of a thread with this policy, which last ran on CPU 5.
    fn stat(policy: u32) -> Stat {
        let until_policy = "10 (a b) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 5 0 0 0 0 0 0 0 0 0 0 \
                            0 0 0 0 0 17 5 0";
        let line = format!("{until_policy} {policy} 0 0 0 0 0 0 0 0 0 0 0\n");
        Stat::from_read(line.as_bytes()).unwrap()
    }

    #[test]
    fn a_cpu_unknown_to_the_scheduler_comes_from_the_kernel() {
        let unknown = || Some(state(Why::Unknown, None));
        let actual = |policy, known| {
            let thread = Thread::of(10, stat(policy), known);
            let json = serde_json::to_value(&thread).unwrap();
            (json["cpu"].clone(), json["policy"].clone(), thread)
        };
        let (cpu, policy, thread) = actual(0, unknown());
        assert_eq!((cpu, policy), (5.into(), "other".into()));
        assert!(thread.sched.is_some());
        let (cpu, _, _) = actual(7, Some(state(Why::Alone, None)));
        assert_eq!(cpu, 3);
        for (number, name) in [(1, "fifo"), (2, "rr"), (6, "deadline")] {
            let (cpu, policy, thread) = actual(number, unknown());
            assert_eq!((cpu, policy), (5.into(), name.into()));
            assert!(thread.sched.is_none());
        }
        assert_eq!(actual(3, None).0, 5);
    }

    #[test]
    fn shows_borrowers_and_waiting_threads() {
        let seat = SoftSeat {
            cgroup: 9,
            name: "make".to_owned(),
            cpus: usher_model::CpuSet::range(0, 1),
            tally: Default::default(),
        };
        let waits = Queue::AddressSpace { llc: 1, queue: 4 };
        let answer = ExplainedProcess {
            pid: 10,
            seat: Some(seat),
            threads: vec![
                thread(10, 'R', Some(state(Why::IdleCore, None))),
                thread(11, 'R', Some(state(Why::Turn, Some(waits)))),
                thread(12, 'S', None),
                Thread {
                    policy: Policy::Fifo,
                    cpu_unknown: Some(7),
                    ..thread(13, 'S', None)
                },
            ],
            settings: Settings::default(),
        };
        let actual = text(&answer);
        for expected in [
            "the seat of 'make' consists of CPUs 0-1",
            "CPU 3, capacity 600",
            "new thread: started in LLC 1, which had a lower load than that of its parent",
            "all hardware threads of the core were idle; the thread is a borrower",
            "LLC 1, the queue of its address space (queue 4)",
            "waits for its address space's turn",
            "-1.5 ms",
            "250",
            "sleeps  -",
            "has not seen the thread yet",
            "last on CPU 7",
            "real-time thread, which the kernel schedules instead of this scheduler",
        ] {
            assert!(actual.contains(expected), "{expected}: {actual}");
        }
    }

    #[test]
    fn omits_inapplicable_values() {
        let waits = Queue::AddressSpace { llc: 1, queue: 4 };
        let answer = |settings| ExplainedProcess {
            pid: 10,
            seat: None,
            threads: vec![thread(10, 'R', Some(state(Why::Turn, Some(waits))))],
            settings,
        };
        let actual = text(&answer(Settings {
            aggregate: false,
            ..Settings::default()
        }));
        assert!(
            !actual.contains("address space") && actual.contains("waits for its turn"),
            "{actual}"
        );
        let actual = text(&answer(Settings {
            fifo: true,
            ..Settings::default()
        }));
        assert!(!actual.contains("-1.5 ms"), "{actual}");
    }

    #[test]
    fn the_turn_of_a_sleeping_thread_is_past() {
        let waits = Queue::AddressSpace { llc: 0, queue: 4 };
        let actual = |why, aggregate, waits, letter| {
            let answer = ExplainedProcess {
                pid: 10,
                seat: None,
                threads: vec![],
                settings: Settings {
                    aggregate,
                    ..Settings::default()
                },
            };
            reason(&state(why, waits), letter, &answer)
        };
        for (why, aggregate, turn) in [
            (Why::Turn, true, "its address space's turn"),
            (Why::Turn, false, "its turn"),
        ] {
            assert_eq!(actual(why, aggregate, None, 'R'), format!("runs in {turn}"));
            assert_eq!(actual(why, aggregate, None, 'S'), format!("ran in {turn}"));
            let waiting = actual(why, aggregate, Some(waits), 'R');
            assert_eq!(waiting, format!("waits for {turn}"));
        }
        assert_eq!(
            actual(Why::IdleCore, true, None, 'S'),
            "all hardware threads of the core were idle"
        );
    }

    #[test]
    fn an_ended_thread_is_not_reported_as_new() {
        let actual = text(&ExplainedProcess {
            pid: 10,
            seat: None,
            threads: vec![thread(10, 'Z', None)],
            settings: Settings::default(),
        });
        assert!(actual.contains("the thread has ended"), "{actual}");
    }

    #[test]
    fn reports_never_slept_only_for_threads_that_ran() {
        let bursts = |why, letter| {
            let sched = ThreadState {
                burst_average_ns: 0,
                ..state(why, None)
            };
            text(&ExplainedProcess {
                pid: 10,
                seat: None,
                threads: vec![thread(10, letter, Some(sched))],
                settings: Settings::default(),
            })
        };
        assert!(!bursts(Why::Unknown, 'R').contains("never slept"));
        assert!(bursts(Why::Turn, 'R').contains("never slept"));
        assert!(!bursts(Why::Turn, 'S').contains("never slept"));
    }

    #[test]
    fn distinguishes_several_processes() {
        let answer = |pid| ExplainedProcess {
            pid,
            seat: None,
            threads: vec![],
            settings: Settings::default(),
        };
        let actual = texts(&[answer(10), answer(11)]);
        assert!(actual.starts_with("process 10\n") && actual.contains("\n\nprocess 11\n"));
    }
}
