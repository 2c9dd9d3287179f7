// SPDX-License-Identifier: MIT OR Apache-2.0
//! One process that runs a command again and again.
//!
//! Paper 1's protocol restarts every program until all have run often enough.
//! Were each run a new child of the launcher, each would have to be moved into
//! its seats anew. So the root of a repeated program is a *repeater*: a fork of
//! the launcher that never executes anything itself. Told to, it forks a child
//! that becomes the program, waits for it and reports; what it forks inherits
//! its cgroups and affinity mask, and so its seats, at once.
//!
//! Protocol: a byte from the launcher starts a repetition; the repeater
//! answers with a [`Report`]. When the launcher's end of the pipe closes, for
//! whatever reason, the repeater kills what it runs and ends.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use usher_act::PreparedHome;

use super::child::{self, ChildError, STEP_FORK};
use super::held::{Running, launch_error, one_at_a_time, pipe};
use super::prepare::Prepared;
use super::{Exit, LaunchError, LaunchSpec, OWN_FAILURE};

/// One completed run of the command.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Repetition {
    /// How it ended.
    pub exit: Exit,
    /// When it was ordered, in nanoseconds of `CLOCK_MONOTONIC`: it may have had
    /// to wait for its turn.
    pub begin_ns: u64,
    /// When it had ended, in nanoseconds of `CLOCK_MONOTONIC`.
    pub end_ns: u64,
}

impl Repetition {
    /// Wall-clock seconds from order to end.
    pub fn seconds(&self) -> f64 {
        self.end_ns.saturating_sub(self.begin_ns) as f64 * 1e-9
    }
}

/// A command that can be run again and again within the same seats. Dropped,
/// it and what it runs are killed.
#[derive(Debug)]
pub struct Repeater {
    program: OsString,
    process: Running,
    group: bool,
    ordered_ns: u64,
    orders: Option<File>,
    reports: File,
}

/// What the repeater writes after a repetition, as four native 64-bit words.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Report {
    /// Step in the high, errno in the low half; 0 where the program was executed.
    error: u64,
    status: u64,
    end_ns: u64,
    cpu_us: u64,
}

impl Report {
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

/// Forks a repeater for the command; nothing is executed yet.
///
/// # Errors
/// As [`super::hold`].
pub fn repeat(spec: &LaunchSpec) -> Result<Repeater, LaunchError> {
    repeat_in(spec, None)
}

/// The same; with a home, it is born inside that program's cgroups.
///
/// # Errors
/// As [`super::hold`].
pub fn repeat_in(spec: &LaunchSpec, home: Option<&PreparedHome>) -> Result<Repeater, LaunchError> {
    spec.resolve()?;
    let mut prepared = Prepared::new(spec)?;
    let program = prepared.program.clone();
    let failed = |doing, source: io::Error| LaunchError::System {
        program: program.clone(),
        doing,
        source,
    };
    one_at_a_time(|| {
        let (hear, orders) = pipe().map_err(|e| failed("making a pipe", e.into()))?;
        let (reports, tell) = pipe().map_err(|e| failed("making a pipe", e.into()))?;
        let (hear_fd, tell_fd) = (hear.as_raw_fd(), tell.as_raw_fd());
        // SAFETY: `serve` makes plain system calls only.
        let pid = unsafe { child::fork(home, |mask| serve(&mut prepared, mask, hear_fd, tell_fd)) };
        let pid = pid.map_err(|e| failed("forking", e))?;
        Ok(Repeater {
            program: program.clone(),
            process: Running::new(pid).map_err(|e| failed("opening its pidfd", e.into()))?,
            group: spec.new_session,
            ordered_ns: 0,
            orders: Some(orders.into()),
            reports: reports.into(),
        })
    })
}

impl Repeater {
    /// The repeater's process number: the root of the program's tree.
    pub fn pid(&self) -> i32 {
        self.process.pid()
    }

    /// Starts a repetition; one at a time.
    ///
    /// # Errors
    /// The repeater is gone.
    pub fn start(&mut self) -> Result<(), LaunchError> {
        self.ordered_ns = now_ns();
        let sent = match &mut self.orders {
            Some(orders) => orders.write_all(b"r"),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        };
        sent.map_err(|source| self.gone(source))
    }

