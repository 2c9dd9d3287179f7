// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the undo of dead instances' journals. A journal is valid, of another boot, damaged, or
//! forged by another user. The tests check which changes are undone, and that processes with reused
//! pids are not changed.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod common;

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use common::*;
use usher_act::{ActConfig, Actuator, undo_stale};

/// Returns the pid and the start time of a process that has ended.
fn dead() -> (i32, u64) {
    let mut program = Program::start(&["tree", "0", "0"]);
    program.kill();
    (program.id.pid, program.id.start_ticks)
}

fn boot() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    id.trim().to_owned()
}

fn head(owner: (i32, u64), boot: &str) -> String {
    let namespace = std::fs::metadata("/proc/self/ns/pid").unwrap().ino();
    format!(
        r#"{{"do":"open","version":1,"boot":"{boot}","owner":{{"pid":{},"start_ticks":{}}},"pid_namespace":{namespace}}}"#,
        owner.0, owner.1
    )
}

/// Makes the directory of a dead instance, with these lines in its journal.
fn instance(config: &ActConfig, owner: (i32, u64), lines: &[String]) -> PathBuf {
    let dir = config
        .instances_dir()
        .join(format!("{}-{}", owner.0, owner.1));
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o700)).unwrap();
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    std::fs::write(dir.join("journal.jsonl"), text).unwrap();
    dir
}

fn stop(program: &Program) {
    // SAFETY: `kill` accesses no memory; it stops a process that this test started.
    unsafe { libc::kill(program.pid(), libc::SIGSTOP) };
    wait_until("the program to stop", || is_stopped(program));
}

fn is_stopped(program: &Program) -> bool {
    stat(program.pid()).unwrap().state == 'T'
}

/// Returns the journal lines of an instance that stopped the program and restricted it to CPU 0.
/// The lines refer to a process with the program's pid and the start time `start_ticks`.
fn lines_about(program: &Program, start_ticks: u64) -> [String; 4] {
    let pid = program.pid();
    [
        r#"{"do":"begin","program":3,"from":{}}"#.to_owned(),
        format!(
            r#"{{"do":"thread","program":3,"thread":{{"pid":{pid},"tid":{pid},"start_ticks":{start_ticks}}},"before":"{}"}}"#,
            cpu_list()
        ),
        r#"{"do":"mask","program":3,"cpus":"0"}"#.to_owned(),
        format!(
            r#"{{"do":"stop","program":3,"process":{{"pid":{pid},"start_ticks":{start_ticks}}}}}"#
        ),
    ]
}

fn bind_to_first_cpu(program: &Program) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(0);
    let pid = rustix::process::Pid::from_raw(program.pid());
    rustix::thread::sched_setaffinity(pid, &set).unwrap();
}

#[test]
fn a_reused_pid_is_not_touched() {
    let runtime = tempfile::tempdir().unwrap();
    let config = ActConfig::new(runtime.path());
    for (shift, touched) in [(0, true), (1, false)] {
        let program = Program::start(&["tree", "0", "0"]);
        bind_to_first_cpu(&program);
        stop(&program);
        let owner = dead();
        let mut lines = vec![head(owner, &boot())];
        lines.extend(lines_about(&program, program.id.start_ticks + shift));
        let dir = instance(&config, owner, &lines);
        let undone = undo_all_stale(&config, "a program with one thread");
        assert_eq!(undone, (1, 1));
        assert!(!dir.exists());
        if touched {
            wait_until("the program to go on", || !is_stopped(&program));
        }
        assert_eq!(is_stopped(&program), !touched);
        let mask = if touched { cpu_list() } else { "0".to_owned() };
        assert_eq!(masks(program.pid()), BTreeSet::from([mask]));
    }
}

#[test]
fn ignores_a_journal_of_another_user() {
    if !rustix::process::geteuid().is_root() {
        usher_skip::skip!("needs root, to give a directory to another user");
        return;
    }
    let runtime = tempfile::tempdir().unwrap();
    let config = ActConfig::new(runtime.path());
    let dir = instance(&config, dead(), &[]);
    std::os::unix::fs::chown(&dir, Some(65_534), None).unwrap();
    let report = undo_stale(&config).unwrap();
    let [error] = report.errors.as_slice() else {
        panic!("{report:?}");
    };
    let error = error.to_string();
    assert!(error.contains("another user owns the directory"), "{error}");
    assert!(dir.exists());
}

