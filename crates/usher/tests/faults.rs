// SPDX-License-Identifier: GPL-2.0-only
//! Tests under conditions of real hosts: CPU quotas, resource limits, file systems that are full or
//! read-only, and daemons that hang, die or have another version.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{Sleeper, World, children, mount_tmpfs, signal, stderr, stdout, wait_for};
use serde_json::json;

/// A cgroup with a quota of half a CPU, removed when dropped.
struct HalfCpu(PathBuf);

impl HalfCpu {
    fn new() -> Option<Self> {
        let name = format!("half-{}", std::process::id());
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        for line in mounts.lines() {
            let fields: Vec<&str> = line.split(' ').collect();
            let (dir, kind) = (Path::new(fields[1]).join(&name), fields[2]);
            let has_cpu = fields[3].split(',').any(|option| option == "cpu");
            let quota = match kind {
                "cgroup" if has_cpu => ("cpu.cfs_quota_us", "50000"),
                "cgroup2" => ("cpu.max", "50000 100000"),
                _ => continue,
            };
            if fs::create_dir(&dir).is_err() {
                continue;
            }
            let made = Self(dir);
            // Without the cpu controller the quota file does not exist.
            let file = made.0.join(quota.0);
            if file.exists() && fs::write(file, quota.1).is_ok() {
                return Some(made);
            }
        }
        usher_skip::skip!("no CPU quota can be set here");
        None
    }

    fn takes(&self, pid: i32) {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).unwrap();
    }
}

impl Drop for HalfCpu {
    fn drop(&mut self) {
        let begun = std::time::Instant::now();
        while fs::remove_dir(&self.0).is_err() && begun.elapsed() < common::DEADLINE {
            std::thread::yield_now();
        }
    }
}

#[test]
fn status_and_explain_report_at_most_the_cpu_quota() {
    let Some(half) = HalfCpu::new() else {
        return;
    };
    let mut world = World::new();
    world.daemon(&["--policy", "equal"]);
    let sleeper = Sleeper::start();
    half.takes(sleeper.pid());
    let pid = sleeper.pid().to_string();
    assert!(world.run(&["attach", &pid]).status.success());
    assert_eq!(world.programs(1)[0]["cpu_quota"], json!(0.5));
    let status = stdout(&world.run(&["status"]));
    assert!(status.contains("(quota 0.500 CPUs)"), "{status}");
    let explained = stdout(&world.run(&["explain", &pid]));
    let words = explained.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("0.5 cores by its CPU quota"), "{explained}");
    // The daemon must follow a change of the quota.
    let file = ["cpu.max", "cpu.cfs_quota_us"].map(|name| half.0.join(name));
    let file = file.into_iter().find(|file| file.exists()).unwrap();
    let quota = match file.ends_with("cpu.max") {
        true => "150000 100000",
        false => "150000",
    };
    fs::write(file, quota).unwrap();
    wait_for("the new quota", || {
        (world.status()["programs"][0]["cpu_quota"] == json!(1.5)).then_some(())
    });
    drop(sleeper);
}

