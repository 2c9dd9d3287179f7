// SPDX-License-Identifier: GPL-2.0-only
//! Tests of the daemon that `usher run`, `bg` and `attach` start: its beginning, its end, several
//! commands at the same moment, and the attributes of its caller that it does not keep.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use common::{Sleeper, World, lives, signal, stderr, stdout, wait_for};
use serde_json::json;

/// Runs a short program, which starts a daemon. Returns the daemon's pid.
fn start(world: &World) -> i32 {
    let output = world.run(&["run", "echo", "done"]);
    assert_eq!(stderr(&output), "");
    assert_eq!(stdout(&output), "done\n");
    daemon(world)
}

fn daemon(world: &World) -> i32 {
    world.status()["pid"].as_i64().unwrap() as i32
}

fn end(mut launcher: Child, program: i32) {
    signal(program, libc::SIGKILL);
    launcher.wait().unwrap();
}

/// Returns a field of `/proc/PID/status`.
fn field(pid: i32, name: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let mut lines = status.lines();
    let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.unwrap().trim().to_owned()
}

#[test]
fn the_daemon_ends_after_its_last_program() {
    let world = World::new();
    // A program that runs for longer than the daemon's linger time.
    let mut launcher = world.usher(&["run", "sleep", "8"]).spawn().unwrap();
    world.programs(1);
    let first = daemon(&world);
    assert_eq!(launcher.wait().unwrap().code(), Some(0));
    assert!(lives(first));
    wait_for("the daemon to end", || (!lives(first)).then_some(()));
    assert!(!world.socket().exists());
    let left = fs::read_dir(world.runtime_dir().join("instances"));
    assert_eq!(left.unwrap().count(), 0);
    assert_ne!(start(&world), first);
}

#[test]
fn commands_at_the_same_moment_start_one_daemon() {
    let world = World::new();
    let launch = |_| world.usher(&["run", "sleep", "1000"]).spawn().unwrap();
    let launchers: Vec<Child> = (0..8).map(launch).collect();
    let programs = world.programs(launchers.len());
    for (launcher, program) in launchers.into_iter().zip(programs) {
        signal(program["pid"].as_i64().unwrap() as i32, libc::SIGKILL);
        drop(launcher);
    }
    world.programs(0);
}

#[test]
fn a_program_that_starts_while_a_daemon_ends_is_managed() {
    let world = World::new();
    let mut daemon = start(&world);
    for _ in 0..5 {
        signal(daemon, libc::SIGTERM);
        // Until the daemon's thread has handled the signal, the daemon itself manages programs.
        daemon = wait_for("another daemon", || {
            let output = world.run(&["run", "echo", "done"]);
            assert_eq!(stderr(&output), "");
            assert_eq!(stdout(&output), "done\n");
            let next = world.json(&["status"])?["pid"].as_i64()? as i32;
            (next != daemon).then_some(next)
        });
    }
}

#[test]
fn the_daemon_keeps_no_attributes_of_its_caller() {
    let world = World::new();
    let mut command = world.usher(&["run", "echo", "done"]);
    command.env("LD_LIBRARY_PATH", "/nonexistent");
    // SAFETY: the functions are async-signal-safe, and the child is new.
    unsafe {
        command.pre_exec(|| {
            libc::signal(libc::SIGHUP, libc::SIG_IGN);
            libc::umask(0o027);
            let mut first: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(0, &mut first);
            libc::sched_setaffinity(0, size_of_val(&first), &raw const first);
            let small = libc::rlimit {
                rlim_cur: 200,
                rlim_max: libc::RLIM_INFINITY,
            };
            libc::setrlimit(libc::RLIMIT_CPU, &raw const small);
            Ok(())
        });
    }
    // A pipe of the caller stays open while a process has its other end.
    let output = command.output().unwrap();
    assert_eq!(stdout(&output), "done\n", "{}", stderr(&output));
    let daemon = daemon(&world);
    let environment = fs::read(format!("/proc/{daemon}/environ")).unwrap();
    let mut variables = environment.split(|byte| *byte == 0);
    assert!(!variables.any(|variable| variable.starts_with(b"LD_")));
    let ignored = u64::from_str_radix(&field(daemon, "SigIgn"), 16).unwrap();
    assert_eq!(ignored & (1 << (libc::SIGHUP - 1)), 0);
    assert_ne!(field(daemon, "Umask"), "0027");
    let own = field(std::process::id() as i32, "Cpus_allowed_list");
    assert_eq!(field(daemon, "Cpus_allowed_list"), own);
    let limits = fs::read_to_string(format!("/proc/{daemon}/limits")).unwrap();
    let cpu = limits.lines().find(|line| line.starts_with("Max cpu time"));
    assert!(!cpu.unwrap().contains("200"), "{limits}");
    let cwd = fs::read_link(format!("/proc/{daemon}/cwd")).unwrap();
    assert_eq!(cwd.to_str(), Some("/"));
    for (stream, target) in [(0, "/dev/null"), (1, "/dev/null"), (2, "daemon.log")] {
        let link = fs::read_link(format!("/proc/{daemon}/fd/{stream}")).unwrap();
        assert!(link.ends_with(target), "{stream}: {}", link.display());
    }
    let stat = fs::read_to_string(format!("/proc/{daemon}/stat")).unwrap();
    let fields = stat.rsplit_once(") ").unwrap().1;
    let session: i32 = fields.split(' ').nth(3).unwrap().parse().unwrap();
    assert_eq!(session, daemon);
}

