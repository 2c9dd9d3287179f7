// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the engine with unusual programs: main threads that end before other threads, daemons,
//! processes that leave their cgroup, programs that their user stops.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use common::{FirstCpuPolicy, allowed, until};
use tempfile::TempDir;
use usher_act::ActConfig;
use usher_host::engine::{AdoptOptions, Engine, EngineConfig, ProgramStatus};
use usher_host::launch::{ChildProcess, LaunchSpec, Stream};
use usher_model::CpuSet;
use usher_topology::{Source, load};

const ROOT: u32 = 0;

struct Bench {
    engine: Engine,
    first_cpu: CpuSet,
    usable: CpuSet,
    _dir: TempDir,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let machine = load(Source::ThisMachine).unwrap();
        let usable = usher_topology::usable_cpus(Path::new("/")).unwrap();
        let topology = machine.restrict(&usable).unwrap();
        let config = EngineConfig::new(topology, ActConfig::new(dir.path().join("run")));
        Self {
            engine: Engine::start(config, Box::new(FirstCpuPolicy)).unwrap(),
            first_cpu: CpuSet::single(usable.first().unwrap()),
            usable,
            _dir: dir,
        }
    }

    fn programs(&self) -> Vec<ProgramStatus> {
        self.engine.status().unwrap().programs
    }

    fn launch(&self, words: &[&str]) -> ChildProcess {
        let spec = LaunchSpec {
            stdout: Stream::Null,
            stderr: Stream::Null,
            new_session: true,
            ..LaunchSpec::new(words)
        };
        let (held, _) = self.engine.launch(&spec, AdoptOptions::new(words)).unwrap();
        held.release().unwrap()
    }

    fn wait_for_no_program(&self) {
        until("the end is noticed", || {
            self.programs().is_empty().then_some(())
        });
    }
}

/// Returns the state letter of a process or thread.
fn state(dir: &str) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{dir}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Returns the threads of a process without its ended main thread.
fn live_threads(pid: i32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let tids = tasks.map(|task| task.unwrap().file_name().into_string().unwrap());
    let others = tids.filter(|tid| *tid != pid.to_string());
    others.map(|tid| format!("{pid}/task/{tid}")).collect()
}

fn signal(pid: i32, signal: i32) {
    // SAFETY: `kill` accesses no memory; the process belongs to this test.
    unsafe { libc::kill(pid, signal) };
}

/// A program whose main thread ends while another thread computes.
const MAIN_ENDS: &str = "import ctypes, threading\n\
    def spin():\n\
    \x20   while True: pass\n\
    threading.Thread(target=spin).start()\n\
    ctypes.CDLL(None).pthread_exit(None)";

fn has_python() -> bool {
    let python = Command::new("python3").arg("--version").output();
    let found = python.is_ok_and(|output| output.status.success());
    if !found {
        usher_skip::skip!("there is no python3");
    }
    found
}

/// Checks that a program without its main thread is seated, accounted and alive.
fn check_without_main_thread(bench: &Bench, pid: i32) {
    until("the main thread ends", || {
        (state(&pid.to_string()) == Some('Z')).then_some(())
    });
    until("the other thread is seated", || {
        let threads = live_threads(pid);
        let seated = threads
            .iter()
            .all(|dir| allowed(dir).as_ref() == Some(&bench.first_cpu));
        (!threads.is_empty() && seated).then_some(())
    });
    let before = bench.programs()[0].cpu_seconds;
    until("its CPU time is counted", || {
        let program = &bench.programs()[0];
        (program.cpu_seconds >= before + 0.1).then_some(())
    });
    let program = &bench.programs()[0];
    assert_eq!((program.pid, program.threads), (pid, 1));
}

#[test]
fn a_launched_program_outlives_its_main_thread() {
    if !has_python() {
        return;
    }
    let bench = Bench::new();
    let mut running = bench.launch(&["python3", "-c", MAIN_ENDS]);
    check_without_main_thread(&bench, running.pid());
    assert!(running.try_wait().unwrap().is_none(), "it has not ended");
    signal(running.pid(), libc::SIGKILL);
    assert_eq!(running.wait().unwrap().code(), 128 + libc::SIGKILL as u8);
    bench.wait_for_no_program();
    assert!(bench.engine.stop().is_empty());
}

/// A child process that is killed when the value is dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_running_program_without_its_main_thread_is_attached_and_released() {
    if !has_python() {
        return;
    }
    let bench = Bench::new();
    let python = Command::new("python3").args(["-c", MAIN_ENDS]).spawn();
    let child = Killed(python.unwrap());
    let pid = child.0.id() as i32;
    until("the main thread ends", || {
        (state(&pid.to_string()) == Some('Z')).then_some(())
    });
    let adopt = AdoptOptions::new([""; 0]);
    let adopted = bench.engine.attach(pid, adopt, ROOT).unwrap();
    check_without_main_thread(&bench, pid);
    bench.engine.release(adopted.id, ROOT).unwrap();
    until("the thread is released", || {
        let threads = live_threads(pid);
        let free = threads
            .iter()
            .all(|dir| allowed(dir).as_ref() == Some(&bench.usable));
        free.then_some(())
    });
}

