// SPDX-License-Identifier: GPL-2.0-only
//! Tests of the daemon from the user's point of view: launching, attaching and detaching programs,
//! requests of other users, killed daemons, records, and thousands of short programs.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::Instant;

use common::{World, allowed, children, signal, stderr, stdout, wait_for};
use proptest::prelude::*;
use serde_json::{Value, json};

/// Returns the CPUs that this process may use, which its programs inherit.
fn everywhere() -> String {
    allowed(std::process::id() as i32).unwrap()
}

fn one_cpu() -> bool {
    let one = std::thread::available_parallelism().unwrap().get() == 1;
    if one {
        usher_skip::skip!("there is one CPU only");
    }
    one
}

/// Starts a launcher of a program that computes until it is killed. If the test fails before the
/// kill, the program uses at most one minute of CPU time.
fn spinner(world: &World) -> (Child, i32) {
    let script = "ulimit -t 60; while :; do :; done";
    let launcher = world
        .usher(&["run", "--", "sh", "-c", script])
        .spawn()
        .unwrap();
    let pid = wait_for("the program to run", || {
        let pid = *children(launcher.id() as i32).first()?;
        let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        line.starts_with(b"sh\0").then_some(pid)
    });
    (launcher, pid)
}

fn end(mut launcher: Child, pid: i32) {
    signal(pid, libc::SIGKILL);
    assert_eq!(launcher.wait().unwrap().code(), Some(128 + libc::SIGKILL));
}

/// Waits until two programs have disjoint seats.
fn have_disjoint_seats(a: i32, b: i32) {
    wait_for("two programs to have disjoint seats", || {
        let (a, b) = (allowed(a)?, allowed(b)?);
        (a != b && a != everywhere() && b != everywhere()).then_some(())
    });
}

fn roam(pids: &[i32]) {
    let free = |pid: &i32| allowed(*pid) == Some(everywhere());
    wait_for("the programs to be released", || {
        pids.iter().all(free).then_some(())
    });
}

#[test]
fn seats_programs_and_releases_them() {
    if one_cpu() {
        return;
    }
    let mut world = World::new();
    let daemon = world.daemon(&["--policy", "equal"]);
    let (first, a) = spinner(&world);
    let (second, b) = spinner(&world);
    have_disjoint_seats(a, b);
    let text = stdout(&world.run(&["status"]));
    assert!(
        text.contains("policy equal") && text.contains(&a.to_string()),
        "{text}"
    );
    assert!(stdout(&world.run(&["explain"])).contains("CPUs"));
    let detached = world.run(&["detach", &a.to_string()]);
    assert!(detached.status.success());
    let actual = stdout(&detached);
    let line = format!(", process {a}) is no longer managed\n");
    assert!(
        actual.starts_with("sh (program ") && actual.ends_with(&line),
        "{actual}"
    );
    roam(&[a]);
    // A process that cannot be attached does not prevent the attach of the next process.
    let again = world.run(&["attach", "4194304", &a.to_string()]);
    assert_eq!(again.status.code(), Some(125));
    assert_eq!(stderr(&again).lines().count(), 1, "{}", stderr(&again));
    assert!(
        stdout(&again).contains(&format!("(process {a})")),
        "{}",
        stdout(&again)
    );
    have_disjoint_seats(a, b);
    assert_eq!(world.end(daemon), Some(0));
    roam(&[a, b]);
    assert!(!world.socket().exists());
    end(first, a);
    end(second, b);
}

#[test]
fn a_program_with_the_whole_machine_has_a_seat() {
    let mut world = World::new();
    world.daemon(&["--policy", "equal"]);
    let (launcher, pid) = spinner(&world);
    wait_for("the only program to be seated everywhere", || {
        let program = &world.status()["programs"][0];
        (program["mode"] == "seated" && program["cpus"] == json!(everywhere())).then_some(())
    });
    assert!(world.run(&["detach", &pid.to_string()]).status.success());
    let attached = stdout(&world.run(&["attach", &pid.to_string()]));
    let seat = format!("has a seat on CPUs {}\n", everywhere());
    assert!(attached.ends_with(&seat), "{attached}");
    end(launcher, pid);
}

