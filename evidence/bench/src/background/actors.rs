// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs foreground and background work as processes, and adds up the background's completed work,
//! CPU time and disk bytes.
//!
//! Each process of the background has the variable [`MARK`] in its environment. Children inherit
//! the variable, also in another session or cgroup. The benchmark scans `/proc` for processes with
//! the variable, in order to add up their use and to end them: SIGTERM first, SIGKILL after 2 s. If
//! a process still runs after another 10 s, the end of the background reports an error. Each scan
//! reads the environment of every process of the machine.
//!
//! A foreground is successful if its exit status is 0 or 1, and is checked every 0.5 ms. The bytes
//! read are bytes from disks; the bytes written are all bytes passed to write calls.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::jobs::Job;
use super::load::read_counter;
use super::rig::keeper::{Keeper, script};
use super::study::BackgroundWork;
use crate::processes::{runs, terminate, wait_for};

/// Environment variable that marks the processes of a foreground (value `PID-fg`) and of a
/// background (`PID-NUMBER`). `PID` is the process number of the benchmark.
pub const MARK: &str = "USHER_BENCH_BACKGROUND";
/// Time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(2);

/// Duration of one run of the foreground.
#[derive(Debug, Clone, Copy)]
pub struct ForegroundRun {
    /// Seconds from the start to the end of the foreground.
    pub seconds: f64,
    /// Whether the foreground was ended early because it exceeded its time limit.
    pub cut: bool,
}

/// Value of the variable [`MARK`] for foregrounds that this process starts.
pub fn foreground_mark() -> String {
    format!("{}-fg", std::process::id())
}

/// Kills all foreground and background processes that this process has started, as soon as this
/// process ends for any reason. Ctrl-C does not reach those processes, because they run in sessions
/// of their own.
pub fn reaper() -> Result<Keeper> {
    reaper_of(&format!("{MARK}={}-", std::process::id()))
}

/// Returns a keeper that kills all processes with an environment variable that begins with `mark`,
/// as soon as this process ends.
pub fn reaper_of(mark: &str) -> Result<Keeper> {
    // A process may fork during the search. The search is therefore repeated until it finds no
    // process.
    let body = "
        while :; do
            found=
            for process in /proc/[0-9]*; do
                if grep -qsz \"^$mark\" $process/environ && kill -KILL ${process#/proc/}; then
                    found=1
                fi
            done
            [ $found ] || break
        done";
    Keeper::new(&script(&[("mark", mark)], body))
}

/// Runs a foreground to its end, or ends it after the time `at_most`.
pub fn foreground(words: &[String], own_session: bool, at_most: Duration) -> Result<ForegroundRun> {
    let session: &[String] = if own_session {
        &["setsid".to_owned()]
    } else {
        &[]
    };
    let all: Vec<&String> = session.iter().chain(words).collect();
    let start = Instant::now();
    let mut child = Command::new(all[0])
        .args(&all[1..])
        .env(MARK, foreground_mark())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("running {}", words.join(" ")))?;
    loop {
        if let Some(status) = child.try_wait()? {
            let seconds = start.elapsed().as_secs_f64();
            // pcre2grep exits with status 1 if nothing matched.
            ensure!(
                status.code().is_some_and(|code| code <= 1),
                "{} ended with {status}",
                words.join(" ")
            );
            return Ok(ForegroundRun {
                seconds,
                cut: false,
            });
        }
        if start.elapsed() > at_most {
            let seconds = start.elapsed().as_secs_f64();
            terminate(child.id().cast_signed());
            if wait_for("the end of the foreground work", GRACE, || {
                !runs(child.id().cast_signed())
            })
            .is_err()
            {
                child.kill()?;
            }
            child.wait()?;
            return Ok(ForegroundRun { seconds, cut: true });
        }
        std::thread::sleep(Duration::from_micros(500));
    }
}

/// Completed work of processes, and the CPU time and disk bytes that the processes have used since
/// their start.
#[derive(Debug, Clone, Copy, Default)]
struct ProcessUse {
    units: u64,
    cpu_ticks: u64,
    read_bytes: u64,
    write_bytes: u64,
}

/// Background commands. All their processes are ended when the value is dropped.
pub struct Background {
    children: Vec<Child>,
    counters: Vec<PathBuf>,
    mark: String,
    since: (Instant, ProcessUse),
}

impl Background {
    /// Starts the commands of the jobs. The commands already contain the treatment, such as `nice`
    /// or `usher bg`.
    pub fn start(jobs: &[Job], runtime: &std::path::Path) -> Result<Self> {
        static STARTED: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = STARTED.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let mut background = Self {
            children: vec![],
            counters: jobs.iter().filter_map(|job| job.counter.clone()).collect(),
            mark: format!("{MARK}={}-{number}", std::process::id()),
            since: (Instant::now(), ProcessUse::default()),
        };
        for counter in &background.counters {
            // The file may contain the count of an earlier background.
            let _ = fs::remove_file(counter);
        }
        let value = background
            .mark
            .split_once('=')
            .map_or("", |(_, value)| value)
            .to_owned();
        for job in jobs {
            let child = Command::new(&job.words[0])
                .args(&job.words[1..])
                .env(MARK, &value)
                .env("USHER_RUNTIME_DIR", runtime)
                .env("USHER_STORE", runtime.join("profiles.sqlite"))
                .env("USHER_CLAIM_NAME", std::process::id().to_string())
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .with_context(|| format!("running {}", job.words.join(" ")))?;
            background.children.push(child);
        }
        Ok(background)
    }

