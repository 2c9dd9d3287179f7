// SPDX-License-Identifier: GPL-2.0-only
//! Compares the counts of `usher sched stats -- CMD` with known events, under the kernel's own
//! scheduler: context switches, wake-ups, times with a shared core, migrations by distance.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;

use rustix::thread::{CpuSet as Mask, sched_setaffinity};
use serde_json::Value;
use usher_topology::Source;

use crate::common::{World, wait_for};
use crate::load::Loop;

const ROUNDS: u64 = 1000;

/// A running `usher sched stats` with a command that ends on request.
struct StatsCommand {
    stats: Child,
    output: BufReader<ChildStdout>,
}

impl StatsCommand {
    fn start(world: &World) -> Self {
        let words = ["sched", "stats", "--json", "--", "sh", "-c", "echo; cat"];
        let mut stats = world.usher(&words);
        let mut stats = stats
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(stats.stdout.take().unwrap());
        // The counter runs when the command has printed its line.
        output.read_line(&mut String::new()).unwrap();
        Self { stats, output }
    }

    fn end(mut self) -> Value {
        drop(self.stats.stdin.take());
        let mut actual = String::new();
        self.output.read_to_string(&mut actual).unwrap();
        assert!(self.stats.wait().unwrap().success());
        serde_json::from_str::<Value>(&actual).unwrap()
    }
}

fn counted(world: &World, meanwhile: impl FnOnce()) -> (u64, Value) {
    let counting = StatsCommand::start(world);
    meanwhile();
    let actual = counting.end();
    assert_eq!(actual["scheduler"], Value::Null, "the kernel's own");
    (
        actual["elapsed_ns"].as_u64().unwrap(),
        actual["counted"].clone(),
    )
}

fn number(counted: &Value, name: &str) -> u64 {
    counted[name].as_u64().unwrap()
}

fn pin_to(cpu: usize) {
    let mut only = Mask::new();
    only.set(cpu);
    sched_setaffinity(None, &only).unwrap();
}

/// Sends a byte and receives it back, `ROUNDS` times.
fn pass(mut to: impl Write, mut from: impl Read) {
    let mut byte = [1];
    for _ in 0..ROUNDS {
        to.write_all(&byte).unwrap();
        from.read_exact(&mut byte).unwrap();
    }
}

/// Exchanges bytes with another process on one CPU.
fn with_a_process() {
    let mut echo = Command::new("taskset");
    echo.args(["-c", "0", "cat"]);
    let mut echo = echo
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (to, from) = (echo.stdin.take().unwrap(), echo.stdout.take().unwrap());
    thread::scope(|threads| {
        threads.spawn(|| {
            pin_to(0);
            pass(to, from);
        });
    });
    echo.wait().unwrap();
}

/// Exchanges bytes with a thread of this process on one CPU.
fn with_a_thread() {
    let (one, mut other) = UnixStream::pair().unwrap();
    thread::scope(|threads| {
        threads.spawn(|| {
            pin_to(0);
            pass(&one, &one);
            drop(one);
        });
        threads.spawn(move || {
            pin_to(0);
            let mut byte = [0];
            while other.read_exact(&mut byte).is_ok() {
                other.write_all(&byte).unwrap();
            }
        });
    });
}

/// Checks the counts of two threads that take turns. They switch twice a round; address spaces
/// switch only if the threads belong to two processes.
pub fn counts_switches_and_wakeups() {
    let world = World::new();
    let (_, processes) = counted(&world, with_a_process);
    let (_, threads) = counted(&world, with_a_thread);
    let due = 2 * ROUNDS..2 * ROUNDS + ROUNDS / 5;
    for counted in [&processes, &threads] {
        assert!(number(counted, "switches") >= due.start, "{counted}");
        // The count may be below twice the rounds, because some threads are woken before they
        // sleep.
        assert!(number(counted, "wakeups") > ROUNDS, "{counted}");
        let latency = counted["latency"].as_array().unwrap();
        let sum: u64 = latency.iter().map(|count| count.as_u64().unwrap()).sum();
        assert_eq!(sum, number(counted, "wakeups"));
    }
    let of_processes = number(&processes, "space_switches");
    assert!(due.contains(&of_processes), "{processes}");
    let of_threads = number(&threads, "space_switches");
    assert!(of_threads < ROUNDS / 5, "{threads}");
    assert!(number(&processes, "mm_changes") >= of_processes);
}

