// SPDX-License-Identifier: MIT OR Apache-2.0
//! The code that runs between fork and exec.
//!
//! The child of a process with threads has only the thread that forked. Locks that other
//! threads held stay locked. All code in this file is therefore plain system calls: no
//! allocation, no lock, no destructor, no panic.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use usher_act::{ForkResult, PreparedHome};

use super::prepare::PreparedExec;

/// An error in the child, sent to the parent through a pipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ChildError {
    pub step: i32,
    pub errno: i32,
}

pub(super) const STEP_EXEC: i32 = 0;
pub(super) const STEP_SESSION: i32 = 1;
pub(super) const STEP_STREAM: i32 = 2;
pub(super) const STEP_DIRECTORY: i32 = 3;
pub(super) const STEP_FORK: i32 = 4;

impl ChildError {
    pub const BYTES: usize = 8;

    fn last(step: i32) -> Self {
        Self {
            step,
            // SAFETY: the location belongs to this thread.
            errno: unsafe { *libc::__errno_location() },
        }
    }

    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let ([a, b, c, d], [e, f, g, h]) = (self.step.to_ne_bytes(), self.errno.to_ne_bytes());
        [a, b, c, d, e, f, g, h]
    }

    pub fn from_bytes([a, b, c, d, e, f, g, h]: [u8; Self::BYTES]) -> Self {
        Self {
            step: i32::from_ne_bytes([a, b, c, d]),
            errno: i32::from_ne_bytes([e, f, g, h]),
        }
    }

    pub fn doing(self) -> &'static str {
        match self.step {
            STEP_SESSION => "starting a new session",
            STEP_STREAM => "redirecting a standard stream",
            STEP_DIRECTORY => "changing to the program's working directory",
            STEP_FORK => "forking",
            _ => "executing it",
        }
    }
}

/// A signal mask in the kernel's format.
pub(super) type Mask = libc::sigset_t;

/// Forks. The child runs `body` with every signal blocked and exits with the returned status;
/// the argument of `body` is the parent's signal mask.
///
/// With a home, the child is created inside that program's cgroups.
///
/// # Safety
/// `body` does nothing that is unsafe between fork and exec: no allocation, no locks.
pub(super) unsafe fn fork(
    home: Option<&PreparedHome>,
    body: impl FnOnce(&Mask) -> i32,
) -> io::Result<libc::pid_t> {
    let mut all = MaybeUninit::<Mask>::uninit();
    let mut before = MaybeUninit::<Mask>::uninit();
    // SAFETY: both sets are written before they are read.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr());
    }
    // SAFETY: the caller guarantees that the child's code is safe after a fork.
    let pid = unsafe { home.map_or_else(fork_here, |home| fork_inside(home)) };
    if let Ok(0) = pid {
        // SAFETY: pthread_sigmask has filled it; _exit runs no code of the parent.
        unsafe { libc::_exit(body(before.assume_init_ref())) };
    }
    // SAFETY: pthread_sigmask has filled `before`.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
    pid
}

fn fork_here() -> io::Result<libc::pid_t> {
    // SAFETY: the caller of `fork` guarantees that the child's code is safe.
    match unsafe { libc::fork() } {
        pid if pid < 0 => Err(io::Error::last_os_error()),
        pid => Ok(pid),
    }
}

/// Forks without the C library. Its `fork` takes the allocator's locks. In a child created by
/// a plain `clone` of a process with threads these may stay locked for ever. Returns as
/// `fork` does.
///
/// # Safety
/// As [`fork`].
pub(super) unsafe fn raw_fork() -> libc::pid_t {
    // SAFETY: without a stack argument the child gets a copy of this stack.
    let pid = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
    pid as libc::pid_t
}

/// # Safety
/// As [`fork`].
unsafe fn fork_inside(home: &PreparedHome) -> io::Result<libc::pid_t> {
    // SAFETY: guaranteed by the caller.
    match unsafe { home.fork() }? {
        ForkResult::Child => Ok(0),
        ForkResult::Parent { child, .. } => Ok(child.pid),
    }
}

/// Whether [`ignore_file_size_signal`] changed the disposition.
static IGNORES_FILE_SIZE: AtomicBool = AtomicBool::new(false);

/// Makes writes past a limit on file sizes (`ulimit -f`) fail with an error in this process;
/// by default SIGXFSZ would end it. Launched programs get the disposition that this process
/// was started with.
pub fn ignore_file_size_signal() {
    // SAFETY: no handler is installed; the signal is only ignored.
    let before = unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    if before == libc::SIG_DFL {
        IGNORES_FILE_SIZE.store(true, Ordering::Relaxed);
    }
}

/// Resets the parent's handlers, which must not run in the child. Ignored signals stay
/// ignored, except SIGPIPE, which Rust's runtime ignores itself, and SIGXFSZ if this process
/// ignores it by [`ignore_file_size_signal`].
pub(super) fn reset_signals(mask: &Mask) {
    for signal in 1..=libc::SIGRTMAX() {
        let mut action = MaybeUninit::<libc::sigaction>::uninit();
        // SAFETY: sigaction fills `action` when it returns 0; SIG_DFL needs no handler.
        unsafe {
            if libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) != 0 {
                continue;
            }
            let mut action = action.assume_init();
            let is_own = signal == libc::SIGPIPE
                || (signal == libc::SIGXFSZ && IGNORES_FILE_SIZE.load(Ordering::Relaxed));
            if action.sa_sigaction == libc::SIG_IGN && !is_own {
                continue;
            }
            action.sa_sigaction = libc::SIG_DFL;
            action.sa_flags = 0;
            libc::sigaction(signal, &action, ptr::null_mut());
        }
    }
    // SAFETY: the mask is a valid set.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, mask, ptr::null_mut()) };
}