#[test]
fn a_killed_daemon_is_restarted_and_its_programs_are_registered_again() {
    if one_cpu() {
        return;
    }
    let mut world = World::new();
    let daemon = world.daemon(&["--policy", "equal"]);
    let (first, a) = spinner(&world);
    let (second, b) = spinner(&world);
    have_disjoint_seats(a, b);
    signal(daemon, libc::SIGKILL);
    world.reap(daemon);
    let status = wait_for("the keeper to start a daemon again", || {
        let status = world.json(&["status"])?;
        (status["programs"].as_array()?.len() == 2).then_some(status)
    });
    assert_ne!(status["pid"], json!(daemon));
    have_disjoint_seats(a, b);
    end(first, a);
    end(second, b);
    world.programs(0);
}

#[test]
fn doctor_explains_how_a_stale_journal_is_undone() {
    let mut world = World::new();
    // No process has such a high pid, so the instance belongs to a dead daemon.
    fs::create_dir_all(world.runtime_dir().join("instances/999999999-1")).unwrap();
    let message = || {
        let text = stdout(&world.run(&["doctor"]));
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let alone = message();
    assert!(
        alone.contains(
            "stale journals 1; the next 'usher run' or 'usher daemon' undoes the changes of \
             these dead daemons"
        ),
        "{alone}"
    );
    fs::remove_dir_all(world.runtime_dir()).unwrap();
    world.daemon(&[]);
    let stale = world.runtime_dir().join("instances/999999999-1");
    fs::create_dir(&stale).unwrap();
    let text = stdout(&world.run(&["doctor"]));
    let served = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        served.contains(
            "stale journals 1; the next 'usher daemon' undoes the changes of these dead daemons"
        ),
        "{served}"
    );
}

#[test]
fn a_killed_keeper_is_replaced() {
    let mut world = World::new();
    world.daemon(&[]);
    let keeper = world.status()["keeper_pid"].as_i64().unwrap();
    signal(keeper as i32, libc::SIGKILL);
    wait_for("another keeper", || {
        let now = world.json(&["status"])?["keeper_pid"].as_i64()?;
        (now != keeper).then_some(())
    });
}

#[test]
fn launchers_undo_what_a_dead_daemon_and_keeper_did() {
    if one_cpu() {
        return;
    }
    let mut world = World::new();
    let daemon = world.daemon(&["--policy", "equal"]);
    let (first, a) = spinner(&world);
    let (second, b) = spinner(&world);
    have_disjoint_seats(a, b);
    world.kill_with_keeper(daemon);
    roam(&[a, b]);
    // The launchers register their programs with a daemon that starts later.
    world.daemon(&["--policy", "equal"]);
    world.programs(2);
    have_disjoint_seats(a, b);
    end(first, a);
    end(second, b);
}

#[test]
fn the_next_start_undoes_all_after_simultaneous_deaths() {
    if one_cpu() {
        return;
    }
    for start_again in ["run", "daemon"] {
        let mut world = World::new();
        let daemon = world.daemon(&["--policy", "equal"]);
        let (mut first, a) = spinner(&world);
        let (mut second, b) = spinner(&world);
        have_disjoint_seats(a, b);
        for launcher in [&mut first, &mut second] {
            signal(launcher.id() as i32, libc::SIGKILL);
            launcher.wait().unwrap();
        }
        world.kill_with_keeper(daemon);
        have_disjoint_seats(a, b);
        if start_again == "run" {
            let output = world.run(&["run", "true"]);
            assert!(output.status.success(), "{}", stderr(&output));
            assert_eq!(stderr(&output), "");
        } else {
            world.daemon(&[]);
            assert!(world.status()["programs"].as_array().unwrap().is_empty());
        }
        roam(&[a, b]);
        signal(a, libc::SIGKILL);
        signal(b, libc::SIGKILL);
    }
}

