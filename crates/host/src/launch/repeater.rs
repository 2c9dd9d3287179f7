// SPDX-License-Identifier: MIT OR Apache-2.0
//! The repeater: a process that runs a command repeatedly in the same seat.
//!
//! In the protocol of paper 1, each program is restarted until all programs have completed enough
//! repetitions. If each repetition were a new child of the launcher, Usher would have to seat each
//! repetition again. Therefore the root process of a repeated program is a *repeater*, which is a
//! fork of the launcher and never executes another program itself:
//!
//! 1. A byte from the launcher starts a repetition.
//! 2. The repeater forks a child, which executes the program. The child inherits the repeater's
//!    cgroups and affinity mask, and thereby its seat.
//! 3. The repeater waits for the end of the child and answers with a [`RepeaterReport`] of four
//!    64-bit words.
//!
//! Only one repetition runs at a time. If the launcher's end of the pipe closes for any reason, the
//! repeater kills its child and ends. A repetition has no time limit here; the caller limits its
//! wait (`measured.rs`). Dropping a [`Repeater`] kills the repeater and waits for its end for at
//! most 1 s.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use usher_act::PreparedHome;

use super::child::{self, ChildError, STEP_FORK};
use super::held::{ChildProcess, launch_error, one_at_a_time, pipe};
use super::prepare::PreparedExec;
use super::{Exit, LaunchError, LaunchSpec, OWN_FAILURE};

/// A completed run of the command.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Repetition {
    /// The exit of the command.
    pub exit: Exit,
    /// Time of the request, in nanoseconds of `CLOCK_MONOTONIC`. The run may have started later,
    /// because the program may have been frozen.
    pub begin_ns: u64,
    /// Time of the end of the run, in nanoseconds of `CLOCK_MONOTONIC`.
    pub end_ns: u64,
}

impl Repetition {
    /// Returns the wall-clock seconds from the request to the end of the run.
    pub fn seconds(&self) -> f64 {
        self.end_ns.saturating_sub(self.begin_ns) as f64 * 1e-9
    }
}

/// A command that can be run repeatedly in the same seat. Dropping the value kills the repeater and
/// its child.
#[derive(Debug)]
pub struct Repeater {
    program: OsString,
    process: ChildProcess,
    group: bool,
    requested_ns: u64,
    requests: Option<File>,
    reports: File,
}

/// The repeater's report after a repetition: four native 64-bit words.
#[derive(Debug, Clone, Copy, PartialEq)]
struct RepeaterReport {
    /// The failed step in the upper 32 bits and its errno in the lower 32 bits; 0 if the program
    /// was executed.
    error: u64,
    status: u64,
    end_ns: u64,
    cpu_us: u64,
}

impl RepeaterReport {
    const BYTES: usize = 32;

    fn to_bytes(self) -> [u8; Self::BYTES] {
        let words = [self.error, self.status, self.end_ns, self.cpu_us];
        let mut bytes = [0; Self::BYTES];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(words) {
            chunk.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at * 8..][..8]);
            u64::from_ne_bytes(word)
        };
        Self {
            error: word(0),
            status: word(1),
            end_ns: word(2),
            cpu_us: word(3),
        }
    }
}

/// Forks a repeater for the command. The command is executed only by [`Repeater::start`].
///
/// # Errors
/// The errors of [`super::hold`].
pub fn repeat(spec: &LaunchSpec) -> Result<Repeater, LaunchError> {
    repeat_in(spec, None)
}

/// Does the same as [`repeat`]. If `home` is given, the repeater is created inside the cgroups of
/// its program.
///
/// # Errors
/// The errors of [`super::hold`].
pub fn repeat_in(spec: &LaunchSpec, home: Option<&PreparedHome>) -> Result<Repeater, LaunchError> {
    spec.resolve()?;
    let mut prepared = PreparedExec::new(spec)?;
    let program = prepared.program.clone();
    let failed = |doing, source: io::Error| LaunchError::System {
        program: program.clone(),
        doing,
        source,
    };
    one_at_a_time(|| {
        let (input, requests) = pipe().map_err(|e| failed("making a pipe", e.into()))?;
        let (reports, output) = pipe().map_err(|e| failed("making a pipe", e.into()))?;
        let (input_fd, output_fd) = (input.as_raw_fd(), output.as_raw_fd());
        // SAFETY: `serve` makes only system calls, which are safe between fork and exec.
        let pid =
            unsafe { child::fork(home, |mask| serve(&mut prepared, mask, input_fd, output_fd)) };
        let pid = pid.map_err(|e| failed("forking", e))?;
        Ok(Repeater {
            program: program.clone(),
            process: ChildProcess::new(pid)
                .map_err(|e| failed("opening the pidfd of the repeater", e.into()))?,
            group: spec.new_session,
            requested_ns: 0,
            requests: Some(requests.into()),
            reports: reports.into(),
        })
    })
}

impl Repeater {
    /// Returns the pid of the repeater, which is the root of the program's process tree.
    pub fn pid(&self) -> i32 {
        self.process.pid()
    }

    /// Starts a repetition; only one may be in progress.
    ///
    /// # Errors
    /// The repeater is gone.
    pub fn start(&mut self) -> Result<(), LaunchError> {
        self.requested_ns = now_ns();
        let sent = match &mut self.requests {
            Some(requests) => requests.write_all(b"r"),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        };
        sent.map_err(|source| self.gone(source))
    }

