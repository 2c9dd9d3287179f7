// SPDX-License-Identifier: GPL-2.0-only
//! Tests of the SPANK plugin of `integrations/slurm` without Slurm: a small program loads the plugin
//! as slurmstepd does, and calls its functions beside a real daemon and beside sockets that hang,
//! are full, or send no valid reply. In the virtual time of that program, only polls take time.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;

use common::{Sleeper, World, allowed, signal, state, wait_for};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde_json::json;

/// Upper limit of the time of any function of the plugin by default.
const CALL_MS_MAX: u64 = 40;

/// Upper limit of the polls of any function: twenty while the task changes its user, and a few for
/// the call to the daemon.
const POLLS_MAX: u64 = 40;

/// The argument with which the plugin waits for a daemon on a loaded machine.
const LONG_TIMEOUT: &str = "timeout=10000";
const LONG_TIMEOUT_MS: u64 = 10_000;

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integrations/slurm")
}

fn compile(output: &Path, options: &[&str], files: &[&str]) -> bool {
    let files = files.iter().map(|file| sources().join(file));
    let mut command = Command::new("cc");
    command.args(["-O1", "-g", "-Wall", "-Wextra", "-Werror"]);
    command.args(options).arg("-o").arg(output).args(files);
    command.arg("-ldl").status().unwrap().success()
}

/// The plugin and the program that loads it.
struct Built {
    plugin: PathBuf,
    host: PathBuf,
    _dir: tempfile::TempDir,
}

/// Compiles the plugin and its host once; `None` without the headers of Slurm.
fn built() -> Option<&'static Built> {
    static BUILT: OnceLock<Option<Built>> = OnceLock::new();
    let make = || {
        Path::new("/usr/include/slurm/spank.h").exists().then(|| {
            let dir = tempfile::tempdir().unwrap();
            let (plugin, host) = (dir.path().join("spank_usher.so"), dir.path().join("host"));
            let script = sources().join("../../scripts/spank-plugin");
            let compiled = Command::new(script).arg(&plugin).status().unwrap();
            assert!(compiled.success(), "compiling the plugin");
            assert!(compile(&host, &["-rdynamic"], &["tests/host.c"]));
            Built {
                plugin,
                host,
                _dir: dir,
            }
        })
    };
    let built = BUILT.get_or_init(make).as_ref();
    if built.is_none() {
        usher_skip::skip!("the plugin of Slurm: needs slurm/spank.h (libslurm-dev)");
    }
    built
}

/// The answer of the host to a call of the plugin.
#[derive(Debug)]
struct Called {
    polls: u64,
    ms: u64,
    fds: u64,
    log: String,
}

/// The running host.
struct Host {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// Upper limit of the time of any function of the plugin.
    ms_max: u64,
}

impl Host {
    /// Starts the host, and initialises the plugin.
    fn start(built: &Built, context: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new(&built.host);
        command.arg(&built.plugin).arg(context).args(arguments);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.unwrap();
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self {
            child,
            input,
            output,
            ms_max: match arguments.contains(&LONG_TIMEOUT) {
                true => LONG_TIMEOUT_MS,
                false => CALL_MS_MAX,
            },
        }
    }

    /// Starts the host as slurmstepd, with a plugin that is on and uses this socket.
    fn step(built: &Built, socket: &Path) -> Self {
        Self::step_with(built, socket, &["default=auto"])
    }

    /// Does the same with a plugin that also waits for a daemon on a loaded machine.
    fn with_long_timeout(built: &Built, socket: &Path) -> Self {
        Self::step_with(built, socket, &["default=auto", LONG_TIMEOUT])
    }

    fn step_with(built: &Built, socket: &Path, arguments: &[&str]) -> Self {
        let socket = format!("socket={}", socket.display());
        let mut host = Self::start(built, "remote", &[&[&*socket], arguments].concat());
        host.call("init");
        let own = rustix::process::geteuid().as_raw();
        host.send(&format!("uid {own}"));
        host
    }

    fn send(&mut self, line: &str) -> String {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
        let mut answer = String::new();
        self.output.read_line(&mut answer).unwrap();
        assert!(!answer.is_empty(), "the host has ended after '{line}'");
        answer.trim_end().to_owned()
    }