#[test]
fn a_daemon_is_found_by_any_of_its_processes() {
    let bench = Bench::new();
    // The root process ends at once; a child and a grandchild continue to run.
    let script = "(sleep 1000 & exec sleep 1001) & exit 0";
    let mut running = bench.launch(&["sh", "-c", script]);
    let root = running.pid();
    assert!(running.wait().unwrap().success());
    let program = until("the oldest process is shown", || {
        let program = bench.programs().pop()?;
        (program.pid != root).then_some(program)
    });
    let id = program.id;
    let tree = [program.pid, child_of(program.pid)];
    for pid in tree {
        assert_eq!(bench.engine.program_of(pid).unwrap(), Some(id));
    }
    let own = std::process::id() as i32;
    assert_eq!(bench.engine.program_of(own).unwrap(), None);
    for pid in tree {
        signal(pid, libc::SIGKILL);
    }
    bench.wait_for_no_program();
}

fn child_of(pid: i32) -> i32 {
    until("its child", || {
        let path = format!("/proc/{pid}/task/{pid}/children");
        let list = fs::read_to_string(path).ok()?;
        list.split_whitespace().next()?.parse().ok()
    })
}

/// A cgroup with the same parent as this process's cgroup. The cgroup is removed when the value is
/// dropped.
struct OtherCgroup(PathBuf);

impl OtherCgroup {
    fn new(name: &str) -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let mount = mounts.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            (fields[2] == "cgroup2").then(|| fields[1].to_owned())
        });
        let made = mount.and_then(|mount| {
            let dir = Path::new(&mount).join(format!("elsewhere-{name}-{}", std::process::id()));
            fs::create_dir(&dir).ok()?;
            Some(Self(dir))
        });
        if made.is_none() {
            usher_skip::skip!("no cgroup can be made here");
        }
        made
    }

    fn move_in(&self, pid: i32) {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).unwrap();
    }
}

impl Drop for OtherCgroup {
    fn drop(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while fs::remove_dir(&self.0).is_err() && Instant::now() < deadline {
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_program_that_leaves_its_cgroup_stays_managed() {
    let bench = Bench::new();
    let Some(other_cgroup) = OtherCgroup::new("one") else {
        return;
    };
    let script = "ulimit -t 60; (while :; do :; done) & wait";
    let mut running = bench.launch(&["sh", "-c", script]);
    let (root, child) = (running.pid(), child_of(running.pid()));
    other_cgroup.move_in(child);
    let cpu_seconds = || Some(bench.programs().first()?.cpu_seconds);
    let before = cpu_seconds().unwrap();
    until("the child is accounted", || {
        (cpu_seconds()? >= before + 0.1).then_some(())
    });
    other_cgroup.move_in(root);
    signal(root, libc::SIGKILL);
    running.wait().unwrap();
    let before = cpu_seconds().unwrap();
    let program = until("the child is accounted", || {
        let program = bench.programs().pop()?;
        (program.pid == child && program.cpu_seconds >= before + 0.1).then_some(program)
    });
    assert_eq!(bench.engine.program_of(child).unwrap(), Some(program.id));
    let own = &child.to_string();
    assert_eq!(allowed(own), Some(bench.first_cpu.clone()));
    bench.engine.release(program.id, ROOT).unwrap();
    until("the child is released", || {
        (allowed(own).as_ref() == Some(&bench.usable)).then_some(())
    });
    signal(child, libc::SIGKILL);
    until("the child ends", || {
        state(own).is_none_or(|state| state == 'Z').then_some(())
    });
}

#[test]
fn the_end_of_a_process_outside_the_cgroup_ends_the_program() {
    let bench = Bench::new();
    let Some(other_cgroup) = OtherCgroup::new("two") else {
        return;
    };
    let mut running = bench.launch(&["sleep", "1000"]);
    other_cgroup.move_in(running.pid());
    // The program has not ended, although its cgroup is empty now.
    assert_eq!(bench.programs()[0].threads, 1);
    until("it is followed by its number", || {
        let path = format!("/proc/{}/cgroup", running.pid());
        fs::read_to_string(path)
            .unwrap()
            .contains("elsewhere")
            .then_some(())
    });
    assert_eq!(bench.programs().len(), 1);
    signal(running.pid(), libc::SIGKILL);
    running.wait().unwrap();
    bench.wait_for_no_program();
}

#[test]
fn a_program_stopped_by_its_user_is_shown_as_stopped() {
    let bench = Bench::new();
    let mut running = bench.launch(&["sleep", "1000"]);
    let stopped = || bench.programs()[0].stopped_by_user;
    assert!(!stopped());
    signal(running.pid(), libc::SIGSTOP);
    until("it is shown as stopped", || stopped().then_some(()));
    until("its launcher sees the stop", || {
        running.try_wait().unwrap();
        running.was_stopped().then_some(())
    });
    signal(running.pid(), libc::SIGCONT);
    until("it is shown as running", || (!stopped()).then_some(()));
    signal(running.pid(), libc::SIGKILL);
    running.wait().unwrap();
    bench.wait_for_no_program();
}