/// Closes all descriptors from 3 on except those given (-1: none).
pub(super) fn close_others(mut keep: [RawFd; 5]) {
    keep.sort_unstable();
    let mut from = 3;
    for fd in keep.into_iter().filter(|&fd| fd >= 3) {
        close_range(from, fd - 1);
        from = fd + 1;
    }
    close_range(from, RawFd::MAX);
}

fn close_range(first: RawFd, last: RawFd) {
    if first > last {
        return;
    }
    // SAFETY: no object in the child owns a descriptor in that range.
    let answer = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    if answer != 0 {
        // Before Linux 5.9: one at a time, up to the largest likely number.
        for fd in first..=last.min(65_535) {
            // SAFETY: no object in the child owns a descriptor in that range.
            unsafe { libc::close(fd) };
        }
    }
}

/// Starts a new session, if requested.
pub(super) fn enter_session(prepared: &PreparedExec) -> Result<(), ChildError> {
    // SAFETY: no memory is involved.
    match prepared.new_session && unsafe { libc::setsid() } < 0 {
        true => Err(ChildError::last(STEP_SESSION)),
        false => Ok(()),
    }
}

/// Redirects the streams and changes the directory.
pub(super) fn set_up(prepared: &PreparedExec) -> Result<(), ChildError> {
    redirect(prepared)?;
    let Some(cwd) = &prepared.cwd else {
        return Ok(());
    };
    // SAFETY: the path is a C string.
    match unsafe { libc::chdir(cwd.as_ptr()) } {
        0 => Ok(()),
        _ => Err(ChildError::last(STEP_DIRECTORY)),
    }
}

fn redirect(prepared: &PreparedExec) -> Result<(), ChildError> {
    for number in 0..3 {
        let Some(fd) = prepared.stream(number) else {
            continue;
        };
        // SAFETY: both are open descriptors; dup2 clears close-on-exec.
        if unsafe { libc::dup2(fd, number as RawFd) } < 0 {
            return Err(ChildError::last(STEP_STREAM));
        }
    }
    Ok(())
}

/// Prepares the streams for a repetition: input is read, and output written, from the start
/// again. Streams without a position (terminals, pipes) are not changed.
pub(super) fn rewind(prepared: &PreparedExec) {
    for number in (0..3).filter(|&number| prepared.stream(number).is_some()) {
        let fd = number as RawFd;
        // SAFETY: takes descriptors only; failure changes nothing.
        unsafe {
            let appends = libc::fcntl(fd, libc::F_GETFL) & libc::O_APPEND != 0;
            if number > 0 && !appends {
                libc::ftruncate(fd, 0);
            }
            libc::lseek(fd, 0, libc::SEEK_SET);
        }
    }
}

/// Executes the program as `execvp` does: the first candidate that can be executed, or
/// `/bin/sh` if the kernel does not recognise the format. Returns only if none can be.
pub(super) fn exec(prepared: &mut PreparedExec) -> ChildError {
    let mut refused = None;
    let mut error = ChildError {
        step: STEP_EXEC,
        errno: libc::ENOENT,
    };
    for at in 0..prepared.paths.len() {
        // SAFETY: null-terminated arrays of C strings that outlive the exec.
        unsafe {
            libc::execve(
                prepared.paths[at].as_ptr(),
                prepared.argv(),
                prepared.envp(),
            )
        };
        error = ChildError::last(STEP_EXEC);
        if error.errno == libc::ENOEXEC {
            let argv = prepared.shell_argv(at);
            // SAFETY: null-terminated arrays of C strings that outlive the exec; the first string
            // is "/bin/sh".
            unsafe { libc::execve(*argv, argv, prepared.envp()) };
            return error;
        }
        match error.errno {
            libc::EACCES => refused = Some(error),
            libc::ENOENT | libc::ENOTDIR | libc::ESTALE | libc::ENODEV | libc::ETIMEDOUT => {}
            _ => return error,
        }
    }
    refused.unwrap_or(error)
}

/// Writes the bytes; gives up on an error.
pub(super) fn write_bytes(fd: RawFd, bytes: &[u8]) {
    loop {
        // SAFETY: the slice is readable for its length.
        let n = unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
        // Writes below PIPE_BUF are atomic.
        if n >= 0 || ChildError::last(0).errno != libc::EINTR {
            return;
        }
    }
}

/// Waits for a byte; `None` if the other end is closed.
pub(super) fn read_byte(fd: RawFd) -> Option<u8> {
    let mut byte = 0u8;
    loop {
        // SAFETY: one byte is writable.
        let n = unsafe { libc::read(fd, (&raw mut byte).cast(), 1) };
        match n {
            1 => return Some(byte),
            n if n < 0 && ChildError::last(0).errno == libc::EINTR => {}
            _ => return None,
        }
    }
}