#[test]
fn a_journal_of_another_boot_is_removed_without_acting() {
    let runtime = tempfile::tempdir().unwrap();
    let config = ActConfig::new(runtime.path());
    let program = Program::start(&["tree", "0", "0"]);
    stop(&program);
    let owner = dead();
    let mut lines = vec![head(owner, "an-earlier-boot")];
    lines.extend(lines_about(&program, program.id.start_ticks));
    let dir = instance(&config, owner, &lines);
    let report = undo_stale(&config).unwrap();
    assert!(report.errors.is_empty(), "{report:?}");
    assert!(!dir.exists());
    assert!(is_stopped(&program));
}

#[test]
fn ignores_a_journal_that_another_user_could_have_written() {
    let runtime = tempfile::tempdir().unwrap();
    let config = ActConfig::new(runtime.path());
    let program = Program::start(&["tree", "0", "0"]);
    stop(&program);
    let owner = dead();
    let mut lines = vec![head(owner, &boot())];
    lines.extend(lines_about(&program, program.id.start_ticks));
    let dir = instance(&config, owner, &lines);
    std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o777)).unwrap();
    let report = undo_stale(&config).unwrap();
    let [error] = report.errors.as_slice() else {
        panic!("{report:?}");
    };
    assert!(
        error.to_string().contains("other users may write"),
        "{error}"
    );
    assert!(dir.exists() && is_stopped(&program));
}

/// `kill -9` of a daemon ends its main thread first. An undo that started then found the daemon
/// alive, and nothing undid its changes.
#[test]
fn the_undo_waits_for_the_last_thread_of_an_owner_that_ends() {
    let runtime = tempfile::tempdir().unwrap();
    let config = ActConfig::new(runtime.path());
    let mut ending = Program::start(&["ending"]);
    let owner = (ending.id.pid, ending.id.start_ticks);
    let program = Program::start(&["tree", "0", "0"]);
    bind_to_first_cpu(&program);
    stop(&program);
    let mut lines = vec![head(owner, &boot())];
    lines.extend(lines_about(&program, program.id.start_ticks));
    let dir = instance(&config, owner, &lines);
    drop(ending.child.stdin.take());
    assert_eq!(undo_all_stale(&config, "a thread that ends"), (1, 1));
    assert!(!dir.exists());
    assert_eq!(masks(program.pid()), BTreeSet::from([cpu_list()]));
}

#[test]
fn an_undo_does_not_wait_for_the_reader_of_a_fifo() {
    let dir = tempfile::tempdir().unwrap();
    let config = ActConfig::new(dir.path().to_owned());
    let owner = dead();
    let instance = instance(&config, owner, &[head(owner, &boot())]);
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mkfifoat(rustix::fs::CWD, instance.join("undo.lock"), mode).unwrap();
    let report = undo_stale(&config).unwrap();
    assert_eq!((report.instances, report.errors.len()), (0, 1));
    assert!(instance.exists());
}

#[test]
fn the_journal_of_a_living_instance_is_not_undone() {
    let runtime = tempfile::tempdir().unwrap();
    let config = ActMethod::NoCgroups.config(runtime.path());
    let mut act = Actuator::open(config.clone()).unwrap();
    let report = undo_stale(&config).unwrap();
    assert_eq!((report.instances, report.errors.len()), (0, 0));
    assert!(act.instance_dir().join("journal.jsonl").exists());
    assert!(act.undo_all().is_empty());
}

#[test]
fn an_instance_that_died_before_its_first_line_is_removed() {
    let runtime = tempfile::tempdir().unwrap();
    let config = ActConfig::new(runtime.path());
    let dir = instance(&config, dead(), &[]);
    std::fs::remove_file(dir.join("journal.jsonl")).unwrap();
    let report = undo_stale(&config).unwrap();
    assert!(report.errors.is_empty(), "{report:?}");
    assert!(!dir.exists());
}

