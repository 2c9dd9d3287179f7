// SPDX-License-Identifier: GPL-2.0-only
//! Checks in a guest of soft seats, which the scheduler keeps: no affinity mask is narrowed,
//! borrowers use idle CPUs, and the seat's owner gets them back.

use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use serde_json::Value;

use crate::common::{World, allowed, children, signal, wait_for};
use crate::load::Loop;
use crate::sched::{Running, assert_nothing_went_wrong, sched_ext_file};
use crate::seats::{cleared, machine};
use crate::weights::Cgroup;

/// A program of several busy processes, under a launcher.
struct Program {
    launcher: Child,
}

const EXCHANGES: usize = 20;
/// Number of threads per CPU.
const THREADS_PER_CPU: usize = 8;
/// Nanoseconds for which a loop runs in its seat while borrowers are counted.
const LONG_NS: u64 = 1_000_000_000;

/// Script that starts `$0` busy loops, and then sleeps in the shell's own process.
const BUSY: &str = "for i in $0; do (while :; do :; done) & done; exec sleep 100000";

impl Program {
    fn run(world: &World, name: &str, processes: usize) -> Self {
        let list = vec!["x"; processes].join(" ");
        let words = [
            "run",
            "--name",
            name,
            "--",
            "sh",
            "-c",
            &BUSY.replace("$0", &list),
        ];
        let mut command = world.usher(&words);
        let launcher = command.stderr(Stdio::null()).spawn().unwrap();
        let program = Self { launcher };
        wait_for("a program's processes", || {
            (program.pids().len() > processes).then_some(())
        });
        program
    }

    /// Returns the shell and its busy children.
    fn pids(&self) -> Vec<i32> {
        let shells = children(self.launcher.id() as i32);
        let busy = shells.iter().flat_map(|&shell| children(shell));
        shells.iter().copied().chain(busy).collect()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        for pid in self.pids() {
            signal(pid, libc::SIGKILL);
        }
        let _ = self.launcher.wait();
    }
}

/// Seats that a test gives, without the control loop.
struct Seats {
    held: usher_scx::SchedulerHandle,
    kernel: usher_scx::Kernel,
}

impl Seats {
    fn of(running: &Running) -> Self {
        let maps = serde_json::from_value(running.status()["last"]["maps"].clone()).unwrap();
        Self {
            held: usher_scx::SchedulerHandle::open(&maps).unwrap(),
            kernel: usher_scx::Kernel::at(Path::new("/sys")),
        }
    }

    fn give(&self, cgroup: &Cgroup, name: &str, cpus: &[usize]) {
        let cpus = cpus.iter().map(|&cpu| cpu as u32).collect();
        let given = self.held.seat(&self.kernel, cgroup.number(), name, &cpus);
        given.unwrap();
    }
}

/// Returns what the scheduler reports about the seat with this name.
fn seat(world: &World, name: &str) -> Option<Value> {
    let stats = world.json(&["sched", "stats"])?;
    let seats = stats["seats"].as_array()?.clone();
    seats.into_iter().find(|seat| seat["name"] == name)
}

fn figure(seat: &Value, name: &str) -> u64 {
    seat["tally"][name].as_u64().unwrap()
}

/// Checks seats that the control loop plans. When the scheduler ends, affinity masks replace the
/// soft seats.
pub fn keeps_seats_and_lends_them() {
    let mut world = World::new();
    let daemon = world.daemon(&["--policy", "equal"]);
    let running = Running::start(&world);
    let everywhere = machine().all_cpus().to_string();
    let masks = |program: &Program| {
        let masks = program.pids().into_iter().map(allowed);
        masks.collect::<Option<Vec<String>>>()
    };
    let quiet = Program::run(&world, "quiet", 0);
    let many = Program::run(&world, "many", 2 * machine().cpus.len());
    let lent = wait_for("a guest on an idle core", || {
        seat(&world, "many").filter(|seat| figure(seat, "guest_ns") > 0)
    });
    let own = seat(&world, "quiet").unwrap();
    assert_ne!(own["cpus"], lent["cpus"]);
    assert!(masks(&many).unwrap().iter().all(|mask| *mask == everywhere));
    let explained = world.usher(&["sched", "explain", &many.pids()[1].to_string()]);
    let explained = { explained }.output().unwrap();
    let explained = String::from_utf8(explained.stdout).unwrap();
    assert!(
        explained.contains("the seat of 'many' consists of CPUs"),
        "{explained}"
    );
    // The program `back` gets the seat that `quiet` had.
    drop(quiet);
    let back = Program::run(&world, "back", 1);
    wait_for("a guest to give a CPU back", || {
        seat(&world, "back").filter(|seat| figure(seat, "returns") > 0)
    });
    let wait_for_masks = || {
        wait_for("affinity masks in the scheduler's place", || {
            let (many, back) = (masks(&many)?, masks(&back)?);
            let narrow = |masks: &[String]| masks.iter().all(|mask| *mask != everywhere);
            (narrow(&many) && narrow(&back)).then_some(())
        });
    };
    world.json(&["sched", "set", "--seats", "off"]).unwrap();
    wait_for_masks();
    assert_eq!(seat(&world, "many"), None);
    world.json(&["sched", "set", "--seats", "on"]).unwrap();
    wait_for("a seat again", || seat(&world, "many"));
    drop(running);
    wait_for_masks();
    assert_eq!(world.end(daemon), Some(0));
    wait_for("the programs to be released", || {
        let masks = masks(&many)?;
        masks.iter().all(|mask| *mask == everywhere).then_some(())
    });
    cleared();
    assert_nothing_went_wrong();
}

