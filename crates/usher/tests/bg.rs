// SPDX-License-Identifier: GPL-2.0-only
//! Runs `usher bg` as a user does and checks priorities, cgroups, regulation, sessions and exit
//! statuses of background work. Tests that need root, BPF, a disk or
//! cgroup v2 are skipped elsewhere.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use common::{World, children, signal, stderr, stdout, wait_for};
use serde_json::Value;

/// Indexes of the nice value and the policy in `/proc/PID/stat`, after the name.
const NICE: usize = 16;
const POLICY: usize = 38;

fn stat(pid: i32, field: usize) -> Option<i64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields = stat.rsplit_once(") ")?.1;
    fields.split_whitespace().nth(field)?.parse().ok()
}

/// Returns nice value and scheduling policy.
fn priority(pid: i32) -> Option<(i64, i64)> {
    Some((stat(pid, NICE)?, stat(pid, POLICY)?))
}

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        usher_skip::skip!("not root: what priorities are lowered to depends on limits");
    }
    root
}

/// Starts a program with `usher bg` that computes until it is killed, or for a minute of CPU time.
fn spinner(world: &World, options: &[&str]) -> (Child, i32) {
    let script = "ulimit -t 60; while :; do :; done";
    launch(world, options, script)
}

fn launch(world: &World, options: &[&str], script: &str) -> (Child, i32) {
    let words = [&["bg"], options, &["--", "sh", "-c", script]].concat();
    let launcher = world.usher(&words).spawn().unwrap();
    let pid = wait_for("the program to run", || {
        let below = children(launcher.id() as i32);
        below.into_iter().find(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.starts_with(b"sh\0-c\0")
        })
    });
    (launcher, pid)
}

fn end(mut launcher: Child, pid: i32) {
    signal(pid, libc::SIGKILL);
    launcher.wait().unwrap();
}

#[test]
fn passes_the_exit_status_on() {
    let world = World::new();
    let run = |words: &[&str]| world.run(&[&["bg", "--"], words].concat());
    assert_eq!(run(&["sh", "-c", "exit 7"]).status.code(), Some(7));
    assert_eq!(run(&["sh", "-c", "kill -9 $$"]).status.code(), Some(137));
    let missing = run(&["/no/such/program"]);
    assert_eq!(missing.status.code(), Some(127), "{}", stderr(&missing));
    let nothing = run(&["/"]);
    assert_eq!(nothing.status.code(), Some(126), "{}", stderr(&nothing));
    assert_eq!(run(&["echo", "hello"]).stdout, b"hello\n");
}