#[test]
fn late_registrations_are_undone_and_retried() {
    let mut world = World::new();
    let daemon = world.daemon(&["--policy", "equal"]);
    let sleeper = Sleeper::start();
    signal(daemon, libc::SIGSTOP);
    let run = |args: &[&str]| {
        let mut command = world.usher(args);
        command.stderr(Stdio::piped()).stdout(Stdio::null());
        command.spawn().unwrap()
    };
    let attach = run(&["attach", &sleeper.pid().to_string()]);
    let mut launcher = run(&["run", "--", "sleep", "1000"]);
    let attached = attach.wait_with_output().unwrap();
    let message = stderr(&attached);
    assert_eq!(attached.status.code(), Some(125), "{message}");
    assert!(
        message.contains("did not answer within 10 s: a signal (SIGSTOP) has stopped"),
        "{message}"
    );
    let mut lines = BufReader::new(launcher.stderr.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    assert!(
        first.contains("runs unmanaged until the daemon answers"),
        "{first}"
    );
    signal(daemon, libc::SIGCONT);
    let program = children(launcher.id() as i32)[0];
    wait_for("only the launched program to be managed", || {
        let status = world.json(&["status"])?;
        let pids: Vec<_> = status["programs"]
            .as_array()?
            .iter()
            .map(|p| p["pid"].clone())
            .collect();
        (pids == [json!(program)]).then_some(())
    });
    let last = lines
        .map_while(Result::ok)
        .find(|line| line.contains("manages the program now"));
    assert!(last.is_some());
    signal(program, libc::SIGKILL);
    launcher.wait().unwrap();
}

#[test]
fn a_stopped_daemon_delays_neither_programs_nor_signals_for_long() {
    let mut world = World::new();
    let daemon = world.daemon(&[]);
    signal(daemon, libc::SIGSTOP);
    let output = world.run(&["run", "--", "sh", "-c", "exit 7"]);
    let message = stderr(&output);
    let is_named = |message: &str| message.contains("a signal (SIGSTOP) has stopped the process");
    // A launcher that has caught the signal before the time limit ends its wait.
    let interrupted = (0..20).any(|_| {
        let mut command = world.usher(&["run", "--", "sleep", "1000"]);
        let mut launcher = command.stderr(Stdio::piped()).spawn().unwrap();
        let pid = launcher.id() as i32;
        wait_for("the launcher to catch signals", || {
            catches(pid, libc::SIGTERM).then_some(())
        });
        signal(pid, libc::SIGTERM);
        let mut text = String::new();
        let mut lines = launcher.stderr.take().unwrap();
        std::io::Read::read_to_string(&mut lines, &mut text).unwrap();
        let status = launcher.wait().unwrap();
        assert_eq!(status.code(), Some(128 + libc::SIGTERM), "{text}");
        text.contains("a signal arrived before the daemon answered")
    });
    signal(daemon, libc::SIGCONT);
    assert_eq!(output.status.code(), Some(7), "{message}");
    assert!(message.contains("did not answer within 2 s"), "{message}");
    assert!(is_named(&message), "{message}");
    assert!(interrupted);
}

/// Returns whether a process has a handler for a signal.
fn catches(pid: i32, signal: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & (1 << (signal - 1)) != 0)
}

/// Answers as a daemon of another version, which supports `Ping` and returns unknown errors for all
/// other calls.
fn serve_another_version(listener: UnixListener) {
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                let mut reader = BufReader::new(&stream);
                let mut call = Vec::new();
                while reader
                    .read_until(0, &mut call)
                    .is_ok_and(|length| length > 0)
                {
                    let is_ping = String::from_utf8_lossy(&call).contains("Usher1.Ping");
                    let reply = match is_ping {
                        true => json!({"parameters": {"version": "9.9.9", "pid": 4711}}),
                        false => json!({"parameters": {"news": true}}),
                    };
                    let _ = write!(&stream, "{reply}\0");
                    call.clear();
                }
            });
        }
    });
}

#[test]
fn a_daemon_of_another_version_is_named_in_one_line() {
    let world = World::new();
    fs::create_dir(world.runtime_dir()).unwrap();
    fs::set_permissions(world.runtime_dir(), fs::Permissions::from_mode(0o755)).unwrap();
    serve_another_version(UnixListener::bind(world.socket()).unwrap());
    let sleeper = Sleeper::start();
    let pid = sleeper.pid().to_string();
    let cause = "the daemon is version 9.9.9 (process 4711), which is incompatible with version";
    for args in [
        &["status"][..],
        &["attach", "1"],
        &["explain"],
        &["bg", "--attach", &pid],
    ] {
        let output = world.run(args);
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(125), "{args:?}: {message}");
        assert_eq!(message.lines().count(), 1, "{args:?}: {message}");
        assert!(
            message.contains(cause) && message.contains("restart the daemon"),
            "{message}"
        );
    }
    for command in ["run", "bg"] {
        let output = world.run(&[command, "echo", "done"]);
        assert!(output.status.success());
        assert_eq!(stdout(&output), "done\n");
        let message = stderr(&output);
        assert!(
            message.lines().count() == 1 && message.contains(cause),
            "{message}"
        );
    }
}