    /// Calls a function of the plugin, which must return 0 after a bounded wait.
    fn call(&mut self, line: &str) -> Called {
        let answer = self.send(line);
        let (fields, log) = answer.split_once(" log=").unwrap();
        let number = |name: &str| {
            let mut fields = fields.split(' ').filter_map(|one| one.split_once('='));
            let (_, value) = fields.find(|(key, _)| *key == name).unwrap();
            value.parse::<i64>().unwrap()
        };
        assert_eq!(number("rc"), 0, "{line}: {answer}");
        let called = Called {
            polls: number("polls").unsigned_abs(),
            ms: number("ms").unsigned_abs(),
            fds: number("fds").unsigned_abs(),
            log: log.to_owned(),
        };
        assert!(called.polls <= POLLS_MAX, "{line}: {answer}");
        assert!(called.ms <= self.ms_max, "{line}: {answer}");
        called
    }

    fn fork(&mut self, task: u32, pid: i32) -> Called {
        self.call(&format!("fork {task} {pid}"))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        drop(self.input.take());
        // A host that crashed was noticed by its last answer.
        let _ = self.child.wait();
    }
}

#[test]
fn the_tasks_of_a_step_are_one_program_until_the_last_has_ended() {
    let Some(built) = built() else {
        return;
    };
    let mut world = World::new();
    world.daemon(&["--policy", "equal"]);
    let mut host = Host::with_long_timeout(built, &world.socket());
    let (first, second, other) = (Sleeper::start(), Sleeper::start(), Sleeper::start());
    let before = allowed(first.pid());
    // A step of another job, so that each has a part of the CPUs.
    let mut neighbour = Host::with_long_timeout(built, &world.socket());
    neighbour.send("job 18 4294967291");
    assert_eq!(neighbour.fork(0, other.pid()).log, "");
    let called = host.fork(0, first.pid());
    assert_eq!(called.log, "", "{called:?}");
    assert_eq!(host.fork(1, second.pid()).log, "");
    let programs = world.programs(2);
    assert_eq!(programs[0]["job"], "18.batch");
    assert_eq!(programs[1]["job"], "17.0");
    assert_eq!(programs[1]["name"], "sleep", "the command of the task");
    let cpus = std::thread::available_parallelism().unwrap().get();
    wait_for("both tasks to have the seat", || {
        let seat = world.programs(2)[1]["cpus"].as_str().unwrap().to_owned();
        let has_seat = |task: &Sleeper| allowed(task.pid()).as_ref() == Some(&seat);
        let is_narrowed = before.as_ref() != Some(&seat) && has_seat(&first) && has_seat(&second);
        (is_narrowed || cpus < 2).then_some(())
    });
    host.call("exit 0");
    world.programs(2);
    host.call("exit 1");
    world.programs(1);
    wait_for("the former mask", || {
        (allowed(second.pid()) == before).then_some(())
    });
    // The end of a step without the ends of its tasks detaches the program, too.
    neighbour.call("end");
    world.programs(0);
}

#[test]
fn the_end_of_a_step_releases_no_program_of_a_later_daemon() {
    let Some(built) = built() else {
        return;
    };
    let mut world = World::new();
    let daemon = world.daemon(&[]);
    let (task, other) = (Sleeper::start(), Sleeper::start());
    let mut host = Host::with_long_timeout(built, &world.socket());
    assert_eq!(host.fork(0, task.pid()).log, "");
    let id = world.programs(1)[0]["id"].clone();
    signal(daemon, libc::SIGKILL);
    world.reap(daemon);
    wait_for("the daemon that the keeper starts", || {
        let status = world.json(&["status"])?;
        (status["pid"] != json!(daemon)).then_some(())
    });
    let mut neighbour = Host::with_long_timeout(built, &world.socket());
    neighbour.send("job 18 0");
    assert_eq!(neighbour.fork(0, other.pid()).log, "");
    let programs = world.programs(1);
    assert_eq!(programs[0]["id"], id, "the daemons reuse the numbers");
    host.call("exit 0");
    let programs = world.programs(1);
    assert_eq!(programs[0]["pid"], json!(other.pid()));
    neighbour.call("exit 0");
    world.programs(0);
}

#[test]
fn options_select_the_steps_and_their_class() {
    let Some(built) = built() else {
        return;
    };
    let mut world = World::new();
    world.daemon(&[]);
    let task = Sleeper::start();
    let start = |arguments: &[&str]| {
        Host::step_with(
            built,
            &world.socket(),
            &[arguments, &[LONG_TIMEOUT]].concat(),
        )
    };
    // Off by default, and for the step that only holds the resources of a job.
    let mut host = start(&[]);
    assert_eq!(host.fork(0, task.pid()).polls, 0);
    let mut host = start(&["default=auto"]);
    host.call("option usher off");
    assert_eq!(host.fork(0, task.pid()).polls, 0);
    let mut host = start(&["default=auto"]);
    host.send("job 17 4294967292");
    assert_eq!(host.fork(0, task.pid()).polls, 0);
    world.programs(0);
    let mut host = start(&[]);
    host.call("option usher auto");
    host.call("option usher-class background");
    host.send("job 21 0");
    host.send("array 19 3");
    assert_eq!(host.fork(0, task.pid()).log, "");
    let program = &world.programs(1)[0];
    assert_eq!(program["job"], "19_3.0");
    assert_eq!(program["mode"], "background");
    host.call("end");
    world.programs(0);
}