/// HOME belongs to another user in this test, as after `su` without `-`.
#[test]
fn unreadable_files_of_settings_are_reported_and_ignored() {
    if !is_root() {
        return;
    }
    const NOBODY: u32 = 65_534;
    let (world, own) = (World::new(), tempfile::tempdir().unwrap());
    fs::write(world.path("thresholds.toml"), "").unwrap();
    fs::set_permissions(world.path("thresholds.toml"), Permissions::from_mode(0o600)).unwrap();
    chown(own.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    // The program is copied, because other users may be unable to run it in the build directory.
    let program = own.path().join("usher");
    common::copy_program(env!("CARGO_BIN_EXE_usher"), &program);
    // As after `sudo`, HOME is the home of another user.
    let home = tempfile::tempdir().unwrap();
    fs::set_permissions(home.path(), Permissions::from_mode(0o700)).unwrap();
    let run = |options: &[&str]| {
        let words = [&["bg"], options, &["--", "sh", "-c", "exit 7"]].concat();
        let mut command = Command::new(&program);
        command.args(words).env("USHER_RUNTIME_DIR", own.path());
        command.env("USHER_STORE", world.path("profiles.db"));
        command
            .env("HOME", home.path())
            .env_remove("XDG_CONFIG_HOME");
        command.uid(NOBODY).gid(NOBODY).output().unwrap()
    };
    let output = run(&[]);
    common::end_daemon_in(own.path());
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
    let text = fs::read_to_string(own.path().join("daemon.log")).unwrap();
    assert!(text.contains("thresholds.toml is not readable"), "{text}");
    let hidden = "usher.toml' is in a folder that this user may not search: using no rules";
    assert!(text.contains(hidden), "{text}");
    let named = world.path("thresholds.toml").display().to_string();
    let output = run(&["--thresholds", &named]);
    assert_eq!(output.status.code(), Some(125), "{}", stderr(&output));
}

/// Nice value, policy and disk class of the program that prints this, and its exit status.
const PRINT_PRIORITY: &str =
    "cat /proc/$$/stat; command -v ionice >/dev/null && ionice -p $$; exit 7";

/// Checks that background work ran without regulation, at the lowest priority, and that one line
/// names the cause and the remedy.
fn assert_ran_unregulated(output: &Output, cause: &str) {
    assert_ran_at_the_lowest_priority(output, cause);
    let message = stderr(output);
    assert!(message.contains("--runtime-dir"), "{message}");
}

/// Checks that the program of [`PRINT_PRIORITY`] ran at the lowest priority, and that one line
/// names the cause.
fn assert_ran_at_the_lowest_priority(output: &Output, cause: &str) {
    let (message, out) = (stderr(output), stdout(output));
    assert_eq!(output.status.code(), Some(7), "{message}");
    assert_eq!(message.lines().count(), 1, "{message}");
    assert!(message.contains("runs at the lowest priority"), "{message}");
    assert_eq!(message.matches(cause).count(), 1, "{cause}: {message}");
    let mut lines = out.lines();
    let fields = lines.next().unwrap().rsplit_once(") ").unwrap().1;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let idle = libc::SCHED_IDLE.to_string();
    assert_eq!((fields[NICE], fields[POLICY]), ("19", idle.as_str()));
    match lines.next() {
        Some(class) => assert_eq!(class, "idle"),
        None => usher_skip::skip!("ionice is missing: the class for disks is not checked"),
    }
}

#[test]
fn background_work_runs_at_the_lowest_priority_if_it_cannot_be_regulated() {
    let world = World::new();
    let run = |dir: &Path| {
        let mut usher = world.usher(&["bg", "--", "sh", "-c", PRINT_PRIORITY]);
        usher.env("USHER_RUNTIME_DIR", dir).output().unwrap()
    };
    let file = world.path("file");
    fs::write(&file, "").unwrap();
    assert_ran_unregulated(&run(&file), "it is not a directory");
    assert_ran_unregulated(&run(&file.join("below")), "is not a directory");
    let shared = world.path("shared");
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, Permissions::from_mode(0o777)).unwrap();
    assert_ran_unregulated(&run(&shared), "another user owns it or may write to it");
    // An attach would have to be undone.
    let sleeper = common::Sleeper::start();
    let mut attach = world.usher(&["bg", "--attach", &sleeper.pid().to_string()]);
    let refused = attach.env("USHER_RUNTIME_DIR", &shared).output().unwrap();
    let message = stderr(&refused);
    assert_eq!(refused.status.code(), Some(125), "{message}");
    assert!(
        message.lines().count() == 1 && message.contains("--runtime-dir"),
        "{message}"
    );
    assert_eq!(priority(sleeper.pid()), priority(std::process::id() as i32));
}

/// The program then replaces the launcher. With a small stack limit, the replacing thread is not
/// the main thread.
#[test]
fn background_work_runs_at_the_lowest_priority_with_few_descriptors_and_a_small_stack() {
    let mut world = World::new();
    for with_daemon in [false, true] {
        if with_daemon {
            world.daemon(&[]);
        }
        for limits in ["ulimit -Sn 5", "ulimit -Sn 8", "ulimit -Sn 8; ulimit -s 64"] {
            let script = format!("{limits}; exec \"$0\" bg -- sh -c \"$1\"");
            let usher = world.usher(&[]);
            let mut shell = Command::new("sh");
            shell.args(["-c", &script]).arg(usher.get_program());
            // The shell could not redirect streams with so few descriptors.
            shell.arg(format!("ulimit -Sn 64; {PRINT_PRIORITY}"));
            for (name, value) in usher.get_envs() {
                match value {
                    Some(value) => shell.env(name, value),
                    None => shell.env_remove(name),
                };
            }
            let output = shell.output().unwrap();
            assert_ran_at_the_lowest_priority(&output, "Too many open files");
        }
    }
}

