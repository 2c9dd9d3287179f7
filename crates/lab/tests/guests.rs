// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the command `usher-lab`, in which each test boots a small guest. `make test` runs them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Time limit of each step, sufficient for a loaded machine.
const DEADLINE: Duration = Duration::from_secs(60);
const SMALL: &[&str] = &["--topology", "core:2", "--memory", "1024"];

fn lab(options: &[&str], command: &[&str]) -> Command {
    let mut lab = Command::new(env!("CARGO_BIN_EXE_usher-lab"));
    lab.args(SMALL)
        .args(options)
        .arg("--")
        .args(command)
        .stdin(Stdio::null());
    lab
}

/// Runs a command in a guest. If the guest dies, which can happen on an overloaded host, runs the
/// command once more.
fn run(options: &[&str], command: &[&str]) -> Output {
    let output = lab(options, command).output().unwrap();
    if output.status.code() != Some(125) {
        return output;
    }
    eprintln!(
        "the guest died; starting it once more:\n{}",
        stderr(&output)
    );
    lab(options, command).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn wait_for<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + DEADLINE;
    loop {
        if let Some(answer) = poll() {
            return answer;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Checks the files, both output streams and the exit status of a shell in a guest.
#[test]
fn command_runs_on_the_hosts_files_in_a_separate_system() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let kept = tempfile::tempdir().unwrap();
    fs::write(kept.path().join("given"), "given").unwrap();
    let script = r#"
        set -e
        echo to stdout; echo to stderr >/dev/stderr
        [ "$VALUE" = "a b" ] && [ -z "${XDG_RUNTIME_DIR-}" ]
        echo here >made; cat "$KEPT/given" >"$KEPT/made"
        echo lost >"$(dirname "$KEPT")/usher-lab-lost"; echo lost >/var/tmp/usher-lab-lost
        ! touch /etc/usher-lab-made 2>/dev/null
        cd /sys/fs/cgroup
        for name in cpuset cpu io memory pids; do grep -qw $name cgroup.subtree_control; done
        mkdir a; echo 1 >a/cgroup.freeze; grep -q "frozen 1" a/cgroup.events
        [ -d /sys/kernel/tracing/events/sched ]; [ -d /sys/kernel/debug/sched ]
        mkdir /sys/fs/bpf/a; [ -s /sys/kernel/btf/vmlinux ]
        grep -q CONFIG_SCHED_CLASS_EXT=y /boot/config-$(uname -r)
        cd /sys/devices/system/cpu
        cat online; echo 1 >cpu1/online; cat online; echo 0 >cpu1/online; cat online
        seq 100000
        exit 7
    "#;
    let mut lab = lab(
        &[
            "--writable",
            kept.path().to_str().unwrap(),
            "--env",
            "VALUE=a b",
            "--cpus-off",
            "1",
        ],
        &["sh", "-c", script],
    );
    lab.current_dir(dir.path())
        .env("KEPT", kept.path())
        .env("XDG_RUNTIME_DIR", "/nowhere");
    let output = lab.output().unwrap();
    assert_eq!(stderr(&output), "to stderr\n");
    let numbers: String = (1..=100_000).map(|n| format!("{n}\n")).collect();
    assert_eq!(stdout(&output), format!("to stdout\n0\n0-1\n0\n{numbers}"));
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(fs::read(dir.path().join("made")).unwrap(), b"here\n");
    assert_eq!(fs::read(kept.path().join("made")).unwrap(), b"given");
    assert!(!kept.path().with_file_name("usher-lab-lost").exists());
    assert!(!Path::new("/var/tmp/usher-lab-lost").exists());
}

#[test]
fn distinguishes_unrunnable_commands_and_signals() {
    let missing = run(&[], &["/no/such/program"]);
    assert_eq!(missing.status.code(), Some(127));
    assert!(
        stderr(&missing).contains("/no/such/program"),
        "{}",
        stderr(&missing)
    );
    let killed = run(&[], &["sh", "-c", "kill -9 $$"]);
    assert_eq!(killed.status.code(), Some(137), "{}", stderr(&killed));
}

#[test]
fn guest_that_died_shows_its_console() {
    // Before its death, the guest writes more data than fit into a pipe. The beginning of its
    // output has therefore reached the host.
    let script = "echo written; head -c 200000 /dev/zero; echo c >/proc/sysrq-trigger";
    let report = tempfile::NamedTempFile::new().unwrap();
    let file = report.path().to_str().unwrap();
    let output = lab(&["--report", file], &["sh", "-c", script])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(125));
    let text = stderr(&output);
    assert!(text.contains("died") && text.contains("sysrq"), "{text}");
    assert!(stdout(&output).starts_with("written\n"));
    let report: serde_json::Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    assert_eq!(report["end"], "died");
}

#[test]
fn command_is_ended_at_the_time_limit() {
    let output = lab(&["--timeout", "1"], &["sleep", "1000"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(124));
    assert!(
        stderr(&output).contains("exceeded the time limit of 1 s"),
        "{}",
        stderr(&output)
    );
}

/// Returns the child processes of a process.
fn children(pid: u32) -> Vec<String> {
    let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    list.split_whitespace().map(str::to_owned).collect()
}

fn gone(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_none_or(|(_, rest)| rest.starts_with(['Z', 'X']))
}

/// Starts a guest with a running command. Returns the lab's process and its child processes.
fn started() -> (Child, Vec<String>) {
    let mut lab = lab(&[], &["sh", "-c", "echo up; sleep 1000"]);
    let mut lab = lab.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(lab.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line, "up\n");
    let below = children(lab.id());
    assert_eq!(below.len(), 2, "QEMU and virtiofsd");
    (lab, below)
}

#[test]
fn processes_of_a_guest_end_with_its_caller() {
    for (signal, status) in [(libc::SIGTERM, Some(143)), (libc::SIGKILL, None)] {
        let (mut lab, below) = started();
        // SAFETY: the process is a child of this process that was not waited for, so its number is
        // not reused.
        unsafe { libc::kill(lab.id() as i32, signal) };
        assert_eq!(lab.wait().unwrap().code(), status);
        wait_for("QEMU and virtiofsd to end", || {
            below.iter().all(|pid| gone(pid)).then_some(())
        });
    }
}

/// Checks that ten minutes of idle time pass at once in virtual time.
#[test]
fn virtual_time_skips_idle_time() {
    let script = "read before rest </proc/uptime; sleep 600; read after rest </proc/uptime; \
                  echo ${before%.*} ${after%.*}";
    let options = ["--virtual-time", "--timeout", "300"];
    let output = run(&options, &["sh", "-c", script]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let times = stdout(&output);
    let (before, after) = times.trim().split_once(' ').unwrap();
    let passed = after.parse::<u64>().unwrap() - before.parse::<u64>().unwrap();
    assert!(passed >= 600, "{times}");
}

#[test]
fn every_kernel_has_sched_ext() {
    let list = Command::new(env!("CARGO_BIN_EXE_usher-lab"))
        .args(["--prepare", "--json"])
        .output();
    let list: serde_json::Value = serde_json::from_slice(&list.unwrap().stdout).unwrap();
    let kernels = list["here"].as_array().unwrap();
    assert!(kernels.len() >= 2, "{list}");
    for kernel in kernels {
        let release = kernel["release"].as_str().unwrap();
        let script = "uname -r; cat /sys/kernel/sched_ext/state";
        let output = run(&["--kernel", release], &["sh", "-c", script]);
        assert_eq!(
            stdout(&output),
            format!("{release}\ndisabled\n"),
            "{}",
            stderr(&output)
        );
    }
}
