// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kills processes by `SIGKILL` at random moments, in all combinations of victims: an owner that
//! applies random actions to two programs, its keeper, one of the programs. Afterwards no process
//! may be stopped or have a narrowed mask, and no cgroup or journal may be left.
//!
//! The environment variable `USHER_KILL_ROUNDS` sets the number of rounds per combination (default
//! 20), and `USHER_KILL_SEED` sets the seed.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::*;
use usher_act::{UndoOutcome, undo_orphaned};
use usher_model::ProgramId;

/// A process that a round kills. The victims are killed in the order of these variants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Owner,
    Keeper,
    Program,
}
use Victim::{Keeper, Owner, Program as OneProgram};

const COMBINATIONS: [&[Victim]; 6] = [
    &[Owner],
    &[Keeper, Owner],
    &[Owner, Keeper],
    &[OneProgram, Owner],
    &[Keeper, OneProgram, Owner],
    &[Keeper],
];

fn from_environment(name: &str, otherwise: u64) -> u64 {
    let set = std::env::var(name).ok();
    set.map_or(otherwise, |value| value.parse().unwrap())
}

#[test]
fn everything_is_undone_for_each_combination_of_killed_processes() {
    let rounds = from_environment("USHER_KILL_ROUNDS", 20);
    let seed = from_environment("USHER_KILL_SEED", std::process::id().into());
    eprintln!("USHER_KILL_SEED={seed} USHER_KILL_ROUNDS={rounds}");
    for method in methods() {
        let mut slowest = Duration::ZERO;
        for combination in COMBINATIONS {
            for round in 0..rounds {
                let seed = seed
                    .wrapping_add(round * 7919)
                    .wrapping_mul(0x9E37_79B9_7F4A_7C15);
                slowest = slowest.max(one_round(method, combination, seed));
            }
        }
        eprintln!("{method:?}: all undone at most {slowest:?} after the last death");
    }
}

/// Executes one round. Returns the time from the last death until all changes are undone.
fn one_round(method: ActMethod, combination: &[Victim], seed: u64) -> Duration {
    let runtime = tempfile::tempdir().unwrap();
    let _witness = FailureReport(runtime.path());
    let mut programs = [
        Program::start(&["tree", "2", "1"]),
        Program::start_in_session(command(&["tree", "0", "0"])),
    ];
    let own = cgroups(std::process::id() as i32);
    let mut owner = start_owner(method, runtime.path(), seed, &programs);
    let instance = first_line(&mut owner);
    spin(Duration::from_micros(seed >> 20 & 0xffff));
    for victim in combination {
        match victim {
            Owner => {
                owner.kill().unwrap();
                owner.wait().unwrap();
            }
            OneProgram => programs[1].kill(),
            Keeper => kill_keeper(&instance),
        }
    }
    let died = Instant::now();
    if !combination.contains(&Owner) {
        // First waits until the owner has replaced its keeper; then kills the owner and the new
        // keeper.
        wait_until("another keeper", || keeper(&instance).is_some_and(lives));
        owner.kill().unwrap();
        owner.wait().unwrap();
    }
    if combination.contains(&Keeper) && combination.contains(&Owner) {
        undo_without_keeper(method, runtime.path(), &instance, seed);
    }
    let what = format!("{method:?} {combination:?} seed {seed}");
    wait_until(&format!("the journal to be closed: {what}"), || {
        !instance.exists()
    });
    let took = died.elapsed();
    for program in programs.iter().filter(|program| lives(program.pid())) {
        for pid in program.processes() {
            is_as_before(pid, &own, &what);
        }
    }
    assert_eq!(leftovers(&instance), Vec::<PathBuf>::new(), "{what}");
    took
}

fn is_as_before(pid: i32, own: &str, what: &str) {
    assert_eq!(masks(pid), BTreeSet::from([cpu_list()]), "{what}");
    assert_eq!(cgroups(pid), own, "{what}");
    for tid in threads(pid) {
        assert_eq!(rank(tid), Some(SchedValues::plain()), "{what}");
    }
    assert_eq!(autogroup(pid).unwrap_or(0), 0, "{what}");
    wait_until(&format!("{pid} to go on: {what}"), || {
        stat(pid).is_none_or(|stat| stat.state != 'T')
    });
}