#[test]
fn rejects_processes_of_other_users_and_of_the_system() {
    let mut world = World::new();
    world.daemon(&[]);
    let attach = |pid: String| {
        let output = world.run(&["attach", &pid]);
        assert_eq!(output.status.code(), Some(125));
        stderr(&output)
    };
    let mut gone = Command::new("true").spawn().unwrap();
    gone.wait().unwrap();
    let pid = gone.id();
    assert_eq!(
        attach(pid.to_string()),
        format!("usher: attaching process {pid}: process {pid} does not exist\n")
    );
    assert!(attach("0".to_owned()).contains("a pid must be a whole number from 1 to 4194304"));
    let mut zombie = Command::new("true").spawn().unwrap();
    let pid = zombie.id();
    wait_for("the process to end", || {
        (!common::lives(pid as i32)).then_some(())
    });
    let message = attach(pid.to_string());
    assert!(
        message.contains(&format!("process {pid} has ended and remains as a zombie")),
        "{message}"
    );
    zombie.wait().unwrap();
    let kthread = fs::read_to_string("/proc/2/comm").is_ok_and(|name| name == "kthreadd\n");
    match kthread {
        true => assert!(attach("2".to_owned()).contains("2 is a kernel thread")),
        false => eprintln!("no kernel threads can be seen here; not tried"),
    }
    assert_eq!(world.status()["programs"], json!([]));
}

/// Returns `usher` as an unprivileged user; `None` if this process cannot switch to it.
fn as_unprivileged(world: &World, args: &[&str]) -> Option<Command> {
    if !rustix::process::geteuid().is_root() {
        usher_skip::skip!("only root can act as another user");
        return None;
    }
    let mut command = world.usher(args);
    command.uid(65534).gid(65534);
    Some(command)
}

#[test]
fn users_manage_only_their_own() {
    let mut world = World::new();
    world.daemon(&[]);
    let mut roots = Command::new("sleep").arg("1000").spawn().unwrap();
    let pid = roots.id().to_string();
    if let Some(mut attach) = as_unprivileged(&world, &["attach", &pid]) {
        let output = attach.output().unwrap();
        assert_eq!(output.status.code(), Some(125));
        assert_eq!(
            stderr(&output),
            format!(
                "usher: attaching process {pid}: process {pid} belongs to user 0; only that user and root may manage it\n"
            )
        );
        assert!(world.run(&["attach", &pid]).status.success());
        let id = world.programs(1)[0]["id"].to_string();
        let mut detach = as_unprivileged(&world, &["detach", &format!("id:{id}")]).unwrap();
        assert_eq!(detach.output().unwrap().status.code(), Some(125));
        assert_eq!(world.programs(1)[0]["pid"].to_string(), pid);
        // A user may attach the user's own processes.
        let mut own = Command::new("sleep")
            .arg("1000")
            .uid(65534)
            .gid(65534)
            .spawn()
            .unwrap();
        let attached = as_unprivileged(&world, &["attach", &own.id().to_string()])
            .unwrap()
            .output()
            .unwrap();
        assert!(attached.status.success(), "{}", stderr(&attached));
        own.kill().unwrap();
        own.wait().unwrap();
    }
    roots.kill().unwrap();
    roots.wait().unwrap();
}

#[test]
fn an_expired_reason_is_not_shown() {
    let mut world = World::new();
    world.daemon(&[]);
    let sleeper = |args: &[&str]| {
        let words = [args, &["--", "sleep", "1000"]].concat();
        world.usher(&words).spawn().unwrap()
    };
    let mut alpha = sleeper(&["run", "--name", "alpha"]);
    let shown = || stdout(&world.run(&["status"]));
    let reason = "'alpha' has no profile, and the measured CPU time does not show progress";
    wait_for("the reason", || shown().contains(reason).then_some(()));
    // The arrival and the end of background work do not change a seat.
    let mut beta = sleeper(&["bg", "--name", "beta"]);
    let pids = world.programs(2);
    let pids = [0, 1].map(|at| pids[at]["pid"].as_i64().unwrap() as i32);
    assert!(shown().contains(reason), "{}", shown());
    assert!(world.run(&["detach", "alpha"]).status.success());
    for text in [shown(), stdout(&world.run(&["explain"]))] {
        assert!(text.contains("beta") && !text.contains("alpha"), "{text}");
    }
    assert!(world.run(&["detach", "beta"]).status.success());
    for pid in pids {
        signal(pid, libc::SIGKILL);
    }
    alpha.wait().unwrap();
    beta.wait().unwrap();
}