#[test]
fn a_damaged_journal_is_reported_and_its_cgroups_are_found_all_the_same() {
    let Some(top) = v2_mount().filter(|_| rustix::process::geteuid().is_root()) else {
        usher_skip::skip!("needs root and cgroup v2");
        return;
    };
    let runtime = tempfile::tempdir().unwrap();
    let config = ActConfig::new(runtime.path());
    let program = Program::start(&["tree", "1", "0"]);
    let before = snapshot(&program);
    let owner = dead();
    let base = top.join(format!("usher-{}-{}", owner.0, owner.1));
    let home = base.join("5");
    std::fs::create_dir_all(&home).unwrap();
    for pid in program.processes() {
        write(&home.join("cgroup.procs"), &pid.to_string());
    }
    write(&home.join("cgroup.freeze"), "1");
    // The directory with `cpu.idle` is in the same parent directory as the instance's own
    // directory.
    let idle = Path::new("/sys/fs/cgroup/cpu").join(format!("usher-{}-{}.5", owner.0, owner.1));
    if idle.parent().unwrap().join("cpu.idle").exists() {
        std::fs::create_dir(&idle).unwrap();
        write(&idle.join("cpu.idle"), "1");
        write(&idle.join("cgroup.procs"), &program.pid().to_string());
    }
    let lines = [
        head(owner, &boot()),
        r#"{"do":"begin","prog"#.to_owned(),
        "\0\u{ff}".to_owned(),
    ];
    let dir = instance(&config, owner, &lines);
    let report = undo_stale(&config).unwrap();
    let reports: Vec<String> = report.errors.iter().map(ToString::to_string).collect();
    assert_eq!(reports.len(), 2, "{reports:?}");
    assert!(
        reports[0].starts_with("line 2 of the journal ") && reports[1].starts_with("line 3 "),
        "{reports:?}"
    );
    assert_eq!(snapshot(&program), before);
    assert!(!base.exists() && !dir.exists() && !idle.exists());
}

/// If Usher runs in a cgroup and cannot make directories at the top of the hierarchy, it makes them
/// in its own cgroup. The next Usher process or the keeper must find these directories, too.
#[test]
fn undo_finds_directories_below_the_top_too() {
    let cpu = Path::new("/sys/fs/cgroup/cpu");
    let Some(top) = v2_mount().filter(|_| rustix::process::geteuid().is_root()) else {
        usher_skip::skip!("needs root and cgroup v2");
        return;
    };
    let has_idle = cpu.join("cpu.idle").exists();
    let tops: Vec<&Path> = [top.as_path(), cpu]
        .into_iter()
        .take(1 + usize::from(has_idle))
        .collect();
    let owner = dead();
    let nested = format!("act-test-{}", std::process::id());
    let name = format!("usher-{}-{}", owner.0, owner.1);
    let program = Program::start(&["tree", "1", "0"]);
    for top in &tops {
        let home = top.join(&nested).join(format!("{name}.5"));
        std::fs::create_dir_all(&home).unwrap();
        for pid in program.processes() {
            write(&home.join("cgroup.procs"), &pid.to_string());
        }
    }
    let base = top.join(&nested).join(&name);
    std::fs::create_dir(&base).unwrap();
    write(
        &top.join(&nested).join(format!("{name}.5/cgroup.freeze")),
        "1",
    );
    // Only for cgroup v2 does the journal contain a line with the cgroup of this instance.
    let runtime = tempfile::tempdir().unwrap();
    let config = ActConfig::new(runtime.path());
    let base_line = format!(r#"{{"do":"base","dir":"{}"}}"#, base.display());
    let lines = [head(owner, &boot()), base_line, "\0".to_owned()];
    let dir = instance(&config, owner, &lines);

    let enter: String = tops
        .iter()
        .map(|top| format!("echo $$ > {}/cgroup.procs; ", top.join(&nested).display()))
        .collect();
    let mut undoer = std::process::Command::new("sh");
    undoer.args(["-c", &format!("{enter} exec \"$@\""), "sh"]);
    undoer
        .arg(rig())
        .arg("respawner")
        .arg(runtime.path())
        .arg("true");
    let undoer = undoer.stdin(std::process::Stdio::null()).output().unwrap();
    assert!(undoer.status.success(), "{undoer:?}");

    assert!(!dir.exists());
    for pid in program.processes() {
        let places = cgroups(pid);
        assert!(
            places.contains(&nested) && !places.contains(&name),
            "{places}"
        );
    }
    drop(program);
    for top in tops {
        let nested = top.join(&nested);
        assert!(!nested.join(format!("{name}.5")).exists());
        wait_until("the cgroup to be empty", || {
            std::fs::remove_dir(&nested).is_ok()
        });
    }
}

fn write(path: &Path, value: &str) {
    std::fs::write(path, value).unwrap();
}