fn start_owner(method: ActMethod, runtime: &Path, seed: u64, programs: &[Program]) -> Child {
    let ids = programs
        .iter()
        .map(|p| format!("{}-{}", p.id.pid, p.id.start_ticks));
    Command::new(rig())
        .arg("owner")
        .arg(runtime)
        .arg(method.config(runtime).cgroup_root)
        .arg((seed & 0xffff_ffff).to_string())
        .args(ids)
        .stdout(Stdio::piped())
        // Standard error goes to a file, because the owner reports an error when a program dies
        // during an action.
        .stderr(fs::File::create(runtime.join(OUTPUT)).unwrap())
        .spawn()
        .unwrap()
}

/// The name of the file in the runtime directory with the output of the owner and its keepers.
const OUTPUT: &str = "output";

/// If the test fails, prints the output of the owner and its keepers, and their remaining files.
struct FailureReport<'a>(&'a Path);

impl Drop for FailureReport<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let output = fs::read_to_string(self.0.join(OUTPUT)).unwrap_or_default();
        eprintln!("output: {output}");
        for instance in fs::read_dir(self.0.join("instances")).into_iter().flatten() {
            let instance = instance.unwrap().path();
            for file in fs::read_dir(&instance).into_iter().flatten() {
                let file = file.unwrap().path();
                let text = fs::read_to_string(&file).unwrap_or_default();
                eprintln!("left: {}\n{text}", file.display());
            }
            eprintln!(
                "keeper: {:?}",
                keeper(&instance).map(|pid| (pid, lives(pid)))
            );
        }
    }
}

fn first_line(owner: &mut Child) -> PathBuf {
    let mut line = String::new();
    let out = owner.stdout.take().unwrap();
    BufReader::new(out).read_line(&mut line).unwrap();
    PathBuf::from(line.trim())
}

fn keeper(instance: &Path) -> Option<i32> {
    let text = std::fs::read_to_string(instance.join("keeper")).ok()?;
    text.split(' ').next()?.parse().ok()
}

/// Returns whether a process lives. A zombie does not live, nor does a process that is being reaped
/// (state X), which is visible for a moment longer.
fn lives(pid: i32) -> bool {
    stat(pid).is_some_and(|stat| !matches!(stat.state, 'Z' | 'X'))
}

fn kill_keeper(instance: &Path) {
    // The keeper is gone already if its owner had died and the undo was quick.
    let Some(pid) = keeper(instance) else { return };
    // SAFETY: `kill` accesses no memory; it kills the keeper that this test's owner has started.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    wait_until("the keeper to die", || !lives(pid));
}

/// Undoes the changes of a dead owner with a dead keeper. First the launchers undo the changes of
/// their own programs, then the next start of Usher undoes the rest. If the owner had replaced its
/// keeper before its death, the new keeper undoes the changes.
fn undo_without_keeper(method: ActMethod, runtime: &Path, instance: &Path, seed: u64) {
    let config = method.config(runtime);
    if seed & 1 << 50 != 0 {
        for program in [ProgramId(0), ProgramId(1)] {
            wait_until("the undo by a launcher", || {
                match undo_orphaned(&config, instance, program).unwrap() {
                    UndoOutcome::OwnerAlive => panic!("the owner was killed"),
                    UndoOutcome::Undone(report) => is_undone(&report.errors),
                    UndoOutcome::KeeperAlive(_) | UndoOutcome::Nothing => true,
                }
            });
        }
    }
    undo_all_stale(&config, &format!("seed {seed}"));
}

/// Stops a keeper and never continues it, as a debugger or an administrator may do.
fn stop(pid: i32) {
    // SAFETY: `kill` accesses no memory; it stops a process that this test has started.
    unsafe { libc::kill(pid, libc::SIGSTOP) };
    let state = || stat(pid).map(|stat| stat.state);
    wait_until("the process to stop", || state() == Some('T'));
}