#[test]
fn a_program_is_found_by_the_pid_of_any_of_its_processes() {
    let mut world = World::new();
    world.daemon(&[]);
    // The script has the process structure of a service: the first process ends, and its children
    // keep running.
    let script = "exec >/dev/null 2>&1; (sleep 1000 & exec sleep 1001) & exit 0";
    let ended = world.run(&["run", "--name", "served", "--", "sh", "-c", script]);
    assert!(ended.status.success(), "{}", stderr(&ended));
    let program = wait_for("the daemon", || {
        let program = world.json(&["status"])?["programs"][0].clone();
        (program["threads"] == 2).then_some(program)
    });
    let main = program["pid"].as_i64().unwrap() as i32;
    let worker = children(main)[0];
    for pid in [main, worker] {
        let explained = world.run(&["explain", &pid.to_string()]);
        assert!(
            stdout(&explained).contains("served"),
            "{}",
            stderr(&explained)
        );
        let attached = stderr(&world.run(&["attach", &pid.to_string()]));
        let part = format!("already belongs to the managed program {}", program["id"]);
        assert!(attached.contains(&part), "{attached}");
        let remedy = format!("'usher detach id:{}'", program["id"]);
        assert!(attached.contains(&remedy), "{attached}");
    }
    let own = std::process::id().to_string();
    assert_eq!(world.run(&["explain", &own]).status.code(), Some(125));
    assert_eq!(world.run(&["detach", &own]).status.code(), Some(125));
    let detached = world.run(&["detach", &worker.to_string()]);
    assert!(detached.status.success(), "{}", stderr(&detached));
    world.programs(0);
    for pid in [main, worker] {
        signal(pid, libc::SIGKILL);
    }
}

#[test]
fn one_daemon_per_directory_replaces_the_socket_of_a_dead_daemon() {
    let mut world = World::new();
    fs::create_dir(world.runtime_dir()).unwrap();
    drop(std::os::unix::net::UnixListener::bind(world.socket()).unwrap());
    let daemon = world.daemon(&[]);
    let second = world.run(&["daemon"]);
    assert_eq!(second.status.code(), Some(125));
    let line = stderr(&second);
    assert!(
        line.contains(&format!(
            "a daemon already runs in '{}' (process {daemon}); end it with 'usher daemon stop', or \
             name another directory with --runtime-dir",
            world.runtime_dir().display()
        )),
        "{line}"
    );
    assert_eq!(line.lines().count(), 1, "{line}");
    assert_eq!(world.status()["pid"], json!(daemon));
}

