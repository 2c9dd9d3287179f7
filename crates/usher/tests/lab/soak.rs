// SPDX-License-Identifier: GPL-2.0-only
//! Random events for a long time in a guest under the sched_ext scheduler: threads start and end,
//! change their affinity, nice value and cgroup; cgroups with weights and quotas are created and
//! removed; CPUs go offline and online; the daemon is killed and stopped, and the scheduler is
//! started again.
//!
//! Meanwhile, one thread per CPU sleeps 50 ms again and again and records its longest delay. The
//! check fails if a delay exceeds 5 s, if the kernel ends the scheduler or prints a warning, or if a
//! thread does not return to the kernel's own scheduler at the end.
//!
//! `USHER_SOAK_SECONDS` sets the duration in guest time (3600 by default), `USHER_SOAK_SEED` the
//! seed of the events. The seed determines the events, but not the threads' order.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::thread::{CpuSet as Mask, sched_setaffinity};

use crate::common::{World, signal};
use crate::load::Loop;
use crate::sched::{Running, assert_nothing_went_wrong, console, run_thread_pairs, sched_ext_file};
use crate::soak_cgroups::Cgroups;

/// Duration in seconds, and seed of the events.
pub const SECONDS: &str = "USHER_SOAK_SECONDS";
pub const SEED: &str = "USHER_SOAK_SEED";
/// Duration by default.
const HOUR_S: u64 = 3600;
/// Delay after which a thread counts as stalled.
const STALL: Duration = Duration::from_secs(5);
/// Sleep of the threads that record delays.
const BEAT: Duration = Duration::from_millis(50);
/// Longest wait for the daemon and the scheduler.
const LONG: Duration = Duration::from_secs(300);
/// Largest number of loops. With more loops, a start of the scheduler takes minutes in the slow guest.
const LOOPS_MAX: usize = 6;
/// Pause between two events.
const PAUSE: Duration = Duration::from_millis(100);
/// Signs of a fault in the kernel's messages.
const WARNINGS: [&str; 3] = ["WARNING:", "Call Trace", "hung_task"];
/// Events of which the last ones are printed if the check fails.
const SHOWN_EVENTS: usize = 30;
/// Time between two lines about the progress.
const PROGRESS: Duration = Duration::from_secs(60);

/// Returns the duration that the environment sets.
pub fn duration() -> Duration {
    let set = std::env::var(SECONDS).ok();
    Duration::from_secs(set.map_or(HOUR_S, |text| text.parse().unwrap()))
}

/// Random numbers (splitmix64).
pub struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `limit`, which is not 0.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

/// Threads that sleep, one per CPU, and the longest delay of one of them.
#[derive(Default)]
struct Heartbeats {
    ends: AtomicBool,
    beats: AtomicU64,
    longest_ns: AtomicU64,
}

impl Heartbeats {
    /// Sleeps until the end, on one CPU as long as this CPU is online.
    fn beat_on(&self, cpu: usize) {
        let mut only = Mask::new();
        only.set(cpu);
        sched_setaffinity(None, &only).unwrap();
        while !self.ends.load(Ordering::Relaxed) {
            let began = Instant::now();
            // Ends at once only if a token was left, which shortens one sleep.
            thread::park_timeout(BEAT);
            let delay = began.elapsed().saturating_sub(BEAT).as_nanos() as u64;
            self.longest_ns.fetch_max(delay, Ordering::Relaxed);
            self.beats.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Heartbeats {
    /// Returns the longest delay.
    fn longest(&self) -> Duration {
        Duration::from_nanos(self.longest_ns.load(Ordering::Relaxed))
    }

    fn check(&self) {
        let longest = self.longest();
        assert!(longest < STALL, "a thread waited for {longest:?}");
    }

    fn report(&self) -> String {
        let beats = self.beats.load(Ordering::Relaxed);
        format!("longest delay of {beats} wake-ups: {:?}", self.longest())
    }
}

/// The state that events change.
struct Soak<'a> {
    world: &'a World,
    random: Random,
    cpus: usize,
    offline: Vec<usize>,
    loops: Vec<Loop>,
    cgroups: Cgroups,
    counts: BTreeMap<&'static str, usize>,
    events: Vec<String>,
}

impl Drop for Soak<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            let first = self.events.len().saturating_sub(SHOWN_EVENTS);
            eprintln!("the last events: {:#?}", &self.events[first..]);
        }
        self.loops.clear();
        self.all_online();
    }
}

