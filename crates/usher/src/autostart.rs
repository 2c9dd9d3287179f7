// SPDX-License-Identifier: GPL-2.0-only
//! Starts the user's daemon for a command that manages programs and finds no daemon.
//!
//! 1. The command uses a daemon that listens: the system's, or else the user's own. A daemon that
//!    listens but cannot be used (of another PID namespace, without permission) is the error.
//! 2. The command takes the lock `launch.lock` in the runtime directory, so that of several commands
//!    at the same moment one starts a daemon. The others connect to this daemon as soon as it
//!    listens.
//! 3. The command starts `usher daemon --exit-when-idle`, whose parent process ends at once: the
//!    daemon is no child of the command, leads a session of its own, and has no stream or
//!    descriptor of the command. [`leave_caller`] lists the attributes that the daemon does not
//!    inherit.
//! 4. The command connects when the daemon listens, and waits until the daemon closes its standard
//!    output, a pipe to the command: the daemon serves then. A daemon that cannot start writes the
//!    reason to the pipe. A daemon that cannot use its profile store writes a warning
//!    ([`STARTER_WARNING`]), which the command prints. Commands that find a running daemon do not
//!    print the warning, so that it is printed once per daemon.
//!
//! Bounds: each of the steps 2, 3 and 4 takes up to 10 s ([`START_TIMEOUT`]), and a call as long as
//! the caller permits. A signal that ends the caller's waits ([`WaitLimits`]) also ends these
//! steps. A daemon that ends before it replies is replaced by another daemon, and one call is sent
//! to up to 3 daemons ([`ATTEMPTS_MAX`]).
//!
//! The daemon inherits the rest: cgroup, namespaces, hard limits (`ulimit -H`), environment, and a
//! raised nice value that the user may not lower again.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, PipeReader, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::client::{Daemon, DaemonError, ENDED_BY_SIGNAL, WaitLimits};
use crate::failure;
use crate::runtime;

/// Upper limit of the wait for another command that starts a daemon, of the time from the start of a
/// daemon until it listens, and of the time from then until it serves.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause between two attempts to connect, or to take the lock.
const PAUSE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 500_000,
};
/// Maximum number of daemons to which one call is sent, if each of them ends before it replies.
const ATTEMPTS_MAX: usize = 3;
/// Upper limit of the bytes of a daemon's reason that are read.
const REASON_BYTES_MAX: u64 = 4096;

/// The name of the lock of the only command that starts a daemon, in the runtime directory.
const LAUNCH_LOCK: &str = "launch.lock";
/// The name of the file with the messages of a daemon that Usher started.
const LOG: &str = "daemon.log";

/// Beginning of a line that a daemon writes to the command that started it, and that is no reason
/// for a failed start.
pub const STARTER_WARNING: &str = "warning: ";

/// Variables that the daemon must not inherit: those of the caller's service manager, of a managed
/// program that calls `usher`, and of a keeper.
const REMOVED_VARIABLES: [&str; 7] = [
    "NOTIFY_SOCKET",
    "LISTEN_FDS",
    "LISTEN_PID",
    "USHER_HEARTBEAT",
    "USHER_RUN",
    "USHER_SHORT_LIFE_COUNT",
    "GLIBC_TUNABLES",
];
/// Beginning of the names of the dynamic linker's variables, which the daemon must not inherit: the
/// caller sets them for its programs (`LD_PRELOAD`, `LD_AUDIT`, `LD_LIBRARY_PATH`).
const LINKER_VARIABLES: &[u8] = b"LD_";

/// A variable that keeps hwloc from loading its plugins, and its value. The plugins search for GPUs
/// and for PCI and XML devices, which Usher does not use, and loading them takes most of the time of
/// a scan of the machine.
const HWLOC_PLUGINS: (&str, &str) = ("HWLOC_PLUGINS_PATH", "/nonexistent");

/// Options of a daemon that a command starts.
#[derive(Debug, Clone, Default)]
pub struct DaemonOptions {
    /// `--store`.
    pub store: Option<PathBuf>,
    /// `--thresholds`.
    pub thresholds: Option<PathBuf>,
    /// `--ignore`.
    pub ignore: Vec<String>,
}