#[test]
fn of_two_daemons_on_one_machine_one_seats() {
    let mut first = World::new();
    let mut second = World::new();
    second.share_machine_with(&first);
    let daemon = first.daemon(&[]);
    second.daemon(&[]);
    assert_eq!(first.status()["seating_forbidden"], json!(null));
    let reason = second.status()["seating_forbidden"].clone();
    let reason = reason.as_str().unwrap().to_owned();
    assert!(reason.contains(&format!("process {daemon}")), "{reason}");
    let text = second.run(&["status"]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    let (reason, remedy) = reason.split_once("; ").unwrap();
    let lines = [
        "the daemon assigns no CPUs to programs",
        "reason:",
        "remedy:",
    ];
    for (line, begin) in text.lines().zip(lines) {
        assert!(line.trim_start().starts_with(begin), "{text}");
    }
    assert!(text.contains(reason) && text.contains(remedy), "{text}");
    assert!(!text.contains("assigned by"), "{text}");
    // Another daemon can be ended only by its user.
    assert!(
        remedy.starts_with("wait until that daemon ends"),
        "{remedy}"
    );
    assert_eq!(second.status()["abstention"]["reason"], reason);
    first.end(daemon);
    wait_for("the second daemon to seat", || {
        second.status()["seating_forbidden"].is_null().then_some(())
    });
}

#[test]
fn a_connection_that_fails_is_not_reported_as_a_missing_daemon() {
    let world = World::new();
    let long = world.runtime_dir().join("d".repeat(120));
    fs::create_dir_all(&long).unwrap();
    let output = world.run(&["--runtime-dir", long.to_str().unwrap(), "status"]);
    assert_eq!(output.status.code(), Some(125));
    let text = stderr(&output);
    assert!(text.contains("connecting to the daemon at"), "{text}");
    assert!(!text.contains("no daemon is listening"), "{text}");
}

#[test]
fn rejects_a_directory_that_other_users_can_write_to() {
    use std::os::unix::fs::PermissionsExt;
    let world = World::new();
    fs::create_dir(world.runtime_dir()).unwrap();
    fs::set_permissions(world.runtime_dir(), fs::Permissions::from_mode(0o777)).unwrap();
    let output = world.run(&["daemon"]);
    assert_eq!(output.status.code(), Some(125));
    assert!(
        stderr(&output).contains("other users may write"),
        "{}",
        stderr(&output)
    );
}

/// Runs `count` short programs, `at_a_time` of them at the same time, and checks that each runs to
/// its end.
fn short_runs(world: &World, count: usize, at_a_time: usize) {
    let next = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..at_a_time {
            scope.spawn(|| {
                loop {
                    let n = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    if n >= count {
                        return;
                    }
                    let script = format!("echo {n}; exit {}", n % 200);
                    let output = world.run(&["run", "--", "sh", "-c", &script]);
                    assert_eq!(stderr(&output), "");
                    assert_eq!(stdout(&output), format!("{n}\n"));
                    assert_eq!(output.status.code(), Some((n % 200) as i32));
                }
            });
        }
    });
}

fn resident_kib(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// `USHER_SHORT_RUNS=10000` runs ten thousand programs.
#[test]
fn no_short_program_is_lost() {
    let mut world = World::new();
    let daemon = world.daemon(&[]);
    let actual = std::env::var("USHER_SHORT_RUNS")
        .ok()
        .and_then(|n| n.parse().ok());
    let (count, at_a_time) = actual.map_or((200, 16), |count| (count, 32));
    short_runs(&world, count / 2, at_a_time);
    let before = resident_kib(daemon);
    let begun = Instant::now();
    short_runs(&world, count / 2, at_a_time);
    let after = resident_kib(daemon);
    eprintln!(
        "{} runs in {:?}, {before} kB before, {after} kB after",
        count / 2,
        begun.elapsed()
    );
    assert!(after < before + 8 * 1024, "{before} kB grew to {after} kB");
    world.programs(0);
}

fn call(socket: &mut UnixStream, method: &str, parameters: Value) -> Value {
    let message = json!({ "method": method, "parameters": parameters }).to_string();
    socket.write_all(format!("{message}\0").as_bytes()).unwrap();
    let mut bytes = Vec::new();
    BufReader::new(socket).read_until(0, &mut bytes).unwrap();
    serde_json::from_slice(bytes.strip_suffix(b"\0").unwrap()).unwrap()
}

#[test]
fn the_interface_describes_itself() {
    let mut world = World::new();
    world.daemon(&[]);
    let mut socket = UnixStream::connect(world.socket()).unwrap();
    let info = call(&mut socket, "org.varlink.service.GetInfo", json!({}));
    let interfaces = info["parameters"]["interfaces"].as_array().unwrap();
    assert!(interfaces.contains(&json!("org.usher.Usher1")), "{info}");
    let wanted = json!({ "interface": "org.usher.Usher1" });
    let answer = call(
        &mut socket,
        "org.varlink.service.GetInterfaceDescription",
        wanted,
    );
    let text = answer["parameters"]["description"].as_str().unwrap();
    assert!(
        text.contains("method Register(") && text.contains("error NotYours"),
        "{text}"
    );
    let bad = call(
        &mut socket,
        "org.usher.Usher1.Repeated",
        json!({ "id": 1, "seconds": -1 }),
    );
    assert_eq!(bad["error"], "org.usher.Usher1.BadArgument");
    let bad = call(&mut socket, "org.usher.Usher1.Detach", json!({ "id": 77 }));
    assert_eq!(bad["error"], "org.usher.Usher1.NoSuchProgram");
    let bad = call(&mut socket, "org.usher.Usher1.Detach", json!({ "id": "x" }));
    assert_eq!(bad["error"], "org.varlink.service.InvalidParameter");
}

/// Generates calls of every method with arguments of every kind.
fn calls() -> impl Strategy<Value = Vec<u8>> {
    let method = prop_oneof![
        Just("Register"),
        Just("Attach"),
        Just("Detach"),
        Just("Repeated"),
        Just("Explain"),
        Just("Status"),
        Just("Nonsense")
    ];
    let value = prop_oneof![
        Just(Value::Null),
        any::<i64>().prop_map(Value::from),
        // The pid is above that of any existing process.
        (4_194_305i64..i64::from(i32::MAX)).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,40}".prop_map(Value::from),
        proptest::collection::vec(".{0,9}", 0..4).prop_map(Value::from),
    ];
    const NAMES: [&str; 9] = [
        "name",
        "argv",
        "cwd",
        "weight",
        "heartbeat",
        "running",
        "id",
        "seconds",
        "program",
    ];
    let parameters = proptest::collection::vec((proptest::sample::select(&NAMES[..]), value), 0..5);
    let pid = 4_194_305i64..i64::from(i32::MAX);
    (method, parameters, pid).prop_map(|(method, parameters, pid)| {
        let mut all: serde_json::Map<String, Value> = parameters
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect();
        all.insert("pid".to_owned(), pid.into());
        let call = json!({ "method": format!("org.usher.Usher1.{method}"), "parameters": all });
        format!("{call}\0").into_bytes()
    })
}