#[test]
fn a_late_answer_of_the_daemon_leaves_background_work_its_priority() {
    let mut world = World::new();
    let daemon = world.daemon(&[]);
    signal(daemon, libc::SIGSTOP);
    let mut launcher = world.usher(&["bg", "--name", "late", "--", "sleep", "1000"]);
    let mut launcher = launcher.stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(launcher.stderr.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    let program = children(launcher.id() as i32)[0];
    let late = priority(program);
    // A failed test could not end a stopped daemon.
    signal(daemon, libc::SIGCONT);
    assert!(
        first.contains("unmanaged until the daemon answers"),
        "{first}"
    );
    let own = priority(std::process::id() as i32);
    assert_eq!(late, own);
    let is_regulated = |line: &String| line.contains("regulates the program");
    let second = lines.map_while(Result::ok).find(is_regulated);
    assert!(second.is_some());
    let detached = world.run(&["detach", "late"]);
    assert!(detached.status.success(), "{}", stderr(&detached));
    wait_for("the former priority", || {
        (priority(program) == own).then_some(())
    });
    signal(program, libc::SIGKILL);
    launcher.wait().unwrap();
}

#[test]
fn background_work_of_a_user_runs_without_a_writable_runtime_directory() {
    if !is_root() {
        return;
    }
    const NOBODY: u32 = 65_534;
    let (world, own) = (World::new(), tempfile::tempdir().unwrap());
    let program = own.path().join("usher");
    common::copy_program(env!("CARGO_BIN_EXE_usher"), &program);
    fs::set_permissions(own.path(), Permissions::from_mode(0o755)).unwrap();
    let closed = own.path().join("closed");
    fs::create_dir(&closed).unwrap();
    for (mode, cause) in [
        (0o755, "Permission denied"),
        (0o700, "may not access the directory that contains it"),
    ] {
        fs::set_permissions(&closed, Permissions::from_mode(mode)).unwrap();
        let mut command = Command::new(&program);
        command.args(["bg", "--", "sh", "-c", PRINT_PRIORITY]);
        command
            .env_remove("USHER_RUNTIME_DIR")
            .env("XDG_RUNTIME_DIR", &closed)
            .env("USHER_STORE", world.path("profiles.db"));
        let output = command.current_dir("/").uid(NOBODY).gid(NOBODY).output();
        assert_ran_unregulated(&output.unwrap(), cause);
    }
}

#[test]
fn reports_invalid_arguments_in_one_line() {
    let world = World::new();
    for (words, actual) in [
        (&["bg"][..], "CMD"),
        (&["bg", "--policy", "nice", "--", "true"], "nice"),
        (&["bg", "--name", "", "--", "true"], "--name"),
        (&["bg", "--attach", "0"], "from 1 to 4194304"),
        (&["bg", "--attach", "999999999"], "999999999"),
        (&["bg", "--attach", "1", "--", "true"], "--attach"),
        (&["bg", "--no-daemon", "--attach", "1"], "--no-daemon"),
        (&["bg", "--thresholds", "/none", "--", "true"], "/none"),
    ] {
        let output = world.run(words);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(125), "{words:?}: {text}");
        assert!(
            text.contains(actual) && text.trim_end().lines().count() == 1,
            "{text}"
        );
    }
}

