// SPDX-License-Identifier: MIT OR Apache-2.0
//! Launches a child process that waits just before its `exec`, to be seated first, and manages the
//! running child after its release.
//!
//! 1. [`hold_in`] forks the child ([`HeldChild`]). The child enters its session, and waits for a
//!    number on a pipe. If the pipe closes, because the launcher has died, the child ends.
//! 2. [`HeldChild::start`] writes this number. The child sets up its streams and calls `exec`
//!    ([`StartingChild`]). A number above 0 becomes the value of the variables in
//!    `LaunchSpec::thread_variables`.
//! 3. A second pipe reports the result: a successful `exec` closes this pipe, and after a failed
//!    `exec` the child writes the error to it. [`StartingChild::finish`] waits for this result.
//! 4. [`ChildProcess`] waits for the end of the program by its pidfd, and checks once a second
//!    whether a signal has stopped the program.
//!
//! Forks are serialised, because a child inherits copies of the pipes of all children that were
//! forked before.
//!
//! [`StartingChild::finish`] and the waits of [`ChildProcess`] have no time limit. Dropping a
//! [`HeldChild`] kills the child and waits for its end for at most 1 s.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use usher_act::PreparedHome;

use super::child::{self, ChildError, STEP_EXEC};
use super::prepare::PreparedExec;
use super::{Exit, Forwarder, LaunchError, LaunchSpec, OWN_FAILURE};

/// Serialises forks. A child inherits copies of the pipes of all children that were forked before.
/// When the launcher dies, only the child that was forked last sees its pipe closed; its end closes
/// the copies of its predecessor's pipe, and so on.
static ONE_FORK: Mutex<()> = Mutex::new(());

/// Runs `fork` while no other thread forks or creates pipes for a child.
pub(super) fn one_at_a_time<T>(fork: impl FnOnce() -> T) -> T {
    let _guard = ONE_FORK.lock().unwrap_or_else(PoisonError::into_inner);
    fork()
}

pub(super) fn pipe() -> Result<(OwnedFd, OwnedFd), Errno> {
    pipe_with(PipeFlags::CLOEXEC)
}

/// A child process that waits just before `exec`. Dropping the value ends the child, which has not
/// executed the program.
#[derive(Debug)]
pub struct HeldChild {
    program: OsString,
    /// `None` once the child has been started.
    running: Option<ChildProcess>,
    release_pipe: Option<File>,
    answer: Option<File>,
}

/// Forks a child that waits just before it executes the command.
///
/// # Errors
/// The command does not exist or cannot be executed, a stream cannot be opened, or the process
/// cannot be created. After an error, no child remains.
pub fn hold(spec: &LaunchSpec) -> Result<HeldChild, LaunchError> {
    hold_in(spec, None)
}

/// Does the same as [`hold`]. If `home` is given, the child is created inside the cgroups of its
/// program.
///
/// # Errors
/// The errors of [`hold`].
pub fn hold_in(spec: &LaunchSpec, home: Option<&PreparedHome>) -> Result<HeldChild, LaunchError> {
    spec.resolve()?;
    let mut prepared = PreparedExec::new(spec)?;
    let program = prepared.program.clone();
    let failed = |doing, source: io::Error| LaunchError::System {
        program: program.clone(),
        doing,
        source,
    };
    one_at_a_time(|| {
        let (hold, release_pipe) = pipe().map_err(|e| failed("making a pipe", e.into()))?;
        let (answer, output) = pipe().map_err(|e| failed("making a pipe", e.into()))?;
        let ours = [release_pipe.as_raw_fd(), answer.as_raw_fd()];
        let theirs = [hold.as_raw_fd(), output.as_raw_fd()];
        // SAFETY: `wait_and_exec` makes only system calls, which are safe between fork and exec.
        let pid = unsafe {
            child::fork(home, |mask| {
                wait_and_exec(&mut prepared, mask, ours, theirs)
            })
        };
        let pid = pid.map_err(|e| failed("forking", e))?;
        let running = match ChildProcess::new(pid) {
            Ok(running) => running,
            Err(error) => {
                // A closed pipe would not end the child while another process holds a copy of its
                // descriptor.
                child::kill_and_reap(pid);
                return Err(failed("opening the pidfd of the child", error.into()));
            }
        };
        Ok(HeldChild {
            program: program.clone(),
            running: Some(running),
            release_pipe: Some(release_pipe.into()),
            answer: Some(answer.into()),
        })
    })
}

