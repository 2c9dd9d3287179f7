// SPDX-License-Identifier: GPL-2.0-only
//! Tests of attacks of ordinary users on a root daemon and on each other. Each of these attacks
//! succeeded on a former version.

#![allow(clippy::unwrap_used)] // a test that finds otherwise is to fail

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use common::{World, connect_as, wait_for};
use serde_json::{Value, json};

/// Uids of users without a name and without processes or files on the machine.
const ALICE: u32 = 61_001;
const BOB: u32 = 61_002;

/// Returns whether this process can act for other users; otherwise prints a skip.
fn is_root(test: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        usher_skip::skip!("{test}: only root can act as two users");
    }
    root
}

fn send(mut stream: &UnixStream, method: &str, parameters: &Value) -> std::io::Result<()> {
    let call = json!({ "method": format!("org.usher.Usher1.{method}"), "parameters": parameters });
    stream.write_all(format!("{call}\0").as_bytes())
}

fn receive(stream: &UnixStream) -> Value {
    let mut bytes = Vec::new();
    BufReader::new(stream).read_until(0, &mut bytes).unwrap();
    serde_json::from_slice(bytes.strip_suffix(&[0]).unwrap_or(&bytes)).unwrap_or(Value::Null)
}

fn call(stream: &UnixStream, method: &str, parameters: &Value) -> Value {
    // An error is ignored: a daemon that rejects the call may close the connection before all is
    // sent.
    let _ = send(stream, method, parameters);
    receive(stream)
}

/// A process; killed on drop.
struct Process(Child);

impl Process {
    fn of(uid: u32, program: &Path, arguments: &[&str]) -> Self {
        let mut command = Command::new(program);
        let command = command.args(arguments).uid(uid).gid(uid).current_dir("/");
        let child = command.stdin(Stdio::null()).spawn().unwrap();
        Self(child)
    }

    fn sleeping(uid: u32) -> Self {
        Self::of(uid, Path::new("/bin/sleep"), &["600"])
    }

