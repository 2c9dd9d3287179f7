// SPDX-License-Identifier: GPL-2.0-only
//! Tests of `usher wait`, `usher daemon stop` and the words that select programs.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::io::Read;
use std::process::{Child, Stdio};

use common::{Sleeper, World, allowed, lives, signal, stderr, stdout, wait_for};
use serde_json::{Value, json};

/// Starts `usher wait` and returns when its connection to the daemon is open, so that it waits.
fn waiter(world: &World, args: &[&str]) -> Child {
    let mut words = vec!["wait"];
    words.extend(args);
    let mut command = world.usher(&words);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = child.spawn().unwrap();
    // The command opens one pidfd for each program before it begins to wait.
    wait_for("the command to watch a process", || {
        let fds = std::fs::read_dir(format!("/proc/{}/fd", child.id())).ok()?;
        let mut links = fds.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
        links
            .any(|link| link.to_string_lossy().contains("pidfd"))
            .then_some(())
    });
    child
}

/// Returns the exit status, the standard output and the standard error of a command.
fn result(mut child: Child) -> (Option<i32>, String, String) {
    let status = child.wait().unwrap();
    let mut texts = [String::new(), String::new()];
    let [out, err] = &mut texts;
    child.stdout.take().unwrap().read_to_string(out).unwrap();
    child.stderr.take().unwrap().read_to_string(err).unwrap();
    let [out, err] = texts;
    (status.code(), out, err)
}

fn attach(world: &World, sleeper: &Sleeper, name: &str) -> i64 {
    let pid = sleeper.pid().to_string();
    let answer = world.json(&["attach", "--name", name, &pid]).unwrap();
    answer["attached"][0]["id"].as_i64().unwrap()
}

#[test]
fn wait_returns_when_the_selected_programs_have_ended() {
    let mut world = World::new();
    world.daemon(&["--policy", "linux"]);
    let (first, second) = (Sleeper::start(), Sleeper::start());
    let id = attach(&world, &first, "first");
    attach(&world, &second, "second");
    let (one, all) = (waiter(&world, &["first"]), waiter(&world, &[]));
    drop(first);
    let text = format!("first (program {id}) has ended\n");
    assert_eq!(result(one), (Some(0), text, String::new()));
    assert!(lives(all.id() as i32));
    drop(second);
    let (status, text, _) = result(all);
    assert_eq!((status, text.lines().count()), (Some(0), 2), "{text}");
    // Without programs, there is nothing to wait for.
    assert_eq!(world.json(&["wait"]), Some(json!({ "ended": [] })));
    let unknown = world.run(&["wait", "first"]);
    assert_eq!(unknown.status.code(), Some(125));
    assert!(
        stderr(&unknown).contains("no managed program has the name, number or process 'first'"),
        "{}",
        stderr(&unknown)
    );
}

#[test]
fn wait_fails_when_a_program_is_detached_or_the_daemon_ends() {
    let mut world = World::new();
    world.daemon(&["--policy", "linux"]);
    let (first, second) = (Sleeper::start(), Sleeper::start());
    attach(&world, &first, "first");
    attach(&world, &second, "second");
    let detached = waiter(&world, &["first"]);
    assert!(world.run(&["detach", "first"]).status.success());
    let (status, _, error) = result(detached);
    assert_eq!(status, Some(125));
    assert!(error.contains("was detached before its end"), "{error}");
    let left = waiter(&world, &[]);
    assert!(world.run(&["daemon", "stop"]).status.success());
    let (status, _, error) = result(left);
    assert_eq!(status, Some(125));
    assert!(
        error.contains("the daemon ended before the programs") && error.contains("still runs"),
        "{error}"
    );
    assert_eq!(error.lines().count(), 1);
}

#[test]
fn wait_ends_at_sigint_and_returns_without_a_daemon() {
    let mut world = World::new();
    assert_eq!(world.json(&["wait"]), Some(json!({ "ended": [] })));
    assert_eq!(world.run(&["wait", "x"]).status.code(), Some(125));
    world.daemon(&["--policy", "linux"]);
    let sleeper = Sleeper::start();
    attach(&world, &sleeper, "first");
    let mut waits = waiter(&world, &[]);
    signal(waits.id() as i32, libc::SIGINT);
    assert_eq!(waits.wait().unwrap().code(), None);
}

