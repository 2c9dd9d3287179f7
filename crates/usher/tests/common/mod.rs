// SPDX-License-Identifier: GPL-2.0-only
//! A private runtime directory and store for one test, with a daemon in it: starting, killing and
//! querying the daemon, other users and PID namespaces, and polling with a deadline of 60 s.
#![allow(dead_code, reason = "each test program uses its part")]

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::Value;

/// Upper limit of any wait on a loaded machine.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Polling interval.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Directories of one test. When the value is dropped, a daemon that still uses them is ended.
pub struct World {
    dir: tempfile::TempDir,
    daemons: Vec<Child>,
    /// Whether the daemon is in another PID namespace.
    counts_otherwise: bool,
    shared_claim: Option<String>,
}

impl World {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        // The directory is opened for all users, because all users must be able to reach the
        // socket.
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        Self {
            dir,
            daemons: Vec::new(),
            counts_otherwise: false,
            shared_claim: None,
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn runtime_dir(&self) -> PathBuf {
        self.path("run")
    }

    /// Returns the claim name of this test, by which only daemons of this test compete for the
    /// machine.
    pub fn claim_name(&self) -> String {
        let own = || {
            let name = self.dir.path().file_name().unwrap();
            name.to_string_lossy().into_owned()
        };
        self.shared_claim.clone().unwrap_or_else(own)
    }

    /// Gives this test the claim name of another test, so that daemons of both tests compete for
    /// the machine.
    pub fn share_machine_with(&mut self, other: &Self) {
        self.shared_claim = Some(other.claim_name());
    }

    pub fn socket(&self) -> PathBuf {
        self.runtime_dir().join("usher.varlink")
    }

    /// Returns `usher` with this test's directories.
    pub fn usher(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_usher"));
        command
            .args(args)
            .env("USHER_RUNTIME_DIR", self.runtime_dir())
            .env("USHER_STORE", self.path("profiles.db"))
            // Daemons of other tests plan this machine at the same time, so each test has a claim
            // name of its own.
            .env("USHER_CLAIM_NAME", self.claim_name())
            .env_remove("NO_COLOR")
            .stdin(Stdio::null());
        // A test that a shell starts in the background ignores these signals.
        let default = || {
            for signal in [libc::SIGINT, libc::SIGQUIT] {
                // SAFETY: `signal` may be called between fork and exec, and SIG_DFL is no function.
                unsafe { libc::signal(signal, libc::SIG_DFL) };
            }
            Ok(())
        };
        // SAFETY: the closure calls only `signal`, which is safe between fork and exec.
        unsafe { command.pre_exec(default) };
        command
    }

    /// Runs `usher` to its end.
    pub fn run(&self, args: &[&str]) -> Output {
        self.usher(args).output().unwrap()
    }

    /// Returns the JSON answer of `usher ARGS --json`; `None` if the command fails.
    pub fn json(&self, args: &[&str]) -> Option<Value> {
        let output = self.usher(args).arg("--json").output().unwrap();
        let ok = output.status.success();
        ok.then(|| serde_json::from_slice(&output.stdout).unwrap())
    }

    /// Starts a daemon and waits until it answers. Returns its pid.
    pub fn daemon(&mut self, args: &[&str]) -> i32 {
        let mut words = vec!["daemon"];
        words.extend(args);
        let mut command = self.usher(&words);
        self.start_daemon(&mut command)
    }

    /// As [`Self::daemon`], but starts the daemon by a given command.
    pub fn daemon_by(&mut self, command: &mut Command) -> i32 {
        self.give_environment(command);
        self.start_daemon(command)
    }

    /// As [`Self::daemon`], in another PID namespace. The daemon ends when the returned value is
    /// dropped.
    pub fn daemon_in_namespace(&mut self) -> Killed {
        self.counts_otherwise = true;
        let usher = env!("CARGO_BIN_EXE_usher");
        let mut command = Command::new("unshare");
        command.args(["-pf", "--kill-child", "--mount-proc", usher, "daemon"]);
        self.give_environment(&mut command);
        let killed = Killed(command.stderr(Stdio::null()).spawn().unwrap());
        self.status();
        killed
    }

    fn give_environment(&self, command: &mut Command) {
        let like = self.usher(&[]);
        for (name, value) in like.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.stdin(Stdio::null());
    }

    fn start_daemon(&mut self, command: &mut Command) -> i32 {
        let child = command.stderr(Stdio::piped()).spawn().unwrap();
        let pid = child.id() as i32;
        self.daemons.push(child);
        wait_for("the daemon to answer", || {
            Some(self.json(&["status"])?["pid"].as_i64()? as i32)
        });
        pid
    }

    pub fn status(&self) -> Value {
        wait_for("the daemon's status", || self.json(&["status"]))
    }

    /// Waits until `count` programs are managed.
    pub fn programs(&self, count: usize) -> Vec<Value> {
        wait_for(&format!("{count} managed programs"), || {
            let status = self.json(&["status"])?;
            let programs = status["programs"].as_array()?.clone();
            (programs.len() == count).then_some(programs)
        })
    }

    /// Ends a daemon that this test started, with SIGTERM. Returns its exit status.
    pub fn end(&mut self, pid: i32) -> Option<i32> {
        let at = self
            .daemons
            .iter()
            .position(|d| d.id() as i32 == pid)
            .unwrap();
        signal(pid, libc::SIGTERM);
        self.daemons.remove(at).wait().unwrap().code()
    }

    /// Kills a daemon that this test started and its keeper at the same time, so that neither can
    /// react to the death of the other process.
    pub fn kill_with_keeper(&mut self, daemon: i32) {
        self.kill_both(daemon);
        self.reap(daemon);
    }

    /// As [`Self::kill_with_keeper`], for a daemon that a command started.
    pub fn kill_both(&self, daemon: i32) {
        let keeper = self.status()["keeper_pid"].as_i64().unwrap() as i32;
        signal(daemon, libc::SIGSTOP);
        wait_for("the daemon to stop", || {
            (state(daemon) == Some(b'T')).then_some(())
        });
        signal(keeper, libc::SIGKILL);
        wait_for("the keeper to die", || (!lives(keeper)).then_some(()));
        signal(daemon, libc::SIGKILL);
        wait_for("the daemon to die", || (!lives(daemon)).then_some(()));
    }

    /// Reaps a daemon that was killed.
    pub fn reap(&mut self, pid: i32) {
        let at = self
            .daemons
            .iter()
            .position(|d| d.id() as i32 == pid)
            .unwrap();
        self.daemons.remove(at).wait().unwrap();
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // The next daemon, which the keeper starts, is no child of this process, so that `wait`
        // cannot be used.
        let output = self.usher(&["status", "--json"]).output();
        let status: Option<Value> = output
            .ok()
            .and_then(|o| serde_json::from_slice(&o.stdout).ok());
        let status = status.filter(|_| !self.counts_otherwise);
        let pid = status.and_then(|status| Some(status["pid"].as_i64()? as i32));
        if let Some(pid) = pid {
            signal(pid, libc::SIGTERM);
        }
        for child in &mut self.daemons {
            signal(child.id() as i32, libc::SIGTERM);
            let _ = child.wait();
        }
        let begun = Instant::now();
        while pid.is_some_and(lives) && begun.elapsed() < DEADLINE {
            std::thread::yield_now();
        }
    }
}

/// Ends the daemon of a runtime directory, which a command of another user may have started.
pub fn end_daemon_in(runtime_dir: &Path) {
    let lock = fs::read_to_string(runtime_dir.join("usher.lock")).unwrap_or_default();
    let Ok(pid) = lock.trim().parse() else {
        return;
    };
    // The pid may belong to another process if the daemon has ended.
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let name = runtime_dir.to_str().unwrap();
    if String::from_utf8_lossy(&line).contains(name) {
        signal(pid, libc::SIGTERM);
        wait_for("the daemon to end", || (!lives(pid)).then_some(()));
    }
}

/// A child process that is killed when this value is dropped.
pub struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the state letter of a process.
pub fn state(pid: i32) -> Option<u8> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(stat.rsplit_once(") ")?.1.as_bytes()[0])
}