type Event = (&'static str, usize, fn(&mut Soak<'_>));

/// The events with their relative frequencies. The scheduler starts again after the rare ones, which
/// takes seconds.
const EVENTS: [Event; 12] = [
    ("start a loop", 200, |soak| soak.start_loop()),
    ("end a loop", 180, |soak| soak.end_loop()),
    ("change an affinity", 100, |soak| soak.change_affinity()),
    ("create a cgroup", 80, |soak| soak.create_cgroup()),
    ("move a loop to a cgroup", 160, |soak| soak.move_loop()),
    ("change a cgroup", 100, |soak| soak.change_cgroup()),
    ("remove a cgroup", 70, |soak| soak.remove_cgroup()),
    ("exchange messages", 20, |soak| soak.exchange_messages()),
    ("start short programs", 30, |soak| {
        soak.start_short_programs()
    }),
    ("switch a CPU", 6, |soak| soak.switch_cpu()),
    ("stop the daemon for a time", 4, |soak| {
        soak.suspend_daemon()
    }),
    ("kill the daemon", 1, |soak| soak.kill_daemon()),
];

impl<'a> Soak<'a> {
    fn new(world: &'a World, random: Random, cpus: usize) -> Self {
        Self {
            world,
            random,
            cpus,
            offline: vec![],
            loops: vec![],
            cgroups: Cgroups::new(),
            counts: BTreeMap::new(),
            events: vec![],
        }
    }

    /// Executes random events for the duration, until a thread stalls.
    fn run(&mut self, duration: Duration, heartbeats: &Heartbeats) {
        let began = Instant::now();
        let mut shown = Duration::ZERO;
        // Each event once, so that also a short run has all events.
        for event in EVENTS {
            self.execute(event);
            heartbeats.check();
        }
        while began.elapsed() < duration {
            self.step();
            heartbeats.check();
            thread::park_timeout(PAUSE);
            if began.elapsed() >= shown + PROGRESS {
                shown = began.elapsed();
                self.show_progress(shown, heartbeats);
            }
        }
        self.wait_until_it_runs();
    }

    /// Prints the progress, because an hour of guest time takes hours.
    fn show_progress(&self, elapsed: Duration, heartbeats: &Heartbeats) {
        let (elapsed_s, events) = (elapsed.as_secs(), self.events.len());
        let (loops, offline) = (self.loops.len(), self.offline.len());
        let report = heartbeats.report();
        println!("{elapsed_s} s, {events} events, {loops} loops, {offline} CPUs offline, {report}");
    }

    /// Checks that no thread has remained with sched_ext, and that each loop runs on. Quotas are
    /// removed before, so that no loop is throttled for long.
    fn check_that_the_kernel_runs_all(&mut self) {
        assert_eq!(sched_ext_file("state"), "disabled");
        assert_eq!(threads_of_sched_ext(), Vec::<String>::new());
        self.all_online();
        self.cgroups.remove_all();
        let before: Vec<u64> = self.loops.iter().map(Loop::ran_ns).collect();
        wait_long("all loops to run", || {
            let mut ran = self.loops.iter().zip(&before);
            ran.all(|(one, before)| one.ran_ns() > *before)
                .then_some(())
        });
    }

    /// Executes a random event.
    fn step(&mut self) {
        let all: usize = EVENTS.iter().map(|(_, weight, _)| weight).sum();
        let mut at = self.random.below(all);
        for event in EVENTS {
            if at < event.1 {
                return self.execute(event);
            }
            at -= event.1;
        }
    }

    fn execute(&mut self, (name, _, event): Event) {
        self.events.push(name.to_owned());
        *self.counts.entry(name).or_default() += 1;
        event(self);
    }

    fn note(&mut self, about: &str) {
        if let Some(last) = self.events.last_mut() {
            last.push_str(about);
        }
    }

    fn any_loop(&mut self) -> Option<usize> {
        let number = self.loops.len();
        (number > 0).then(|| self.random.below(number))
    }

