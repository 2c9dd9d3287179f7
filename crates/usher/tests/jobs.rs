// SPDX-License-Identifier: GPL-2.0-only
//! Tests of programs that a batch system attaches: bounds, groups, jobs, and requests of root for
//! another user.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use common::{Sleeper, World, allowed, connect_as, signal, state, stderr, stdout, wait_for};
use serde_json::{Value, json};

/// The uid of a user without a name and without processes on the machine.
const ALICE: u32 = 61_003;

fn mask(pid: i32) -> String {
    allowed(pid).unwrap()
}

fn call(stream: &UnixStream, parameters: &Value) -> Value {
    call_method(stream, "Attach", parameters)
}

fn send(mut stream: &UnixStream, method: &str, parameters: &Value) {
    let method = format!("org.usher.Usher1.{method}");
    let call = json!({ "method": method, "parameters": parameters });
    stream.write_all(format!("{call}\0").as_bytes()).unwrap();
}

fn call_method(stream: &UnixStream, method: &str, parameters: &Value) -> Value {
    send(stream, method, parameters);
    let mut bytes = Vec::new();
    BufReader::new(stream).read_until(0, &mut bytes).unwrap();
    serde_json::from_slice(bytes.strip_suffix(&[0]).unwrap()).unwrap()
}

/// Returns the argument that a rejected call names, or the name of its error.
fn rejected(reply: &Value) -> String {
    let argument = reply["parameters"]["argument"].as_str();
    let error = reply["error"].as_str().unwrap_or_default();
    argument
        .or(error.rsplit('.').next())
        .unwrap_or_default()
        .to_owned()
}

/// Returns the online CPUs that this test may use.
fn cpus() -> Vec<u32> {
    let all = rustix::thread::sched_getaffinity(None).unwrap();
    (0..rustix::thread::CpuSet::MAX_CPU as u32)
        .filter(|&cpu| all.is_set(cpu as usize))
        .collect()
}

fn attach(world: &World, pid: i32, more: &[&str]) -> Value {
    let pid = pid.to_string();
    world.json(&[&["attach", &pid][..], more].concat()).unwrap()["attached"][0].clone()
}

#[test]
fn processes_of_a_group_are_one_program_with_one_seat() {
    let all = cpus();
    if all.len() < 2 {
        usher_skip::skip!("groups: needs two CPUs");
        return;
    }
    let mut world = World::new();
    world.daemon(&["--policy", "equal"]);
    let (first, second, other) = (Sleeper::start(), Sleeper::start(), Sleeper::start());
    let before = mask(first.pid());
    let job = ["--group", "17.0", "--job", "17.0"];
    let id = attach(&world, first.pid(), &job)["id"].clone();
    assert_eq!(attach(&world, second.pid(), &job)["id"], id);
    attach(&world, other.pid(), &["--job", "18.batch"]);
    let programs = world.programs(2);
    assert_eq!(programs[0]["job"], "17.0");
    assert_eq!(programs[1]["job"], "18.batch");
    // The policy divides the machine into halves.
    wait_for("both tasks to have the seat", || {
        let seat = world.programs(2)[0]["cpus"].as_str().unwrap().to_owned();
        let same = mask(first.pid()) == seat && mask(second.pid()) == seat && seat != before;
        same.then_some(())
    });
    assert!(stdout(&world.run(&["status"])).contains("JOB"));
    let text = stdout(&world.run(&["explain"]));
    assert!(text.contains(", job 17.0)"), "{text}");
    // A pid of either task selects the program.
    let found = world.json(&["status", &second.pid().to_string()]).unwrap();
    assert_eq!(found["programs"][0]["id"], id);
    // The program lives as long as one of its tasks.
    drop(first);
    wait_for("the second task to be the program's process", || {
        let programs = world.programs(2);
        (programs[0]["pid"] == json!(second.pid())).then_some(())
    });
    assert!(world.run(&["detach", &id.to_string()]).status.success());
    wait_for("the mask of the second task", || {
        (mask(second.pid()) == before).then_some(())
    });
    world.programs(1);
}

#[test]
fn the_mask_of_a_second_task_is_restored_after_the_daemon_is_killed() {
    let all = cpus();
    if all.len() < 2 {
        usher_skip::skip!("groups: needs two CPUs");
        return;
    }
    let mut world = World::new();
    let daemon = world.daemon(&["--policy", "equal"]);
    let narrow = all[0].to_string();
    let first = Sleeper::start();
    let set = Command::new("taskset")
        .args(["-pc", &narrow, &first.pid().to_string()])
        .stdout(Stdio::null())
        .status();
    if !set.is_ok_and(|status| status.success()) {
        usher_skip::skip!("groups: needs taskset");
        return;
    }
    let (second, other) = (Sleeper::start(), Sleeper::start());
    let before = mask(second.pid());
    attach(&world, first.pid(), &["--group", "g"]);
    attach(&world, second.pid(), &["--group", "g"]);
    attach(&world, other.pid(), &[]);
    wait_for("the second task to be narrowed", || {
        (mask(second.pid()) != before).then_some(())
    });
    // A thread never gets CPUs outside its own former mask.
    assert_eq!(mask(first.pid()), narrow);
    signal(daemon, libc::SIGKILL);
    world.reap(daemon);
    wait_for("the keeper to restore the mask", || {
        (mask(second.pid()) == before).then_some(())
    });
    assert_eq!(mask(first.pid()), narrow);
}