#[test]
fn unknown_values_are_one_line_in_the_log_of_the_node() {
    let Some(built) = built() else {
        return;
    };
    let mut host = Host::start(built, "remote", &["default=auto", "colour=red"]);
    assert_eq!(host.call("init").log.matches(';').count(), 1);
    for option in ["usher maybe", "usher-class fast"] {
        let log = host.call(&format!("option {option}")).log;
        assert!(log.contains("is unknown and ignored") && log.matches(';').count() == 1);
    }
    // On a login node, nothing is printed and nothing is called.
    for context in ["local", "allocator"] {
        let mut host = Host::start(built, context, &["default=auto", "colour=red"]);
        assert_eq!(host.call("init").log, "");
        assert_eq!(host.call("option usher maybe").log, "");
        let called = host.fork(0, 1);
        assert_eq!((called.polls, called.log.as_str()), (0, ""));
        host.call("exit 0");
        host.call("end");
    }
    let mut host = Host::start(built, "slurmd", &["default=auto", "colour=red"]);
    assert_eq!(host.call("init").log, "");
    assert_eq!(host.send("option usher auto"), "no option usher");
}

#[test]
fn tasks_run_without_a_daemon_and_beside_one_that_hangs() {
    let Some(built) = built() else {
        return;
    };
    let mut world = World::new();
    let task = Sleeper::start();
    let mut host = Host::step(built, &world.socket());
    let log = host.fork(0, task.pid()).log;
    assert!(log.contains("no daemon listens"), "{log}");
    // The other tasks of the step do not try again.
    let again = host.fork(1, task.pid());
    assert_eq!((again.polls, again.log.as_str()), (0, ""));

    let daemon = world.daemon(&[]);
    signal(daemon, libc::SIGSTOP);
    wait_for("the daemon to stop", || {
        (state(daemon) == Some(b'T')).then_some(())
    });
    let mut host = Host::step(built, &world.socket());
    host.send("virtual");
    let late = host.fork(0, task.pid());
    assert!(late.log.contains("did not reply in time"), "{late:?}");
    assert_eq!(host.fork(1, task.pid()).polls, 0);
    let called = host.call("exit 0");
    assert_eq!((called.polls, called.ms), (0, 0));
    host.call("end");
    // The daemon releases the program whose reply nothing received.
    signal(daemon, libc::SIGCONT);
    let _host = wait_for("the task to be attached by another step", || {
        let mut host = Host::with_long_timeout(built, &world.socket());
        // Of another group, because the program of the first is about to be released.
        host.send("job 19 0");
        host.fork(0, task.pid()).log.is_empty().then_some(host)
    });
    world.programs(1);
    // The daemon hangs at the end of the task.
    let second = Sleeper::start();
    let mut host = Host::with_long_timeout(built, &world.socket());
    host.send("job 18 0");
    assert_eq!(host.fork(0, second.pid()).log, "");
    signal(daemon, libc::SIGSTOP);
    wait_for("the daemon to stop", || {
        (state(daemon) == Some(b'T')).then_some(())
    });
    host.send("virtual");
    let late = host.call("exit 0");
    assert!(late.ms > 0 && late.log.is_empty(), "{late:?}");
    host.call("end");
    signal(daemon, libc::SIGCONT);
}

#[test]
fn a_full_socket_does_not_delay_a_task() {
    let Some(built) = built() else {
        return;
    };
    let world = World::new();
    let path = world.path("full");
    let socket = || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap()
    };
    let address = SocketAddrUnix::new(&path).unwrap();
    let listener = socket();
    rustix::net::bind(&listener, &address).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let mut waiting = Vec::new();
    loop {
        let one = socket();
        match rustix::net::connect(&one, &address) {
            Ok(()) => waiting.push(one),
            Err(error) => break assert_eq!(error, rustix::io::Errno::AGAIN),
        }
    }
    let task = Sleeper::start();
    let mut host = Host::step(built, &path);
    host.send("virtual");
    let called = host.fork(0, task.pid());
    assert!(called.log.contains("socket is full"), "{called:?}");
}