fn wait_and_exec(
    prepared: &mut PreparedExec,
    mask: &child::Mask,
    parents: [i32; 2],
    [hold, output]: [i32; 2],
) -> i32 {
    for fd in parents {
        // SAFETY: these descriptors are the child's copies, which no object of the child uses.
        unsafe { libc::close(fd) };
    }
    child::reset_signals(mask);
    // The session is entered before the wait, because the engine reads the session of the held
    // child.
    let entered = child::enter_session(prepared);
    // An error is reported only after the release: a held child stays held.
    let Some(threads) = child::read_bytes(hold).map(u32::from_ne_bytes) else {
        return OWN_FAILURE.into();
    };
    if threads > 0 {
        prepared.set_threads(threads);
    }
    let error = match entered.and_then(|()| child::set_up(prepared)) {
        Ok(()) => child::exec(prepared),
        Err(error) => error,
    };
    child::write_bytes(output, &error.to_bytes());
    OWN_FAILURE.into()
}

impl HeldChild {
    /// Returns the pid of the child.
    pub fn pid(&self) -> i32 {
        self.running.as_ref().map_or(0, ChildProcess::pid)
    }

    /// Releases the child, and returns when the child has executed the program.
    ///
    /// # Errors
    /// `exec` failed. After an error, the child is gone.
    pub fn release(self) -> Result<ChildProcess, LaunchError> {
        self.start()?.finish()
    }

    /// Releases the child, and returns without waiting for its `exec`, because the child may be
    /// frozen.
    ///
    /// # Errors
    /// There is no child.
    pub fn start(self) -> Result<StartingChild, LaunchError> {
        self.start_with_threads(None)
    }

    /// Does the same as [`Self::start`]. If `threads` is given, this number is the value of the
    /// variables in [`LaunchSpec::thread_variables`].
    ///
    /// # Errors
    /// There is no child.
    pub fn start_with_threads(
        mut self,
        threads: Option<u32>,
    ) -> Result<StartingChild, LaunchError> {
        if let Some(mut release_pipe) = self.release_pipe.take() {
            // The write fails if the child was killed while it waited, which its exit status will
            // report.
            let _ = release_pipe.write_all(&threads.unwrap_or(0).to_ne_bytes());
        }
        let running = self.running.take().ok_or(LaunchError::NoCommand)?;
        Ok(StartingChild {
            program: std::mem::take(&mut self.program),
            running,
            answer: self.answer.take().ok_or(LaunchError::NoCommand)?,
        })
    }
}

/// A released child process, which may not have executed its program yet. The descriptor of this
/// value becomes readable when `exec` has succeeded or failed. Dropping the value does not end the
/// child.
#[derive(Debug)]
pub struct StartingChild {
    program: OsString,
    running: ChildProcess,
    answer: File,
}

impl AsFd for StartingChild {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.answer.as_fd()
    }
}

impl StartingChild {
    /// Returns the child.
    pub fn running(&self) -> &ChildProcess {
        &self.running
    }

    /// Waits until the child has executed the program.
    ///
    /// # Errors
    /// `exec` failed. After an error, the child is gone.
    pub fn finish(mut self) -> Result<ChildProcess, LaunchError> {
        let mut bytes = [0; ChildError::BYTES];
        match self.answer.read_exact(&mut bytes) {
            // The pipe has closed without an error: `exec` has succeeded, or the child has died.
            Err(_) => Ok(self.running),
            Ok(()) => {
                let _ = self.running.wait();
                Err(launch_error(&self.program, ChildError::from_bytes(bytes)))
            }
        }
    }
}

pub(super) fn launch_error(program: &OsString, error: ChildError) -> LaunchError {
    let source = io::Error::from_raw_os_error(error.errno);
    match error.step {
        STEP_EXEC => LaunchError::from_exec(program.clone(), source),
        _ => LaunchError::System {
            program: program.clone(),
            doing: error.doing(),
            source,
        },
    }
}

impl Drop for HeldChild {
    fn drop(&mut self) {
        drop(self.release_pipe.take());
        if let Some(mut running) = self.running.take() {
            running.kill_and_reap();
        }
    }
}

/// Interval of the checks whether a signal has stopped the child.
const STOP_CHECK_INTERVAL: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// A child process. Dropping the value does not end the child.
#[derive(Debug)]
pub struct ChildProcess {
    pid: Pid,
    pidfd: OwnedFd,
    ended: Option<Exit>,
    /// Whether the kernel reported that the process was stopped or continued.
    was_stopped: bool,
}

impl ChildProcess {
    pub(super) fn new(pid: i32) -> Result<Self, Errno> {
        let pid = Pid::from_raw(pid).ok_or(Errno::SRCH)?;
        Ok(Self {
            pid,
            pidfd: pidfd_open(pid, PidfdFlags::empty())?,
            ended: None,
            was_stopped: false,
        })
    }