/// A daemon that this process has started.
pub struct DaemonProcess {
    /// The daemon's standard output: a pipe, which the daemon closes when it serves or ends.
    output: PipeReader,
}

/// Makes a call to a daemon, which is started if none listens. If the daemon ends before it replies,
/// the call is made to another daemon.
///
/// # Errors
/// No daemon can be started, or the error of the call.
pub fn call<T>(
    runtime_dir: Option<&Path>,
    options: &DaemonOptions,
    limits: &WaitLimits<'_>,
    mut call: impl FnMut(&mut Daemon) -> anyhow::Result<T>,
) -> anyhow::Result<(Daemon, T)> {
    let mut attempts = 1;
    loop {
        let mut daemon = find_or_start(runtime_dir, options, limits)?;
        match call(&mut daemon) {
            Ok(reply) => return Ok((daemon, reply)),
            Err(error) if DaemonError::is_ending(&error) && attempts < ATTEMPTS_MAX => {
                attempts += 1;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Connects to a daemon, which is started if none listens.
fn find_or_start(
    runtime_dir: Option<&Path>,
    options: &DaemonOptions,
    limits: &WaitLimits<'_>,
) -> anyhow::Result<Daemon> {
    if let Some(daemon) = Daemon::find_with(runtime_dir, limits) {
        return Ok(daemon);
    }
    if let Some(problem) = Daemon::problem_with(runtime_dir, limits) {
        bail!(problem);
    }
    let dir = runtime::own_dir(runtime_dir);
    if let Some(problem) = runtime::journal_problem(&dir) {
        bail!(problem);
    }
    start(&dir, options, limits).context("starting a daemon")
}

fn start(dir: &Path, options: &DaemonOptions, limits: &WaitLimits<'_>) -> anyhow::Result<Daemon> {
    check_user()?;
    let dir = std::path::absolute(dir).with_context(|| format!("finding '{}'", dir.display()))?;
    runtime::check_socket_path(&dir.join(runtime::SOCKET), runtime::SHORTER_DIR)?;
    runtime::make_dir(&dir)?;
    let deadline = Instant::now() + START_TIMEOUT;
    let lock = open_launch_lock(&dir)?;
    while !try_lock(&lock)? {
        if let Some(daemon) = Daemon::find_with(Some(&dir), limits) {
            return Ok(daemon);
        }
        check_end(limits)?;
        if Instant::now() > deadline {
            let path = dir.join(LAUNCH_LOCK);
            bail!(
                "another command has held '{}' for 10 s; try again",
                path.display()
            );
        }
        pause();
    }
    // Another command may have started a daemon just before.
    if let Some(daemon) = Daemon::find_with(Some(&dir), limits) {
        return Ok(daemon);
    }
    let process = DaemonProcess::spawn(&dir, options)?;
    let deadline = Instant::now() + START_TIMEOUT;
    loop {
        // The state of the process is read before the attempt to connect: if another daemon has
        // started to listen, this daemon ends, and the attempt finds the other daemon.
        let has_closed = process.has_closed();
        if let Some(daemon) = Daemon::find_with(Some(&dir), limits) {
            // Other commands can connect from now on.
            drop(lock);
            return match process.reason_with(START_TIMEOUT, limits.end) {
                Some(reason) => bail!(reason),
                None => Ok(daemon),
            };
        }
        if has_closed {
            let reason = process.reason(START_TIMEOUT);
            let log = dir.join(LOG);
            bail!(reason.unwrap_or_else(|| format!(
                "the daemon ended without a reason; its messages are in '{}'",
                log.display()
            )));
        }
        check_end(limits)?;
        if Instant::now() > deadline {
            let log = dir.join(LOG);
            bail!(
                "the daemon does not listen 10 s after its start; its messages are in '{}'",
                log.display()
            );
        }
        process.wait_for_output(PAUSE);
    }
}

/// Ends the wait for a daemon if a signal has requested it.
fn check_end(limits: &WaitLimits<'_>) -> anyhow::Result<()> {
    anyhow::ensure!(!limits.must_end(), ENDED_BY_SIGNAL);
    Ok(())
}

/// Rejects a process with privileges that its caller lacks (setuid, setgid, file capabilities). The
/// caller controls the environment of the process, and must not control the environment of a daemon
/// with these privileges.
fn check_user() -> anyhow::Result<()> {
    let (real, effective) = (rustix::process::getuid(), rustix::process::geteuid());
    anyhow::ensure!(
        real == effective,
        "the process runs with the privileges of user {} for user {} (setuid)",
        effective.as_raw(),
        real.as_raw()
    );
    let (real, effective) = (rustix::process::getgid(), rustix::process::getegid());
    anyhow::ensure!(
        real == effective,
        "the process runs with the privileges of group {} for group {} (setgid)",
        effective.as_raw(),
        real.as_raw()
    );
    // SAFETY: `getauxval` reads a value that the kernel passed to this process.
    let is_privileged = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    anyhow::ensure!(
        !is_privileged,
        "the executable has privileges that its caller lacks (file capabilities)"
    );
    Ok(())
}

/// Opens the lock that lets only one command at a time start a daemon. Dropping the file releases
/// the lock.
///
/// # Errors
/// The file cannot be made, with the remedy.
pub fn open_launch_lock(dir: &Path) -> anyhow::Result<File> {
    let path = dir.join(LAUNCH_LOCK);
    let mut lock = OpenOptions::new();
    lock.write(true).create(true).truncate(false);
    lock.mode(0o600).custom_flags(libc::O_NOFOLLOW);
    lock.open(&path).map_err(|error| {
        let (path, remedy) = (path.display(), runtime::other_dir_remedy());
        anyhow::anyhow!("locking '{path}': {error}; {remedy}")
    })
}

/// Returns whether this process has the lock now.
fn try_lock(lock: &File) -> anyhow::Result<bool> {
    match rustix::fs::flock(lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(false),
        Err(error) => Err(error).context("locking the start of a daemon"),
    }
}

fn pause() {
    let _ = rustix::event::poll(&mut [], Some(&PAUSE));
}

/// Opens the file of the daemon's messages, which replaces the file of an earlier daemon.
fn open_log(dir: &Path) -> anyhow::Result<File> {
    let path = dir.join(LOG);
    let mut log = OpenOptions::new();
    let log = log.write(true).create(true).truncate(true);
    // With O_APPEND, a daemon that empties its log continues at the beginning of the file.
    let log = log
        .mode(0o644)
        .custom_flags(libc::O_NOFOLLOW | libc::O_APPEND);
    log.open(&path).map_err(|error| {
        let (path, remedy) = (path.display(), runtime::other_dir_remedy());
        anyhow::anyhow!("writing '{path}': {error}; {remedy}")
    })
}

impl DaemonProcess {
    /// Starts a daemon that leaves this process's session, directory, files and attributes. The
    /// caller holds the launch lock.
    ///
    /// # Errors
    /// The log cannot be written, or the process cannot be started.
    pub fn spawn(dir: &Path, options: &DaemonOptions) -> anyhow::Result<Self> {
        let log = open_log(dir)?;
        let (output, for_daemon) = io::pipe().context("making a pipe")?;
        let exe = runtime::own_executable()?;
        let mut daemon = Command::new(exe);
        daemon.args(options.arguments(dir)).current_dir("/");
        daemon.env(HWLOC_PLUGINS.0, HWLOC_PLUGINS.1);
        let linker = std::env::vars_os().map(|(name, _)| name);
        let linker = linker.filter(|name| name.as_bytes().starts_with(LINKER_VARIABLES));
        for name in REMOVED_VARIABLES
            .map(OsString::from)
            .into_iter()
            .chain(linker)
        {
            daemon.env_remove(name);
        }
        daemon.stdin(Stdio::null()).stdout(for_daemon).stderr(log);
        // SAFETY: `leave_caller` makes only system calls, and allocates nothing, as is required
        // between `fork` and `exec`.
        unsafe { daemon.pre_exec(leave_caller) };
        let mut parent = daemon.spawn().context("starting the process")?;
        // `daemon` holds the daemon's end of the pipe.
        drop(daemon);
        parent.wait().context("starting the process")?;
        Ok(Self { output })
    }

    /// Returns whether the daemon has closed its standard output, or written to it: it serves, or
    /// has ended or is about to end.
    pub fn has_closed(&self) -> bool {
        self.wait_for_output(Timespec::default())
    }

    fn wait_for_output(&self, time: Timespec) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(self.output.as_fd(), PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&time)).is_ok_and(|ready| ready > 0)
    }

    /// Waits until the daemon serves or has ended, for at most `time`. Prints the daemon's warnings.
    /// Returns why it could not start.
    pub fn reason(self, time: Duration) -> Option<String> {
        self.reason_with(time, None)
    }

    /// Does the same as [`Self::reason`], and also ends the wait when the descriptor `end` becomes
    /// readable.
    fn reason_with(self, time: Duration, end: Option<BorrowedFd<'_>>) -> Option<String> {
        let deadline = Instant::now() + time;
        let mut text = Vec::new();
        let mut output = self.output.take(REASON_BYTES_MAX);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).ok();
            let mut fds = vec![PollFd::new(output.get_ref(), PollFlags::IN)];
            fds.extend(end.map(|end| PollFd::from_borrowed_fd(end, PollFlags::IN)));
            match rustix::event::poll(&mut fds, timeout.as_ref()) {
                Err(Errno::INTR) => continue,
                Ok(_) if !fds[0].revents().is_empty() => {}
                _ => break,
            }
            let mut bytes = [0; 512];
            match output.read(&mut bytes) {
                Ok(0) | Err(_) => break,
                Ok(count) => text.extend_from_slice(&bytes[..count]),
            }
        }
        let text = String::from_utf8_lossy(&text);
        let (warnings, reason) = warnings_and_reason(&text);
        warnings.iter().for_each(|line| failure::print_error(line));
        reason
    }
}