/// A small file system mounted at the runtime directory, and unmounted when dropped.
struct MountedRuntimeDir(PathBuf);

impl MountedRuntimeDir {
    fn on(dir: PathBuf) -> Option<Self> {
        fs::create_dir(&dir).unwrap();
        mount_tmpfs(&dir, "64k").then_some(Self(dir))
    }

    fn make_read_only(&self) {
        let words = ["-o", "remount,ro"];
        // A daemon that has just failed to start may still have its files open.
        wait_for("the file system to become read-only", || {
            let made = Command::new("mount").args(words).arg(&self.0).output();
            made.unwrap().status.success().then_some(())
        });
    }

    fn fill(&self) {
        let mut file = fs::File::create(self.0.join("filler")).unwrap();
        while file.write_all(&[0; 512]).is_ok() {}
    }
}

impl Drop for MountedRuntimeDir {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn commands_name_a_runtime_directory_that_cannot_be_used() {
    let world = World::new();
    let file = world.path("file");
    fs::write(&file, "").unwrap();
    let sleeper = Sleeper::start();
    let pid = sleeper.pid().to_string();
    for args in [
        &["daemon"][..],
        &["status"],
        &["attach", &pid],
        &["bg", "--attach", &pid],
        &["profile", "--", "true"],
        &["run", "--", "true"],
    ] {
        let mut command = world.usher(args);
        let output = command.env("USHER_RUNTIME_DIR", &file).output().unwrap();
        let message = stderr(&output);
        assert_eq!(output.status.success(), args[0] == "run", "{message}");
        assert_eq!(message.lines().count(), 1, "{args:?}: {message}");
        for part in ["it is not a directory", "set USHER_RUNTIME_DIR"] {
            assert!(message.contains(part), "{args:?}: {message}");
        }
    }
}

/// Checks a message: one line with one cause and a remedy.
fn names_the_full_directory(message: &str) {
    assert_eq!(message.lines().count(), 1, "{message}");
    for (part, count) in [
        ("No space left on device", 1),
        ("free space on this file system", 1),
        ("os error", 0),
        ("undoing", 0),
    ] {
        assert_eq!(message.matches(part).count(), count, "{part}: {message}");
    }
}

#[test]
fn background_work_runs_with_a_full_or_read_only_runtime_directory() {
    let world = World::new();
    let Some(mounted) = MountedRuntimeDir::on(world.runtime_dir()) else {
        return;
    };
    let run = || {
        let output = world.run(&["bg", "--", "sh", "-c", "echo done; exit 7"]);
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(7), "{message}");
        assert_eq!(stdout(&output), "done\n");
        message
    };
    mounted.fill();
    let message = run();
    names_the_full_directory(&message);
    assert!(message.contains("lowest priority"), "{message}");
    let left = fs::read_dir(world.runtime_dir().join("instances"));
    assert_eq!(left.unwrap().count(), 0, "a journal without a program");
    fs::remove_dir_all(world.runtime_dir().join("instances")).unwrap();
    mounted.make_read_only();
    let message = run();
    let daemon = stderr(&world.run(&["daemon"]));
    for message in [message, daemon] {
        assert_eq!(message.lines().count(), 1, "{message}");
        for part in ["Read-only file system", "set USHER_RUNTIME_DIR"] {
            assert_eq!(message.matches(part).count(), 1, "{part}: {message}");
        }
    }
}

