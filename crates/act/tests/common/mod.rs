// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the tests share: programs to act on, and looking at what became of
//! them without the crate's own readers.

#![allow(dead_code)] // each test file uses its part

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use usher_act::{ActConfig, Actuator, Backend};
use usher_model::ProcessId;

/// How long a state is waited for before a test fails.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// The binary with the test's programs.
pub fn rig() -> PathBuf {
    env!("CARGO_BIN_EXE_usher-act-rig").into()
}

/// A way to act that a test goes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// v1 cpuset, cgroup v2 for the rest.
    V1,
    /// Affinity, cgroup v2 for the rest.
    Affinity,
    /// Affinity and signals, no cgroups at all.
    Bare,
}

impl Way {
    pub fn config(self, runtime: &Path) -> ActConfig {
        let mut config = ActConfig::new(runtime);
        match self {
            Self::V1 => config.prefer = Some(Backend::CpusetV1),
            Self::Affinity => config.prefer = Some(Backend::Affinity),
            Self::Bare => config.cgroup_root = "/nonexistent".into(),
        }
        config
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::V1 => "v1",
            Self::Affinity | Self::Bare => "affinity",
        }
    }
}

/// The ways that work here; what does not is said.
pub fn ways() -> Vec<Way> {
    let works = |way: &Way| {
        let runtime = tempfile::tempdir().unwrap();
        let mut act = Actuator::open(way.config(runtime.path())).unwrap();
        let tracks = act.describe().tracking != usher_act::Tracking::Pids;
        let works = match way {
            Way::V1 => act.backend() == Backend::CpusetV1 && tracks,
            Way::Affinity => tracks,
            Way::Bare => true,
        };
        if !works {
            eprintln!("not tested here: {way:?}: {:?}", act.describe().reasons);
        }
        assert!(act.undo_all().is_empty());
        works
    };
    [Way::V1, Way::Affinity, Way::Bare]
        .into_iter()
        .filter(works)
        .collect()
}

/// A program of the rig, in a process group of its own.
pub struct Program {
    pub child: Child,
    pub id: ProcessId,
}

impl Program {
    pub fn start(args: &[&str]) -> Self {
        let mut command = Command::new(rig());
        command.args(args);
        Self::start_as(command)
    }

    pub fn start_as(mut command: Command) -> Self {
        use std::os::unix::process::CommandExt;
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0);
        // A rig that was just copied is busy for as long as a child that
        // another test forked meanwhile holds the descriptor it was written by.
        let mut spawned = None;
        wait_until("the rig to be executable", || {
            spawned = match command.spawn() {
                Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => None,
                spawned => Some(spawned.unwrap()),
            };
            spawned.is_some()
        });
        let mut child = spawned.unwrap();
        let mut line = String::new();
        let out = child.stdout.take().unwrap();
        BufReader::new(out).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        let id = id_of(child.id() as i32);
        Self { child, id }
    }

    pub fn pid(&self) -> i32 {
        self.id.pid
    }

    /// Kills the whole group; storms make processes faster than one kill
    /// finds them, so until nobody is left.
    pub fn kill(&mut self) {
        let group = self.pid();
        wait_until("the program's group to be dead", || {
            // SAFETY: sends a signal to the group that this test started.
            unsafe { libc::kill(-group, libc::SIGKILL) };
            let _ = self.child.try_wait();
            !pids()
                .into_iter()
                .any(|pid| stat(pid).is_some_and(|stat| stat.group == group && stat.state != 'Z'))
        });
        let _ = self.child.wait();
    }

    /// Its processes, found by their group.
    pub fn processes(&self) -> Vec<i32> {
        let of_group =
            |pid: &i32| stat(*pid).is_some_and(|s| s.group == self.pid() && s.state != 'Z');
        pids().into_iter().filter(of_group).collect()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The fields of `/proc/PID/stat` that the tests look at.
pub struct Stat {
    pub state: char,
    pub group: i32,
    pub start_ticks: u64,
}

pub fn stat(pid: i32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = text.rsplit_once(") ")?.1.split(' ').collect();
    Some(Stat {
        state: fields[0].chars().next()?,
        group: fields[2].parse().ok()?,
        start_ticks: fields[19].parse().ok()?,
    })
}

pub fn pids() -> Vec<i32> {
    let entries = fs::read_dir("/proc").unwrap();
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect()
}

pub fn id_of(pid: i32) -> ProcessId {
    ProcessId {
        pid,
        start_ticks: stat(pid).unwrap().start_ticks,
    }
}

/// The affinity lists of all threads of a process.
pub fn masks(pid: i32) -> BTreeSet<String> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return BTreeSet::new();
    };
    tasks
        .filter_map(|task| {
            let status = fs::read_to_string(task.ok()?.path().join("status")).ok()?;
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
            Some(line.trim().to_owned())
        })
        .collect()
}

/// The cgroups of a process.
pub fn cgroups(pid: i32) -> String {
    fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default()
}

/// What a program looks like from outside: state, masks and cgroups of each
/// of its processes.
pub fn portrait(program: &Program) -> BTreeMap<i32, (bool, BTreeSet<String>, String)> {
    let of = |pid: i32| {
        let stopped = stat(pid).is_some_and(|stat| stat.state == 'T');
        (pid, (stopped, masks(pid), cgroups(pid)))
    };
    program.processes().into_iter().map(of).collect()
}

/// Polls until it holds.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !holds() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Directories of this name anywhere in the cgroup hierarchies.
pub fn leftovers(instance: &Path) -> Vec<PathBuf> {
    let name = format!("usher-{}", instance.file_name().unwrap().to_str().unwrap());
    fn find(dir: &Path, name: &str, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if entry.file_name().to_str() == Some(name) {
                    found.push(entry.path());
                }
                find(&entry.path(), name, found);
            }
        }
    }
    let mut found = Vec::new();
    find(Path::new("/sys/fs/cgroup"), &name, &mut found);
    found
}

pub fn cpu_list() -> String {
    masks(std::process::id() as i32).into_iter().next().unwrap()
}