#[test]
fn status_shows_background_work_and_the_daemon_restores_it() {
    if !is_root() {
        return;
    }
    let mut world = World::new();
    let record = world.path("record.jsonl");
    let daemon = world.daemon(&["--record", record.to_str().unwrap()]);
    let mut own = Command::new("sh")
        .args(["-c", "ulimit -t 60; while :; do :; done"])
        .process_group(0)
        .spawn()
        .unwrap();
    let pid = own.id() as i32;
    let before = priority(pid).unwrap();
    let attached = world.run(&["bg", "--name", "scan", "--attach", &pid.to_string()]);
    assert!(attached.status.success(), "{}", stderr(&attached));
    assert_eq!(priority(pid), Some((19, i64::from(libc::SCHED_IDLE))));
    let program = world.programs(1).remove(0);
    assert_eq!(program["mode"], "background");
    assert_eq!(program["background"]["policy"], "usher");
    let text = stdout(&world.run(&["status"]));
    assert!(
        text.contains("scan") && text.contains("background"),
        "{text}"
    );
    let actual = stdout(&world.run(&["explain", "scan"]));
    assert!(
        actual.contains("background work under the policy usher"),
        "{actual}"
    );
    let detached = world.run(&["detach", "scan"]);
    assert!(detached.status.success(), "{}", stderr(&detached));
    assert_eq!(priority(pid), Some(before));
    signal(pid, libc::SIGKILL);
    own.wait().unwrap();
    assert_eq!(world.end(daemon), Some(0));
    let replayed = world.run(&["replay", record.to_str().unwrap()]);
    assert!(replayed.status.success(), "{}", stderr(&replayed));
}

#[test]
fn each_policy_can_be_chosen() {
    let mut world = World::new();
    world.daemon(&[]);
    for policy in ["usher", "eii", "ipd"] {
        let (launcher, pid) = spinner(&world, &["--policy", policy]);
        let program = world.programs(1).remove(0);
        assert_eq!(program["background"]["policy"], policy);
        end(launcher, pid);
        world.programs(0);
    }
}

/// Returns a file on a disk, large enough to be read for a while; `None` if the target directory is
/// not on a disk.
fn file_on_disk(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&path, vec![1u8; 32 << 20]).unwrap();
    let direct = Command::new("dd")
        .args([
            "of=/dev/null",
            "bs=64k",
            "count=1",
            "iflag=direct",
            "status=none",
        ])
        .arg(format!("if={}", path.display()))
        .stderr(Stdio::null())
        .status()
        .unwrap();
    if !direct.success() {
        usher_skip::skip!("{} is not on a disk", path.display());
        return None;
    }
    Some(path)
}

fn reads_for_ever(path: &Path) -> String {
    let read = "bs=64k iflag=direct status=none";
    let path = path.display();
    format!("ulimit -t 60; while :; do dd if={path} of=/dev/null {read}; done")
}

/// Returns whether the meter counts by BPF programs. Without BPF, the process that caused a disk
/// request is not known soon enough.
fn has_bpf(status: &Value) -> bool {
    let warnings = status["warnings"].as_array().unwrap();
    let has = !warnings
        .iter()
        .any(|text| text.as_str().unwrap().contains("BPF"));
    if !has {
        usher_skip::skip!("no BPF here");
    }
    has
}

#[test]
fn stops_for_a_busy_disk_and_continues() {
    let (Some(own), Some(theirs)) = (file_on_disk("bg-own"), file_on_disk("bg-theirs")) else {
        return;
    };
    let mut world = World::new();
    world.daemon(&[]);
    let (launcher, pid) = launch(&world, &[], &reads_for_ever(&own));
    let program = |world: &World| world.programs(1).remove(0);
    program(&world);
    if !has_bpf(&world.status()) {
        return end(launcher, pid);
    }
    let mut foreground = Command::new("setsid")
        .args(["sh", "-c", &reads_for_ever(&theirs)])
        .spawn()
        .unwrap();
    let stopped = wait_for("it to be stopped for the disk", || {
        let program = program(&world);
        let resource = program["background"]["resource"].as_str()?.to_owned();
        (program["stopped"] == true && resource.starts_with("disk ")).then_some(program)
    });
    assert!(stopped["background"]["stops"].as_i64() >= Some(1));
    // SAFETY: `kill` involves no memory; the process group belongs to the foreground process that
    // this test started.
    unsafe { libc::kill(-(foreground.id() as i32), libc::SIGKILL) };
    foreground.wait().unwrap();
    wait_for("it to continue", || {
        (program(&world)["stopped"] == false).then_some(())
    });
    end(launcher, pid);
    fs::remove_file(own).unwrap();
    fs::remove_file(theirs).unwrap();
}