/// Lets two programs exchange their seats repeatedly. One program has a loop for each CPU of its
/// seat, the other has three. A thread that waits in a run queue during the exchange must still be
/// dispatched when no other thread of its seat runs.
pub fn exchanged_seats_starve_no_thread() {
    let world = World::new();
    let running = Running::start(&world);
    let seats = Seats::of(&running);
    let cpus: Vec<usize> = machine()
        .all_cpus()
        .iter()
        .map(|cpu| cpu as usize)
        .collect();
    let (first, second) = cpus.split_at(cpus.len() / 2);
    let cgroups = ["many", "few"].map(Cgroup::new);
    let loops: Vec<Loop> = (0..2 * cpus.len())
        .map(|_| Loop::start("0", &cpus))
        .collect();
    for (at, looping) in loops.iter().enumerate() {
        cgroups[usize::from(at < first.len())].take_in(looping);
    }
    for round in 0..EXCHANGES {
        let halves = if round % 2 == 0 {
            [first, second]
        } else {
            [second, first]
        };
        for (cgroup, half) in cgroups.iter().zip(halves) {
            seats.give(cgroup, "p", half);
        }
        for looping in &loops {
            let before_ns = looping.ran_ns();
            wait_for("a loop to run on", || {
                (looping.ran_ns() > before_ns).then_some(())
            });
        }
    }
    drop(loops);
    drop(running);
    assert_nothing_went_wrong();
}

/// This process has three busy threads for each CPU of its seat, so that some of them wait at any
/// time, even while seats are given. The loops of another process, one for each CPU of its seat,
/// must nevertheless have these CPUs for themselves.
pub fn many_threads_stay_in_their_seat() {
    let world = World::new();
    let running = Running::start(&world);
    let seats = Seats::of(&running);
    let cpus: Vec<usize> = machine()
        .all_cpus()
        .iter()
        .map(|cpu| cpu as usize)
        .collect();
    let (first, second) = cpus.split_at(cpus.len() / 2);
    let [many, few] = ["many", "few"].map(Cgroup::new);
    let loops: Vec<Loop> = second.iter().map(|_| Loop::start("0", &cpus)).collect();
    loops.iter().for_each(|looping| few.take_in(looping));
    let ends = AtomicBool::new(false);
    let busy = || {
        while !ends.load(Relaxed) {
            std::hint::black_box(());
        }
    };
    many.with_us(|| {
        std::thread::scope(|threads| {
            for _ in 0..THREADS_PER_CPU * first.len() {
                threads.spawn(busy);
            }
            seats.give(&many, "many", first);
            seats.give(&few, "few", second);
            let figures = || {
                let [many, few] = ["many", "few"].map(|name| seat(&world, name).unwrap());
                (figure(&few, "home_ns"), figure(&many, "guest_ns"))
            };
            wait_for("threads in their seat", || {
                figure(&seat(&world, "many")?, "home_ns")
                    .gt(&LONG_NS)
                    .then_some(())
            });
            seats.give(&few, "few", second);
            let before = figures();
            let due_ns = LONG_NS * second.len() as u64;
            let after = wait_for("loops to have run at home", || {
                Some(figures()).filter(|now| now.0 - before.0 > due_ns)
            });
            ends.store(true, Relaxed);
            let (home_ns, guest_ns) = (after.0 - before.0, after.1 - before.1);
            assert!(
                guest_ns * 20 < home_ns,
                "guests for {guest_ns} ns, beside {home_ns}"
            );
        });
    });
    drop(loops);
    drop(running);
    assert_nothing_went_wrong();
}

/// Kills daemon and keeper, so that no process can remove the seats. The kernel must unload the
/// scheduler, with its seats.
pub fn a_killed_daemon_leaves_no_seats() {
    let mut world = World::new();
    let daemon = world.daemon(&["--policy", "equal"]);
    world.json(&["sched", "start"]).unwrap();
    let one = Program::run(&world, "one", 1);
    let _other = Program::run(&world, "other", 1);
    wait_for("a seat", || {
        let explained = world.json(&["sched", "explain", &one.pids()[1].to_string()])?;
        (!explained["processes"][0]["seat"].is_null()).then_some(())
    });
    world.kill_with_keeper(daemon);
    wait_for("the kernel's own scheduler", || {
        (sched_ext_file("state") == "disabled").then_some(())
    });
    assert_nothing_went_wrong();
}