#[test]
fn a_full_runtime_directory_is_named_in_one_line_and_programs_run() {
    let mut world = World::new();
    let Some(mounted) = MountedRuntimeDir::on(world.runtime_dir()) else {
        return;
    };
    world.daemon(&["--policy", "equal"]);
    mounted.fill();
    let sleeper = Sleeper::start();
    let before = common::allowed(sleeper.pid());
    // The attaches fail after some successes, because the last page of the journal has room for
    // some records.
    let attach = || world.run(&["attach", &sleeper.pid().to_string()]);
    let refused = (0..200).map(|_| attach()).find(|output| {
        let detached = world.run(&["detach", &sleeper.pid().to_string()]);
        !output.status.success() || !detached.status.success()
    });
    let refused = refused.unwrap();
    let message = stderr(&refused);
    assert_eq!(refused.status.code(), Some(125), "{message}");
    names_the_full_directory(&message);
    assert_eq!(common::allowed(sleeper.pid()), before);
    world.programs(0);
    for command in ["run", "bg"] {
        let output = world.run(&[command, "echo", "done"]);
        let message = stderr(&output);
        assert!(output.status.success(), "{message}");
        assert_eq!(stdout(&output), "done\n");
        names_the_full_directory(&message);
    }
    fs::remove_file(mounted.0.join("filler")).unwrap();
    assert!(
        world
            .run(&["attach", &sleeper.pid().to_string()])
            .status
            .success()
    );
}

#[test]
fn programs_are_seated_with_read_only_cgroups() {
    let mut world = World::new();
    let script = "mount --make-rprivate / && for dir in $(awk '$3 ~ /^cgroup/ { print $2 }' \
                  /proc/self/mounts); do mount -o remount,bind,ro $dir || exit; done";
    let mut probe = Command::new("unshare");
    let probe = probe.args(["-m", "sh", "-c", script]).output();
    if !probe.is_ok_and(|output| output.status.success()) {
        usher_skip::skip!("cgroups cannot be made read-only here");
        return;
    }
    let usher = env!("CARGO_BIN_EXE_usher");
    let daemon = format!("{script}; exec {usher} daemon --policy equal");
    let arguments = ["-m", "sh", "-c", &daemon];
    world.daemon_by(Command::new("unshare").args(arguments));
    let run = |args: &[&str]| {
        let output = world.run(args);
        assert!(output.status.success(), "{}", stderr(&output));
        assert_eq!(stderr(&output), "");
    };
    run(&["run", "true"]);
    run(&["bg", "--", "true"]);
    let launch = || world.usher(&["run", "sleep", "1000"]).spawn().unwrap();
    let launchers = [launch(), launch(), launch()];
    let programs = world.programs(launchers.len());
    let explained = stdout(&world.run(&["explain", "sleep"]));
    let words = explained.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.contains("the program stays in the cgroup that it was launched in"),
        "{explained}"
    );
    let warnings = world.json(&["status"]).unwrap()["warnings"].to_string();
    let reports = warnings.matches("stays in the cgroup").count();
    assert!(reports <= 1, "{warnings}");
    let others = "2 other programs have the same warning";
    assert!(reports == 0 || warnings.contains(others), "{warnings}");
    for program in &programs {
        signal(program["pid"].as_i64().unwrap() as i32, libc::SIGKILL);
    }
    for mut launcher in launchers {
        launcher.wait().unwrap();
    }
}

#[test]
fn rejects_pids_of_another_namespace() {
    let probe = Command::new("unshare")
        .args(["-pf", "--mount-proc", "true"])
        .status();
    if !probe.is_ok_and(|status| status.success()) {
        usher_skip::skip!("no pid namespace can be made here");
        return;
    }
    let mut world = World::new();
    let _daemon = world.daemon_in_namespace();
    // In the PID namespace of the daemon, process 1 is the daemon itself.
    let sleeper = Sleeper::start();
    for pid in ["1".to_owned(), sleeper.pid().to_string()] {
        let output = world.run(&["attach", &pid]);
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(125), "{message}");
        let cause = format!("{pid} belongs to another PID namespace");
        assert!(
            message.lines().count() == 1 && message.contains(&cause),
            "{message}"
        );
    }
    let output = world.run(&["run", "echo", "done"]);
    assert_eq!(stdout(&output), "done\n");
    let message = stderr(&output);
    assert!(
        message.lines().count() == 1 && message.contains("runs unmanaged"),
        "{message}"
    );
    world.programs(0);
}

