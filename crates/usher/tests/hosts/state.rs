// SPDX-License-Identifier: GPL-2.0-only
//! State of programs as reported by the kernel and systemd (seats, priorities, cgroups, stops),
//! waiting for a state, and the cleanup between checks.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;
use usher_model::{CpuSet, Topology};

use crate::shell::{Shell, root};

/// Upper limit of the wait for a change, in an emulated machine on a busy host.
const DEADLINE: Duration = Duration::from_secs(600);
const PAUSE: Duration = Duration::from_millis(50);
/// The program that checks launch.
pub const WORK: &str = "/usr/local/lib/usher-lab/hosts work";
/// The same program with threads that never sleep.
pub const SPIN: &str = "/usr/local/lib/usher-lab/hosts spin";

/// Polls until `poll` returns a value.
pub fn wait_for<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + DEADLINE;
    loop {
        if let Some(answer) = poll() {
            return answer;
        }
        if Instant::now() >= deadline {
            let status = root(
                "usher status; journalctl -u usher -o cat -n 20 --no-pager; \
                 tail -n 5 /var/tmp/messages-*",
            )
            .text;
            panic!("waited in vain for {what}\n{status}");
        }
        std::thread::sleep(PAUSE);
    }
}

/// Returns the machine, as the kernel describes it.
pub fn machine() -> Topology {
    usher_topology::load(usher_topology::Source::ThisMachine).unwrap()
}

/// Returns the CPUs of each last-level cache.
pub fn caches() -> Vec<CpuSet> {
    let domains = machine().domains.into_iter();
    domains.map(|domain| domain.cpus).collect()
}

/// Returns every CPU of the machine.
pub fn everywhere() -> CpuSet {
    machine().all_cpus()
}

/// A program that a check started. Dropping it kills the process.
#[derive(Debug)]
pub struct Program {
    pub pid: i32,
}

impl Program {
    /// Returns the program that `usher run` or `usher bg` launches as a command of a shell.
    pub fn launch(shell: &mut Shell, usher: &str, threads: usize) -> Self {
        let line = format!("{usher} -- {WORK} {threads}");
        let launcher = shell.start(&line);
        Self::of_launcher(launcher, &line, threads)
    }

    /// Returns the program that a launcher has started, or will start.
    pub fn of_launcher(launcher: i32, line: &str, threads: usize) -> Self {
        let pid = wait_for(&format!("the program of {line}"), || {
            descendants(launcher).into_iter().find(|&pid| works(pid))
        });
        let program = Self { pid };
        program.has_threads(threads);
        program
    }

    /// Returns the launcher of a program that `usher run` or `usher bg` has launched.
    pub fn launcher(&self) -> i32 {
        self.stat()[1].parse().unwrap()
    }

    /// Returns fields of `/proc/PID/stat` from the state on; empty if the process is gone.
    fn stat(&self) -> Vec<String> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        let fields = stat.rsplit_once(") ").map(|(_, fields)| fields);
        let fields = fields.unwrap_or_default().split_whitespace();
        fields.map(str::to_owned).collect()
    }

    /// Returns whether the program is stopped by a signal, or in a frozen cgroup.
    pub fn is_stopped(&self) -> bool {
        let stopped = self.stat().first().is_some_and(|state| state == "T");
        let events = fs::read_to_string(self.cgroup().join("cgroup.events"));
        stopped || events.is_ok_and(|events| events.contains("frozen 1"))
    }

    /// Starts a program without Usher.
    pub fn start(shell: &mut Shell, threads: usize) -> Self {
        let pid = shell.start(&format!("exec {WORK} {threads}"));
        let program = Self { pid };
        program.has_threads(threads);
        program
    }

    /// Returns the main process of a unit as a program.
    pub fn of_unit(shell: &mut Shell, systemctl: &str, unit: &str, threads: usize) -> Self {
        let pid = wait_for(&format!("the main process of {unit}"), || {
            let pid = shell
                .run(&format!("{systemctl} show -P MainPID {unit}"))
                .ok();
            let pid: i32 = pid.trim().parse().ok()?;
            let all = [pid].into_iter().chain(children(pid));
            all.into_iter().find(|&pid| works(pid))
        });
        let program = Self { pid };
        program.has_threads(threads);
        program
    }

    pub fn has_threads(&self, threads: usize) {
        wait_for("all threads of a program", || {
            let tasks = fs::read_dir(format!("/proc/{}/task", self.pid)).ok()?;
            (tasks.count() == threads).then_some(())
        });
    }

    /// Returns the affinity mask of all threads; `None` while they differ.
    pub fn mask(&self) -> Option<CpuSet> {
        let threads = fs::read_dir(format!("/proc/{}/task", self.pid)).ok()?;
        let mut masks = threads.flatten().map(|thread| {
            let status = fs::read_to_string(thread.path().join("status")).ok()?;
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
            line.trim().parse::<CpuSet>().ok()
        });
        let first = masks.next()??;
        masks
            .all(|mask| mask.as_ref() == Some(&first))
            .then_some(first)
    }

    /// Returns the path of the program's cgroup.
    pub fn cgroup(&self) -> PathBuf {
        let lines = fs::read_to_string(format!("/proc/{}/cgroup", self.pid)).unwrap();
        let path = lines.lines().find_map(|line| line.strip_prefix("0::/"));
        Path::new("/sys/fs/cgroup").join(path.unwrap())
    }

    /// Returns the content of a file of the program's cgroup. If the cgroup lacks the file, or its
    /// content does not satisfy the condition, the nearest cgroup above that does is used.
    pub fn limit(&self, file: &str, is_limit: impl Fn(&str) -> bool) -> Option<String> {
        let dir = self.cgroup();
        dir.ancestors().find_map(|dir| {
            let text = fs::read_to_string(dir.join(file)).ok()?;
            let text = text.trim().to_owned();
            is_limit(&text).then_some(text)
        })
    }

    /// Returns nice value and scheduling policy of the main thread.
    pub fn priority(&self) -> (i32, i32) {
        let fields = self.stat();
        let number = |at: usize| fields[at].parse().unwrap();
        (number(16), number(38))
    }

    /// Waits until the program has a seat, and returns the seat: whole last-level caches, but not
    /// all.
    pub fn seat(&self) -> CpuSet {
        let all = everywhere();
        let caches = caches();
        wait_for("a seat of whole caches", || {
            let mask = self.mask()?;
            let whole = |cache: &CpuSet| !cache.intersects(&mask) || cache.is_subset(&mask);
            (mask != all && caches.iter().all(whole)).then_some(mask)
        })
    }

    /// Waits until the program may run on every CPU again.
    pub fn roams(&self) {
        let all = everywhere();
        wait_for("a program to be released", || {
            (self.mask()? == all).then_some(())
        });
    }

    pub fn lives(&self) -> bool {
        let stat = self.stat();
        stat.first()
            .is_some_and(|state| !matches!(state.as_str(), "Z" | "X"))
    }

    pub fn ends(&self) {
        wait_for("a program to end", || (!self.lives()).then_some(()));
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        kill(self.pid);
    }
}

