// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of [`usher_meter::find_blocked`] with real processes that wait for stopped processes, at
//! file locks, pipes and unix sockets. The tests are skipped if `/proc` does not show where threads
//! wait.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod common;

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use common::{Program, wait_until};
use usher_meter::find_blocked;
use usher_model::{BlockedProcess, ProgramId};

const PROGRAM: ProgramId = ProgramId(3);

fn stop(pid: i32) {
    // SAFETY: `kill` accesses no memory; it signals a child of this test.
    unsafe { libc::kill(pid, libc::SIGSTOP) };
}

/// Returns the report that process `pid` is blocked by one of the background processes; `None`
/// without such a report.
fn blocking_of(pid: i32, background: &[i32]) -> Option<BlockedProcess> {
    let holder = |pid: i32| background.contains(&pid).then_some(PROGRAM);
    let found = find_blocked(Path::new("/proc"), &holder);
    found.into_iter().find(|held| held.pid == pid)
}

fn blocked(pid: i32, background: &[i32]) -> BlockedProcess {
    let mut held = None;
    wait_until("the process to be seen waiting", || {
        held = blocking_of(pid, background);
        held.is_some()
    });
    held.unwrap()
}

/// Returns whether the kernel reports where threads wait. If the kernel does not report it, prints
/// a skip.
fn reports_waits(what: &str) -> bool {
    let reports = std::fs::read_to_string("/proc/self/wchan").is_ok()
        && std::fs::read_to_string("/proc/self/syscall").is_ok();
    if !reports {
        usher_skip::skip!("{what}: the kernel does not report where threads wait");
    }
    reports
}

/// Starts a program that does nothing. After the start, only the program has the given ends open:
/// the `Command`, which also has them open, is dropped.
fn idler(input: Stdio, output: Stdio) -> Child {
    let mut command = Command::new("sleep");
    command
        .arg("1000")
        .stdin(input)
        .stdout(output)
        .spawn()
        .unwrap()
}

fn reader(input: Stdio) -> Child {
    let mut command = Command::new("cat");
    command.stdin(input).stdout(Stdio::null()).spawn().unwrap()
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_lock_of_a_stopped_process_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lock");
    std::fs::write(&path, "").unwrap();
    let path = path.to_str().unwrap();
    let mut bg = Program::start(&["flock", path], None);
    assert_eq!(bg.line(), "locked");
    stop(bg.pid());
    let fg = Program::start(&["flock", path], None);
    let held = blocked(fg.pid(), &[bg.pid()]);
    assert_eq!(held.blocked_by, PROGRAM);
    assert_eq!(held.waits_for, format!("a lock on {path}"));
    assert_eq!(blocking_of(fg.pid(), &[fg.pid()]), None);
}

#[test]
fn a_pipe_that_only_a_stopped_process_writes_blocks() {
    if !reports_waits("pipes") {
        return;
    }
    let (read, write) = std::io::pipe().unwrap();
    let bg = idler(Stdio::null(), write.try_clone().unwrap().into());
    let fg = reader(read.into());
    let (bg_pid, fg_pid) = (bg.id() as i32, fg.id() as i32);
    stop(bg_pid);
    let own = std::process::id() as i32;
    // This process also counts as background, because it has an end of the pipe open, too, and
    // could write to the pipe.
    let both = blocked(fg_pid, &[bg_pid, own]);
    assert!(
        both.waits_for.starts_with("a pipe held by process"),
        "{}",
        both.waits_for
    );
    assert_eq!(blocking_of(fg_pid, &[bg_pid]), None);
    drop(write);
    assert_eq!(blocked(fg_pid, &[bg_pid]).blocked_by, PROGRAM);
    kill(bg);
    kill(fg);
}

#[test]
fn a_full_pipe_that_only_a_stopped_process_reads_blocks() {
    if !reports_waits("full pipes") {
        return;
    }
    let mut bg = idler(Stdio::piped(), Stdio::null());
    let fg = Command::new("cat")
        .arg("/dev/zero")
        .stdout(bg.stdin.take().unwrap())
        .spawn()
        .unwrap();
    stop(bg.id() as i32);
    assert_eq!(
        blocked(fg.id() as i32, &[bg.id() as i32]).blocked_by,
        PROGRAM
    );
    kill(bg);
    kill(fg);
}

#[test]
fn a_socket_with_a_stopped_peer_blocks() {
    if !reports_waits("sockets") {
        return;
    }
    let (near, far) = UnixStream::pair().unwrap();
    let to_stdio = |end: UnixStream| Stdio::from(std::os::fd::OwnedFd::from(end));
    let bg = idler(to_stdio(far), Stdio::null());
    let mut near_copy = near.try_clone().unwrap();
    let fg = reader(to_stdio(near));
    let (bg_pid, fg_pid) = (bg.id() as i32, fg.id() as i32);
    stop(bg_pid);
    let held = blocked(fg_pid, &[bg_pid]);
    assert_eq!(held.waits_for, format!("a socket held by process {bg_pid}"));
    near_copy.write_all(b"x").unwrap();
    kill(fg);
    kill(bg);
}