    /// Returns CPUs that contain an online CPU.
    fn some_cpus(&mut self) -> Vec<usize> {
        let all: Vec<usize> = (0..self.cpus).collect();
        let (kind, one) = (self.random.below(3), self.random.below(self.cpus));
        match kind {
            0 => all,
            1 => all
                .into_iter()
                .filter(|cpu| cpu % 2 == one % 2 || *cpu == 0)
                .collect(),
            _ if self.offline.contains(&one) => vec![0],
            _ => vec![one],
        }
    }

    fn start_loop(&mut self) {
        if self.loops.len() >= LOOPS_MAX {
            return;
        }
        let (nice, cpus) = (self.random.below(20), self.some_cpus());
        let started = match self.random.below(3) {
            0 => Loop::start(&nice.to_string(), &cpus),
            _ => Loop::that_sleeps(&cpus),
        };
        self.note(&format!(": {}, {cpus:?}", started.pid()));
        self.loops.push(started);
    }

    fn end_loop(&mut self) {
        if let Some(at) = self.any_loop() {
            drop(self.loops.swap_remove(at));
        }
    }

    fn change_affinity(&mut self) {
        let cpus = self.some_cpus();
        if let Some(at) = self.any_loop() {
            self.loops[at].may_run_on(&cpus);
            let pid = self.loops[at].pid();
            self.note(&format!(": {pid}, {cpus:?}"));
        }
    }

    fn create_cgroup(&mut self) {
        let about = self.cgroups.create(&mut self.random);
        self.note(&about);
    }

    fn change_cgroup(&mut self) {
        let about = self.cgroups.change(&mut self.random);
        self.note(&about);
    }

    fn remove_cgroup(&mut self) {
        let about = self.cgroups.remove(&mut self.random);
        self.note(&about);
    }

    fn move_loop(&mut self) {
        if let Some(at) = self.any_loop() {
            let pid = self.loops[at].pid();
            let about = self.cgroups.take_in(&mut self.random, pid);
            self.note(&about);
        }
    }

    fn set_online(cpu: usize, state: &str) {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/online");
        wait_long("a CPU to be switched", || fs::write(&path, state).ok());
    }

    /// Takes a CPU offline or online. CPU 0 stays online, and at least half of the CPUs.
    fn switch_cpu(&mut self) {
        let is_full = self.offline.len() >= self.cpus / 2;
        if !self.offline.is_empty() && (is_full || self.random.below(2) == 0) {
            let at = self.random.below(self.offline.len());
            let cpu = self.offline.swap_remove(at);
            Self::set_online(cpu, "1");
            self.note(&format!(": {cpu} online"));
        } else {
            let cpu = 1 + self.random.below(self.cpus - 1);
            if self.offline.contains(&cpu) {
                return;
            }
            Self::set_online(cpu, "0");
            self.offline.push(cpu);
            self.note(&format!(": {cpu} offline"));
        }
        // Otherwise the next events occur while the scheduler restarts, which takes most of the time
        // in the slow guest.
        if self.random.below(4) > 0 {
            self.wait_until_it_runs();
        }
    }

    fn wait_until_it_runs(&self) {
        wait_long("the scheduler to run", || {
            let status = self.world.json(&["sched", "status"])?;
            (status["running"] == true).then_some(())
        });
    }

    fn all_online(&mut self) {
        for cpu in self.offline.drain(..) {
            Self::set_online(cpu, "1");
        }
    }

    fn exchange_messages(&mut self) {
        run_thread_pairs(self.cpus);
    }

    fn start_short_programs(&mut self) {
        let script = "for i in 1 2 3 4 5 6 7 8; do (true; true) & done; wait";
        let ended = Command::new("sh")
            .args(["-c", script])
            .stdin(Stdio::null())
            .status()
            .unwrap();
        assert!(ended.success());
    }

    fn daemon(&self) -> i32 {
        wait_long("the daemon", || {
            let status = self.world.json(&["status"])?;
            Some(status["pid"].as_i64()? as i32)
        })
    }

    /// Kills the daemon, which ends the scheduler, and starts the scheduler in the next daemon.
    fn kill_daemon(&mut self) {
        let pid = self.daemon();
        signal(pid, libc::SIGKILL);
        wait_long("the kernel's own scheduler", || {
            (sched_ext_file("state") == "disabled").then_some(())
        });
        wait_long("the next daemon", || {
            let status = self.world.json(&["status"])?;
            (status["pid"].as_i64()? as i32 != pid).then_some(())
        });
        start_scheduler(self.world);
    }