    fn pid(&self) -> i64 {
        self.0.id().into()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn error(reply: &Value) -> &str {
    let name = reply["error"].as_str().unwrap_or_default();
    name.rsplit('.').next().unwrap_or_default()
}

#[test]
fn rejects_another_users_process_before_reading_any_file() {
    if !is_root("ownership") {
        return;
    }
    let mut world = World::new();
    world.daemon(&[]);
    // Hashing a file of this size takes hours.
    let big = world.path("big");
    let file = fs::File::create(&big).unwrap();
    let _ = [15_u64 << 40, 1 << 42]
        .into_iter()
        .any(|size| file.set_len(size).is_ok());
    fs::set_permissions(&big, PermissionsExt::from_mode(0o755)).unwrap();
    let secret = world.path("secret");
    fs::write(&secret, "x").unwrap();
    let alice = connect_as(&world.socket(), ALICE);
    for page in [
        json!(null),
        json!(secret),
        json!("/dev/null"),
        json!("/nowhere"),
    ] {
        let arguments = json!({ "pid": 1, "argv": [big], "heartbeat": page });
        let reply = call(&alice, "Register", &arguments);
        assert_eq!(error(&reply), "NotYours", "{reply}");
    }
    // Hashing the whole executable of the user's own process would take hours.
    let own = Process::sleeping(ALICE);
    let many: Vec<UnixStream> = (0..32)
        .map(|_| connect_as(&world.socket(), ALICE))
        .collect();
    for one in &many {
        send(one, "Register", &json!({ "pid": own.pid(), "argv": [big] })).unwrap();
    }
    let root = UnixStream::connect(world.socket()).unwrap();
    root.set_read_timeout(Some(common::DEADLINE)).unwrap();
    assert!(call(&root, "Ping", &json!({}))["parameters"]["pid"].is_number());
    for one in &many {
        assert!(receive(one).is_object());
    }
}

#[test]
fn a_heartbeat_page_is_opened_with_the_users_rights() {
    if !is_root("heartbeat pages") {
        return;
    }
    let mut world = World::new();
    world.daemon(&[]);
    let own = Process::sleeping(ALICE);
    let hidden = world.path("hidden");
    fs::create_dir(&hidden).unwrap();
    fs::set_permissions(&hidden, PermissionsExt::from_mode(0o700)).unwrap();
    fs::write(hidden.join("there"), "x").unwrap();
    let alice = connect_as(&world.socket(), ALICE);
    let says = |page: &Path| {
        let arguments =
            json!({ "pid": own.pid(), "argv": ["x"], "heartbeat": page, "running": true });
        let reply = call(&alice, "Register", &arguments);
        assert_eq!(error(&reply), "BadArgument", "{reply}");
        let reason = reply["parameters"]["reason"].to_string();
        reason.replace(page.to_str().unwrap(), "PAGE")
    };
    // The answers are equal, so that they do not reveal whether a file exists.
    assert_eq!(says(&hidden.join("there")), says(&hidden.join("not-there")));
    for page in ["/etc/shadow", "/dev/null", "/proc/1/root/etc/shadow", "/"] {
        says(Path::new(page));
    }
}

#[test]
fn root_is_answered_while_users_hold_all_their_connections() {
    if !is_root("connections") {
        return;
    }
    let mut world = World::new();
    world.daemon(&[]);
    let held: Vec<UnixStream> = (0..256)
        .map(|_| connect_as(&world.socket(), ALICE))
        .collect();
    for one in &held {
        assert!(call(one, "Ping", &json!({}))["parameters"].is_object());
    }
    let over = call(&connect_as(&world.socket(), ALICE), "Ping", &json!({}));
    assert_eq!(error(&over), "QuotaExceeded", "{over}");
    assert_eq!(over["parameters"]["quota"], "connections per user");
    let bob = connect_as(&world.socket(), BOB);
    assert!(call(&bob, "Ping", &json!({}))["parameters"].is_object());
    assert!(world.json(&["status"]).is_some());
}

#[test]
fn sizes_and_weights_are_bounded() {
    if !is_root("sizes") {
        return;
    }
    let mut world = World::new();
    world.daemon(&[]);
    let own = Process::sleeping(ALICE);
    let alice = connect_as(&world.socket(), ALICE);
    let long = "B".repeat(200_000);
    let reply = call(
        &alice,
        "Register",
        &json!({ "pid": own.pid(), "argv": [long] }),
    );
    assert_eq!(error(&reply), "BadArgument", "{reply}");
    let other = connect_as(&world.socket(), ALICE);
    let argv = ["B".repeat(300 << 10)];
    let reply = call(
        &other,
        "Register",
        &json!({ "pid": own.pid(), "argv": argv }),
    );
    assert_eq!(error(&reply), "QuotaExceeded", "{reply}");
    assert_eq!(reply["parameters"]["quota"], "bytes of a message");
    for weight in [0.0, -1.0, 1e300, 1e-300] {
        let reply = call(
            &alice,
            "Attach",
            &json!({ "pid": own.pid(), "weight": weight }),
        );
        assert_eq!(error(&reply), "BadArgument", "{weight}: {reply}");
    }
    let long = format!("/x/{}", "B".repeat(50_000));
    let arguments = json!({ "pid": own.pid(), "argv": [long], "running": true });
    let reply = call(&alice, "Register", &arguments);
    assert!(reply["parameters"]["id"].is_number(), "{reply}");
    let status = world.json(&["status"]).unwrap();
    let name = status["programs"][0]["name"].as_str().unwrap();
    assert!(name.len() <= 256, "{} bytes", name.len());
}

#[test]
fn a_setuid_program_does_not_belong_to_its_user() {
    if !is_root("setuid programs") {
        return;
    }
    let mut world = World::new();
    world.daemon(&[]);
    let program = world.path("setuid-sleep");
    common::copy_program("/bin/sleep", &program);
    fs::set_permissions(&program, PermissionsExt::from_mode(0o4755)).unwrap();
    let process = Process::of(ALICE, &program, &["600"]);
    let euid = || {
        let status = fs::read_to_string(format!("/proc/{}/status", process.pid())).ok()?;
        let uids = status
            .lines()
            .find(|line| line.starts_with("Uid:"))?
            .to_owned();
        uids.split_whitespace().nth(2)?.parse::<u32>().ok()
    };
    let comm = format!("/proc/{}/comm", process.pid());
    wait_for("the program to begin", || {
        fs::read_to_string(&comm)
            .ok()?
            .starts_with("setuid")
            .then_some(())
    });
    if euid() != Some(0) {
        usher_skip::skip!("setuid programs: the file system ignores the setuid bit");
        return;
    }
    let alice = connect_as(&world.socket(), ALICE);
    let reply = call(&alice, "Attach", &json!({ "pid": process.pid() }));
    assert_eq!(error(&reply), "NotYours", "{reply}");
}

#[test]
fn no_other_user_can_lock_what_the_daemon_locks() {
    let mut world = World::new();
    world.daemon(&[]);
    let mode = |path: &Path| fs::metadata(path).map(|meta| meta.mode() & 0o077);
    assert_eq!(mode(&world.runtime_dir().join("usher.lock")).unwrap(), 0);
    for suffix in ["", "-wal", "-shm"] {
        let store = world.path(&format!("profiles.db{suffix}"));
        assert_eq!(mode(&store).unwrap_or(0), 0, "{}", store.display());
    }
}

#[test]
fn a_program_is_released_whose_registration_failed_for_its_caller() {
    let mut world = World::new();
    world.daemon(&[]);
    let own = rustix::process::geteuid().as_raw();
    let process = Process::sleeping(own);
    let caller = UnixStream::connect(world.socket()).unwrap();
    // After the shutdown, the caller no longer reads, so that the daemon's write fails.
    caller.shutdown(std::net::Shutdown::Read).unwrap();
    send(&caller, "Attach", &json!({ "pid": process.pid() })).unwrap();
    wait_for("the daemon to notice that the caller has gone", || {
        send(&caller, "Ping", &json!({})).err()
    });
    // After its release the program can be attached again, and gets the second number.
    let caller = UnixStream::connect(world.socket()).unwrap();
    let id = wait_for("the program to be released", || {
        call(&caller, "Attach", &json!({ "pid": process.pid() }))["parameters"]["id"].as_i64()
    });
    assert_eq!(id, 2);
}

#[test]
fn ignores_a_runtime_directory_that_another_user_prepared() {
    if !is_root("prepared directories") {
        return;
    }
    // Case: a user without a session, thus without /run/user/UID and XDG_RUNTIME_DIR.
    let dir = std::path::PathBuf::from(format!("/tmp/usher-{BOB}"));
    let _ = fs::remove_dir_all(&dir);
    let instance = dir.join("instances/1-1");
    fs::create_dir_all(&instance).unwrap();
    let made = Command::new("mkfifo").arg(instance.join("keeper")).status();
    assert!(made.unwrap().success());
    let owned = Command::new("chown")
        .arg("-R")
        .arg(ALICE.to_string())
        .arg(&dir)
        .status();
    assert!(owned.unwrap().success());
    let copy = World::new();
    let usher = copy.path("usher");
    common::copy_program(env!("CARGO_BIN_EXE_usher"), &usher);
    fs::set_permissions(&usher, PermissionsExt::from_mode(0o755)).unwrap();
    let mut command = Command::new(&usher);
    let command = command
        .args(["run", "--", "/bin/echo", "it ran"])
        .uid(BOB)
        .gid(BOB);
    let command = command
        .env_clear()
        .env("HOME", "/nonexistent")
        .current_dir("/");
    let output = command.stdin(Stdio::null()).output().unwrap();
    let _ = fs::remove_dir_all(&dir);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "it ran\n",
        "{error}"
    );
    let system = Path::new("/run/usher/usher.varlink").exists();
    assert!(
        system || error.contains("because another user owns it"),
        "{error}"
    );
}

/// The journal of root's daemon is private to root. A user's launcher therefore cannot undo all
/// changes, but it can thaw its program.
#[test]
fn a_users_launcher_thaws_its_program_after_the_death_of_daemon_and_keeper() {
    if !is_root("a user's launcher") {
        return;
    }
    let mut world = World::new();
    let daemon = world.daemon(&[]);
    // The program is copied, because the build directory may be closed to other users.
    let usher = world.path("usher");
    common::copy_program(env!("CARGO_BIN_EXE_usher"), &usher);
    let command = world.usher(&["bg", "--", "sleep", "600"]);
    let mut launcher = Command::new(&usher);
    launcher.args(command.get_args()).uid(ALICE).gid(ALICE);
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => launcher.env(name, value),
            None => launcher.env_remove(name),
        };
    }
    let launcher = Process(launcher.current_dir("/").spawn().unwrap());
    let program = world.programs(1)[0]["pid"].as_i64().unwrap();
    wait_for("the program to run", || {
        let line = fs::read(format!("/proc/{program}/cmdline")).unwrap_or_default();
        line.starts_with(b"sleep\0").then_some(())
    });
    let cgroups = fs::read_to_string(format!("/proc/{program}/cgroup")).unwrap();
    let own = cgroups.lines().find_map(|line| line.strip_prefix("0::"));
    let mounts = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(Path::new);
    let own = own.filter(|own| own.contains("/usher-"));
    let dirs = own.map(|own| mounts.map(|mount| mount.join(&own[1..])));
    let dir = dirs.into_iter().flatten().find(|dir| dir.exists());
    let Some(dir) = dir else {
        usher_skip::skip!("a user's launcher: programs get no cgroup of their own here");
        return;
    };
    fs::write(dir.join("cgroup.freeze"), "1").unwrap();
    let is_frozen = || {
        let events = fs::read_to_string(dir.join("cgroup.events")).unwrap_or_default();
        events.contains("frozen 1")
    };
    wait_for("the program to freeze", || is_frozen().then_some(()));
    world.kill_with_keeper(daemon);
    wait_for("its launcher to thaw it", || (!is_frozen()).then_some(()));
    common::signal(program as i32, libc::SIGKILL);
    drop(launcher);
}