impl DaemonOptions {
    /// Returns the daemon's command line, with absolute paths: the daemon runs in the directory `/`.
    fn arguments(&self, dir: &Path) -> Vec<OsString> {
        let absolute = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
        let mut words: Vec<OsString> = ["daemon", "--exit-when-idle", "--runtime-dir"]
            .map(OsString::from)
            .to_vec();
        words.push(dir.into());
        let variable = || std::env::var_os("USHER_STORE").filter(|path| !path.is_empty());
        let store = self.store.clone().or_else(|| variable().map(PathBuf::from));
        if let Some(store) = store {
            words.extend(["--store".into(), absolute(store).into()]);
        }
        if let Some(thresholds) = &self.thresholds {
            words.extend(["--thresholds".into(), absolute(thresholds.clone()).into()]);
        }
        for name in &self.ignore {
            words.extend(["--ignore".into(), name.into()]);
        }
        words
    }
}

/// Separates the daemon's warnings from the reason for which it could not start.
fn warnings_and_reason(text: &str) -> (Vec<&str>, Option<String>) {
    let warning = |line: &'_ &str| line.starts_with(STARTER_WARNING);
    let (warnings, reason): (Vec<&str>, Vec<&str>) = text.lines().partition(warning);
    let warnings = warnings
        .iter()
        .filter_map(|line| line.strip_prefix(STARTER_WARNING));
    let reason = reason.join("\n").trim().to_owned();
    (warnings.collect(), (!reason.is_empty()).then_some(reason))
}