#[test]
fn the_daemon_survives_any_call() {
    let mut world = World::new();
    let daemon = world.daemon(&[]);
    let socket = world.socket();
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(128));
    let messages = proptest::collection::vec(calls(), 1..8);
    let result = runner.run(&messages, |messages| {
        let mut peer = UnixStream::connect(&socket).unwrap();
        let mut answers = 0;
        for message in &messages {
            peer.write_all(message).unwrap();
        }
        peer.shutdown(std::net::Shutdown::Write).unwrap();
        let mut reader = BufReader::new(&peer);
        let mut answer = Vec::new();
        while reader.read_until(0, &mut answer).unwrap() > 0 {
            answers += 1;
        }
        prop_assert!(answers <= messages.len());
        Ok(())
    });
    result.unwrap();
    let status = world.status();
    assert_eq!(
        (&status["pid"], &status["programs"]),
        (&json!(daemon), &json!([]))
    );
}

#[test]
fn a_record_replays_to_the_same_decisions() {
    let mut world = World::new();
    let record = world.path("record.jsonl");
    let daemon = world.daemon(&["--record", record.to_str().unwrap()]);
    assert!(world.run(&["run", "--", "true"]).status.success());
    world.programs(0);
    assert_eq!(world.end(daemon), Some(0));
    let replay = || world.run(&["replay", record.to_str().unwrap()]);
    let output = replay();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(
        stdout(&output).contains("decisions; all replayed decisions equal the recorded decisions"),
        "{}",
        stdout(&output)
    );
    // The record ends in the middle of a line, as that of a daemon that was killed while it wrote.
    let text = fs::read_to_string(&record).unwrap();
    fs::write(&record, &text[..text.len() - 9]).unwrap();
    let cut = replay();
    assert_eq!(cut.status.code(), Some(0), "{}", stderr(&cut));
    let message = format!(
        "usher: the last line of '{}' is incomplete and was ignored\n",
        record.display()
    );
    assert_eq!(stderr(&cut), message);
    assert!(
        stdout(&cut).contains("all replayed decisions equal") && stdout(&cut) != stdout(&output)
    );
    // A record with half a line in the middle is damaged.
    let (first, rest) = text.split_once('\n').unwrap();
    fs::write(&record, format!("{first}\n{{\"obs\n{rest}")).unwrap();
    let damaged = replay();
    assert_eq!(damaged.status.code(), Some(125));
    assert!(stderr(&damaged).contains("line 2 of the record is not a valid step"));
}

