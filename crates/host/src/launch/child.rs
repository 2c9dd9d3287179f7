// SPDX-License-Identifier: MIT OR Apache-2.0
//! The code that a child process runs between fork and exec: session, signals, descriptors,
//! streams, directory and `exec`.
//!
//! A forked child has only a copy of the thread that forked. Locks that other threads of the parent
//! held stay locked in the child for ever. Therefore all code in this file consists of system
//! calls, and neither allocates nor locks, runs no destructor and does not panic. The child reports
//! an error by a [`ChildError`] (8 bytes: step and errno) through a pipe.
//!
//! `exec` tries each directory of `PATH` once. Only `read_bytes` waits, without a time limit, until
//! the parent writes or closes its pipe. Before Linux 5.9, only descriptors up to 65,535 are
//! closed.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use usher_act::{ForkResult, PreparedHome};

use super::held::launch_error;
use super::prepare::PreparedExec;
use super::{LaunchError, LaunchSpec};

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
            // SAFETY: `__errno_location` returns a valid pointer to the `errno` of this thread.
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

/// Forks a child. The child runs `body` with all signals blocked, and exits with the status that
/// `body` returns. The argument of `body` is the parent's signal mask.
///
/// If `home` is given, the child is created inside the cgroups of its program.
///
/// # Safety
/// `body` must be safe between fork and exec: it must not allocate, and must not take locks.
pub(super) unsafe fn fork(
    home: Option<&PreparedHome>,
    body: impl FnOnce(&Mask) -> i32,
) -> io::Result<libc::pid_t> {
    let mut all = MaybeUninit::<Mask>::uninit();
    let mut before = MaybeUninit::<Mask>::uninit();
    // SAFETY: `sigfillset` and `pthread_sigmask` write the two sets before they are read.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr());
    }
    // SAFETY: the caller guarantees that the child's code is safe after a fork.
    let pid = unsafe { home.map_or_else(fork_here, |home| fork_inside(home)) };
    if let Ok(0) = pid {
        // SAFETY: `pthread_sigmask` has filled `before`; `_exit` runs no exit handler of the
        // parent.
        unsafe { libc::_exit(body(before.assume_init_ref())) };
    }
    // SAFETY: `pthread_sigmask` has filled `before`, and reads it.
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

/// Forks by a plain `clone` instead of the C library's `fork`, which would take the locks of the
/// allocator. In the child of a process with threads, these locks may stay locked for ever. Returns
/// the same values as `fork`.
///
/// # Safety
/// The rules of [`fork`] apply.
pub(super) unsafe fn raw_fork() -> libc::pid_t {
    // SAFETY: the flags share no memory with the child, which continues on a copy of this stack.
    let pid = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
    pid as libc::pid_t
}

/// # Safety
/// The rules of [`fork`] apply.
unsafe fn fork_inside(home: &PreparedHome) -> io::Result<libc::pid_t> {
    // SAFETY: the caller guarantees that the child's code is safe after a fork.
    match unsafe { home.fork() }? {
        ForkResult::Child => Ok(0),
        ForkResult::Parent { child, .. } => Ok(child.pid),
    }
}

/// Whether [`adjust_attributes`] changed the disposition of SIGXFSZ, or of SIGCHLD.
static IGNORES_FILE_SIZE: AtomicBool = AtomicBool::new(false);
static IGNORED_CHILDREN: AtomicBool = AtomicBool::new(false);
/// The umask before [`adjust_attributes`] changed it.
static INHERITED_UMASK: AtomicU32 = AtomicU32::new(UMASK_UNCHANGED);
const UMASK_UNCHANGED: u32 = u32::MAX;
/// The bits of a umask that restrict the owner of a new file.
const UMASK_OWNER: u32 = 0o700;

/// Changes the attributes that this process inherited, and with which Usher could not work.
/// Launched programs get the inherited attributes.
///
/// - A write beyond the limit on file sizes (`ulimit -f`) fails with an error; by default, SIGXFSZ
///   would end this process.
/// - SIGCHLD gets its default disposition. If SIGCHLD is ignored, the kernel discards the exit
///   status of each child, and a wait for a child fails.
/// - The umask does not restrict the owner. Otherwise Usher could not read its own journals.
///
/// Call this function before this process has other threads.
pub fn adjust_attributes() {
    // SAFETY: `signal` sets dispositions of valid signals without a handler; `umask` takes a
    // number.
    let (file_size, children, umask) = unsafe {
        (
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN),
            libc::signal(libc::SIGCHLD, libc::SIG_DFL),
            libc::umask(!UMASK_OWNER & 0o777),
        )
    };
    IGNORES_FILE_SIZE.store(file_size == libc::SIG_DFL, Ordering::Relaxed);
    IGNORED_CHILDREN.store(children == libc::SIG_IGN, Ordering::Relaxed);
    // SAFETY: `umask` takes a number.
    unsafe { libc::umask(umask & !UMASK_OWNER) };
    if umask & UMASK_OWNER != 0 {
        INHERITED_UMASK.store(umask, Ordering::Relaxed);
    }
}