#[test]
fn the_keeper_replaces_a_killed_daemon_that_a_command_started() {
    let world = World::new();
    let launcher = world.usher(&["run", "sleep", "1000"]).spawn().unwrap();
    let program = world.programs(1)[0]["pid"].clone();
    let first = daemon(&world);
    signal(first, libc::SIGKILL);
    wait_for("the program to be registered again", || {
        let status = world.json(&["status"])?;
        let is_again = status["pid"] != json!(first);
        (is_again && status["programs"][0]["pid"] == program).then_some(())
    });
    end(launcher, program.as_i64().unwrap() as i32);
}

#[test]
fn launchers_start_a_daemon_after_the_deaths_of_daemon_and_keeper() {
    let world = World::new();
    for command in ["run", "bg"] {
        let launch = |_| world.usher(&[command, "sleep", "1000"]).spawn().unwrap();
        let launchers: Vec<Child> = (0..3).map(launch).collect();
        let pids = |programs: &[serde_json::Value]| {
            let pids = programs.iter().map(|one| one["pid"].as_i64().unwrap());
            pids.collect::<BTreeSet<i64>>()
        };
        let programs = pids(&world.programs(3));
        let first = daemon(&world);
        world.kill_both(first);
        let next = wait_for("another daemon with all programs", || {
            let status = world.json(&["status"])?;
            let managed = pids(status["programs"].as_array()?);
            (managed == programs).then(|| status["pid"].as_i64().unwrap() as i32)
        });
        assert_ne!(next, first);
        let line = fs::read(format!("/proc/{next}/cmdline")).unwrap();
        assert!(String::from_utf8_lossy(&line).contains("--exit-when-idle"));
        for (launcher, pid) in launchers.into_iter().zip(programs) {
            signal(pid as i32, libc::SIGKILL);
            drop(launcher);
        }
        world.programs(0);
    }
}

#[test]
fn launchers_do_not_start_a_daemon_again_that_was_ended_on_request() {
    let world = World::new();
    let launcher = world.usher(&["run", "sleep", "1000"]).spawn().unwrap();
    let program = world.programs(1)[0]["pid"].as_i64().unwrap() as i32;
    let stopped = world.run(&["daemon", "stop"]);
    assert!(stopped.status.success(), "{}", stderr(&stopped));
    end(launcher, program);
    assert!(world.json(&["status"]).is_none());
}