    /// Returns the pid of the process.
    pub fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Returns the pidfd of the process, which is readable after the process has ended.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Sends a signal to the process. The call has no effect if the process has ended.
    pub fn signal(&self, signal: i32) {
        if let Some(signal) = Signal::from_named_raw(signal) {
            let _ = pidfd_send_signal(&self.pidfd, signal);
        }
    }

    /// Returns whether the process leads a process group, which it or its new session has created.
    pub fn leads_group(&self) -> bool {
        let group = rustix::process::getpgid(Some(self.pid));
        self.ended.is_none() && group == Ok(self.pid)
    }

    /// Sends a signal to the process group of the process, which must lead it: it was launched with
    /// a new session, or [`Self::leads_group`] is true.
    pub fn signal_group(&self, signal: i32) {
        if let (None, Some(signal)) = (self.ended, Signal::from_named_raw(signal)) {
            let _ = rustix::process::kill_process_group(self.pid, signal);
        }
    }

    /// Returns the exit of the process, if it has ended.
    ///
    /// # Errors
    /// Other code has already waited for the process.
    pub fn try_wait(&mut self) -> io::Result<Option<Exit>> {
        self.note_stop();
        self.reap(libc::WNOHANG)
    }

    /// Waits until the process has ended.
    ///
    /// # Errors
    /// Other code has already waited for the process.
    pub fn wait(&mut self) -> io::Result<Exit> {
        loop {
            if let Some(exit) = self.reap(0)? {
                return Ok(exit);
            }
        }
    }

    /// Waits until the process has ended, and forwards the launcher's signals to the process during
    /// the wait.
    ///
    /// # Errors
    /// Other code has already waited for the process.
    pub fn wait_forwarding(&mut self, signals: &mut Forwarder) -> io::Result<Exit> {
        loop {
            let mut fds = [
                PollFd::new(&self.pidfd, PollFlags::IN),
                PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN),
            ];
            // Stops are detected by polling, because a handler of SIGCHLD would interrupt the waits
            // of other threads.
            match poll(&mut fds, Some(&STOP_CHECK_INTERVAL)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            signals.forward(self);
            if let Some(exit) = self.try_wait()? {
                return Ok(exit);
            }
        }
    }

    /// Returns whether a signal has stopped or continued the process. If so, its duration is not
    /// the time of its work.
    pub fn was_stopped(&self) -> bool {
        self.was_stopped
    }

    /// Records whether the kernel has reported a stop or continuation of the process since the last
    /// call.
    fn note_stop(&mut self) {
        if self.ended.is_some() {
            return;
        }
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        let options = libc::WSTOPPED | libc::WCONTINUED | libc::WNOHANG;
        // SAFETY: the kernel writes only to `info`. Without WEXITED, the call does not reap the
        // child.
        let answer = unsafe {
            libc::waitid(
                libc::P_PID,
                self.pid().unsigned_abs(),
                info.as_mut_ptr(),
                options,
            )
        };
        // SAFETY: `info` was zeroed. If the kernel has filled it for a child, the field is a pid.
        let pid = unsafe { info.assume_init().si_pid() };
        self.was_stopped |= answer == 0 && pid != 0;
    }

    fn reap(&mut self, options: i32) -> io::Result<Option<Exit>> {
        if self.ended.is_some() {
            return Ok(self.ended);
        }
        let mut status = 0;
        let mut usage = MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: the kernel writes only to `status` and `usage`. The child belongs to this process
        // and is not reaped yet.
        let pid = unsafe { libc::wait4(self.pid(), &mut status, options, usage.as_mut_ptr()) };
        if pid == 0 {
            return Ok(None);
        }
        if pid < 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::Interrupted => Ok(None),
                _ => Err(error),
            };
        }
        // SAFETY: `usage` was zeroed, and all its fields are numbers.
        let usage = unsafe { usage.assume_init() };
        self.ended = Some(Exit::new(status, cpu_seconds(&usage)));
        Ok(self.ended)
    }

    /// Kills the process and reaps it. Stops waiting after a second, because a process in
    /// uninterruptible sleep or in a frozen v1 cgroup dies later.
    pub(super) fn kill_and_reap(&mut self) {
        self.signal(libc::SIGKILL);
        let second = Timespec {
            tv_sec: 1,
            tv_nsec: 0,
        };
        let _ = poll(
            &mut [PollFd::new(&self.pidfd, PollFlags::IN)],
            Some(&second),
        );
        let _ = self.try_wait();
    }
}

pub(super) fn cpu_seconds(usage: &libc::rusage) -> f64 {
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 * 1e-6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}