/// Returns the directory of a prepared program in cgroup v2, if there is one.
fn prepare(caller: &UnixStream) -> Option<std::path::PathBuf> {
    let reply = call(caller, "Prepare", &json!({}));
    assert!(reply["parameters"]["id"].is_i64(), "{reply}");
    Some(reply["parameters"]["cgroup"].as_str()?.into())
}

#[test]
fn a_prepared_cgroup_is_removed_with_its_connection() {
    let world = World::new();
    // This process is no ancestor of a daemon that a command starts. An ancestor is never managed.
    assert!(world.run(&["run", "true"]).status.success());
    let caller = UnixStream::connect(world.socket()).unwrap();
    let (Some(first), Some(second)) = (prepare(&caller), prepare(&caller)) else {
        usher_skip::skip!("a prepared cgroup: programs get no cgroup of their own here");
        return;
    };
    wait_for("the replaced cgroup to be removed", || {
        (!first.exists()).then_some(())
    });
    assert!(second.exists());
    drop(caller);
    wait_for("the cgroup to be removed", || {
        (!second.exists()).then_some(())
    });
}

#[test]
fn another_user_cannot_prepare_a_cgroup() {
    if !rustix::process::geteuid().is_root() {
        usher_skip::skip!("another user's request: only root can act as two users");
        return;
    }
    let mut world = World::new();
    world.daemon(&[]);
    let caller = connect_as(&world.socket(), 61_001);
    let reply = call(&caller, "Prepare", &json!({}));
    assert_eq!(reply["error"], "org.usher.Usher1.NotPermitted", "{reply}");
}