#[test]
fn without_management_one_line_states_it_and_no_daemon_starts() {
    let world = World::new();
    for (command, expected) in [
        ("run", "usher: the program runs unmanaged: the option"),
        (
            "bg",
            "usher: the program runs at the lowest priority, and is not stopped",
        ),
    ] {
        let output = world.run(&[command, "--no-daemon", "--", "sh", "-c", "exit 7"]);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(7), "{text}");
        assert!(text.starts_with(expected), "{text}");
        assert!(text.trim_end().ends_with("--no-daemon is given"), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
    assert!(!world.runtime_dir().exists());
}

#[test]
fn attach_starts_a_daemon_and_status_does_not() {
    for command in [&["attach"][..], &["bg", "--attach"]] {
        let world = World::new();
        assert_eq!(world.run(&["status"]).status.code(), Some(125));
        assert!(!world.runtime_dir().exists());
        let sleeper = Sleeper::start();
        let output = world.run(&[command, &[&sleeper.pid().to_string()]].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        assert_eq!(world.programs(1)[0]["pid"], json!(sleeper.pid()));
    }
}

#[test]
fn options_of_background_work_become_those_of_the_daemon() {
    let world = World::new();
    let thresholds = world.path("own.toml");
    fs::write(&thresholds, "cpu = 0.7\n").unwrap();
    let name = thresholds.to_str().unwrap();
    let words = ["bg", "--ignore", "updatedb", "--thresholds", name];
    let output = world.run(&[&words[..], &["--", "true"]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let line = fs::read(format!("/proc/{}/cmdline", daemon(&world))).unwrap();
    let line = String::from_utf8(line).unwrap().replace('\0', " ");
    for option in ["--ignore updatedb", &format!("--thresholds {name}")] {
        assert!(line.contains(option), "{line}");
    }
}

/// Privileges of another user, as of a set-user-ID program: the caller controls the environment.
#[test]
fn a_process_with_the_privileges_of_another_user_starts_no_daemon() {
    const NOBODY: u32 = 65_534;
    let world = World::new();
    let program = world.path("usher");
    common::copy_program(env!("CARGO_BIN_EXE_usher"), &program);
    let is_root = rustix::process::geteuid().is_root();
    if !is_root || chown(&program, Some(NOBODY), Some(NOBODY)).is_err() {
        usher_skip::skip!("not root");
        return;
    }
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
    let dir = world.path("own");
    fs::create_dir(&dir).unwrap();
    chown(&dir, Some(NOBODY), Some(NOBODY)).unwrap();
    let like = world.usher(&["run", "echo", "done"]);
    let mut command = Command::new(&program);
    command.args(like.get_args()).env("USHER_RUNTIME_DIR", &dir);
    let output = command.output().unwrap();
    let text = stderr(&output);
    if !text.contains("setuid") && daemon_runs(&dir) {
        common::end_daemon_in(&dir);
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(mounts.contains("nosuid"), "{text}");
        usher_skip::skip!("this file system ignores set-user-ID");
        return;
    }
    assert_eq!(stdout(&output), "done\n", "{text}");
    assert!(
        text.contains("runs unmanaged") && text.contains("(setuid)"),
        "{text}"
    );
}

fn daemon_runs(dir: &std::path::Path) -> bool {
    dir.join("usher.lock").exists()
}

#[test]
fn a_limit_of_few_open_files_is_the_reason_of_an_unmanaged_program() {
    let world = World::new();
    let mut command = world.usher(&["run", "echo", "done"]);
    let few = libc::rlimit {
        rlim_cur: 40,
        rlim_max: 40,
    };
    // SAFETY: `setrlimit` is async-signal-safe, and `few` is valid.
    unsafe {
        command.pre_exec(move || {
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const few);
            Ok(())
        });
    }
    let output = command.output().unwrap();
    let text = stderr(&output);
    assert_eq!(stdout(&output), "done\n", "{text}");
    assert!(text.contains("the limit of open files is 40"), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
}

#[test]
fn a_deleted_executable_starts_the_daemon() {
    let world = World::new();
    let program = world.path("usher");
    common::copy_program(env!("CARGO_BIN_EXE_usher"), &program);
    let dir = world.runtime_dir();
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
    // The launcher waits for this lock before it starts a daemon.
    let lock = fs::File::create(dir.join("launch.lock")).unwrap();
    lock.lock().unwrap();
    let like = world.usher(&["run", "sleep", "1000"]);
    let mut command = Command::new(&program);
    command.args(like.get_args());
    command.envs(
        like.get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    let launcher = command.spawn().unwrap();
    fs::remove_file(&program).unwrap();
    drop(lock);
    let program = world.programs(1)[0]["pid"].as_i64().unwrap() as i32;
    end(launcher, program);
}

#[test]
fn a_daemon_that_cannot_start_logs_one_error() {
    let world = World::new();
    let daemon = [
        "daemon",
        "--exit-when-idle",
        "--thresholds",
        "/no/such/file",
    ];
    let output = world.run(&daemon);
    assert_eq!(output.status.code(), Some(125));
    let log = stderr(&output);
    assert_eq!(log.matches("/no/such/file").count(), 1, "{log}");
    // The command that started the daemon reads the reason from standard output.
    assert!(stdout(&output).contains("/no/such/file"));
}

/// Removes the variables that name the user's directories.
fn without_home(command: &mut Command) -> &mut Command {
    let variables = [
        "HOME",
        "XDG_RUNTIME_DIR",
        "XDG_CONFIG_HOME",
        "XDG_DATA_HOME",
        "XDG_STATE_HOME",
    ];
    for name in variables {
        command.env_remove(name);
    }
    command
}

#[test]
fn commands_work_without_home_and_xdg_variables() {
    let mut world = World::new();
    let run =
        |world: &World, words: &[&str]| without_home(&mut world.usher(words)).output().unwrap();
    let run_programs = |world: &World| {
        for command in ["run", "bg"] {
            let output = run(world, &[command, "--", "sh", "-c", "exit 7"]);
            assert_eq!(stderr(&output), "");
            assert_eq!(output.status.code(), Some(7), "{command}");
        }
    };
    let measure = ["profile", "--force", "--cores", "1", "--repeats", "1"];
    let measure = [&measure[..], &["--", "sleep", "0.2"]].concat();
    for words in [&measure[..], &["profile", "list"]] {
        let output = run(&world, words);
        assert!(output.status.success(), "{words:?}: {}", stderr(&output));
    }
    // The first program starts a daemon.
    run_programs(&world);
    let reloaded = run(&world, &["daemon", "reload"]);
    assert!(reloaded.status.success(), "{}", stderr(&reloaded));
    let stopped = run(&world, &["daemon", "stop"]);
    assert!(stopped.status.success(), "{}", stderr(&stopped));
    let mut daemon = Command::new(env!("CARGO_BIN_EXE_usher"));
    without_home(daemon.arg("daemon"));
    world.daemon_by(&mut daemon);
    run_programs(&world);
}
