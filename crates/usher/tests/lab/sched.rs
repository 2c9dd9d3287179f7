// SPDX-License-Identifier: GPL-2.0-only
//! Checks in a guest of the sched_ext scheduler under load: threads that communicate, threads that
//! change their affinity, CPU hotplug, and the scheduler's end.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::thread;

use libbpf_rs::query::ProgInfoIter;
use rustix::thread::{CpuSet as Mask, sched_setaffinity};
use serde_json::Value;
use usher_model::CpuSet;

use crate::common::{World, stderr, wait_for};
use crate::load::Loop;

const PAIRS: usize = 8;
const ROUNDS: usize = 40;

/// A running scheduler. Dropping the value ends the scheduler, even if a check fails.
pub struct Running<'a>(pub &'a World);

impl<'a> Running<'a> {
    pub fn start(world: &'a World) -> Self {
        Self::start_as(world, &[])
    }

    fn start_as(world: &'a World, options: &[&str]) -> Self {
        let started = world.run(&[&["sched", "start"], options].concat());
        assert!(started.status.success(), "{}", stderr(&started));
        assert_eq!(sched_ext_file("root/ops"), "usher");
        Self(world)
    }

    pub fn status(&self) -> Value {
        self.0.json(&["sched", "status"]).unwrap()
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        // Prints the kernel's messages: if a check fails, they are the only output of the guest.
        if thread::panicking() {
            let dump = fs::read_to_string(self.0.runtime_dir().join("sched.dump"));
            eprintln!("{:#}\n{}", self.status()["last"], dump.unwrap_or_default());
        }
        let _ = self.0.json(&["sched", "stop"]);
    }
}

pub fn sched_ext_file(name: &str) -> String {
    let text = fs::read_to_string(format!("/sys/kernel/sched_ext/{name}"));
    text.unwrap_or_default().trim().to_owned()
}

fn cpus() -> usize {
    thread::available_parallelism().unwrap().get()
}

/// Returns the NUMA nodes that have CPUs.
fn nodes() -> usize {
    let message = fs::read_to_string("/sys/devices/system/node/has_cpu").unwrap();
    message.trim().split([',', '-']).count()
}

fn switch(cpu: usize, state: &str) {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/online");
    wait_for("a CPU to be switched", || fs::write(&path, state).ok());
}

/// Runs pairs of threads that send one another messages. Every other thread moves from CPU to CPU
/// meanwhile.
pub fn run_thread_pairs(cpus: usize) {
    let answer = |mut end: UnixStream| {
        let mut message = [0; 100];
        while end.read_exact(&mut message).is_ok() {
            end.write_all(&message).unwrap();
        }
    };
    let ask = |pair: usize, mut end: UnixStream| {
        let mut message = [pair as u8; 100];
        for round in 0..ROUNDS {
            if pair.is_multiple_of(2) {
                let mut only = Mask::new();
                only.set((pair + round) % cpus);
                // An error is ignored, because the CPU may be offline at the moment.
                let _ = sched_setaffinity(None, &only);
            }
            end.write_all(&message).unwrap();
            end.read_exact(&mut message).unwrap();
        }
    };
    thread::scope(|threads| {
        for pair in 0..PAIRS {
            let (one, other) = UnixStream::pair().unwrap();
            threads.spawn(move || answer(other));
            threads.spawn(move || ask(pair, one));
        }
    });
}

