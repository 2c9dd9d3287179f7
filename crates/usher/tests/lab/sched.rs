// SPDX-License-Identifier: GPL-2.0-only
//! The scheduler under load: threads that talk, that change where they may run,
//! CPUs that come and go, and its end, good or bad.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::thread;

use libbpf_rs::query::ProgInfoIter;
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CpuSet as Mask, sched_setaffinity};
use serde_json::Value;
use usher_model::CpuSet;

use crate::common::{World, stderr, wait_for};
use crate::load::Loop;

const PAIRS: usize = 8;
const ROUNDS: usize = 40;

/// The scheduler is ended also when a check fails.
pub struct Running<'a>(&'a World);

impl<'a> Running<'a> {
    pub fn start(world: &'a World) -> Self {
        Self::start_as(world, &[])
    }

    fn start_as(world: &'a World, options: &[&str]) -> Self {
        let started = world.run(&[&["sched", "start"], options].concat());
        assert!(started.status.success(), "{}", stderr(&started));
        assert_eq!(kernel_says("root/ops"), "usher");
        Self(world)
    }

    pub fn status(&self) -> Value {
        self.0.json(&["sched", "status"]).unwrap()
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        // Where a check fails, this is all that is left of the guest.
        if thread::panicking() {
            let dump = fs::read_to_string(self.0.runtime_dir().join("sched.dump"));
            eprintln!("{:#}\n{}", self.status()["last"], dump.unwrap_or_default());
        }
        let _ = self.0.json(&["sched", "stop"]);
    }
}

pub fn kernel_says(name: &str) -> String {
    let text = fs::read_to_string(format!("/sys/kernel/sched_ext/{name}"));
    text.unwrap_or_default().trim().to_owned()
}

fn cpus() -> usize {
    thread::available_parallelism().unwrap().get()
}

/// NUMA nodes that have CPUs.
fn nodes() -> usize {
    let said = fs::read_to_string("/sys/devices/system/node/has_cpu").unwrap();
    said.trim().split([',', '-']).count()
}

fn switch(cpu: usize, state: &str) {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/online");
    wait_for("a CPU to be switched", || fs::write(&path, state).ok());
}