/// A socket whose peer reads a call and sends these bytes, or closes the connection at once.
fn replying(path: &Path, bytes: Option<&'static [u8]>) -> std::thread::JoinHandle<()> {
    let listener = UnixListener::bind(path).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        if let Some(bytes) = bytes {
            read_call(&mut stream);
            // The plugin may close the connection before it has read all.
            let _ = stream.write_all(bytes);
        }
    })
}

fn read_call(stream: &mut UnixStream) {
    let mut byte = [1];
    while byte[0] != 0 {
        stream.read_exact(&mut byte).unwrap();
    }
}

#[test]
fn replies_that_are_not_valid_do_not_stop_a_task() {
    static LONG: [u8; 100_000] = [b' '; 100_000];
    let Some(built) = built() else {
        return;
    };
    let world = World::new();
    let task = Sleeper::start();
    let cases: [(Option<&'static [u8]>, &str); 9] = [
        (None, "no valid reply"),
        (Some(b""), "no valid reply"),
        (Some(b"{\"parameters\":{\"id\""), "no valid reply"),
        (Some(b"hello\0"), "no valid reply"),
        (Some(b"\0"), "no valid reply"),
        (Some(&LONG), "no valid reply"),
        (Some(b"{}\0"), "the reply has no id"),
        (
            Some(b"{\"error\":\"org.usher.Usher1.Later\",\"parameters\":{\"x\":[1]}}\0"),
            "Later",
        ),
        (
            Some(b"{\"error\":\"a.BadArgument\",\"parameters\":{\"reason\":\"\x1b[1mred\"}}\0"),
            "BadArgument: ?[1mred",
        ),
    ];
    for (number, (bytes, message)) in cases.into_iter().enumerate() {
        let path = world.path(&format!("socket{number}"));
        let peer = replying(&path, bytes);
        let mut host = Host::with_long_timeout(built, &path);
        let before = host.call("exit 0").fds;
        let called = host.fork(0, task.pid());
        assert!(called.log.contains(message), "{number}: {called:?}");
        assert_eq!(called.fds, before, "{number}: the connection is closed");
        host.call("exit 0");
        host.call("end");
        peer.join().unwrap();
    }
}

#[test]
fn a_task_that_does_not_run_as_the_user_of_the_job_is_not_attached() {
    let Some(built) = built() else {
        return;
    };
    let mut world = World::new();
    world.daemon(&[]);
    let task = Sleeper::start();
    let mut host = Host::step(built, &world.socket());
    host.send("uid 61004");
    host.send("virtual");
    // The wait ends in time, although each poll takes longer than requested.
    host.send("late 7");
    let log = host.fork(0, task.pid()).log;
    assert!(log.contains("does not run as the user"), "{log}");
    // The other tasks of the step do not try again.
    let own = rustix::process::geteuid().as_raw();
    host.send(&format!("uid {own}"));
    let again = host.fork(1, task.pid());
    assert_eq!((again.polls, again.log.as_str()), (0, ""));
    // Tasks with unusual numbers and processes that have ended are not attached either.
    let mut host = Host::step(built, &world.socket());
    host.send("virtual");
    for number in [65_536, 2_000_000_000] {
        assert_eq!(host.fork(number, task.pid()).polls, 0);
        host.call(&format!("exit {number}"));
    }
    host.call("fork 0 -1");
    let mut ended = Sleeper::start();
    let pid = ended.pid();
    signal(pid, libc::SIGKILL);
    ended.wait();
    host.fork(3, pid);
    world.programs(0);
}

#[test]
fn long_and_odd_command_lines_are_attached() {
    let Some(built) = built() else {
        return;
    };
    let mut world = World::new();
    world.daemon(&[]);
    let task = Sleeper::start();
    let long = "x".repeat(30_000);
    for words in [
        "",
        "sleep \\\"{}[] \u{e4}\u{20ac}",
        &long,
        &"a ".repeat(280),
    ] {
        let mut host = Host::with_long_timeout(built, &world.socket());
        host.send(&format!("argv {words}"));
        let called = host.fork(0, task.pid());
        assert_eq!(called.log, "", "{words:.40}");
        assert_eq!(world.programs(1)[0]["pid"], json!(task.pid()));
        host.call("exit 0");
        world.programs(0);
    }
}

#[test]
fn random_replies_are_read_without_errors_of_memory() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("fuzz");
    let sanitized = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    if !compile(
        &program,
        &sanitized,
        &["tests/fuzz_reply.c", "usher_json.c"],
    ) {
        usher_skip::skip!("random replies: the compiler has no address sanitizer");
        return;
    }
    let status = Command::new(&program).arg("100000").status().unwrap();
    assert!(status.success(), "{status}");
}
