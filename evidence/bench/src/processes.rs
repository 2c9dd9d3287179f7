// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starts and ends the processes of the benchmarks: `usher`, and daemons with runtime directories
//! of their own. Also reads the CPU time, memory and state of a process from `/proc`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

/// Pause between two checks of a process.
const CHECK_EVERY: Duration = Duration::from_millis(10);

/// Returns the path of the `usher` to measure: the given path, or `usher` in the directory of this
/// program, or on the path.
pub fn usher_binary(given: Option<&Path>) -> Result<PathBuf> {
    if let Some(path) = given {
        let shown = path.display();
        let found = fs::metadata(path).with_context(|| format!("--usher {shown}"))?;
        let runs = found.is_file() && found.permissions().mode() & 0o111 != 0;
        ensure!(
            runs,
            "--usher {shown}: the path is not an executable program"
        );
        return Ok(path.to_owned());
    }
    let beside = std::env::current_exe()?.with_file_name("usher");
    if beside.is_file() {
        return Ok(beside);
    }
    bail!(
        "the program 'usher' is not in the directory of {}: build it in the same profile, or \
         name it with --usher",
        beside.display()
    )
}

/// Waits for the end of a process, at most for the time `limit`. Returns `None` if the process
/// still runs after that time.
pub fn end_within(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>> {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if begun.elapsed() > limit {
            return Ok(None);
        }
        std::thread::sleep(CHECK_EVERY);
    }
}

/// Returns a command that runs `usher` with a runtime directory, profile store and machine claim of
/// its own. The command may start a daemon, which has the same.
pub fn usher(binary: &Path, runtime: &Path) -> Command {
    let mut command = Command::new(binary);
    command
        .env("USHER_RUNTIME_DIR", runtime)
        .env("USHER_STORE", runtime.join("profiles.sqlite"))
        .env("USHER_CLAIM_NAME", std::process::id().to_string())
        .stdin(Stdio::null());
    command
}

/// Ends the daemons that commands have started in a runtime directory. A keeper ends with its
/// daemon.
pub fn end_daemons(binary: &Path, runtime: &Path) -> Result<()> {
    let all_ended = || {
        let ushers = ushers(binary, runtime);
        let is_daemon = |words: &String| words.contains(" daemon ");
        for (pid, _) in ushers.iter().filter(|(_, words)| is_daemon(words)) {
            terminate(*pid);
        }
        ushers.is_empty()
    };
    wait_for(
        "the end of Usher's processes",
        Duration::from_secs(20),
        all_ended,
    )
    .map(drop)
}

/// A daemon that is stopped when dropped.
pub struct Daemon {
    child: Child,
}

impl Daemon {
    /// Starts a daemon and waits until it answers.
    pub fn start(binary: &Path, runtime: &Path, options: &[&str]) -> Result<Self> {
        // The kernel ends the daemon when the benchmark ends for any reason.
        let mut command = Command::new("setpriv");
        let child = command
            .args(["--pdeathsig", "TERM"])
            .arg(binary)
            .env("USHER_RUNTIME_DIR", runtime)
            // With a machine claim of its own, the daemon gives seats even if a system daemon runs
            // on this machine.
            .env("USHER_CLAIM_NAME", std::process::id().to_string())
            .stdin(Stdio::null())
            .arg("daemon")
            .arg("--store")
            .arg(runtime.join("profiles.sqlite"))
            .args(options)
            .stdout(Stdio::null())
            .stderr(fs::File::create(runtime.join("daemon.log"))?)
            .spawn()
            .context("starting the daemon")?;
        let daemon = Self { child };
        let replies = || {
            usher(binary, runtime)
                .args(["status", "--json"])
                .output()
                .is_ok_and(|o| {
                    serde_json::from_slice::<serde_json::Value>(&o.stdout)
                        .is_ok_and(|v| v.get("policy").is_some())
                })
        };
        wait_for("a reply of the daemon", Duration::from_secs(10), replies)?;
        Ok(daemon)
    }

    /// Process number of the daemon.
    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }
}

/// Sends SIGTERM to a process. A process that has already ended is no error.
pub fn terminate(pid: i32) {
    if let Some(pid) = rustix::process::Pid::from_raw(pid) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        terminate(self.pid());
        let _ = self.child.wait();
    }
}

/// Polls a condition until it is true, at most for the given time.
pub fn wait_for(
    what: &str,
    at_most: Duration,
    mut holds: impl FnMut() -> bool,
) -> Result<Duration> {
    let start = Instant::now();
    while !holds() {
        if start.elapsed() > at_most {
            bail!("timeout: after {at_most:?}, the benchmark still waited for {what}");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(start.elapsed())
}

/// Returns the CPU time in seconds that the threads of a process have used in user and kernel mode.
pub fn cpu_seconds(pid: i32) -> Result<f64> {
    // The first number of `schedstat` is the CPU time in nanoseconds. The file `stat` has only
    // clock ticks.
    let tasks =
        fs::read_dir(format!("/proc/{pid}/task")).with_context(|| format!("process {pid}"))?;
    let mut sum_ns = 0.0;
    for task in tasks {
        let text = fs::read_to_string(task?.path().join("schedstat"))?;
        sum_ns += text
            .split(' ')
            .next()
            .and_then(|n| n.parse::<f64>().ok())
            .unwrap_or(0.0);
    }
    Ok(sum_ns / 1e9)
}

/// Returns the memory of a process in MiB: its private pages and its proportional part of shared
/// pages (PSS).
pub fn memory_mib(pid: i32) -> Result<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))
        .with_context(|| format!("process {pid}"))?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("Pss:"))
        .context("no Pss line")?;
    let kib: f64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib / 1024.0)
}

/// Returns the running processes of `usher` with the runtime directory `runtime`, with their
/// command lines.
pub fn ushers(binary: &Path, runtime: &Path) -> Vec<(i32, String)> {
    let setting = format!("USHER_RUNTIME_DIR={}", runtime.display());
    let is_one = |dir: &Path| {
        let environment = fs::read(dir.join("environ")).unwrap_or_default();
        let mut settings = environment.split(|byte| *byte == 0);
        settings.any(|one| one == setting.as_bytes())
            && fs::read_link(dir.join("exe")).is_ok_and(|exe| exe == binary)
    };
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut found: Vec<(i32, String)> = entries
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            is_one(&entry.path()).then_some(())?;
            let words = fs::read(entry.path().join("cmdline")).ok()?;
            Some((pid, String::from_utf8_lossy(&words).replace('\0', " ")))
        })
        .collect();
    found.sort();
    found
}

/// Returns whether a process exists and is no zombie.
pub fn runs(pid: i32) -> bool {
    state_of(pid).is_some_and(|state| state != 'Z' && state != 'X')
}

/// Returns the state of a process as the letter of `proc_pid_stat(5)`.
pub fn state_of(pid: i32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}