/// Returns the kernel's messages.
pub fn console() -> String {
    let output = Command::new("dmesg").output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns the scheduler's BPF programs in the kernel.
fn loaded() -> impl Iterator<Item = u32> {
    let programs = ProgInfoIter::default();
    let ours = programs.filter(|program| program.name.to_string_lossy().starts_with("usher_"));
    ours.map(|program| program.verified_insns)
}

/// Checks that no task stalled, that the kernel found no fault, that only this test ended the
/// scheduler, and that nothing of the scheduler is left.
pub fn assert_nothing_went_wrong() {
    // Polls, because the kernel frees the BPF programs some time after the scheduler's end.
    wait_for("the kernel to free the BPF programs", || {
        loaded().next().is_none().then_some(())
    });
    let is_bad = |line: &&str| {
        let ended = line.contains("BPF scheduler") && line.contains(" disabled (");
        let requested_ends = ["(unregistered from ", "(disabled by sysrq-S)"];
        // The last pattern is the kernel's message at an end of the scheduler that was not
        // requested.
        let signs = [
            "BUG:",
            "Oops",
            "soft lockup",
            "rcu: INFO",
            "sched_ext: usher: ",
        ];
        ended && !requested_ends.iter().any(|how| line.contains(how))
            || signs.iter().any(|sign| line.contains(sign))
    };
    let console = console();
    assert!(console.contains("sched_ext: BPF scheduler \"usher\" disabled"));
    let lines: Vec<&str> = console.lines().filter(is_bad).collect();
    assert!(lines.is_empty(), "{lines:?}");
}

/// Checks the number of instructions that the kernel's verifier processes, because each start waits
/// for it. The verifier follows an instruction on every path that leads to it, so branches in loops
/// multiply the number. The programs of a machine with at most 64 CPUs take 159,000 in Linux 6.16 and
/// 111,000 in 7.3. The programs of a larger machine take 315,000 and 159,000, because they have loops
/// over the words of CPU sets; their limit is higher. The kernel refuses a program of a million, and
/// 700,000 took ten seconds here.
fn is_soon_verified() {
    let verified: Vec<u32> = loaded().collect();
    let sum: u32 = verified.iter().sum();
    assert!((10_000..250_000).contains(&sum), "{verified:?}");
    let parts = [64, 128, 2048].map(|cpus| [(cpus, false), (cpus, true)]);
    for (cpus, has_all_parts) in parts.into_iter().flatten() {
        let programs = usher_scx::load_programs(cpus, has_all_parts).unwrap();
        let more: u32 = loaded().sum::<u32>() - sum;
        println!(
            "programs for {cpus} CPUs, all parts {has_all_parts}: {more} verified instructions"
        );
        let most = if cpus > 64 { 400_000 } else { 250_000 };
        assert!((10_000..most).contains(&more), "{cpus} CPUs: {more}");
        drop(programs);
        wait_for("the kernel to free the BPF programs", || {
            (loaded().sum::<u32>() == sum).then_some(())
        });
    }
}

/// Runs threads with messages and changing affinities; afterwards the kernel's own scheduler runs
/// all threads again.
pub fn runs_many_threads_and_ends() {
    let world = World::new();
    let running = Running::start(&world);
    is_soon_verified();
    assert_eq!(running.status()["last"]["idle_by_node"], nodes() > 1);
    assert_eq!(world.json(&["sched", "start"]), None, "beside another");
    let set = ["sched", "set", "--turn-ms", "8", "--max-lag-ms", "4"];
    let settings = &world.json(&set).unwrap()["settings"];
    let ns = (&settings["turn_ns"], &settings["max_lag_ns"]);
    assert_eq!(ns, (&8_000_000.into(), &4_000_000.into()));
    counts_while_a_command_runs(&world);
    serves_a_crowd(&world, running);
    assert_nothing_went_wrong();
}

fn counts_while_a_command_runs(world: &World) {
    let stats = ["sched", "stats", "--json", "--", "true"];
    let counted = world.usher(&stats).output().unwrap();
    let counted: Value = serde_json::from_slice(&counted.stdout).unwrap();
    assert_eq!(counted["ours_since"], "command");
    assert!(counted["elapsed_ns"].as_u64().unwrap() > 0, "{counted}");
    let missing = ["sched", "stats", "--", "no-such-command"];
    let status = world.usher(&missing).stderr(Stdio::null()).status();
    assert_eq!(status.unwrap().code(), Some(127));
}

/// Checks that a thread that shares a core moves to an idle core, while other threads wait that may
/// not run on the thread's CPU.
pub fn leaves_a_shared_core() {
    let list = "/sys/devices/system/cpu/cpu0/topology/thread_siblings_list";
    let siblings: CpuSet = fs::read_to_string(list).unwrap().trim().parse().unwrap();
    let siblings: Vec<usize> = siblings.iter().map(|cpu| cpu as usize).collect();
    let [first, second] = siblings[..] else {
        assert_eq!(siblings, [0], "cores have one hardware thread, or two");
        eprintln!("cores have one hardware thread: none is shared");
        return;
    };
    let world = World::new();
    let running = Running::start(&world);
    let _waiting = [(); 2].map(|()| Loop::start("0", &[second]));
    let free = Loop::start("0", &[first]);
    wait_for("a loop to run", || (free.cpu() == first).then_some(()));
    free.may_run_on(&(0..cpus()).collect::<Vec<_>>());
    wait_for("it to leave the core", || {
        (!siblings.contains(&free.cpu())).then_some(())
    });
    drop(running);
    assert_nothing_went_wrong();
}

/// Runs more address spaces than an LLC has queues, each pinned to one of two CPUs. Threads that
/// share a queue must not overtake all others. A former version let them, until the kernel ended
/// the scheduler.
pub fn more_address_spaces_than_queues_all_run() {
    const EACH_NS: u64 = 50_000_000;
    let world = World::new();
    let running = Running::start(&world);
    let loops: Vec<Loop> = (0..60)
        .map(|number| Loop::start("0", &[number % 2]))
        .collect();
    let before: Vec<u64> = loops.iter().map(Loop::ran_ns).collect();
    wait_for("60 loops to run", || {
        let mut ran = loops.iter().zip(&before);
        let all = ran.all(|(looping, before)| looping.ran_ns() - before >= EACH_NS);
        all.then_some(())
    });
    drop(running);
    assert_nothing_went_wrong();
}

/// Returns the run time of each loop since the call, when the mean has reached `each_ns`.
fn had_by_then(loops: &[Loop], each_ns: u64) -> Vec<u64> {
    let before: Vec<u64> = loops.iter().map(Loop::ran_ns).collect();
    wait_for("loops to run", || {
        let ran = loops.iter().zip(&before);
        let had: Vec<u64> = ran
            .map(|(looping, before)| looping.ran_ns() - before)
            .collect();
        (had.iter().sum::<u64>() > had.len() as u64 * each_ns).then_some(had)
    })
}

/// Many threads wait for one CPU, in queues of their own or in shared queues, so that each queue
/// has one of them at its head. Their vtime is far behind that of threads that wait for another
/// CPU. In a former version, the other CPU served only the queue with the minimum vtime, and in
/// that queue always the only thread that it could run, until the kernel ended the scheduler.
pub fn threads_waiting_for_another_cpu_block_no_queue() {
    const EACH_NS: u64 = 400_000_000;
    let world = World::new();
    let running = Running::start(&world);
    let on = |cpu: usize, count: usize| -> Vec<Loop> {
        (0..count).map(|_| Loop::start("0", &[cpu])).collect()
    };
    let _busy_threads = on(1, 50);
    let few = on(0, 6);
    let before: Vec<u64> = few.iter().map(Loop::ran_ns).collect();
    // A CPU of the emulator that stands still charges that time to one loop.
    wait_for("equal shares, within a factor of two", || {
        let ran = few.iter().zip(&before);
        let had: Vec<u64> = ran.map(|(one, before)| one.ran_ns() - before).collect();
        let (least, most) = (had.iter().min()?, had.iter().max()?);
        (*least > EACH_NS / 2 && least * 2 > *most).then_some(())
    });
    drop(running);
    assert_nothing_went_wrong();
}

/// Threads are pinned to a CPU with many computing threads, beside a CPU with few, whose vtime is
/// soon far ahead. If a waking thread got the vtime of the CPU with few threads, it would wait
/// until the many threads have reached that vtime.
pub fn a_sleeper_beside_many_threads_does_not_starve() {
    const AHEAD_NS: u64 = 300_000_000;
    const EACH_NS: u64 = 60_000_000;
    let world = World::new();
    let running = Running::start(&world);
    let on = |cpu: usize, count: usize| -> Vec<Loop> {
        (0..count).map(|_| Loop::start("0", &[cpu])).collect()
    };
    let (few, many) = (on(0, 3), on(1, 9));
    let sleeper = Loop::that_sleeps(&[1]);
    let ran = |loops: &[Loop]| loops.iter().map(Loop::ran_ns).min().unwrap();
    wait_for("the few to be far ahead", || {
        (ran(&few) > ran(&many) + AHEAD_NS).then_some(())
    });
    let before = (sleeper.ran_ns(), ran(&many));
    let had = wait_for("the threads to run", || {
        let had = ran(&many) - before.1;
        (had > EACH_NS).then_some(had)
    });
    let its = sleeper.ran_ns() - before.0;
    assert!(its * 5 > had, "{its} ns where others had {had}");
    drop(running);
    assert_nothing_went_wrong();
}

/// Runs one thread more than there are CPUs, on LLCs that cannot all have an equal number of
/// threads: each thread must get the same CPU time. Without migration, a thread of an LLC with two
/// CPUs would get two thirds of the time of the others.
pub fn the_surplus_thread_rotates_among_llcs() {
    if nodes() > 1 {
        eprintln!("several NUMA nodes: threads do not rotate among these");
        return;
    }
    const EACH_NS: u64 = 3_000_000_000;
    let world = World::new();
    let running = Running::start(&world);
    let all: Vec<usize> = (0..cpus()).collect();
    let loops: Vec<Loop> = (0..=cpus()).map(|_| Loop::start("0", &all)).collect();
    let had = had_by_then(&loops, EACH_NS);
    let (least, most) = (had.iter().min(), had.iter().max());
    assert!(least.unwrap() * 4 > most.unwrap() * 3, "{had:?}");
    drop(running);
    assert_nothing_went_wrong();
}

fn serves_a_crowd(world: &World, running: Running<'_>) {
    run_thread_pairs(cpus());
    assert_eq!(running.status()["running"], true);
    let ours = &world.json(&["sched", "stats"]).unwrap()["ours"];
    let least = (PAIRS * ROUNDS) as u64;
    assert!(ours["switches"].as_u64().unwrap() >= least, "{ours}");
    drop(running);
    assert_eq!(sched_ext_file("state"), "disabled");
    let after = world.json(&["sched", "status"]).unwrap();
    let kernels_own = (&false.into(), &Value::Null);
    assert_eq!((&after["running"], &after["scheduler"]), kernels_own);
    // The daemon was started for the scheduler, and has ended with it.
    assert_eq!(after["last"], Value::Null);
    assert!(!world.socket().exists());
}

/// Takes a CPU offline and online while threads move onto it: the scheduler must restart.
pub fn follows_the_cpus() {
    let world = World::new();
    let running = Running::start(&world);
    let runs_again = |least: u64| {
        wait_for("the scheduler to restart", || {
            let status = running.status();
            let restarts = status["last"]["restarts"].as_u64()?;
            (restarts >= least && status["running"] == true).then_some(restarts)
        })
    };
    let last = cpus() - 1;
    thread::scope(|threads| {
        threads.spawn(|| run_thread_pairs(last + 1));
        switch(last, "0");
        let restarts = runs_again(1);
        switch(last, "1");
        runs_again(restarts + 1);
    });
    drop(running);
    assert_eq!(sched_ext_file("state"), "disabled");
    assert_nothing_went_wrong();
}

/// Checks, without SMT but with idle CPUs, that a waking thread need not wait for the end of a
/// slice. FIFO order must not be changed while it runs.
pub fn first_come_first_served_uses_idle_cpus() {
    let world = World::new();
    let running = Running::start_as(&world, &["--fifo"]);
    let does = running.status()["last"]["does"].clone();
    assert!(does.as_str().unwrap().contains("first-come"), "{does}");
    assert_eq!(world.json(&["sched", "set", "--turn-ms", "8"]), None);
    let all: Vec<usize> = (0..cpus()).collect();
    let _sleeper = Loop::that_sleeps(&all);
    let idle = || {
        let counted = world.json(&["sched", "stats"]).unwrap();
        counted["ours"]["idle_threads"].as_u64().unwrap()
    };
    let before = idle();
    wait_for("the sleeper to be sent to idle CPUs", || {
        (idle() > before + 50).then_some(())
    });
    drop(running);
    assert_nothing_went_wrong();
}
