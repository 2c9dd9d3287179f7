// SPDX-License-Identifier: GPL-2.0-only
//! Checks in a guest of the scheduler's life on a host: the configuration file starts it, the daemon
//! is stopped or killed, and a real-time thread occupies a CPU.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet as Mask, sched_setaffinity};
use serde_json::Value;

use crate::common::{World, signal, wait_for};
use crate::load::Loop;
use crate::sched::{Running, assert_nothing_went_wrong, sched_ext_file};

/// The time for which a thread may wait before the kernel ends the scheduler.
const STALL: Duration = Duration::from_secs(5);
/// Runtime of the server that gives a part of each CPU to sched_ext threads, in Linux 7.0 and newer.
const SERVERS: &str = "/sys/kernel/debug/sched/ext_server";

/// A thread of the real-time class that computes on one CPU until it is dropped.
struct RealtimeLoop {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl RealtimeLoop {
    fn start(cpu: usize) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let until = ends.clone();
        let (started, is_started) = channel();
        let compute = move || {
            let mut only = Mask::new();
            only.set(cpu);
            sched_setaffinity(None, &only).unwrap();
            let priority = libc::sched_param { sched_priority: 50 };
            // SAFETY: `priority` is valid during the call, which changes only this thread.
            let set = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const priority) };
            assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
            started.send(()).unwrap();
            while !until.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        };
        let thread = Some(std::thread::spawn(compute));
        is_started.recv().unwrap();
        Self { ends, thread }
    }
}

impl Drop for RealtimeLoop {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Waits for a state of the scheduler. Returns the status. Prints the states in between, for a check
/// that fails.
fn wait_for_state(world: &World, state: &str) -> Value {
    let begin = Instant::now();
    let mut before = Value::Null;
    wait_for("the state of the scheduler", || {
        let status = world.json(&["sched", "status"])?;
        let now = &status["last"]["state"];
        if *now != before {
            eprintln!("{now} after {:?}, waiting for {state}", begin.elapsed());
            before = now.clone();
        }
        (*now == state).then_some(status)
    })
}

/// Waits until each loop has run for `each_ns` more.
fn wait_until_all_ran(loops: &[Loop], each_ns: u64) {
    let before: Vec<u64> = loops.iter().map(Loop::ran_ns).collect();
    wait_for("all loops to run", || {
        let mut ran = loops.iter().zip(&before);
        ran.all(|(one, before)| one.ran_ns() > before + each_ns)
            .then_some(())
    });
}

/// A real-time thread occupies a CPU. The threads that may run on other CPUs continue, and the
/// scheduler does not end. On kernels without a server for sched_ext threads, kernel threads that
/// are pinned to the CPU would end the scheduler after 5 s, so that the CPU is released before.
pub fn a_realtime_thread_delays_no_other_thread() {
    const EACH_NS: u64 = 200_000_000;
    let world = World::new();
    let running = Running::start(&world);
    assert!(fs::exists("/sys/kernel/debug/sched").unwrap());
    let has_server = fs::exists(SERVERS).unwrap();
    let all: Vec<usize> = (0..2).collect();
    let loops: Vec<Loop> = (0..4).map(|_| Loop::start("0", &all)).collect();
    wait_until_all_ran(&loops, EACH_NS);
    let rounds = if has_server { 1 } else { 3 };
    for _ in 0..rounds {
        let begin = Instant::now();
        let realtime = RealtimeLoop::start(1);
        wait_until_all_ran(&loops, EACH_NS);
        if has_server {
            wait_for("the watchdog to find a thread that waits", || {
                (begin.elapsed() > 2 * STALL).then_some(())
            });
        }
        drop(realtime);
        wait_until_all_ran(&loops, EACH_NS);
    }
    assert_eq!(running.status()["running"], true);
    assert_eq!(running.status()["last"]["fault_restarts"], 0);
    drop(running);
    assert_nothing_went_wrong();
}

/// A stopped daemon cannot follow the scheduler. The threads keep running, and when the kernel ends the
/// scheduler, its own scheduler takes over. The daemon reports the reason when it continues.
pub fn a_stopped_daemon_leaves_the_host_usable() {
    const EACH_NS: u64 = 100_000_000;
    let mut world = World::new();
    let daemon = world.daemon(&[]);
    let running = Running::start(&world);
    let loops: Vec<Loop> = (0..3).map(|_| Loop::start("0", &[0, 1])).collect();
    signal(daemon, libc::SIGSTOP);
    wait_until_all_ran(&loops, EACH_NS);
    assert_eq!(sched_ext_file("root/ops"), "usher");
    fs::write("/proc/sysrq-trigger", "S").unwrap();
    wait_for("the kernel's own scheduler", || {
        (sched_ext_file("state") == "disabled").then_some(())
    });
    wait_until_all_ran(&loops, EACH_NS);
    signal(daemon, libc::SIGCONT);
    let status = wait_for_state(&world, "ended");
    let why = status["last"]["ended"].as_str().unwrap();
    assert!(why.contains("sysrq"), "{why}");
    let warnings = world.status()["warnings"].to_string();
    assert!(warnings.contains("sysrq"), "{warnings}");
    drop(running);
    assert_nothing_went_wrong();
}

/// The table `[scheduler]` starts the scheduler with the daemon. A reload applies changes of the
/// table, but does not start a scheduler that a request has stopped. The daemon that replaces a
/// killed daemon starts the scheduler again.
pub fn the_configuration_file_starts_it() {
    let mut world = World::new();
    let file = world.path("usher.toml");
    let configure = |lines: &str| fs::write(&file, format!("[scheduler]\n{lines}")).unwrap();
    configure("enable = true\nturn_ms = 8\n");
    let daemon = world.daemon(&["--config", file.to_str().unwrap()]);
    let reload = |world: &World| world.json(&["daemon", "reload"]).unwrap();
    let status = wait_for_state(&world, "running");
    assert_eq!(status["last"]["settings"]["turn_ns"], 8_000_000);
    configure("enable = true\nsmt = false\n");
    let reloaded = reload(&world);
    assert!(reloaded.to_string().contains("being changed"), "{reloaded}");
    wait_for("the new settings", || {
        let status = world.json(&["sched", "status"])?;
        (status["last"]["settings"]["smt"] == false).then_some(())
    });
    signal(daemon, libc::SIGKILL);
    world.reap(daemon);
    let status = wait_for("the next daemon to start it again", || {
        let status = world.json(&["sched", "status"])?;
        let is_other = status["last"]["pid"] != daemon && status["running"] == true;
        is_other.then_some(status)
    });
    let next = status["last"]["pid"].as_i64().unwrap() as i32;
    world.json(&["sched", "stop"]).unwrap();
    let unchanged = reload(&world);
    assert!(!unchanged.to_string().contains("scheduler"), "{unchanged}");
    assert_eq!(world.json(&["sched", "status"]).unwrap()["running"], false);
    configure("enable = true\n");
    reload(&world);
    wait_for_state(&world, "running");
    configure("enable = false\n");
    reload(&world);
    wait_for_state(&world, "ended");
    assert_eq!(sched_ext_file("state"), "disabled");
    signal(next, libc::SIGTERM);
    assert_nothing_went_wrong();
}
