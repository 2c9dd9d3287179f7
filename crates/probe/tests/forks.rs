// SPDX-License-Identifier: MIT OR Apache-2.0
//! The scan of a process tree: it finds new processes, forks and orphans of real programs.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use usher_model::{ProcessId, TreeProcess};
use usher_probe::{ForkScan, RUN_VARIABLE, process_id};

/// A shell in a process group of its own, which is killed at the end.
struct Shell(Child);

impl Shell {
    /// Starts a shell that waits for a line before it executes the script.
    fn start(script: &str) -> Self {
        Self::start_as(script, None)
    }

    /// Starts a shell with this value of the variable that launchers set.
    fn start_as(script: &str, run: Option<&str>) -> Self {
        let mut command = Command::new("sh");
        command.env_remove(RUN_VARIABLE);
        command.envs(run.map(|run| (RUN_VARIABLE, run)));
        command.args(["-c", &format!("echo ready; read line; {script}")]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = Self(command.process_group(0).spawn().unwrap());
        let mut line = String::new();
        let out = shell.0.stdout.take().unwrap();
        BufReader::new(out).read_line(&mut line).unwrap();
        shell
    }

    fn scan(&self, is_launched: bool) -> ForkScan {
        let (proc, pid) = (Path::new("/proc"), self.0.id() as i32);
        ForkScan::new(proc, process_id(proc, pid).unwrap(), is_launched)
    }

    fn go(&mut self) {
        use std::io::Write;
        writeln!(self.0.stdin.as_mut().unwrap()).unwrap();
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // SAFETY: `kill` accesses no memory; it signals the process group that this test started.
        unsafe { libc::kill(-(self.0.id() as i32), libc::SIGKILL) };
        let _ = self.0.wait();
    }
}

/// Scans until the processes satisfy a condition; fails after 60 s.
fn until(
    scan: &mut ForkScan,
    what: &str,
    holds: impl Fn(&[TreeProcess]) -> bool,
) -> Vec<TreeProcess> {
    let begun = Instant::now();
    let deadline = begun + Duration::from_secs(60);
    loop {
        scan.scan(begun.elapsed().as_nanos() as u64);
        let found = scan.processes();
        if holds(&found) {
            return found;
        }
        assert!(
            Instant::now() < deadline,
            "never happened: {what}: {found:?}"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns whether init, which adopts orphans, has another session than this test. Otherwise, skips
/// the test.
fn shows_orphans() -> bool {
    // SAFETY: `getsid` accesses no memory.
    let session = |pid: i32| unsafe { libc::getsid(pid) };
    let is_other = session(0) != session(1);
    if !is_other {
        usher_skip::skip!("init has the session of this test");
    }
    is_other
}

fn sleepers(found: &[TreeProcess]) -> Vec<&TreeProcess> {
    let is_sleep = |one: &&TreeProcess| one.name == "sleep" && one.executed;
    found.iter().filter(is_sleep).collect()
}

#[test]
fn finds_children_that_execute_a_program_and_drops_ended_ones() {
    let mut shell = Shell::start("sleep 600 & sleep 601 & wait");
    let root = shell.0.id() as i32;
    let mut scan = shell.scan(true);
    assert_eq!(
        until(&mut scan, "the root", |found| found.len() == 1)[0]
            .id
            .pid,
        root
    );
    shell.go();
    // During an `exec`, the new name may be found with the old executable or command line.
    let found = until(&mut scan, "two children of one shape", |found| {
        let children = sleepers(found);
        let shapes: BTreeSet<_> = children
            .iter()
            .map(|one| (one.executable, &one.shape))
            .collect();
        let is_shell = |one: &&TreeProcess| one.executable == found[0].executable;
        children.len() == 2 && shapes.len() == 1 && !children.iter().any(is_shell)
    });
    let children = sleepers(&found);
    assert!(
        children
            .iter()
            .all(|one| one.parent == root && one.threads == 1)
    );
    let ended = children[0].id;
    // SAFETY: `kill` accesses no memory; it signals a process that this test started.
    unsafe { libc::kill(ended.pid, libc::SIGKILL) };
    until(&mut scan, "one child", |found| {
        found.iter().all(|one| one.id != ended)
    });
}

/// The process has executed `sleep` between the reading of its `stat` and that of its executable.
#[test]
fn the_name_belongs_to_the_executable() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("10");
    fs::create_dir(&dir).unwrap();
    let own = fs::read_to_string("/proc/self/stat").unwrap();
    let (_, rest) = own.rsplit_once(") ").unwrap();
    fs::write(dir.join("stat"), format!("10 (sh) {rest}")).unwrap();
    fs::write(dir.join("comm"), "sleep\n").unwrap();
    fs::write(dir.join("cmdline"), "sleep\x00600\0").unwrap();
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let own_pid = format!("\t{}\n", std::process::id());
    fs::write(dir.join("status"), status.replace(&own_pid, "\t10\n")).unwrap();
    fs::write(root.path().join("loadavg"), "0.00 0.00 0.00 1/1 10\n").unwrap();
    let process = process_id(root.path(), 10).unwrap();
    let mut scan = ForkScan::new(root.path(), process, true);
    for at_ns in [0, 5_000_000] {
        scan.scan(at_ns);
        let found = scan.processes();
        let names: Vec<&str> = found.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["sleep"]);
    }
}

#[test]
fn an_old_process_may_execute_another_program() {
    let mut shell = Shell::start("exec sleep 600");
    let mut scan = shell.scan(true);
    scan.scan(0);
    let before = scan.processes().remove(0);
    shell.go();
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        scan.scan(60_000_000_000);
        let now = scan.processes().remove(0);
        if now.executable != before.executable {
            assert_ne!(now.shape, before.shape);
            return;
        }
        assert!(Instant::now() < deadline, "{now:?} is still the shell");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_worker_whose_parent_ends_becomes_a_child_of_the_grandparent() {
    let mut shell = Shell::start("sh -c 'sleep 600 & exec sleep 601' & wait");
    let root = shell.0.id() as i32;
    let mut scan = shell.scan(true);
    shell.go();
    let found = until(&mut scan, "parent and worker", |found| {
        sleepers(found).len() == 2
    });
    let worker = sleepers(&found).into_iter().find(|one| one.parent != root);
    let worker = worker.unwrap();
    // SAFETY: `kill` accesses no memory; it signals a process that this test started.
    unsafe { libc::kill(worker.parent, libc::SIGKILL) };
    let found = until(&mut scan, "the end of the parent", |found| {
        found.iter().all(|one| one.id.pid != worker.parent)
    });
    let left = sleepers(&found);
    assert_eq!(left.len(), 1, "{found:?}");
    assert_eq!((left[0].id, left[0].parent), (worker.id, root));
}

#[test]
fn finds_the_present_children_of_a_running_program() {
    let mut shell = Shell::start("sleep 600 & sleep 600 & wait");
    let mut first = shell.scan(true);
    shell.go();
    until(&mut first, "two children", |found| {
        sleepers(found).len() == 2
    });
    let mut later = shell.scan(false);
    let found = until(&mut later, "two children", |found| {
        sleepers(found).len() == 2
    });
    assert_eq!(found.len(), 3);
}

#[test]
fn a_subshell_is_a_fork_that_executed_nothing() {
    let mut shell = Shell::start("(sleep 600; true) & wait");
    let mut scan = shell.scan(true);
    shell.go();
    let is_fork = |one: &TreeProcess| !one.executed && one.parent == shell.0.id() as i32;
    let found = until(&mut scan, "a fork", |found| found.iter().any(is_fork));
    let (root, fork) = (&found[0], found.iter().find(|one| is_fork(one)).unwrap());
    assert_eq!(
        (root.executable, &root.shape),
        (fork.executable, &fork.shape)
    );
}

#[test]
fn finds_orphans_in_the_process_group_of_the_program() {
    // The inner shell ends at once, and init or another reaper adopts its child.
    let mut shell = Shell::start("sh -c 'sleep 600 &'; cat");
    let mut scan = shell.scan(true);
    until(&mut scan, "the root", |found| found.len() == 1);
    shell.go();
    if !shows_orphans() {
        return;
    }
    let found = until(&mut scan, "the orphan", |found| sleepers(found).len() == 1);
    let root = shell.0.id() as i32;
    assert!(
        found
            .iter()
            .any(|one| one.name == "cat" || one.id.pid == root)
    );
}

/// Returns a value of the variable of launchers that no other test has. Tests run in parallel, and
/// orphans of all of them have the session and the launcher of this process.
fn unique_run() -> String {
    static RUNS: AtomicU32 = AtomicU32::new(0);
    let run = RUNS.fetch_add(1, Ordering::Relaxed);
    format!("{}.{run}", std::process::id())
}

/// Starts a shell with this value of the variable that launchers set. The shell starts two orphans,
/// one of them without the variable, and then `cat`. Returns after the parents of the orphans have
/// ended and the orphans have executed `sleep`.
fn shell_with_orphans(run: &str) -> Shell {
    let script = "sh -c 'sleep 600 &'; env -u USHER_RUN sh -c 'sleep 601 &'; cat";
    let mut shell = Shell::start_as(script, Some(run));
    shell.go();
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut wanted = ["cat", "sh", "sleep", "sleep"];
    wanted.sort_unstable();
    while names_in_group(shell.0.id()) != wanted {
        assert!(Instant::now() < deadline, "the orphans do not run");
        std::thread::sleep(Duration::from_millis(5));
    }
    shell
}

/// Returns the sorted names of the processes of a process group.
fn names_in_group(group: u32) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let stats = entries.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
    let name = |stat: String| {
        let (name, rest) = stat.rsplit_once(") ")?;
        let is_member = rest.split(' ').nth(2)?.parse() == Ok(group);
        is_member.then(|| name.split_once('(').map(|(_, name)| name.to_owned()))?
    };
    let mut names: Vec<String> = stats.filter_map(name).collect();
    names.sort_unstable();
    names
}

/// Unlike the process group, the variable also shows orphans that have the session of init.
#[test]
fn an_orphan_with_the_variable_of_the_launcher_is_a_certain_descendant() {
    let shell = shell_with_orphans(&unique_run());
    let mut scan = shell.scan(false);
    let found = until(&mut scan, "three processes", |found| found.len() >= 3);
    let names: BTreeSet<&str> = found.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, BTreeSet::from(["cat", "sh", "sleep"]));
    assert_eq!(found.len(), 3);
    let orphan = sleepers(&found)[0];
    assert_eq!(orphan.parent, shell.0.id() as i32);
    assert!(scan.take_new_descendants().contains(&orphan.id));
}

#[test]
fn an_orphan_is_found_after_the_end_of_the_program() {
    let mut shell = Shell::start_as("sh -c 'sleep 600 &'", Some(&unique_run()));
    let mut scan = shell.scan(true);
    until(&mut scan, "the root", |found| found.len() == 1);
    shell.go();
    shell.0.wait().unwrap();
    let found = until(&mut scan, "the orphan", |found| sleepers(found).len() == 1);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(scan.take_new_descendants().contains(&found[0].id));
}

/// The program inherits the variable from a process that another launcher has started.
#[test]
fn the_variable_of_another_launcher_is_ignored() {
    if !shows_orphans() {
        return;
    }
    let shell = shell_with_orphans("1.1");
    let mut scan = shell.scan(false);
    let found = until(&mut scan, "the orphans", |found| sleepers(found).len() == 2);
    let certain = scan.take_new_descendants();
    let is_certain = |one: &&TreeProcess| certain.contains(&one.id);
    assert_eq!(sleepers(&found).into_iter().filter(is_certain).count(), 0);
}

#[test]
fn children_and_grandchildren_are_certain_descendants() {
    let mut shell = Shell::start("sh -c 'sleep 600 & sleep 600 & wait' & wait");
    let mut scan = shell.scan(true);
    until(&mut scan, "the root", |found| found.len() == 1);
    assert_eq!(scan.take_new_descendants(), []);
    shell.go();
    let found = until(&mut scan, "two grandchildren", |found| {
        sleepers(found).len() == 2
    });
    let new: BTreeSet<ProcessId> = scan.take_new_descendants().into_iter().collect();
    let root = shell.0.id() as i32;
    let below = found.iter().map(|one| one.id).filter(|id| id.pid != root);
    assert_eq!(new, below.collect());
    assert_eq!(scan.take_new_descendants(), []);
}

/// The scan follows a child of the shell. The orphan has the process group of this child, but the
/// shell has created the orphan.
#[test]
fn an_orphan_of_another_program_is_no_certain_descendant() {
    let mut shell = Shell::start("tail -f /dev/null >/dev/null & sh -c 'sleep 600 &'; wait");
    let mut all = shell.scan(true);
    shell.go();
    if !shows_orphans() {
        return;
    }
    let is_tail = |one: &&TreeProcess| one.name == "tail" && one.executed;
    // The inner shell has ended.
    let found = until(&mut all, "the child and the orphan", |found| {
        found.len() == 3 && found.iter().any(|one| is_tail(&one)) && sleepers(found).len() == 1
    });
    let child = found.iter().find(is_tail).unwrap().id;
    let mut scan = ForkScan::new(Path::new("/proc"), child, false);
    until(&mut scan, "the orphan", |found| sleepers(found).len() == 1);
    assert_eq!(scan.take_new_descendants(), []);
}

/// A script that a shell started in the background may be an orphan of the group in which it later
/// starts programs.
#[test]
fn an_orphan_that_is_older_than_the_program_is_not_found() {
    let mut shell = Shell::start("sh -c 'sleep 600 &'; wait; read line");
    let mut all = shell.scan(true);
    shell.go();
    if !shows_orphans() {
        return;
    }
    let found = until(&mut all, "the orphan", |found| {
        found.len() == 2 && sleepers(found).len() == 1
    });
    let orphan = sleepers(&found)[0].id;
    // The kernel counts the start of a process in ticks of 10 ms.
    let (mut program, root) = loop {
        let mut command = Command::new("cat");
        command.stdin(Stdio::piped());
        command.process_group(shell.0.id() as i32);
        let mut program = command.spawn().unwrap();
        let id = process_id(Path::new("/proc"), program.id() as i32).unwrap();
        if id.start_ticks > orphan.start_ticks {
            break (program, id);
        }
        program.kill().unwrap();
        program.wait().unwrap();
    };
    let mut scan = ForkScan::new(Path::new("/proc"), root, false);
    let found = until(&mut scan, "the program", |found| !found.is_empty());
    program.kill().unwrap();
    program.wait().unwrap();
    let found: Vec<ProcessId> = found.iter().map(|one| one.id).collect();
    assert_eq!(found, [root]);
}

/// A scan may find a process in the middle of its `exec`, and a fork is recognised when it is 20 ms
/// old. Further scans are therefore due although no process is new.
#[test]
fn scans_are_due_for_a_while_after_a_process_was_found() {
    const SECOND_NS: u64 = 1_000_000_000;
    let mut shell = Shell::start("sleep 600 & read line");
    let mut scan = shell.scan(true);
    shell.go();
    let found = until(&mut scan, "the child and its shell asleep", |found| {
        let is_asleep = |one: &TreeProcess| !one.is_runnable && one.executed;
        found.len() == 2 && found.iter().all(is_asleep)
    });
    let found_ns = found.iter().map(|one| one.found_ns).max().unwrap();
    assert!(scan.is_due(found_ns + SECOND_NS / 50, false));
    // The first call compares with no earlier CPU time.
    let mut later_ns = 3600 * SECOND_NS;
    let deadline = Instant::now() + Duration::from_secs(60);
    while scan.is_due(later_ns, false) || scan.is_due(later_ns, false) {
        assert!(Instant::now() < deadline, "scans stay due");
        // Numbers of processes of other tests that have ended are given up after 2 to 4 s.
        later_ns += 4 * SECOND_NS;
        scan.scan(later_ns);
    }
}

/// The child starts between two checks at which the program seems to be at rest, because the CPU
/// time of a running thread lags behind.
#[test]
fn a_scan_after_a_rest_finds_a_child_that_started_during_the_rest() {
    const HOUR_NS: u64 = 3_600_000_000_000;
    let mut shell = Shell::start("sleep 600 & read line");
    let mut scan = shell.scan(true);
    until(&mut scan, "the shell asleep", |found| {
        found.len() == 1 && !found[0].is_runnable && found[0].executed
    });
    assert!(!scan.is_due(HOUR_NS, true), "the program is at rest");
    shell.go();
    let mut others = shell.scan(false);
    until(&mut others, "the child", |found| found.len() == 2);
    assert!(
        !scan.is_due(HOUR_NS, true),
        "the program seems to be at rest"
    );
    assert!(scan.is_due(HOUR_NS, false), "the program has run");
    assert!(scan.scan(HOUR_NS), "a new process");
    assert_eq!(scan.processes().len(), 2);
}

#[test]
fn a_process_is_idle_while_it_sleeps() {
    let mut shell = Shell::start("sleep 600 & while :; do :; done");
    let mut scan = shell.scan(true);
    shell.go();
    let root = shell.0.id() as i32;
    let has_worked = |found: &[TreeProcess]| found[0].id.pid == root && found[0].cpu_ns > 0;
    let found = until(&mut scan, "an idle child of a busy shell", |found| {
        let is_idle = |one: &&TreeProcess| one.idle_since_ns.is_some();
        has_worked(found) && sleepers(found).iter().any(is_idle)
    });
    assert_eq!(found[0].idle_since_ns, None, "{found:?}");
    let before = sleepers(&found)[0].clone();
    let later = until(&mut scan, "more work", |now| {
        now[0].cpu_ns > found[0].cpu_ns
    });
    assert_eq!(later[0].idle_since_ns, None, "{later:?}");
    let after = sleepers(&later)[0];
    assert_eq!(after.idle_since_ns, before.idle_since_ns);
}

#[test]
fn counts_the_threads_that_work() {
    let script = "import threading\n\
        def spin():\n\
        \x20   while True: pass\n\
        threading.Thread(target=spin).start()\n\
        threading.Thread(target=lambda: threading.Event().wait()).start()\n\
        spin()";
    let mut command = Command::new("python3");
    command.args(["-c", script]).process_group(0);
    let Ok(child) = command.spawn() else {
        usher_skip::skip!("there is no python3");
        return;
    };
    let python = Shell(child);
    let mut scan = python.scan(true);
    let pids = [python.0.id() as i32].into();
    let begun = Instant::now();
    let deadline = begun + Duration::from_secs(60);
    loop {
        let at_ns = begun.elapsed().as_nanos() as u64;
        scan.scan(at_ns);
        scan.measure(&pids, at_ns);
        let found = scan.processes();
        let process = &found[0];
        if process.threads == 3 && process.working_threads == 2 {
            assert!(process.mapped_at_cpu_ns.is_some());
            return;
        }
        assert!(Instant::now() < deadline, "{process:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
