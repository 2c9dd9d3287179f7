// SPDX-License-Identifier: MIT OR Apache-2.0
//! Chains of threads and of processes, seated, moved and released: one second
//! after each release no thread may have a mask of a seat.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::time::{ClockId, clock_gettime};
use usher_act::{ActConfig, Actuator, Work};
use usher_model::{Action, CpuSet, ProcessId, ProgramId};

use super::PROGRAM;
use crate::bars::{Bar, Part};

/// How long each link of a chain lives, in microseconds.
const LIVES_US: [u64; 4] = [100, 500, 2_000, 10_000];
/// From a release to the count.
const GRACE: Duration = Duration::from_secs(1);
/// Between two steps of the scans, as in the daemon.
const STEP: Duration = Duration::from_millis(20);
/// Listings in one count: a listing may miss a thread.
const LISTINGS: usize = 5;
const ONE: ProgramId = ProgramId(1);

/// The result of one kind of program.
#[derive(Debug, Default, serde::Serialize)]
struct Row {
    link: &'static str,
    life_us: u64,
    releases: usize,
    /// Releases after which a thread still had a mask of a seat.
    narrowed: usize,
    /// CPU time of this process from release to count, as a part of one CPU.
    cpu: f64,
}

/// Runs every kind of program.
pub fn run(releases: usize) -> Result<Part> {
    let mut part = Part::new("churn", "Threads and processes that live for a moment");
    let mut rows = Vec::new();
    for link in ["thread", "process"] {
        for life_us in LIVES_US {
            let row = one(link, life_us, releases)?;
            eprintln!("churn: {row:?}");
            rows.push(row);
        }
    }
    let narrowed = rows.iter().map(|row| row.narrowed).sum();
    let cpu = rows.iter().map(|row| row.cpu).fold(0.0, f64::max);
    part.bars = vec![
        Bar::none(
            format!("of {releases} releases of each: a thread narrowed 1 s later"),
            narrowed,
        ),
        Bar::at_most("CPU time spent, worst kind", cpu * 100.0, 2.0, "% of a CPU"),
    ];
    part.notes = vec![
        "Ten chains each; each link lives 0.1, 0.5, 2 or 10 ms and starts the next one.".to_owned(),
    ];
    part.raw = serde_json::to_value(&rows)?;
    Ok(part)
}

/// The chains; killed with the value.
struct Chains(Child);

impl Drop for Chains {
    fn drop(&mut self) {
        let group = self.0.id().cast_signed();
        // A chain of processes may escape one signal between two forks.
        for _ in 0..200 {
            // SAFETY: signals the group that this program made.
            if unsafe { libc::kill(-group, libc::SIGKILL) } != 0 {
                break;
            }
            let _ = self.0.try_wait();
        }
        let _ = self.0.wait();
    }
}

impl Chains {
    fn start(link: &str, life_us: u64) -> Result<Self> {
        let exe = std::env::current_exe()?;
        let mut command = Command::new(exe);
        command.args([PROGRAM, link, &life_us.to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.process_group(0).spawn()?;
        let out = child.stdout.take().context("its standard output")?;
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line)?;
        let chains = Self(child);
        ensure!(line == "ready\n", "the program of chains did not start");
        Ok(chains)
    }
}

fn one(link: &'static str, life_us: u64, releases: usize) -> Result<Row> {
    let runtime = tempfile::tempdir()?;
    let mut act = Actuator::open(ActConfig::new(runtime.path()))?;
    let chains = Chains::start(link, life_us)?;
    let root = chains.0.id().cast_signed();
    let id = ProcessId {
        pid: root,
        start_ticks: procfs::process::Process::new(root)?.stat()?.starttime,
    };
    act.prepare_held(ONE, id, Work::Foreground)?;
    act.admit(ONE, id, Work::Foreground)?;
    let all = masks(root);
    let cpus: CpuSet = all.iter().next().context("its mask")?.parse()?;
    ensure!(cpus.len() >= 2, "needs two CPUs");
    let seats = [cpus.first(), cpus.last()].map(|cpu| CpuSet::single(cpu.unwrap_or(0)));
    let mut row = Row {
        link,
        life_us,
        releases,
        ..Row::default()
    };
    let mut spent = Duration::ZERO;
    for _ in 0..releases {
        for cpus in &seats {
            let cpus = cpus.clone();
            act.act(&Action::Seat { program: ONE, cpus })?;
        }
        let (begun, cpu) = (Instant::now(), cpu_time());
        act.act(&Action::Release { program: ONE })?;
        while begun.elapsed() < GRACE {
            std::thread::sleep(STEP);
            act.continue_scans()?;
        }
        spent += cpu_time().saturating_sub(cpu);
        let is_narrowed = (0..LISTINGS).any(|_| !masks(root).is_subset(&all));
        row.narrowed += usize::from(is_narrowed);
    }
    row.cpu = spent.as_secs_f64() / (GRACE.as_secs_f64() * releases.max(1) as f64);
    let left = act.undo_all();
    ensure!(left.is_empty(), "{left:?}");
    Ok(row)
}

/// CPU time of this process.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

/// The affinity lists of all threads of a process group.
fn masks(group: i32) -> BTreeSet<String> {
    let mut masks = BTreeSet::new();
    let processes = procfs::process::all_processes().into_iter().flatten();
    for process in processes.filter_map(Result::ok) {
        let is_of_group = process.stat().is_ok_and(|stat| stat.pgrp == group);
        let tasks = process.tasks().ok().filter(|_| is_of_group);
        for task in tasks.into_iter().flatten().filter_map(Result::ok) {
            let status = task.status();
            let lists = status.ok().and_then(|status| status.cpus_allowed_list);
            let lists = lists.map(|lists| lists.iter().map(|(a, b)| format!("{a}-{b}")).collect());
            masks.extend(lists.map(|lists: Vec<String>| lists.join(",")));
        }
    }
    masks
}