/// Limits of the caller's shell that the daemon raises to the permitted maximum.
const RAISED_LIMITS: [libc::__rlimit_resource_t; 6] = [
    libc::RLIMIT_AS,
    libc::RLIMIT_CPU,
    libc::RLIMIT_DATA,
    libc::RLIMIT_FSIZE,
    libc::RLIMIT_NOFILE,
    libc::RLIMIT_NPROC,
];
/// Bytes of the affinity mask with all CPUs, more than the kernel supports.
const MASK_BYTES: usize = 1024;
/// Highest number of a signal.
const SIGNAL_MAX: libc::c_int = 64;

/// Makes the daemon independent of the process that starts it, between `fork` and `exec`:
///
/// - a session of its own, and a parent process that ends at once, so that neither a terminal nor
///   the program of a launcher has the daemon as a member or child;
/// - no descriptors except the three streams: the daemon would keep the caller's locks and pipes
///   open, and processes that wait for their end would wait for the daemon's end;
/// - default signal dispositions and umask, no CPU affinity, nice value 0, the normal scheduling
///   policy and the normal class for disks, and the highest permitted limits.
///
/// An attribute that the user may not change keeps its value.
fn leave_caller() -> io::Result<()> {
    // SAFETY: the process has one thread, the copy of the thread that forked it. `_exit` runs no
    // destructors or exit handlers.
    unsafe {
        match libc::fork() {
            0 => {}
            -1 => return Err(io::Error::last_os_error()),
            _ => libc::_exit(0),
        }
    }
    rustix::process::setsid()?;
    let is_root = rustix::process::geteuid().is_root();
    // SAFETY: the calls read the given values and write only `limit`. `close_range` marks
    // descriptors to be closed by `exec`; a kernel without this flag leaves them open.
    unsafe {
        for signal in 1..=SIGNAL_MAX {
            libc::signal(signal, libc::SIG_DFL);
        }
        libc::umask(if is_root { 0o022 } else { 0o077 });
        let all = [0xffu8; MASK_BYTES];
        libc::syscall(libc::SYS_sched_setaffinity, 0, all.len(), all.as_ptr());
        let normal: libc::sched_param = std::mem::zeroed();
        libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const normal);
        libc::setpriority(libc::PRIO_PROCESS, 0, 0);
        // The process itself (1), no class: the class follows the nice value.
        libc::syscall(libc::SYS_ioprio_set, 1, 0, 0);
        for resource in RAISED_LIMITS {
            let mut limit: libc::rlimit = std::mem::zeroed();
            if libc::getrlimit(resource, &raw mut limit) == 0 {
                limit.rlim_cur = limit.rlim_max;
                libc::setrlimit(resource, &raw const limit);
            }
        }
        libc::syscall(
            libc::SYS_close_range,
            3u32,
            u32::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::symlink;

    use super::*;

    impl DaemonProcess {
        /// A daemon that has written this text and ended.
        pub(crate) fn ended(text: &str) -> Self {
            let (output, mut daemon) = io::pipe().unwrap();
            daemon.write_all(text.as_bytes()).unwrap();
            Self { output }
        }
    }

    #[test]
    fn a_daemon_that_cannot_start_passes_its_reason() {
        let process = DaemonProcess::ended("no memory\n");
        assert!(process.has_closed());
        assert_eq!(process.reason(START_TIMEOUT).as_deref(), Some("no memory"));
        assert_eq!(DaemonProcess::ended("").reason(START_TIMEOUT), None);
        let (output, _daemon) = io::pipe().unwrap();
        let starting = DaemonProcess { output };
        assert!(!starting.has_closed());
        assert_eq!(starting.reason(Duration::ZERO), None);
    }

    #[test]
    fn only_one_command_at_a_time_has_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let first = open_launch_lock(dir.path()).unwrap();
        let second = open_launch_lock(dir.path()).unwrap();
        assert!(try_lock(&first).unwrap());
        assert!(!try_lock(&second).unwrap());
        drop(first);
        assert!(try_lock(&second).unwrap());
    }

    #[test]
    fn the_log_replaces_no_file_behind_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("target");
        std::fs::write(&target, "kept").unwrap();
        symlink(&target, dir.path().join(LOG)).unwrap();
        assert!(open_log(dir.path()).is_err());
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "kept");
    }

    #[test]
    fn the_options_of_a_command_become_those_of_its_daemon() {
        let options = DaemonOptions {
            store: Some("/s".into()),
            thresholds: Some("/t".into()),
            ignore: vec!["a".to_owned(), "b".to_owned()],
        };
        let expected = "daemon --exit-when-idle --runtime-dir /run/x --store /s --thresholds /t \
                        --ignore a --ignore b";
        let expected: Vec<&str> = expected.split_whitespace().collect();
        assert_eq!(options.arguments("/run/x".as_ref()), expected);
    }
}