/// Sends SIGKILL to a process that a check or the service started.
pub fn kill(pid: i32) {
    // SAFETY: `kill` involves no memory of this process.
    unsafe { libc::kill(pid, libc::SIGKILL) };
}

/// Waits until each program has a seat of whole last-level caches, and no two seats share a CPU.
/// Returns the seats.
pub fn disjoint(programs: &[&Program]) -> Vec<CpuSet> {
    wait_for("disjoint seats", || {
        let seats: Vec<CpuSet> = programs.iter().map(|program| program.seat()).collect();
        let apart = |(at, seat): (usize, &CpuSet)| {
            !seats[at + 1..].iter().any(|other| other.intersects(seat))
        };
        seats.iter().enumerate().all(apart).then_some(seats)
    })
}

/// Returns whether a process executes the worker program of the checks.
fn works(pid: i32) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut words = line.split(|&byte| byte == 0);
    let is_ours = |word: &[u8]| word == b"/usr/local/lib/usher-lab/hosts" || word == b"./calc";
    words.next().is_some_and(is_ours) && words.next() == Some(b"work")
}

/// Returns the children of all threads of a process.
pub fn children(pid: i32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter();
    let tasks = tasks.flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let all: Vec<String> = lists.collect();
    let pids = all.iter().flat_map(|list| list.split_whitespace());
    pids.map(|pid| pid.parse().unwrap()).collect()
}

/// Returns all processes below a process.
fn descendants(pid: i32) -> Vec<i32> {
    let below = children(pid);
    let deeper = below.iter().flat_map(|&child| descendants(child));
    let deeper: Vec<i32> = deeper.collect();
    below.into_iter().chain(deeper).collect()
}

/// Returns the state that the system's daemon reports. Polls until the daemon answers.
pub fn status() -> Value {
    wait_for("the daemon's status", || {
        let answer = root("usher status --json 2>/dev/null");
        serde_json::from_str(&answer.text).ok()
    })
}

/// Starts the system's service with the policy that seats all programs.
pub fn start_service() {
    start_service_with("equal", "");
}

/// As [`start_service`], with this policy and additional lines in the unit.
pub fn start_service_with(policy: &str, more: &str) {
    let dir = "/run/systemd/system/usher.service.d";
    fs::create_dir_all(dir).unwrap();
    let lines = format!(
        "[Service]\nExecStart=\nExecStart=/usr/local/bin/usher daemon --policy {policy} \
         --runtime-dir /run/usher --store /var/lib/usher/profiles.db\n"
    );
    fs::write(format!("{dir}/policy.conf"), format!("{lines}{more}")).unwrap();
    root(
        "systemctl daemon-reload && systemctl start usher || \
         { journalctl -u usher -o cat -n 9 --no-pager; exit 1; }",
    )
    .ok();
}

/// Returns all cgroups that Usher has made.
pub fn own_cgroups() -> Vec<String> {
    let found = root("find /sys/fs/cgroup -type d -name 'usher-*'").ok();
    found.lines().map(str::to_owned).collect()
}

/// Stops all daemons of earlier checks and the programs that they left.
pub fn fresh() {
    root(
        "systemctl stop usher; systemctl stop docker.socket docker containerd 2>/dev/null; \
         systemctl reset-failed; true",
    )
    .ok();
    for user in ["alice", "bob"] {
        root(&format!(
            "systemctl --user -M {user}@ stop usher 2>/dev/null; pkill -KILL -u {user} 'hosts|calc'; true"
        ))
        .ok();
    }
    fs::remove_dir_all("/run/systemd/system/usher.service.d").ok();
    root("rm -f /var/tmp/messages-*").ok();
}