/// Returns the cgroup v2 directory of a process.
fn cgroup(pid: i32) -> Option<PathBuf> {
    let lines = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let path = lines
        .lines()
        .find_map(|line| line.strip_prefix("0::"))?
        .to_owned();
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let mount = mounts
        .lines()
        .find(|line| line.split(' ').nth(2) == Some("cgroup2"))?;
    Some(Path::new(mount.split(' ').nth(1)?).join(path.trim_start_matches('/')))
}

#[test]
fn background_work_is_restored_when_daemon_and_keeper_are_killed() {
    if !is_root() {
        return;
    }
    let mut world = World::new();
    let daemon = world.daemon(&[]);
    let (launcher, pid) = spinner(&world, &[]);
    wait_for("it to be demoted", || {
        (priority(pid)? == (19, i64::from(libc::SCHED_IDLE))).then_some(())
    });
    let own = priority(std::process::id() as i32).unwrap();
    if let Some(dir) = cgroup(pid).filter(|dir| dir.join("cgroup.freeze").is_file()) {
        // The test freezes the cgroup, as the regulator does.
        fs::write(dir.join("cgroup.freeze"), "1").unwrap();
    }
    world.kill_with_keeper(daemon);
    let used = stat(pid, 11).unwrap();
    wait_for("its priority and its CPU time back", || {
        (priority(pid)? == own && stat(pid, 11)? > used).then_some(())
    });
    end(launcher, pid);
}

#[test]
fn processes_left_behind_by_a_command_stay_background_work() {
    let world = World::new();
    let left = world.run(&["bg", "--", "sh", "-c", "sleep 1000 >/dev/null 2>&1 &"]);
    assert!(left.status.success(), "{}", stderr(&left));
    let pid = wait_for("only the process that was left behind", || {
        let status = world.json(&["status"])?;
        let program = &status["programs"][0];
        assert_eq!(program["mode"], "background");
        (program["threads"] == 1).then(|| program["pid"].as_i64())?
    });
    let nice = priority(pid as i32).map(|(nice, _)| nice);
    assert_eq!(nice, Some(19));
    signal(pid as i32, libc::SIGKILL);
    world.programs(0);
}

/// The program is stopped in this test: a stopped program could not handle the signal.
#[test]
fn a_stopped_program_ends_on_a_signal() {
    for with_daemon in [false, true] {
        let mut world = World::new();
        if with_daemon {
            world.daemon(&[]);
        }
        let (mut launcher, pid) = spinner(&world, &[]);
        let Some(dir) = cgroup(pid).filter(|dir| dir.join("cgroup.freeze").is_file()) else {
            usher_skip::skip!("the program has no cgroup of its own");
            return end(launcher, pid);
        };
        // The test freezes the cgroup, as the regulator does.
        fs::write(dir.join("cgroup.freeze"), "1").unwrap();
        signal(launcher.id() as i32, libc::SIGTERM);
        let status = launcher.wait().unwrap();
        assert_eq!(status.code(), Some(128 + libc::SIGTERM), "{with_daemon}");
    }
}

/// The background work runs without a terminal in this test.
#[test]
fn background_work_has_a_session_of_its_own() {
    let world = World::new();
    let mut usher = world.usher(&["bg", "--", "sh", "-c", "ps -o sid= -p $$; echo $$"]);
    // SAFETY: setsid is async-signal-safe, and the child is new.
    unsafe {
        usher.pre_exec(|| {
            rustix::process::setsid()?;
            Ok(())
        })
    };
    let actual = stdout(&usher.output().unwrap());
    let numbers: Vec<&str> = actual.split_whitespace().collect();
    assert!(numbers.len() == 2 && numbers[0] == numbers[1], "{actual}");
}