#[test]
fn stop_undoes_all_changes_and_waits_for_the_end() {
    let mut world = World::new();
    let daemon = world.daemon(&["--policy", "equal"]);
    let everywhere = allowed(std::process::id() as i32);
    let sleepers = [Sleeper::start(), Sleeper::start()];
    for sleeper in &sleepers {
        attach(&world, sleeper, "sleep");
    }
    let keeper = world.status()["keeper_pid"].as_i64().unwrap() as i32;
    let stopped = world.json(&["daemon", "stop"]).unwrap();
    assert_eq!(stopped, json!({ "stopped": daemon }));
    assert!(!lives(daemon) && !world.socket().exists());
    for sleeper in &sleepers {
        assert!(lives(sleeper.pid()));
        assert_eq!(allowed(sleeper.pid()), everywhere);
    }
    wait_for("the keeper to end", || (!lives(keeper)).then_some(()));
    let again = world.run(&["daemon", "stop"]);
    assert_eq!(again.status.code(), Some(125));
    assert!(
        stderr(&again).starts_with("usher: no daemon is listening at "),
        "{}",
        stderr(&again)
    );
}

#[test]
fn only_root_and_its_own_user_may_stop_a_daemon() {
    use std::io::{BufRead, BufReader, Write};
    if !rustix::process::geteuid().is_root() {
        usher_skip::skip!("another user's request needs root");
        return;
    }
    let mut world = World::new();
    let daemon = world.daemon(&[]);
    let mut peer = common::connect_as(&world.socket(), 65534);
    let message = json!({ "method": "org.usher.Usher1.Stop", "parameters": {} });
    write!(peer, "{message}\0").unwrap();
    let mut bytes = Vec::new();
    BufReader::new(&peer).read_until(0, &mut bytes).unwrap();
    let reply: Value = serde_json::from_slice(bytes.strip_suffix(b"\0").unwrap()).unwrap();
    assert_eq!(reply["error"], "org.usher.Usher1.NotPermitted");
    assert_eq!(world.status()["pid"], json!(daemon));
}

#[test]
fn all_commands_accept_a_name_a_number_or_a_pid() {
    let mut world = World::new();
    world.daemon(&["--policy", "linux"]);
    let (first, second) = (Sleeper::start(), Sleeper::start());
    let id = attach(&world, &first, "first").to_string();
    attach(&world, &second, "second");
    let pid = first.pid().to_string();
    for word in [
        "first",
        &id,
        &pid,
        &format!("id:{id}"),
        &format!("pid:{pid}"),
    ] {
        let status = world.json(&["status", word]).unwrap();
        let programs = status["programs"].as_array().unwrap();
        assert_eq!(programs.len(), 1, "{word}");
        assert_eq!(programs[0]["name"], "first", "{word}");
        let explained = stdout(&world.run(&["explain", word]));
        assert!(explained.starts_with("first "), "{word}: {explained}");
    }
    let both = world.json(&["detach", &id, &second.pid().to_string()]);
    assert_eq!(both.unwrap()["detached"].as_array().unwrap().len(), 2);
    let refused = world.run(&["attach", "id:1"]);
    assert!(
        stderr(&refused).contains("give a pid"),
        "{}",
        stderr(&refused)
    );
}

#[test]
fn stop_states_how_many_programs_are_released() {
    for (count, expected) in [
        (0, "it managed no program"),
        (1, "the released program keeps running"),
        (2, "the 2 released programs keep running"),
    ] {
        let mut world = World::new();
        let daemon = world.daemon(&["--policy", "linux"]);
        let sleepers: Vec<Sleeper> = (0..count).map(|_| Sleeper::start()).collect();
        for sleeper in &sleepers {
            attach(&world, sleeper, "sleep");
        }
        let text = stdout(&world.run(&["daemon", "stop"]));
        let line = format!("the daemon (process {daemon}) has ended; {expected}\n");
        assert_eq!(text, line);
    }
}