    /// Waits for the report of the current repetition.
    ///
    /// # Errors
    /// The program could not be executed, or the repeater was killed.
    pub fn finish(&mut self) -> Result<Repetition, LaunchError> {
        let mut bytes = [0; RepeaterReport::BYTES];
        if let Err(source) = self.reports.read_exact(&mut bytes) {
            return Err(self.gone(source));
        }
        let report = RepeaterReport::from_bytes(&bytes);
        if report.error != 0 {
            let error = ChildError {
                step: (report.error >> 32) as i32,
                errno: report.error as u32 as i32,
            };
            return Err(launch_error(&self.program, error));
        }
        Ok(Repetition {
            exit: Exit::new(report.status as i32, report.cpu_us as f64 * 1e-6),
            begin_ns: self.requested_ns,
            end_ns: report.end_ns,
        })
    }

    /// Returns a descriptor that is readable when [`Self::finish`] will not block.
    pub fn report_fd(&self) -> BorrowedFd<'_> {
        self.reports.as_fd()
    }

    fn gone(&self, source: io::Error) -> LaunchError {
        LaunchError::System {
            program: self.program.clone(),
            doing: "communicating with the process that repeats the program",
            source,
        }
    }
}

impl Drop for Repeater {
    fn drop(&mut self) {
        if self.group {
            self.process.signal_group(libc::SIGKILL);
        }
        // When its pipe closes, the repeater kills its child. If the repeater is killed before it
        // can do so, the kernel kills the child (PR_SET_PDEATHSIG).
        drop(self.requests.take());
        self.process.kill_and_reap();
    }
}

fn serve(prepared: &mut PreparedExec, mask: &child::Mask, input: RawFd, output: RawFd) -> i32 {
    let stream = |number| prepared.stream(number).unwrap_or(-1);
    child::close_others([input, output, stream(0), stream(1), stream(2)]);
    child::reset_signals(mask);
    // Without a session of its own, the repeater would be killed together with the launcher's
    // process group. Therefore it ends if it cannot make a session.
    if child::enter_session(prepared).is_err() {
        return OWN_FAILURE.into();
    }
    while child::read_bytes::<1>(input).is_some() {
        let report = run_once(prepared, input, prepared.new_session);
        child::write_bytes(output, &report.to_bytes());
    }
    0
}

fn run_once(prepared: &mut PreparedExec, input: RawFd, group: bool) -> RepeaterReport {
    let mut report = RepeaterReport {
        error: 0,
        status: 0,
        end_ns: 0,
        cpu_us: 0,
    };
    let mut ends = [-1; 2];
    // SAFETY: `pipe2` writes both elements of `ends`. The forked child makes only system calls,
    // which are safe between fork and exec.
    let pid = unsafe {
        match libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) {
            0 => child::raw_fork(),
            _ => -1,
        }
    };
    if pid == 0 {
        // SAFETY: `_exit` may be called in a forked child, and runs no exit handler of the parent.
        unsafe { libc::_exit(become_program(prepared, ends[1])) };
    }
    if pid < 0 {
        let errno = io::Error::last_os_error().raw_os_error().unwrap_or(0);
        report.error = (STEP_FORK as u64) << 32 | u64::from(errno as u32);
        return report;
    }
    let mut answer = [0u8; ChildError::BYTES];
    // SAFETY: `read` writes at most the length of `answer`. The descriptors belong to this process.
    let received = unsafe {
        libc::close(ends[1]);
        let n = libc::read(ends[0], answer.as_mut_ptr().cast(), answer.len());
        libc::close(ends[0]);
        n
    };
    if received == ChildError::BYTES as isize {
        let error = ChildError::from_bytes(answer);
        report.error = (error.step as u64) << 32 | u64::from(error.errno as u32);
    }
    await_end(pid, input, group);
    let mut status = 0;
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel writes only to `status` and `usage`. All fields of `usage` are numbers.
    let usage = unsafe {
        libc::wait4(pid, &mut status, 0, usage.as_mut_ptr());
        usage.assume_init()
    };
    report.end_ns = now_ns();
    report.status = status as u32 as u64;
    report.cpu_us = (super::held::cpu_seconds(&usage) * 1e6) as u64;
    report
}

fn become_program(prepared: &mut PreparedExec, output: RawFd) -> i32 {
    // SAFETY: `prctl` takes numbers here and accesses no memory.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let error = match child::set_up(prepared) {
        Ok(()) => {
            child::rewind(prepared);
            child::exec(prepared)
        }
        Err(error) => error,
    };
    child::write_bytes(output, &error.to_bytes());
    OWN_FAILURE.into()
}

/// Waits until the child has ended. If the launcher has gone, kills the child and its process
/// group.
fn await_end(pid: libc::pid_t, input: RawFd, group: bool) {
    // SAFETY: the descriptors and pids belong to this process and its child. The kernel writes only
    // to `fds`.
    unsafe {
        let pidfd = libc::syscall(libc::SYS_pidfd_open, pid, 0) as RawFd;
        let watch = |fd, events| libc::pollfd {
            fd,
            events,
            revents: 0,
        };
        if pidfd < 0 {
            return;
        }
        let mut fds = [watch(pidfd, libc::POLLIN), watch(input, 0)];
        loop {
            libc::poll(fds.as_mut_ptr(), 2, -1);
            if fds[0].revents != 0 {
                break;
            }
            if fds[1].revents & (libc::POLLHUP | libc::POLLERR) != 0 {
                libc::kill(if group { 0 } else { pid }, libc::SIGKILL);
                break;
            }
        }
        libc::close(pidfd);
    }
}

fn now_ns() -> u64 {
    let mut t = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel writes only to `t`, and CLOCK_MONOTONIC always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}