#[test]
fn a_user_without_a_session_gets_the_path_of_the_socket_and_starts_a_daemon_there() {
    if !rustix::process::geteuid().is_root() || Path::new("/run/usher").exists() {
        usher_skip::skip!("needs root, and no daemon of the system");
        return;
    }
    // Uid of a user without a login and thus without a runtime directory.
    const USER: u32 = 64_999;
    let world = World::new();
    let home = world.path("home");
    fs::create_dir(&home).unwrap();
    std::os::unix::fs::chown(&home, Some(USER), Some(USER)).unwrap();
    let run = |args: &[&str]| {
        let mut command = world.usher(args);
        command
            .env_remove("USHER_RUNTIME_DIR")
            .env_remove("XDG_RUNTIME_DIR");
        command
            .env("HOME", &home)
            .env("USHER_STORE", home.join("store.db"));
        command.uid(USER).gid(USER).output().unwrap()
    };
    let output = run(&["status"]);
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(125), "{message}");
    let expected = format!("/tmp/usher-{USER}/usher.varlink; 'usher run -- CMD' starts one");
    assert!(
        message.lines().count() == 1 && message.contains(&expected),
        "{message}"
    );
    let output = run(&["run", "echo", "done"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(
        (stdout(&output).as_str(), stderr(&output).as_str()),
        ("done\n", "")
    );
    let output = run(&["bg", "--", "true"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let output = run(&["status"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let dir = format!("/tmp/usher-{USER}");
    common::end_daemon_in(Path::new(&dir));
    let _ = fs::remove_dir_all(dir);
}

/// Writes the journal of a dead daemon that had stopped a process.
fn journal_of_a_stop(dir: &Path, pid: i32) {
    let mut dead = Command::new("true").spawn().unwrap();
    let start = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let fields = stat.rsplit_once(") ").unwrap().1.split(' ');
        fields.collect::<Vec<_>>()[19].parse::<u64>().unwrap()
    };
    let owner = json!({"pid": dead.id(), "start_ticks": start(dead.id())});
    dead.wait().unwrap();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let namespace = fs::metadata("/proc/self/ns/pid").unwrap().ino();
    let process = json!({"pid": pid, "start_ticks": start(pid as u32)});
    let nowhere = json!({"v2": null, "cpuset": null, "cpu": null});
    let lines = [
        json!({"do": "open", "version": 2, "boot": boot.trim(), "owner": owner, "pid_namespace": namespace}),
        json!({"do": "begin", "program": 1, "from": nowhere}),
        json!({"do": "member", "program": 1, "process": process, "from": nowhere}),
        json!({"do": "stop", "program": 1, "process": process}),
    ];
    fs::create_dir_all(dir).unwrap();
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    fs::write(dir.join("journal.jsonl"), text).unwrap();
}

#[test]
fn a_program_stopped_before_its_exec_continues_when_daemon_and_keeper_die() {
    let world = World::new();
    fs::create_dir(world.runtime_dir()).unwrap();
    fs::set_permissions(world.runtime_dir(), fs::Permissions::from_mode(0o755)).unwrap();
    let listener = UnixListener::bind(world.socket()).unwrap();
    let launcher = world.usher(&["run", "--", "sh", "-c", "exit 7"]).spawn();
    let mut launcher = launcher.unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    let receive = |stream: &std::os::unix::net::UnixStream| {
        let mut call = Vec::new();
        BufReader::new(stream).read_until(0, &mut call).unwrap();
        serde_json::from_slice::<serde_json::Value>(&call[..call.len() - 1]).unwrap()
    };
    let prepare = receive(&stream);
    assert_eq!(prepare["method"], "org.usher.Usher1.Prepare");
    let refusal = json!({"error": "org.usher.Usher1.NotPermitted", "parameters": {"owner": 1}});
    write!(stream, "{refusal}\0").unwrap();
    let call = receive(&stream);
    let program = call["parameters"]["pid"].as_i64().unwrap() as i32;
    signal(program, libc::SIGSTOP);
    let instance = world.runtime_dir().join("instances/1-1");
    journal_of_a_stop(&instance, program);
    let reply = json!({"parameters": {"id": 1, "cpus": "", "instance": instance}});
    write!(stream, "{reply}\0").unwrap();
    drop((stream, listener));
    fs::remove_file(world.socket()).unwrap();
    let ended = wait_for("the launcher to end", || launcher.try_wait().unwrap());
    assert_eq!(ended.code(), Some(7));
}