    /// Stores the time, the finished work and the CPU time at present. [`Background::done`] returns
    /// the differences from these values.
    pub fn begin(&mut self) {
        self.since = (Instant::now(), self.used());
    }

    /// Returns the work and use per second since [`Background::begin`].
    pub fn done(&self) -> BackgroundWork {
        let used = self.used();
        let (start, before) = &self.since;
        let seconds = start.elapsed().as_secs_f64();
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        BackgroundWork {
            units_per_s: rate(used.units, before.units),
            cpu: rate(used.cpu_ticks, before.cpu_ticks) / ticks,
            read_bytes_per_s: rate(used.read_bytes, before.read_bytes),
            write_bytes_per_s: rate(used.write_bytes, before.write_bytes),
        }
    }

    /// Returns an error if a command of the background has ended, because the measurement is then
    /// invalid.
    pub fn must_run(&mut self) -> Result<()> {
        for child in &mut self.children {
            if let Some(status) = child.try_wait()? {
                bail!("a background command ended on its own with {status}");
            }
        }
        Ok(())
    }

    /// Process number of the first command.
    pub fn first(&self) -> Result<i32> {
        let child = self.children.first().context("no background command")?;
        Ok(child.id().cast_signed())
    }

    /// Process numbers of all processes of the background.
    pub fn processes(&self) -> Vec<i32> {
        marked(&self.mark)
    }

    fn used(&self) -> ProcessUse {
        let mut sum = ProcessUse::default();
        sum.units += self
            .counters
            .iter()
            .map(|path| read_counter(path))
            .sum::<u64>();
        for pid in self.processes() {
            // If the process ends before its use is read, the kernel has added its use to that of
            // its parent.
            let _ = add_used(pid, &mut sum);
        }
        sum
    }

    /// Ends all processes of the background.
    ///
    /// # Errors
    /// A process of the background still runs 12 s after SIGTERM.
    pub fn end(mut self) -> Result<()> {
        self.stop()
    }

    fn stop(&mut self) -> Result<()> {
        for child in &self.children {
            terminate(child.id().cast_signed());
        }
        let children = &mut self.children;
        let all_ended = || {
            children
                .iter_mut()
                .all(|child| !matches!(child.try_wait(), Ok(None)))
        };
        // Processes that do not end in time are killed below.
        let _ = wait_for("the end of the background work", GRACE, all_ended);
        let ended = wait_for(
            "the end of the processes of the background work",
            Duration::from_secs(10),
            || {
                let left = marked(&self.mark);
                for pid in left.iter().filter_map(|&pid| Pid::from_raw(pid)) {
                    // The process may have ended since the search.
                    let _ = kill_process(pid, Signal::KILL);
                }
                left.is_empty()
            },
        );
        for child in &mut self.children {
            child.wait()?;
        }
        ended.map(|_| ())
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // `drop` cannot return the error.
        let _ = self.stop();
    }
}

fn marked(mark: &str) -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let is_marked = |pid: &i32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment
            .split(|byte| *byte == 0)
            .any(|one| one == mark.as_bytes())
    };
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(is_marked).filter(|&pid| runs(pid)).collect()
}

/// Adds the use of a process and of its children that have ended.
fn add_used(pid: i32, sum: &mut ProcessUse) -> Result<()> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, fields) = stat
        .rsplit_once(") ")
        .context("the stat file of the process has no command")?;
    // utime, stime, cutime, cstime: fields 14 to 17 of proc(5).
    let times = fields.split(' ').skip(11).take(4);
    sum.cpu_ticks += times
        .filter_map(|ticks| ticks.parse::<u64>().ok())
        .sum::<u64>();
    let io = fs::read_to_string(format!("/proc/{pid}/io"))?;
    let value = |name: &str| {
        let line = io.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().parse::<u64>().ok()
    };
    sum.read_bytes += value("read_bytes:").unwrap_or(0);
    sum.write_bytes += value("wchar:").unwrap_or(0);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marked_processes_end_with_their_keeper_in_any_session() {
        let mark = format!("USHER_TEST_REAPED={}-", std::process::id());
        let keeper = reaper_of(&mark).unwrap();
        let forks = "while :; do sleep 600 & wait; done";
        let mut shell = Command::new("setsid")
            .args(["sh", "-c", forks])
            .env("USHER_TEST_REAPED", format!("{}-bg", std::process::id()))
            .spawn()
            .unwrap();
        let all = || marked(&format!("{mark}bg"));
        wait_for("two of them", GRACE, || all().len() == 2).unwrap();
        drop(keeper);
        shell.wait().unwrap();
        assert_eq!(all(), [0; 0]);
    }
}
