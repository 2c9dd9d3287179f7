// SPDX-License-Identifier: GPL-2.0-only
//! Tests with real launchers of parallel programs: the workers that each launcher starts are
//! recognised as copies, and the copies divide the CPUs of the program. A launcher that is not
//! installed is skipped.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{World, allowed, signal, wait_for};
use serde_json::Value;
use usher_model::CpuSet;

/// Python starts two workers by a start method of `multiprocessing`.
const PYTHON: &str = "\
import multiprocessing, sys, time
if __name__ == '__main__':
    multiprocessing.set_start_method(sys.argv[1])
    with multiprocessing.Pool(2) as pool:
        pool.map(time.sleep, [600, 600])
";
const MAKEFILE: &str = "all: a b\na: ; exec sleep 600\nb: ; exec sleep 601\n";
const NINJA: &str = "\
rule wait
  command = exec sleep $seconds
build a: wait
  seconds = 600
build b: wait
  seconds = 601
default a b
";
const CTESTS: &str = "add_test(a sleep 600)\nadd_test(b sleep 601)\n";
/// Runs `sleep` in place of the compiler for the crates `a` and `b`.
const RUSTC: &str = "\
#!/bin/sh
case \" $* \" in
*' --crate-name a '* | *' --crate-name b '*) exec sleep 600 ;;
esac
exec \"$@\"
";

/// How a copy is expected to get its CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Placed {
    /// Usher confines the copy.
    ByUsher,
    /// Usher confines the copy, which is a fork of its launcher.
    AsFork,
    /// The launcher has chosen the CPUs.
    ByLauncher,
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut dirs = std::env::split_paths(&path);
    dirs.any(|dir| dir.join(program).is_file())
}

/// Runs a launcher until two copies are recognised and have their CPUs.
fn recognises(files: &[(&str, &str)], command: &[&str], expected: Placed) {
    if !is_installed(command[0]) {
        usher_skip::skip!("{} is not installed", command[0]);
        return;
    }
    let mut world = World::new();
    world.daemon(&["--policy", "equal"]);
    let dir = world.path("work");
    fs::create_dir(&dir).unwrap();
    for (name, text) in files {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let mut run = world.usher(&[&["run", "--"], command].concat());
    run.current_dir(&dir).process_group(0).stdin(Stdio::null());
    // R may use OpenBLAS, which starts a pool at the start of each worker. A worker that the first
    // scan finds later than this is not confined.
    run.env("OPENBLAS_NUM_THREADS", "1");
    let mut run = Run(run.stdout(Stdio::null()).spawn().unwrap());
    let _printed = PrintedAfterPanic(&world, run.0.id());
    let (launcher, group) = wait_for("two copies with all CPUs", || {
        let program = world.status()["programs"].as_array()?.first()?.clone();
        let mut groups = program["copies"].as_array()?.iter();
        let is_expected =
            |group: &&Value| has_two_copies(group, expected) && divide_all_cpus(group);
        Some((pid(&program), groups.find(is_expected)?.clone()))
    });
    // The launcher ends first, because some launchers replace a worker that has ended.
    signal(launcher, libc::SIGKILL);
    copies(&group).for_each(|copy| signal(pid(copy), libc::SIGKILL));
    assert_eq!(run.0.wait().unwrap().code(), Some(128 + libc::SIGKILL));
}

/// Prints the status of the programs and the processes of a group, if the value is dropped by a
/// panic.
struct PrintedAfterPanic<'a>(&'a World, u32);

impl Drop for PrintedAfterPanic<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        println!("{}", self.0.json(&["status"]).unwrap_or_default());
        let columns = "pgid,pid,ppid,sid,stat,etime,args";
        let processes = Command::new("ps").args(["-eo", columns]).output();
        let processes = processes.map(|output| output.stdout).unwrap_or_default();
        let is_listed = |line: &&str| {
            let group = line.split_whitespace().next();
            group == Some("PGID") || group == Some(&self.1.to_string())
        };
        let text = String::from_utf8_lossy(&processes);
        let listed: Vec<&str> = text.lines().filter(is_listed).collect();
        println!("{}", listed.join("\n"));
    }
}

/// A launched program in a process group of its own. When the value is dropped, the processes of the
/// group have a moment to end by themselves, and are then killed: Python's resource tracker removes
/// semaphores of processes that were killed.
struct Run(Child);

/// Time for which processes may end by themselves.
const END_TIME: Duration = Duration::from_secs(5);

impl Drop for Run {
    fn drop(&mut self) {
        let group = -(self.0.id() as i32);
        // SAFETY: signal 0 is not sent; the call accesses no memory.
        let lives = || unsafe { libc::kill(group, 0) } == 0;
        let deadline = Instant::now() + END_TIME;
        while !std::thread::panicking() && lives() && Instant::now() < deadline {
            std::thread::yield_now();
        }
        signal(group, libc::SIGKILL);
        let _ = self.0.wait();
    }
}

fn copies(group: &Value) -> impl Iterator<Item = &Value> {
    group["copies"].as_array().into_iter().flatten()
}

fn pid(of: &Value) -> i32 {
    of["pid"].as_i64().unwrap() as i32
}