#[test]
fn seats_stay_within_the_bounds() {
    let all = cpus();
    if all.len() < 2 {
        usher_skip::skip!("bounds: needs two CPUs");
        return;
    }
    let mut world = World::new();
    world.daemon(&["--policy", "equal"]);
    let sleepers = [Sleeper::start(), Sleeper::start()];
    let bound = all[1].to_string();
    for sleeper in &sleepers {
        let cpus = attach(&world, sleeper.pid(), &["--bounds", &bound])["cpus"].clone();
        assert_eq!(cpus, json!(bound));
    }
    wait_for("seats and masks within the bounds", || {
        let programs = world.programs(2);
        let has_seat = programs.iter().all(|one| one["cpus"] == json!(bound));
        let has_mask = sleepers.iter().all(|one| mask(one.pid()) == bound);
        (has_seat && has_mask).then_some(())
    });
}

#[test]
fn invalid_bounds_groups_and_jobs_are_rejected() {
    let mut world = World::new();
    world.daemon(&[]);
    let sleeper = Sleeper::start();
    let pid = sleeper.pid().to_string();
    let long = "a".repeat(129);
    for (option, value, message) in [
        ("--bounds", "65000", "are offline or do not exist"),
        ("--bounds", "0,65000-65001", "CPUs 65000-65001 are offline"),
        ("--bounds", "", "the list of CPUs is empty"),
        ("--bounds", "3-1", "ends below its start"),
        ("--bounds", "x", "is not a CPU number"),
        ("--group", "", "1 to 128"),
        ("--group", "a b", "1 to 128"),
        ("--job", &long, "1 to 128"),
        ("--job", "1\x1b[1m", "1 to 128"),
    ] {
        let output = world.run(&["attach", option, value, &pid]);
        assert_eq!(output.status.code(), Some(125), "{option} {value}");
        assert!(stderr(&output).contains(message), "{}", stderr(&output));
    }
    // The daemon checks calls of other clients, too.
    let stream = UnixStream::connect(world.socket()).unwrap();
    for (name, value) in [
        ("bounds", json!("")),
        ("bounds", json!("65000")),
        ("bounds", json!("0-")),
        ("group", json!("")),
        ("job", json!("a\nb")),
        ("command", json!({ "argv": [] })),
    ] {
        let mut arguments = json!({ "pid": sleeper.pid() });
        arguments[name] = value;
        assert_eq!(rejected(&call(&stream, &arguments)), name, "{arguments}");
    }
    world.programs(0);
}

/// A shell of a user that waits for a line, and then executes `sleep`.
struct HeldTask(Child);

impl HeldTask {
    fn start(uid: u32) -> Self {
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", "read line; exec sleep 600"])
            .current_dir("/");
        let child = command.uid(uid).gid(uid).stdin(Stdio::piped()).spawn();
        Self(child.unwrap())
    }

    fn pid(&self) -> i32 {
        self.0.id() as i32
    }

    fn exec(&mut self) {
        self.0.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }
}