/// Returns whether a process exists and is not dead.
pub fn lives(pid: i32) -> bool {
    state(pid).is_some_and(|state| !matches!(state, b'Z' | b'X'))
}

pub fn signal(pid: i32, signal: i32) {
    // SAFETY: `kill` involves no memory. The pid belongs to a child, or to a daemon that this test
    // started.
    unsafe { libc::kill(pid, signal) };
}

/// Returns a connection on which the daemon sees this user as its peer.
pub fn connect_as(socket: &Path, uid: u32) -> UnixStream {
    let connect = || {
        // SAFETY: the raw system call changes the effective user id of this thread alone, which
        // ends after the connection is made, and touches no memory.
        let changed = unsafe { libc::syscall(libc::SYS_setresuid, -1, uid, -1) };
        assert_eq!(changed, 0, "taking the effective uid {uid}");
        UnixStream::connect(socket).unwrap()
    };
    let stream = std::thread::scope(|scope| scope.spawn(connect).join().unwrap());
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream
}

/// Polls until `poll` returns a value.
pub fn wait_for<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + DEADLINE;
    loop {
        if let Some(answer) = poll() {
            return answer;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Mounts a file system of the given size in memory; prints a skip and returns false if mounting is
/// not permitted.
pub fn mount_tmpfs(dir: &Path, size: &str) -> bool {
    let options = format!("size={size},mode=755");
    let words = ["-t", "tmpfs", "-o", &options, "tmpfs"];
    let mounted = Command::new("mount").args(words).arg(dir).output();
    let is_mounted = mounted.is_ok_and(|output| output.status.success());
    if !is_mounted {
        usher_skip::skip!("nothing can be mounted here");
    }
    is_mounted
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Returns the CPUs that a process may run on, as the kernel lists them.
pub fn allowed(pid: i32) -> Option<String> {
    let status = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("status"));
    let status = status.ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    Some(line.trim().to_owned())
}

/// Returns the children of a process.
pub fn children(pid: i32) -> Vec<i32> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let list = fs::read_to_string(path).unwrap_or_default();
    list.split_whitespace()
        .map(|pid| pid.parse().unwrap())
        .collect()
}

/// Returns the exit status and the error line of an `usher` command that must fail.
pub fn refused(args: &[&str]) -> (i32, String) {
    let output = World::new().run(args);
    let line = stderr(&output);
    assert_eq!(line.trim_end().lines().count(), 1, "{line}");
    assert!(output.stdout.is_empty(), "{}", stdout(&output));
    (output.status.code().unwrap(), line.trim_end().to_owned())
}

/// Returns both ends of a new terminal, first the end that a user reads and writes.
pub fn terminal() -> (File, File) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let path = ptsname(&master, Vec::new()).unwrap();
    let mut options = File::options();
    let options = options.read(true).write(true);
    let slave = options.open(path.to_str().unwrap()).unwrap();
    (File::from(master), slave)
}

/// A process that sleeps until it is dropped.
pub struct Sleeper(Child);

impl Sleeper {
    pub fn start() -> Self {
        Self(Command::new("sleep").arg("1000").spawn().unwrap())
    }

    pub fn pid(&self) -> i32 {
        self.0.id() as i32
    }

    /// Waits for the end of the process.
    pub fn wait(&mut self) {
        self.0.wait().unwrap();
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Copies a program to be executed, by a process of its own. If this process copied the program, a
/// child that another thread forks during the copy would inherit the descriptor that is open for
/// writing. The kernel does not execute a file that is open for writing (`ETXTBSY`).
pub fn copy_program(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    let mut copy = Command::new("cp");
    copy.arg("--").arg(from.as_ref()).arg(to.as_ref());
    assert!(copy.status().unwrap().success());
}