fn has_two_copies(group: &Value, expected: Placed) -> bool {
    let state = match expected {
        Placed::ByUsher | Placed::AsFork => "confined",
        Placed::ByLauncher => "left_alone",
    };
    let is_fork = expected == Placed::AsFork;
    let has_mask = |copy: &Value| match expected {
        Placed::ByLauncher => true,
        Placed::ByUsher | Placed::AsFork => {
            let mask = allowed(pid(copy)).and_then(|mask| mask.parse::<CpuSet>().ok());
            mask.is_some() && mask == copy["cpus"].as_str().and_then(|cpus| cpus.parse().ok())
        }
    };
    group["forked"] == is_fork
        && copies(group).count() == 2
        && copies(group).all(|copy| copy["state"] == state && has_mask(copy))
}

/// Returns whether two copies together have all CPUs that this test may use, and no CPU twice if
/// there are several.
fn divide_all_cpus(group: &Value) -> bool {
    let parts = copies(group).filter_map(|copy| copy["cpus"].as_str()?.parse().ok());
    let parts: Vec<CpuSet> = parts.collect();
    let all = std::thread::available_parallelism().unwrap().get();
    let is_apart = parts.iter().map(CpuSet::len).sum::<usize>() == all;
    let union = parts
        .iter()
        .fold(CpuSet::new(), |union, part| union.or(part));
    union.len() == all && (is_apart || has_one_cpu())
}

fn has_one_cpu() -> bool {
    std::thread::available_parallelism().unwrap().get() == 1
}

#[test]
fn copies_of_xargs() {
    let command = ["sh", "-c", "echo 600 601 | xargs -P 2 -n 1 sleep"];
    recognises(&[], &command, Placed::ByUsher);
}

#[test]
fn copies_of_make() {
    let command = ["make", "-j2"];
    recognises(&[("Makefile", MAKEFILE)], &command, Placed::ByUsher);
}

#[test]
fn copies_of_ninja() {
    let command = ["ninja", "-j", "2"];
    recognises(&[("build.ninja", NINJA)], &command, Placed::ByUsher);
}

/// GNU parallel starts and kills some `sleep` processes to find the largest number of processes.
/// After four such copies with one thread, Usher confines no further copies of `sleep`.
#[test]
fn copies_of_gnu_parallel() {
    let command = [
        "parallel",
        "-j2",
        "tail -f",
        ":::",
        "/dev/null",
        "/dev/null",
    ];
    recognises(&[], &command, Placed::ByUsher);
}

#[test]
fn copies_of_ctest() {
    let command = ["ctest", "-j2"];
    recognises(
        &[("CTestTestfile.cmake", CTESTS)],
        &command,
        Placed::ByUsher,
    );
}

#[test]
fn copies_of_prove() {
    let files = [("a.t", "sleep 600;"), ("b.t", "sleep 601;")];
    recognises(&files, &["prove", "-j2", "a.t", "b.t"], Placed::ByUsher);
}

#[test]
fn copies_of_cargo() {
    if !is_installed("cargo") {
        usher_skip::skip!("cargo is not installed");
        return;
    }
    let package = |name: &str| format!("[package]\nname = \"{name}\"\nedition = \"2021\"\n");
    let (a, b) = (package("a"), package("b"));
    let files = [
        (
            "Cargo.toml",
            "workspace = { members = ['a', 'b'], resolver = '2' }",
        ),
        ("a/Cargo.toml", &a),
        ("a/src/lib.rs", ""),
        ("b/Cargo.toml", &b),
        ("b/src/lib.rs", ""),
        ("rustc", RUSTC),
    ];
    let build = "chmod +x rustc; export RUSTC_WRAPPER=$PWD/rustc
        exec cargo build --quiet --offline -j2 --target-dir target";
    recognises(&files, &["sh", "-c", build], Placed::ByUsher);
}

/// `mpirun` binds each of two processes to a CPU.
#[test]
fn copies_of_mpirun_keep_the_cpus_of_mpirun() {
    if has_one_cpu() {
        usher_skip::skip!("mpirun binds no processes on one CPU");
        return;
    }
    let command = [
        "mpirun",
        "--allow-run-as-root",
        "--oversubscribe",
        "-n",
        "2",
        "sleep",
        "600",
    ];
    recognises(&[], &command, Placed::ByLauncher);
}

#[test]
fn copies_of_mpirun() {
    let options = [
        "--allow-run-as-root",
        "--oversubscribe",
        "--bind-to",
        "none",
    ];
    let command = [&["mpirun"], &options[..], &["-n", "2", "sleep", "600"]].concat();
    recognises(&[], &command, Placed::ByUsher);
}

#[test]
fn copies_of_a_python_pool_that_spawns() {
    let command = ["/usr/bin/python3", "pool.py", "spawn"];
    recognises(&[("pool.py", PYTHON)], &command, Placed::ByUsher);
}

#[test]
fn copies_of_a_python_pool_that_forks() {
    let command = ["/usr/bin/python3", "pool.py", "fork"];
    recognises(&[("pool.py", PYTHON)], &command, Placed::AsFork);
}

/// The fork server and its resource tracker are copies too, and the tracker waits.
#[test]
fn the_forks_of_pythons_fork_server_divide_all_cpus() {
    let command = ["/usr/bin/python3", "pool.py", "forkserver"];
    recognises(&[("pool.py", PYTHON)], &command, Placed::AsFork);
}

#[test]
fn copies_of_a_cluster_of_r() {
    let code = "library(parallel); cluster <- makeCluster(2); clusterCall(cluster, Sys.sleep, 600)";
    recognises(&[], &["Rscript", "-e", code], Placed::ByUsher);
}

#[test]
fn copies_of_mclapply_of_r() {
    let code = "library(parallel); mclapply(c(600, 600), Sys.sleep, mc.cores = 2)";
    recognises(&[], &["Rscript", "-e", code], Placed::AsFork);
}
