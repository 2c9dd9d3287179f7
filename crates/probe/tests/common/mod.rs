// SPDX-License-Identifier: MIT OR Apache-2.0
//! Helpers of the probe's tests: build and run `burn.c`, real processes with a known CPU time, and
//! compare measured with known times.
#![allow(dead_code, reason = "each test uses a part")]

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Builds `burn.c` into a directory, and also the program `poll` with a library that has the name
/// of an MPI library.
pub fn build(dir: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/burn.c");
    let cc = |arguments: &[&str]| {
        let mut cc = Command::new("cc");
        cc.current_dir(dir)
            .args(["-O1", "-Wall", "-Werror", "-pthread"]);
        let built = cc.args(arguments).arg(&source).status();
        assert!(built.expect("a C compiler named cc").success());
    };
    cc(&["-DLIBRARY", "-shared", "-fPIC", "-o", "libmpi_test.so"]);
    cc(&["-o", "burn"]);
    let built = Command::new("cc")
        .current_dir(dir)
        .args(["-O1", "-pthread", "-DPOLL", "-o", "poll"])
        .arg(&source)
        .args(["-L.", "-lmpi_test", "-Wl,-rpath,$ORIGIN"])
        .status();
    assert!(built.unwrap().success());
    dir.join("burn")
}

/// A running `burn`, killed when dropped.
pub struct BurnProcess {
    pub child: Child,
}

impl BurnProcess {
    /// Starts the program in a new session, so that its autogroup separates it from the other
    /// tests. The program waits with all its threads for [`BurnProcess::go`].
    pub fn start(program: &Path, arguments: &[&str]) -> Self {
        let mut command = Command::new(program);
        command.args(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // SAFETY: the closure only calls `setsid`, which is async-signal-safe and therefore allowed
        // between `fork` and `exec`.
        unsafe { command.pre_exec(|| Ok(rustix::process::setsid().map(drop)?)) };
        let mut child = command.spawn().unwrap();
        let mut byte = [0];
        child
            .stdout
            .as_mut()
            .unwrap()
            .read_exact(&mut byte)
            .unwrap();
        Self { child }
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    pub fn go(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"g").unwrap();
    }

    /// Waits for the program's end; returns the CPU time of the program and of all processes that
    /// it waited for, as the kernel accounts it (`wait4`).
    pub fn cpu_time(&mut self) -> Duration {
        wait4(self.pid())
    }
}

impl Drop for BurnProcess {
    fn drop(&mut self) {
        // The process group belongs to the program; the program may have ended already.
        let pid = rustix::process::Pid::from_raw(self.pid()).unwrap();
        let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::KILL);
        let _ = self.child.wait();
    }
}

/// Waits for a child's end and returns its CPU time.
pub fn wait4(pid: i32) -> Duration {
    // SAFETY: rusage consists of plain numbers, for which zero is valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    let mut status = 0;
    // SAFETY: `status` and `usage` are local variables that live through the call of `wait4`.
    let waited = unsafe { libc::wait4(pid, &mut status, 0, &mut usage) };
    assert_eq!(
        (waited, status),
        (pid, 0),
        "{}",
        std::io::Error::last_os_error()
    );
    let time = |t: libc::timeval| {
        Duration::new(t.tv_sec as u64, 0) + Duration::from_micros(t.tv_usec as u64)
    };
    time(usage.ru_utime) + time(usage.ru_stime)
}

/// Polls until `state` returns true.
pub fn until(what: &str, mut state: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !state() {
        assert!(Instant::now() < deadline, "not within a minute: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Returns whether a measured time equals a known time within 5 % and two clock ticks.
pub fn close(measured_ns: f64, known: Duration) -> bool {
    let known_ns = known.as_nanos() as f64;
    (measured_ns - known_ns).abs() <= 0.05 * known_ns + 20e6
}