    /// Waits for the report of the repetition that was started.
    ///
    /// # Errors
    /// The program could not be executed; the repeater was killed.
    pub fn finish(&mut self) -> Result<Repetition, LaunchError> {
        let mut bytes = [0; Report::BYTES];
        if let Err(source) = self.reports.read_exact(&mut bytes) {
            return Err(self.gone(source));
        }
        let report = Report::from_bytes(&bytes);
        if report.error != 0 {
            let error = ChildError {
                step: (report.error >> 32) as i32,
                errno: report.error as u32 as i32,
            };
            return Err(launch_error(&self.program, error));
        }
        Ok(Repetition {
            exit: Exit::new(report.status as i32, report.cpu_us as f64 * 1e-6),
            begin_ns: self.ordered_ns,
            end_ns: report.end_ns,
        })
    }

    /// Readable when [`Self::finish`] will not wait.
    pub fn report_fd(&self) -> BorrowedFd<'_> {
        self.reports.as_fd()
    }

    fn gone(&self, source: io::Error) -> LaunchError {
        LaunchError::System {
            program: self.program.clone(),
            doing: "talking to the process that repeats it",
            source,
        }
    }
}

impl Drop for Repeater {
    fn drop(&mut self) {
        if self.group {
            self.process.signal_group(libc::SIGKILL);
        }
        // The repeater kills its child as it loses its pipe; killed first, it
        // takes the child with it (PR_SET_PDEATHSIG).
        drop(self.orders.take());
        self.process.kill_and_reap();
    }
}

fn serve(prepared: &mut Prepared, mask: &child::Mask, hear: RawFd, tell: RawFd) -> i32 {
    let stream = |number| prepared.stream(number).unwrap_or(-1);
    child::close_others([hear, tell, stream(0), stream(1), stream(2)]);
    child::reset_signals(mask);
    // A repeater that cannot get its session would be killed with the
    // launcher's group, so it does not go on.
    if child::enter_session(prepared).is_err() {
        return OWN_FAILURE.into();
    }
    while child::hear(hear).is_some() {
        let report = run_once(prepared, hear, prepared.new_session);
        child::tell(tell, &report.to_bytes());
    }
    0
}

fn run_once(prepared: &mut Prepared, hear: RawFd, group: bool) -> Report {
    let mut report = Report {
        error: 0,
        status: 0,
        end_ns: 0,
        cpu_us: 0,
    };
    let mut ends = [-1; 2];
    // SAFETY: pipe2 fills both numbers; the child keeps to plain system calls.
    let pid = unsafe {
        match libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) {
            0 => child::plain_fork(),
            _ => -1,
        }
    };
    if pid == 0 {
        // SAFETY: _exit runs nothing of the parent's.
        unsafe { libc::_exit(become_program(prepared, ends[1])) };
    }
    if pid < 0 {
        let errno = io::Error::last_os_error().raw_os_error().unwrap_or(0);
        report.error = (STEP_FORK as u64) << 32 | u64::from(errno as u32);
        return report;
    }
    let mut answer = [0u8; ChildError::BYTES];
    // SAFETY: `answer` is writable for its length; the descriptors are ours.
    let told = unsafe {
        libc::close(ends[1]);
        let n = libc::read(ends[0], answer.as_mut_ptr().cast(), answer.len());
        libc::close(ends[0]);
        n
    };
    if told == ChildError::BYTES as isize {
        let error = ChildError::from_bytes(answer);
        report.error = (error.step as u64) << 32 | u64::from(error.errno as u32);
    }
    await_end(pid, hear, group);
    let mut status = 0;
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: both are written by the kernel; rusage is all numbers.
    let usage = unsafe {
        libc::wait4(pid, &mut status, 0, usage.as_mut_ptr());
        usage.assume_init()
    };
    report.end_ns = now_ns();
    report.status = status as u32 as u64;
    report.cpu_us = (super::held::cpu_seconds(&usage) * 1e6) as u64;
    report
}

fn become_program(prepared: &mut Prepared, tell: RawFd) -> i32 {
    // SAFETY: no memory is involved.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let error = match child::set_up(prepared) {
        Ok(()) => {
            child::rewind(prepared);
            child::exec(prepared)
        }
        Err(error) => error,
    };
    child::tell(tell, &error.to_bytes());
    OWN_FAILURE.into()
}

/// Waits until the child has ended; kills it, and everything of its group,
/// when the launcher is gone.
fn await_end(pid: libc::pid_t, hear: RawFd, group: bool) {
    // SAFETY: descriptors and process numbers of our own; `fds` is writable.
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
        let mut fds = [watch(pidfd, libc::POLLIN), watch(hear, 0)];
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
    // SAFETY: `t` is writable; CLOCK_MONOTONIC is always there.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}