impl Drop for HeldTask {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn root_attaches_a_process_for_its_user_before_its_exec() {
    if !rustix::process::geteuid().is_root() {
        usher_skip::skip!("requests for another user: needs root");
        return;
    }
    let mut world = World::new();
    world.daemon(&[]);
    let mut task = HeldTask::start(ALICE);
    let cgroup = |pid: i32| std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let before = cgroup(task.pid());
    let root = UnixStream::connect(world.socket()).unwrap();
    let alice = connect_as(&world.socket(), ALICE);
    let command = json!({ "argv": ["sleep", "600"], "path": "/usr/bin:/bin" });
    let request = |uid: u32| json!({ "pid": task.pid(), "uid": uid, "command": command });
    // The process must belong to the given user, and a user cannot give another user.
    assert_eq!(rejected(&call(&root, &request(ALICE + 1))), "NotYours");
    assert_eq!(rejected(&call(&root, &request(0))), "NotYours");
    assert_eq!(rejected(&call(&alice, &request(0))), "uid");
    assert_eq!(rejected(&call(&alice, &request(ALICE + 1))), "uid");
    let own = Sleeper::start();
    let foreign = json!({ "pid": own.pid(), "uid": ALICE });
    assert_eq!(rejected(&call(&alice, &foreign)), "NotYours");
    assert_eq!(rejected(&call(&root, &foreign)), "NotYours");
    let reply = call(&root, &request(ALICE));
    assert!(reply["parameters"]["id"].is_number(), "{reply}");
    let program = &world.programs(1)[0];
    assert_eq!(program["name"], "sleep", "the command that is executed");
    assert_eq!(program["uid"], json!(ALICE));
    assert_eq!(
        cgroup(task.pid()),
        before,
        "the process stays in its cgroup"
    );
    task.exec();
    wait_for("the task to execute its program", || {
        let name = std::fs::read_to_string(format!("/proc/{}/comm", task.pid()));
        (name.unwrap().trim() == "sleep").then_some(())
    });
    world.programs(1);
}

#[test]
fn a_detach_with_another_group_or_user_releases_nothing() {
    let mut world = World::new();
    world.daemon(&[]);
    let task = Sleeper::start();
    let id = attach(&world, task.pid(), &["--group", "17.0"])["id"].clone();
    let stream = UnixStream::connect(world.socket()).unwrap();
    let detach = |more: Value| {
        let mut arguments = json!({ "id": id });
        let more = more.as_object().unwrap().clone();
        arguments.as_object_mut().unwrap().extend(more);
        rejected(&call_method(&stream, "Detach", &arguments))
    };
    let own = rustix::process::geteuid().as_raw();
    assert_eq!(detach(json!({ "group": "17.1" })), "NoSuchProgram");
    let other = match own {
        0 => "NotYours",
        _ => "uid",
    };
    assert_eq!(detach(json!({ "group": "17.0", "uid": ALICE })), other);
    assert_eq!(detach(json!({ "uid": -1 })), "uid");
    world.programs(1);
    assert_eq!(detach(json!({ "group": "17.0", "uid": own })), "");
    world.programs(0);
    // A program without a group has no group that could match.
    let id = attach(&world, task.pid(), &[])["id"].clone();
    let arguments = json!({ "id": id, "group": "17.0" });
    let reply = call_method(&stream, "Detach", &arguments);
    assert_eq!(rejected(&reply), "NoSuchProgram");
    world.programs(1);
}

#[test]
fn an_undelivered_reply_to_a_join_does_not_release_the_program() {
    let mut world = World::new();
    let daemon = world.daemon(&[]);
    let (first, second, third) = (Sleeper::start(), Sleeper::start(), Sleeper::start());
    let id = attach(&world, first.pid(), &["--group", "17.0"])["id"].clone();
    // The callers disconnect before the daemon reads their calls.
    signal(daemon, libc::SIGSTOP);
    wait_for("the daemon to stop", || {
        (state(daemon) == Some(b'T')).then_some(())
    });
    for (pid, group) in [(second.pid(), "17.0"), (third.pid(), "18.0")] {
        let stream = UnixStream::connect(world.socket()).unwrap();
        send(&stream, "Attach", &json!({ "pid": pid, "group": group }));
    }
    signal(daemon, libc::SIGCONT);
    let stream = UnixStream::connect(world.socket()).unwrap();
    let program_of = |pid: i32| {
        let reply = call_method(&stream, "Find", &json!({ "pid": pid }));
        reply["parameters"]["id"].clone()
    };
    // The number after that of the third program proves that this program was admitted.
    wait_for("the second task to join", || {
        (program_of(second.pid()) == id).then_some(())
    });
    wait_for("the release of the third program", || {
        let probe = Sleeper::start();
        let number = attach(&world, probe.pid(), &[])["id"].clone();
        let is_admitted = number.as_i64() > id.as_i64().map(|id| id + 1);
        (is_admitted && program_of(third.pid()).is_null()).then_some(())
    });
    assert_eq!(program_of(first.pid()), id);
    assert_eq!(program_of(second.pid()), id);
}

#[test]
fn a_user_does_not_join_a_group_that_root_has_attached() {
    if !rustix::process::geteuid().is_root() {
        usher_skip::skip!("requests for another user: needs root");
        return;
    }
    let mut world = World::new();
    world.daemon(&[]);
    let tasks = [(); 4].map(|()| HeldTask::start(ALICE));
    let root = UnixStream::connect(world.socket()).unwrap();
    let alice = connect_as(&world.socket(), ALICE);
    let attach = |stream: &UnixStream, task: &HeldTask, uid: Option<u32>| {
        let arguments = json!({ "pid": task.pid(), "group": "17.0", "uid": uid });
        let reply = call(stream, &arguments);
        reply["parameters"]["id"].as_i64().unwrap()
    };
    let of_root = attach(&root, &tasks[0], None);
    let of_alice = attach(&alice, &tasks[1], None);
    assert_ne!(of_root, of_alice);
    // Requests with the rights of the same user join.
    assert_eq!(attach(&root, &tasks[2], Some(ALICE)), of_alice);
    assert_eq!(attach(&root, &tasks[3], None), of_root);
    world.programs(2);
}