/// Pairs of threads that send one another messages; every other one hops from
/// CPU to CPU meanwhile.
fn crowd(cpus: usize) {
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
                // The CPU may just be away.
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

fn console() -> String {
    let output = Command::new("dmesg").output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Programs of the scheduler's that the kernel holds.
fn loaded() -> impl Iterator<Item = u32> {
    let programs = ProgInfoIter::default();
    let ours = programs.filter(|program| program.name.to_string_lossy().starts_with("usher_"));
    ours.map(|program| program.verified_insns)
}

/// No task was kept waiting, the kernel found no fault, only we ended it, and nothing of it
/// is left.
pub fn assert_nothing_went_wrong() {
    // The kernel lets go of them a while after their end.
    wait_for("the kernel to let go of the programs", || {
        loaded().next().is_none().then_some(())
    });
    let is_bad = |line: &&str| {
        let ended = line.contains("BPF scheduler") && line.contains(" disabled (");
        let asked_for = ["(unregistered from ", "(disabled by sysrq-S)"];
        // The last is what the kernel says of an end that was not asked for.
        let signs = [
            "BUG:",
            "Oops",
            "soft lockup",
            "rcu: INFO",
            "sched_ext: usher: ",
        ];
        ended && !asked_for.iter().any(|how| line.contains(how))
            || signs.iter().any(|sign| line.contains(sign))
    };
    let console = console();
    assert!(console.contains("sched_ext: BPF scheduler \"usher\" disabled"));
    let lines: Vec<&str> = console.lines().filter(is_bad).collect();
    assert!(lines.is_empty(), "{lines:?}");
}

/// Each beginning waits for the kernel's verifier, which follows an instruction on as many
/// paths as lead there: branches in loops multiply them. All programs together have 63,000;
/// a million in one is refused, and 700,000 took ten seconds here.
fn is_soon_verified() {
    let verified: Vec<u32> = loaded().collect();
    let sum: u32 = verified.iter().sum();
    assert!((10_000..100_000).contains(&sum), "{verified:?}");
}

/// Messages and affinities; then the kernel's own has the threads again.
pub fn runs_a_crowd_and_lets_go() {
    let world = World::new();
    let running = Running::start(&world);
    is_soon_verified();
    assert_eq!(running.status()["last"]["idle_by_node"], nodes() > 1);
    assert_eq!(world.json(&["sched", "start"]), None, "beside another");
    let set = ["sched", "set", "--turn-ms", "8", "--lead-ms", "4"];
    let settings = &world.json(&set).unwrap()["settings"];
    let ns = (&settings["turn_ns"], &settings["lead_ns"]);
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

/// A thread that shares a core leaves it for an idle one while others wait that may not
/// run where it does.
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

/// More than an LLC has queues for, each kept to one of two CPUs. Those that share a queue
/// must not pass all others by, as they once did until the kernel took all threads back.
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

/// What each loop has run from now on, by when they have so much on average.
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

/// So many wait for one CPU, each in a queue of its own or with others, that all queues begin
/// with one of those, who are far behind whoever waits for another CPU. That CPU once served
/// the queue that was furthest behind, and in it the only one that it could have, again and
/// again, until the kernel took all threads back from it.
pub fn nobody_gives_way_to_a_crowd_that_waits_for_another_cpu() {
    const EACH_NS: u64 = 400_000_000;
    let world = World::new();
    let running = Running::start(&world);
    let on = |cpu: usize, count: usize| -> Vec<Loop> {
        (0..count).map(|_| Loop::start("0", &[cpu])).collect()
    };
    let _crowd = on(1, 50);
    let few = on(0, 6);
    let had = had_by_then(&few, EACH_NS);
    let (least, most) = (had.iter().min(), had.iter().max());
    assert!(least.unwrap() * 2 > *most.unwrap(), "{had:?}");
    drop(running);
    assert_nothing_went_wrong();
}

/// Kept to a CPU where many compute, beside one where few do, which are soon far ahead of
/// those: who went by their clock on waking would wait until the crowd has come as far.
pub fn who_sleeps_beside_a_crowd_is_not_forgotten() {
    const AHEAD_NS: u64 = 300_000_000;
    const EACH_NS: u64 = 60_000_000;
    let world = World::new();
    let running = Running::start(&world);
    let on = |cpu: usize, count: usize| -> Vec<Loop> {
        (0..count).map(|_| Loop::start("0", &[cpu])).collect()
    };
    let (few, crowd) = (on(0, 3), on(1, 9));
    let sleeper = Loop::that_sleeps(&[1]);
    let ran = |loops: &[Loop]| loops.iter().map(Loop::ran_ns).min().unwrap();
    wait_for("the few to be far ahead", || {
        (ran(&few) > ran(&crowd) + AHEAD_NS).then_some(())
    });
    let before = (sleeper.ran_ns(), ran(&crowd));
    let had = wait_for("the crowd to run", || {
        let had = ran(&crowd) - before.1;
        (had > EACH_NS).then_some(had)
    });
    let its = sleeper.ran_ns() - before.0;
    assert!(its * 5 > had, "{its} ns where others had {had}");
    drop(running);
    assert_nothing_went_wrong();
}

/// One more than there are CPUs, whose LLCs cannot all have as many: each has as much in turn.
/// Left where it began, one of an LLC of two CPUs would have two thirds of what others have.
pub fn whoever_is_left_over_goes_round() {
    if nodes() > 1 {
        eprintln!("several NUMA nodes: nobody goes round among these");
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

/// Messages and affinities in the orders of Linux 2.6, which are not to be changed meanwhile.
pub fn serves_in_the_order_of_linux_26() {
    let world = World::new();
    for (order, aggregate) in [("plain", false), ("aggregate", true)] {
        let running = Running::start_as(&world, &["--o1", order]);
        let last = &running.status()["last"];
        assert!(last["does"].as_str().unwrap().contains("Linux 2.6"));
        assert_eq!(last["settings"]["aggregate"], aggregate);
        assert_eq!(world.json(&["sched", "set", "--turn-ms", "8"]), None);
        serves_a_crowd(&world, running);
    }
    assert_nothing_went_wrong();
}

fn serves_a_crowd(world: &World, running: Running<'_>) {
    crowd(cpus());
    assert_eq!(running.status()["running"], true);
    let ours = &world.json(&["sched", "stats"]).unwrap()["ours"];
    let least = (PAIRS * ROUNDS) as u64;
    assert!(ours["switches"].as_u64().unwrap() >= least, "{ours}");
    drop(running);
    assert_eq!(kernel_says("state"), "disabled");
    let after = world.json(&["sched", "status"]).unwrap();
    assert_eq!(after["last"]["ended"], "stopped");
    let nobody = (&false.into(), &Value::Null);
    assert_eq!((&after["running"], &after["scheduler"]), nobody);
}

/// A CPU goes and comes while threads hop onto it: the scheduler begins anew.
pub fn follows_the_cpus() {
    let world = World::new();
    let running = Running::start(&world);
    let runs_again = |least: u64| {
        wait_for("the scheduler to begin anew", || {
            let status = running.status();
            let restarts = status["last"]["restarts"].as_u64()?;
            (restarts >= least && status["running"] == true).then_some(restarts)
        })
    };
    let last = cpus() - 1;
    thread::scope(|threads| {
        threads.spawn(|| crowd(last + 1));
        switch(last, "0");
        let restarts = runs_again(1);
        switch(last, "1");
        runs_again(restarts + 1);
    });
    drop(running);
    assert_eq!(kernel_says("state"), "disabled");
    assert_nothing_went_wrong();
}

/// By SIGKILL, so that it can undo nothing.
pub fn ends_with_its_holder() {
    let world = World::new();
    let running = Running::start(&world);
    let pid = running.status()["last"]["pid"].as_i64().unwrap();
    kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
    wait_for("the kernel's own scheduler", || {
        (kernel_says("state") == "disabled").then_some(())
    });
    let after = running.status();
    let died = format!("its process {pid} died");
    assert_eq!(
        (&after["running"], &after["last"]["ended"]),
        (&false.into(), &died.into())
    );
    assert_nothing_went_wrong();
}

/// By SysRq S, as an administrator would who sees that it does harm: told as the kernel's
/// doing, and another can be started.
pub fn tells_that_the_kernel_ended_it() {
    let world = World::new();
    let running = Running::start(&world);
    fs::write("/proc/sysrq-trigger", "S").unwrap();
    wait_for("the kernel's own scheduler", || {
        (kernel_says("state") == "disabled").then_some(())
    });
    let last = &wait_for("the holder to tell", || {
        let status = running.status();
        (status["last"]["state"] == "ended").then_some(status)
    })["last"];
    let why = last["ended"].as_str().unwrap();
    assert!(
        why.starts_with("the kernel took its threads back ("),
        "{why}"
    );
    assert!(why.contains("sysrq"), "{why}");
    drop(running);
    drop(Running::start(&world));
    assert_nothing_went_wrong();
}

/// What ours is held against has no other faults than being minimal.
pub fn the_least_there_can_be_runs_a_crowd() {
    let world = World::new();
    let running = Running::start_as(&world, &["--fifo=minimal"]);
    let does = &running.status()["last"]["does"];
    assert_eq!(does, "first come, first served, and nothing else");
    crowd(cpus());
    assert_eq!(running.status()["running"], true);
    drop(running);
    assert_eq!(kernel_says("state"), "disabled");
    assert_nothing_went_wrong();
}

/// Blind to SMT, but not to idle CPUs: a thread that wakes need not wait for a slice to end.
pub fn first_come_first_served_knows_idle_cpus() {
    let world = World::new();
    let running = Running::start_as(&world, &["--fifo"]);
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

/// Whoever holds a lock, or a folder, while it starts the scheduler has it to itself again.
pub fn its_holder_leaves_its_caller() {
    let world = World::new();
    let lock = world.path("lock");
    let start = world.usher(&["sched", "start"]);
    let mut locked = Command::new("flock");
    locked.arg(&lock).arg(start.get_program());
    locked.args(start.get_args()).current_dir(world.path("."));
    locked.env("USHER_RUNTIME_DIR", world.runtime_dir());
    assert!(locked.status().unwrap().success());
    let running = Running(&world);
    let free = Command::new("flock")
        .arg("--nonblock")
        .arg(&lock)
        .arg("true")
        .status();
    assert!(free.unwrap().success(), "the holder has the lock still");
    let pid = running.status()["last"]["pid"].as_i64().unwrap();
    let folder = fs::read_link(format!("/proc/{pid}/cwd")).unwrap();
    assert_eq!(folder.to_str(), Some("/"));
    let holder = Pid::from_raw(pid as i32).unwrap();
    let session = rustix::process::getsid(Some(holder)).unwrap();
    assert_eq!(session, holder);
    drop(running);
    assert_nothing_went_wrong();
}