/// The test runs `usher bg -- cat &` in a shell, and then writes further input for the shell.
#[test]
fn background_work_does_not_read_a_shells_input() {
    let world = World::new();
    let master = rustix::pty::openpt(rustix::pty::OpenptFlags::RDWR).unwrap();
    rustix::pty::unlockpt(&master).unwrap();
    let name = rustix::pty::ptsname(&master, Vec::new()).unwrap();
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY;
    let terminal = rustix::fs::open(&name, flags, rustix::fs::Mode::empty()).unwrap();
    rustix::io::write(&master, b"rm -r precious\n").unwrap();
    let mut usher = world.usher(&["bg", "--", "cat"]);
    // SAFETY: setsid is async-signal-safe, and the child is new.
    unsafe {
        usher.pre_exec(|| {
            rustix::process::setsid()?;
            Ok(())
        })
    };
    let output = usher.stdin(terminal).output().unwrap();
    assert_eq!(stdout(&output), "", "{}", stderr(&output));
}

#[test]
fn rejects_the_caller_itself() {
    let mut world = World::new();
    world.daemon(&[]);
    let own = std::process::id().to_string();
    let output = world.run(&["bg", "--attach", &own]);
    assert_eq!(output.status.code(), Some(125));
    let text = stderr(&output);
    assert!(text.contains("is an ancestor of this command"), "{text}");
}

#[test]
fn rejects_options_of_a_daemon_beside_a_running_daemon() {
    let mut world = World::new();
    world.daemon(&[]);
    for words in [["--ignore", "updatedb"], ["--thresholds", "/dev/null"]] {
        let output = world.run(&[&["bg"][..], &words, &["--", "true"]].concat());
        assert_eq!(output.status.code(), Some(125), "{}", stderr(&output));
        assert!(stderr(&output).contains(words[0]), "{}", stderr(&output));
        assert!(stderr(&output).contains("usher daemon"));
    }
}

/// Scripts that `usher` starts may themselves call `usher`.
#[test]
fn inside_a_managed_program_commands_run_as_part_of_it() {
    let mut world = World::new();
    let daemon = world.daemon(&[]);
    let usher = env!("CARGO_BIN_EXE_usher");
    let dir = world.runtime_dir().display().to_string();
    for (outer, inner) in [("bg", "bg"), ("run", "bg"), ("bg", "run")] {
        let nested = [
            usher,
            "--runtime-dir",
            &dir,
            inner,
            "--",
            "sh",
            "-c",
            "exit 7",
        ];
        let output = world.run(&[&[outer, "--"], &nested[..]].concat());
        let actual = stderr(&output);
        assert_eq!(output.status.code(), Some(7), "{outer} {inner}: {actual}");
        assert!(actual.contains("runs as part of program"), "{actual}");
    }
    assert_eq!(world.end(daemon), Some(0));
}

/// Each of these signals would end the launcher but not its program.
#[test]
fn signals_of_timers_and_batch_systems_reach_the_program() {
    let world = World::new();
    for number in [libc::SIGALRM, libc::SIGVTALRM, libc::SIGXCPU, libc::SIGIO] {
        for command in ["run", "bg"] {
            let ready = world.path(&format!("{command}-{number}"));
            let script = format!("echo > {}; exec sleep 600", ready.display());
            let mut launcher = world.usher(&[command, "--", "sh", "-c", &script]);
            let mut launcher = launcher.spawn().unwrap();
            wait_for("the program to start", || ready.exists().then_some(()));
            signal(launcher.id() as i32, number);
            let status = launcher.wait().unwrap();
            assert_eq!(status.code(), Some(128 + number), "{command}: {status}");
        }
    }
}