    /// Stops the daemon until other events have been executed.
    fn suspend_daemon(&mut self) {
        let pid = self.daemon();
        signal(pid, libc::SIGSTOP);
        for _ in 0..5 {
            self.start_loop();
            self.change_cgroup();
            self.end_loop();
        }
        signal(pid, libc::SIGCONT);
    }
}

/// Starts the scheduler, and a daemon if none runs. The daemon has the highest priority, because the
/// kernel verifies the BPF programs at the priority of the daemon.
fn start_scheduler(world: &World) {
    let start = world.usher(&["sched", "start"]);
    wait_long("the scheduler to start", || {
        let status = world.json(&["sched", "status"])?;
        let runs = status["running"] == true;
        // A start that takes longer than the command waits goes on.
        if !runs && status["last"]["state"] != "starting" {
            let mut first = Command::new("nice");
            first.args(["-n", "-20"]).arg(start.get_program());
            first
                .args(start.get_args())
                .env("USHER_RUNTIME_DIR", world.runtime_dir());
            first.env("USHER_STORE", world.path("profiles.db"));
            first.env("USHER_CLAIM_NAME", world.claim_name());
            let _ = first.stdin(Stdio::null()).status();
        }
        runs.then_some(())
    });
    assert_eq!(sched_ext_file("root/ops"), "usher");
}

/// Polls until `poll` returns a value. In the slow guest, a start of the scheduler beside the loops
/// takes longer than other tests wait.
fn wait_long<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + LONG;
    loop {
        if let Some(answer) = poll() {
            return answer;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        thread::sleep(BEAT);
    }
}

/// Returns the threads that a sched_ext scheduler runs, with their names.
fn threads_of_sched_ext() -> Vec<String> {
    let processes = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let name = entry.ok()?.file_name().into_string().ok()?;
        name.parse::<u32>().ok()
    });
    let threads = processes.flat_map(|pid| {
        let folder = fs::read_dir(format!("/proc/{pid}/task")).ok();
        folder.into_iter().flatten().filter_map(Result::ok)
    });
    let with_sched_ext = threads.filter_map(|thread| {
        let text = fs::read_to_string(thread.path().join("sched")).ok()?;
        let enabled = text.lines().find(|line| line.starts_with("ext.enabled"))?;
        let is_off = enabled.trim_end().ends_with(" 0");
        (!is_off).then(|| text.lines().next().unwrap_or_default().to_owned())
    });
    with_sched_ext.collect()
}

fn seed() -> u64 {
    let set = std::env::var(SEED).ok();
    set.map_or_else(
        || {
            SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap()
                .as_nanos() as u64
        },
        |text| text.parse().unwrap(),
    )
}

/// Executes random events for the duration, and checks that no thread stalls and that the kernel's
/// own scheduler runs all threads afterwards.
pub fn random_events() {
    let (duration, seed) = (duration(), seed());
    println!("{SECONDS}={} {SEED}={seed}", duration.as_secs());
    let world = World::new();
    start_scheduler(&world);
    let running = Running(&world);
    let cpus = thread::available_parallelism().unwrap().get();
    assert!(
        !threads_of_sched_ext().is_empty(),
        "the kernel names no threads of sched_ext"
    );
    let heartbeats = Heartbeats::default();
    let mut soak = Soak::new(&world, Random(seed), cpus);
    thread::scope(|threads| {
        for cpu in 0..cpus {
            let heartbeats = &heartbeats;
            threads.spawn(move || heartbeats.beat_on(cpu));
        }
        // The heartbeats must end if a check fails, because the scope waits for them.
        let _ends = EndGuard(&heartbeats.ends);
        soak.run(duration, &heartbeats);
        drop(running);
        soak.check_that_the_kernel_runs_all();
        heartbeats.check();
    });
    println!("{}, events: {:?}", heartbeats.report(), soak.counts);
    drop(soak);
    assert_nothing_went_wrong();
    let console = console();
    let is_warning = |line: &&str| WARNINGS.iter().any(|sign| line.contains(sign));
    let warnings: Vec<&str> = console.lines().filter(is_warning).collect();
    assert!(warnings.is_empty(), "{warnings:?}");
}

/// Sets a flag when it is dropped.
struct EndGuard<'a>(&'a AtomicBool);

impl Drop for EndGuard<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