/// Restores the disposition of SIGCHLD and the umask that [`adjust_attributes`] changed.
fn restore_attributes() {
    if IGNORED_CHILDREN.load(Ordering::Relaxed) {
        // SAFETY: `signal` sets a valid signal to be ignored, and installs no handler.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    }
    let umask = INHERITED_UMASK.load(Ordering::Relaxed);
    if umask != UMASK_UNCHANGED {
        // SAFETY: `umask` takes a number.
        unsafe { libc::umask(umask) };
    }
}

/// Executes a program in place of this process, with the attributes that this process inherited.
/// Returns only after an error.
pub fn exec_in_place(spec: &LaunchSpec) -> LaunchError {
    let prepared = spec.resolve().and_then(|_| PreparedExec::new(spec));
    let mut prepared = match prepared {
        Ok(prepared) => prepared,
        Err(error) => return error,
    };
    let mut mask = MaybeUninit::<Mask>::zeroed();
    // SAFETY: `pthread_sigmask` writes the mask of this thread, and changes nothing. A zeroed mask
    // is valid, too.
    let mask = unsafe {
        libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), mask.as_mut_ptr());
        mask.assume_init()
    };
    reset_signals(&mask);
    let error = match set_up(&prepared) {
        Ok(()) => exec(&mut prepared),
        Err(error) => error,
    };
    launch_error(&prepared.program, error)
}

/// Resets the parent's handlers, which must not run in the child. Ignored signals stay ignored,
/// with two exceptions. SIGPIPE is reset, because Rust's runtime ignores it in every program.
/// SIGXFSZ is reset if [`adjust_attributes`] has set it to be ignored.
pub(super) fn reset_signals(mask: &Mask) {
    for signal in 1..=libc::SIGRTMAX() {
        let mut action = MaybeUninit::<libc::sigaction>::uninit();
        // SAFETY: `sigaction` fills `action` if it returns 0; SIG_DFL installs no handler.
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
    // SAFETY: `mask` is a valid signal set, which the kernel only reads.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, mask, ptr::null_mut()) };
}

/// Closes all descriptors from 3 on except the descriptors in `keep`. An entry of -1 stands for no
/// descriptor.
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
        // Linux before 5.9 has no `close_range`. The descriptors are closed one at a time, up to
        // the largest likely number.
        for fd in first..=last.min(65_535) {
            // SAFETY: no object in the child owns a descriptor in that range.
            unsafe { libc::close(fd) };
        }
    }
}

/// Starts a new session, if requested.
pub(super) fn enter_session(prepared: &PreparedExec) -> Result<(), ChildError> {
    // SAFETY: `setsid` has no arguments and accesses no memory.
    match prepared.new_session && unsafe { libc::setsid() } < 0 {
        true => Err(ChildError::last(STEP_SESSION)),
        false => Ok(()),
    }
}

/// Restores the inherited attributes, redirects the standard streams and changes the working
/// directory.
pub(super) fn set_up(prepared: &PreparedExec) -> Result<(), ChildError> {
    restore_attributes();
    redirect(prepared)?;
    let Some(cwd) = &prepared.cwd else {
        return Ok(());
    };
    // SAFETY: the path is a C string that outlives the call.
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
        // SAFETY: `dup2` takes two descriptors and accesses no memory. The new descriptor is open
        // after the exec, because `dup2` clears close-on-exec.
        if unsafe { libc::dup2(fd, number as RawFd) } < 0 {
            return Err(ChildError::last(STEP_STREAM));
        }
    }
    Ok(())
}

/// Prepares the redirected streams for a repetition: sets their positions to the start of the file.
/// Streams without a position, such as terminals and pipes, are not changed.
pub(super) fn rewind(prepared: &PreparedExec) {
    for number in (0..3).filter(|&number| prepared.stream(number).is_some()) {
        let fd = number as RawFd;
        // SAFETY: the calls take descriptors and numbers and access no memory. A failed call
        // changes nothing.
        unsafe {
            let appends = libc::fcntl(fd, libc::F_GETFL) & libc::O_APPEND != 0;
            if number > 0 && !appends {
                libc::ftruncate(fd, 0);
            }
            libc::lseek(fd, 0, libc::SEEK_SET);
        }
    }
}

/// Executes the program as `execvp` does: tries the candidate paths in order, and executes a file
/// of unknown format by `/bin/sh`. Returns only if no candidate can be executed.
pub(super) fn exec(prepared: &mut PreparedExec) -> ChildError {
    let mut refused = None;
    let mut error = ChildError {
        step: STEP_EXEC,
        errno: libc::ENOENT,
    };
    for at in 0..prepared.paths.len() {
        // SAFETY: the arguments are null-terminated arrays of C strings, which outlive the exec.
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
            // SAFETY: the arguments are null-terminated arrays of C strings, which outlive the
            // exec. The first string is the path "/bin/sh".
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
        // SAFETY: `write` reads at most `bytes.len()` bytes of the slice.
        let n = unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
        // A successful write is complete, because writes below PIPE_BUF are atomic.
        if n >= 0 || ChildError::last(0).errno != libc::EINTR {
            return;
        }
    }
}

/// Kills a child that was not yet waited for, and waits for its end.
pub(super) fn kill_and_reap(pid: libc::pid_t) {
    // SAFETY: `kill` takes two numbers. The kernel does not reuse the pid before the wait below.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    loop {
        // SAFETY: `waitpid` accepts a null pointer in place of the status.
        let ended = unsafe { libc::waitpid(pid, ptr::null_mut(), 0) };
        if ended >= 0 || ChildError::last(0).errno != libc::EINTR {
            return;
        }
    }
}

/// Waits for N bytes from a pipe, which the other end writes by one call. Returns `None` if the
/// other end is closed.
pub(super) fn read_bytes<const N: usize>(fd: RawFd) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    loop {
        // SAFETY: `read` writes at most N bytes, to `bytes`.
        let n = unsafe { libc::read(fd, bytes.as_mut_ptr().cast(), N) };
        match n {
            n if n == N as isize => return Some(bytes),
            n if n < 0 && ChildError::last(0).errno == libc::EINTR => {}
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_would_not_end_is_killed_and_reaped() {
        let mut child = std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .unwrap();
        let pid = child.id() as libc::pid_t;
        kill_and_reap(pid);
        assert!(child.wait().is_err(), "the child has been reaped");
    }
}