#[test]
fn a_stopped_keeper_does_not_block_the_undo() {
    for (method, by_launchers) in methods()
        .into_iter()
        .flat_map(|method| [(method, false), (method, true)])
    {
        let what = format!("{method:?}, by launchers: {by_launchers}");
        let runtime = tempfile::tempdir().unwrap();
        let _witness = FailureReport(runtime.path());
        let program = Program::start(&["tree", "1", "1"]);
        let before = snapshot(&program);
        let mut owner = start_owner(method, runtime.path(), 5, std::slice::from_ref(&program));
        let instance = first_line(&mut owner);
        wait_until(&format!("a seat: {what}"), || snapshot(&program) != before);
        let keeper = keeper(&instance).unwrap();
        stop(keeper);
        owner.kill().unwrap();
        owner.wait().unwrap();
        // Stands for a keeper that was stopped during its undo while it held the lock.
        let holder = Command::new("flock")
            .arg("--no-fork")
            .arg(instance.join("undo.lock"))
            .args(["sleep", "600"])
            .spawn();
        let mut holder = holder.unwrap();
        wait_until("the lock to be held", || {
            let file = fs::File::open(instance.join("undo.lock"));
            let shared = rustix::fs::FlockOperation::NonBlockingLockShared;
            file.is_ok_and(|file| rustix::fs::flock(file, shared).is_err())
        });
        stop(holder.id() as i32);
        let config = method.config(runtime.path());
        if by_launchers {
            let outcome = undo_orphaned(&config, &instance, ProgramId(0)).unwrap();
            assert!(!matches!(outcome, UndoOutcome::KeeperAlive(_)), "{what}");
        } else {
            undo_all_stale(&config, &what);
            assert!(!instance.exists(), "{what}");
        }
        wait_until(&format!("the program to be as before: {what}"), || {
            snapshot(&program) == before
        });
        for pid in [keeper, holder.id() as i32] {
            // SAFETY: `kill` accesses no memory; it ends processes that this test has started.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        holder.wait().unwrap();
    }
}

/// Busy-waits for a time that is too short for a sleep.
fn spin(time: Duration) {
    let begin = Instant::now();
    while begin.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// A program that forks as fast as Usher acts on it.
#[test]
fn a_storm_is_undone_after_its_owner_dies() {
    let rounds = from_environment("USHER_KILL_ROUNDS", 20);
    let seed = from_environment("USHER_KILL_SEED", std::process::id().into());
    eprintln!("USHER_KILL_SEED={seed} USHER_KILL_ROUNDS={rounds}");
    // Only the mechanism with cgroups is tested, because orphans are not found without cgroups, as
    // documented.
    for method in methods()
        .into_iter()
        .filter(|method| *method != ActMethod::NoCgroups)
    {
        for round in 0..rounds {
            let seed = seed.wrapping_add(round).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            one_storm(method, seed);
        }
    }
}

fn one_storm(method: ActMethod, seed: u64) {
    let what = format!("{method:?} seed {seed}");
    let runtime = tempfile::tempdir().unwrap();
    // The program gets a session of its own. In a common session, its orphans could not be
    // distinguished from the orphans of other tests' programs (see "Limits" in `tree.rs`).
    let program = Program::start_in_session(command(&["storm", "3"]));
    let own = cgroups(std::process::id() as i32);
    let mut owner = start_owner(method, runtime.path(), seed, std::slice::from_ref(&program));
    let instance = first_line(&mut owner);
    wait_until(&format!("the storm to be admitted: {what}"), || {
        // The owner may also reject the program, which forks all the time, and then ends.
        cgroups(program.pid()) != own || owner.try_wait().unwrap().is_some()
    });
    spin(Duration::from_micros(seed >> 20 & 0xffff));
    owner.kill().unwrap();
    owner.wait().unwrap();
    wait_until(&format!("the journal to be closed: {what}"), || {
        !instance.exists()
    });
    let first = BTreeSet::from_iter(program.processes());
    wait_until(&format!("the storm to rage on: {what}"), || {
        program.processes().iter().any(|pid| !first.contains(pid))
    });
    for (tid, rank) in sched_values(&program) {
        assert_eq!(rank, SchedValues::plain(), "{tid}: {what}");
    }
    for pid in program.processes() {
        assert!(!cgroups(pid).contains("usher-"), "{pid}: {what}");
    }
    assert_eq!(leftovers(&instance), Vec::<PathBuf>::new(), "{what}");
}

#[test]
fn a_keeper_ignores_signals_and_ends_after_an_orderly_exit() {
    let runtime = tempfile::tempdir().unwrap();
    let program = Program::start(&["tree", "0", "0"]);
    let mut owner = start_owner(
        ActMethod::NoCgroups,
        runtime.path(),
        5,
        std::slice::from_ref(&program),
    );
    let instance = first_line(&mut owner);
    let pid = keeper(&instance).unwrap();
    for signal in [
        libc::SIGHUP,
        libc::SIGINT,
        libc::SIGQUIT,
        libc::SIGTERM,
        libc::SIGTSTP,
    ] {
        // SAFETY: `kill` accesses no memory; it signals the keeper that this test's owner has
        // started.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    }
    assert_eq!(keeper(&instance), Some(pid), "it was not replaced");
    assert!(lives(pid));
    let resident = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let resident = resident
        .lines()
        .find(|line| line.starts_with("RssAnon"))
        .unwrap();
    eprintln!("the keeper's {resident}");
    owner.kill().unwrap();
    owner.wait().unwrap();
    wait_until("the journal to be closed", || !instance.exists());
    wait_until("the keeper to end", || !lives(pid));
}

#[test]
fn a_keeper_executes_the_respawn_command_only_after_a_crash() {
    for crash in [false, true] {
        let runtime = tempfile::tempdir().unwrap();
        let sign = runtime.path().join("respawned");
        let mut owner = Command::new(rig())
            .arg("respawner")
            .arg(runtime.path())
            .args(["/bin/sh", "-c", "echo up > \"$0\""])
            .arg(&sign)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let instance = first_line(&mut owner);
        let pid = keeper(&instance).unwrap();
        match crash {
            true => owner.kill().unwrap(),
            false => drop(owner.stdin.take()),
        }
        owner.wait().unwrap();
        if crash {
            wait_until("the command to have run", || sign.exists());
        }
        wait_until("the keeper to end", || !lives(pid));
        assert_eq!(sign.exists(), crash);
        assert!(!instance.exists());
    }
}

#[test]
fn programs_are_seated_and_undone_without_privileges() {
    use std::os::unix::process::CommandExt;
    if !rustix::process::geteuid().is_root() {
        usher_skip::skip!("needs root, to switch to an unprivileged user");
        return;
    }
    const UNPRIVILEGED: u32 = 65_534;
    let runtime = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(runtime.path(), Some(UNPRIVILEGED), Some(UNPRIVILEGED)).unwrap();
    // The binary is copied, because other users may be unable to execute it at its original path.
    let copy = runtime.path().join("rig");
    common::copy_program(rig(), &copy);
    let mut command = Command::new(&copy);
    command
        .args(["tree", "1", "1"])
        .uid(UNPRIVILEGED)
        .gid(UNPRIVILEGED);
    let program = Program::start_as(command);
    let before = snapshot(&program);
    let mut owner = Command::new(&copy)
        .args([
            "owner",
            runtime.path().to_str().unwrap(),
            "/sys/fs/cgroup",
            "9",
        ])
        .arg(format!("{}-{}", program.id.pid, program.id.start_ticks))
        .uid(UNPRIVILEGED)
        .gid(UNPRIVILEGED)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let instance = first_line(&mut owner);
    wait_until("a seat", || snapshot(&program) != before);
    owner.kill().unwrap();
    owner.wait().unwrap();
    wait_until("the journal to be closed", || !instance.exists());
    wait_until("the program to be as before", || {
        snapshot(&program) == before
    });
}