/// Returns the CPUs that a topology file of CPU 0 lists, except CPU 0.
fn siblings() -> Vec<usize> {
    let list = "/sys/devices/system/cpu/cpu0/topology/thread_siblings_list";
    let cpus: usher_model::CpuSet = fs::read_to_string(list).unwrap().trim().parse().unwrap();
    cpus.iter().map(|cpu| cpu as usize).skip(1).collect()
}

/// Checks the time for which two loops share one core while all other cores are idle.
pub fn times_a_core_that_is_shared() {
    const EACH_NS: u64 = 1_000_000_000;
    let world = World::new();
    let second = siblings().first().copied();
    let mut ran_ns = 0;
    let (elapsed_ns, counted) = counted(&world, || {
        let loops = [0, second.unwrap_or(1)].map(|cpu| Loop::start("0", &[cpu]));
        ran_ns = wait_for("two loops to run", || {
            let ran = loops.iter().map(Loop::ran_ns).min()?;
            (ran > EACH_NS).then_some(ran)
        });
    });
    let (shared, needless) = (
        number(&counted, "shared_ns"),
        number(&counted, "needless_ns"),
    );
    assert!(needless <= shared && shared <= elapsed_ns, "{counted}");
    if second.is_none() {
        assert_eq!(shared, 0, "cores have one hardware thread");
        return;
    }
    assert!(shared > ran_ns * 9 / 10, "{ran_ns}: {counted}");
    // The bound is half, because the process that observes the loops runs on another CPU.
    assert!(needless > shared / 2, "{counted}");
}

/// Checks the migrations of a loop that moves between CPU 0 and the first CPU of each distance.
pub fn counts_migrations_by_distance() {
    const ROUND_TRIPS: usize = 50;
    let machine = usher_topology::load(Source::ThisMachine).unwrap();
    let cpu = |os: u32| machine.cpus.iter().find(|cpu| cpu.os == os).unwrap();
    let node = |os: u32| machine.nodes.iter().position(|n| n.cpus.contains(os));
    let distance = |to: u32| {
        let (here, there) = (cpu(0).core, cpu(to).core);
        let domain = |core: usize| machine.cores[core].domain;
        match () {
            () if here == there => "migrations_core",
            () if domain(here) == domain(there) => "migrations_llc",
            () if node(0) == node(to) => "migrations_node",
            () => "migrations_far",
        }
    };
    let names = [
        "migrations_core",
        "migrations_llc",
        "migrations_node",
        "migrations_far",
    ];
    let world = World::new();
    let mut seen = 0;
    for name in names {
        let mut others = machine.cpus.iter().map(|cpu| cpu.os).filter(|&os| os != 0);
        let Some(to) = others.find(|&os| distance(os) == name) else {
            continue;
        };
        seen += 1;
        let looping = Loop::start("0", &[0]);
        let (_, counted) = counted(&world, || {
            for cpu in [to as usize, 0].repeat(ROUND_TRIPS) {
                looping.may_run_on(&[cpu]);
                let before_ns = looping.ran_ns();
                wait_for("the loop to run there", || {
                    (looping.ran_ns() > before_ns).then_some(())
                });
            }
        });
        for other in names {
            let is_due = (2 * ROUND_TRIPS - 2) as u64;
            let moves = number(&counted, other);
            assert_eq!(moves >= is_due, other == name, "{other}: {counted}");
        }
    }
    assert!(seen > 0, "one CPU");
}