/// Small limits of a user must not prevent a program from starting.
#[test]
fn programs_start_under_small_limits() {
    let mut world = World::new();
    world.daemon(&[]);
    for limit in ["-f 64", "-f 0", "-s 64", "-n 4", "-n 5", "-n 8", "-n 12"] {
        for command in ["run", "bg"] {
            let script = format!("ulimit {limit}; exec \"$0\" {command} -- sh -c 'echo started'");
            let usher = world.usher(&[]);
            let mut shell = std::process::Command::new("sh");
            shell.args(["-c", &script]).arg(usher.get_program());
            for (name, value) in usher.get_envs() {
                match value {
                    Some(value) => shell.env(name, value),
                    None => shell.env_remove(name),
                };
            }
            let out = shell.output().unwrap();
            let errors = String::from_utf8_lossy(&out.stderr);
            assert!(out.status.success(), "{command}, ulimit {limit}: {errors}");
            assert_eq!(out.stdout, b"started\n", "{command}, ulimit {limit}");
        }
    }
}

/// A launcher could not wait for its program with an ignored SIGCHLD, and could not open its own
/// files with this umask.
#[test]
fn programs_keep_an_ignored_sigchld_and_a_umask_that_restricts_the_owner() {
    let run = |mut command: Command| {
        // SAFETY: both functions may be called between fork and exec.
        unsafe {
            command.pre_exec(|| {
                // A shell that starts the test in the background ignores these signals.
                libc::signal(libc::SIGINT, libc::SIG_DFL);
                libc::signal(libc::SIGQUIT, libc::SIG_DFL);
                libc::signal(libc::SIGCHLD, libc::SIG_IGN);
                libc::umask(0o777);
                Ok(())
            });
        }
        command.output().unwrap()
    };
    let words = ["grep", "-E", "^(Umask|SigIgn):", "/proc/self/status"];
    let mut direct = Command::new(words[0]);
    direct.args(&words[1..]);
    let expected = stdout(&run(direct));
    assert!(expected.contains("0777"), "{expected}");
    let mut world = World::new();
    for with_daemon in [false, true] {
        if with_daemon {
            world.daemon(&[]);
        }
        for command in [&["run", "--"][..], &["run", "--hints", "--"], &["bg", "--"]] {
            let arguments: Vec<&str> = command.iter().chain(&words).copied().collect();
            let output = run(world.usher(&arguments));
            let errors = stderr(&output);
            assert!(output.status.success(), "{command:?}: {errors}");
            assert_eq!(stdout(&output), expected, "{command:?}: {errors}");
        }
    }
    let undo = run(world.usher(&["undo"]));
    assert!(undo.status.success(), "{}", stderr(&undo));
}

#[test]
fn undo_restores_programs_of_a_daemon_that_was_killed_with_its_keeper() {
    let mut world = World::new();
    let daemon = world.daemon(&["--policy", "equal"]);
    let out = world.run(&["undo"]);
    assert!(out.status.success(), "{}", stderr(&out));
    assert!(
        stdout(&out).contains("no changes of dead daemons to undo"),
        "{}",
        stdout(&out)
    );
    let mut programs: Vec<Child> = (0..2)
        .map(|_| Command::new("sleep").arg("600").spawn().unwrap())
        .collect();
    let before = allowed(programs[0].id() as i32);
    for program in &programs {
        let out = world.run(&["attach", &program.id().to_string()]);
        assert!(out.status.success(), "{}", stderr(&out));
    }
    let is_narrowed = |program: &Child| allowed(program.id() as i32) != before;
    let has_two_cpus = before
        .as_ref()
        .is_some_and(|cpus| cpus.contains([',', '-']));
    if has_two_cpus {
        wait_for("a seat", || programs.iter().any(is_narrowed).then_some(()));
    }
    world.kill_with_keeper(daemon);
    let out = world.run(&["undo", "--json"]);
    assert!(out.status.success(), "{}", stderr(&out));
    let report: Value = serde_json::from_str(&stdout(&out)).unwrap();
    assert_eq!(report["programs"], 2, "{report}");
    assert!(!programs.iter().any(is_narrowed));
    for program in &mut programs {
        program.kill().unwrap();
        program.wait().unwrap();
    }
}
