// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs hwloc's parsers on foreign input in a child process.
//!
//! hwloc's readers of XML, descriptions and sysfs copies are C code for input that hwloc itself
//! wrote. On other input, these readers may abort, loop or allocate without limit. The root of a
//! sysfs copy can be passed to hwloc only through the environment (`HWLOC_FSROOT`), which a process
//! with several threads must not change. A forked child solves these problems:
//!
//! - the child's environment is replaced; the environment of the parent does not change;
//! - the child's memory and CPU time are limited, and an alarm ends a child that hangs;
//! - after the death of the child, the parent reports an error and has nothing to repair.
//!
//! The child runs `work`, writes the result as JSON with a length prefix into a pipe, and ends by
//! `_exit`. The child is forked without `exec`, because a library has no program to start. In the
//! child of a process with threads, only code that takes no lock of the parent's Rust code may run:
//! the work reads files, allocates (glibc resets its allocator in the child) and calls hwloc. If
//! another thread held a lock inside the C library at the time of the fork, the child waits for
//! that lock until the alarm ends it, and the parent reports an error.
//!
//! *Limits* of the child: 10 s of CPU time, 20 s of wall time, 1 GiB of memory beyond the initial
//! size. Its answer has at most 1 GiB. A limit that the system does not permit to set is ignored.
//! The parent waits until the child has ended, hence at most about 20 s; nothing is retried.
//! *Errors*: the error of `work`, no pipe or no child, a child that crashed or exceeded a limit, an
//! incomplete or invalid answer.

use std::ffi::{CString, c_char};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Limits in seconds of the child's CPU time and of the wall time since its start.
const CPU_TIME_MAX_S: u64 = 10;
const WALL_TIME_MAX_S: u32 = 20;
/// Address space that the child may add to its initial size.
const MEMORY_MAX_BYTES: u64 = 1 << 30;
/// Maximum size of the child's answer in bytes.
const ANSWER_MAX_BYTES: u64 = 1 << 30;

unsafe extern "C" {
    /// The environment of the C library (environ(7)).
    static mut environ: *const *const c_char;
}

/// Runs the work in a child with exactly this environment and returns its result.
///
/// # Errors
/// Returns the error of `work`, or the failure of the child: the child crashed, exceeded its memory
/// or time, or could not be started.
pub(crate) fn run<T>(
    environment: &[(&str, &str)],
    work: impl FnOnce() -> Result<T, String>,
) -> Result<T, String>
where
    T: Serialize + DeserializeOwned,
{
    let variables = environment
        .iter()
        .map(|(name, value)| CString::new(format!("{name}={value}")))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|_| "the name contains a NUL character".to_owned())?;
    let mut pointers: Vec<*const c_char> = variables.iter().map(|v| v.as_ptr()).collect();
    pointers.push(ptr::null());
    let (receiver, sender) = pipe()
        .map_err(|why| format!("cannot create a pipe to the process that runs hwloc: {why}"))?;
    // SAFETY: fork has no preconditions. The child process only runs the function `child`, which
    // never returns; the module documentation states which code may run in the child.
    match unsafe { libc::fork() } {
        -1 => Err(format!(
            "cannot start a process that runs hwloc: {}",
            io::Error::last_os_error()
        )),
        0 => {
            drop(receiver);
            child(&pointers, File::from(sender), work)
        }
        pid => {
            drop(sender);
            let answer = receive(File::from(receiver));
            let end = reap(pid);
            match answer {
                Some(json) => {
                    serde_json::from_slice::<Result<T, String>>(&json).unwrap_or_else(|why| {
                        Err(format!(
                            "the process that ran hwloc returned an invalid reply: {why}"
                        ))
                    })
                }
                None => Err(end),
            }
        }
    }
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: `ends` has room for the two descriptors that pipe2 writes.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: pipe2 succeeded: both descriptors are open and have no other owner.
    Ok(unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) })
}

/// Runs the work in the child, writes the result and ends the child.
fn child<T: Serialize>(
    environment: &[*const c_char],
    mut sender: File,
    work: impl FnOnce() -> Result<T, String>,
) -> ! {
    limit();
    quiet();
    // SAFETY: no other thread uses `environ`, because a forked child has a single thread. The array
    // and its strings live until the process ends, because this function does not return.
    unsafe { environ = environment.as_ptr() };
    let result = catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err("the topology that hwloc returned is inconsistent".to_owned()));
    if let Ok(json) = serde_json::to_vec(&result) {
        let length = (json.len() as u64).to_le_bytes();
        let _ = sender
            .write_all(&length)
            .and_then(|()| sender.write_all(&json));
    }
    // SAFETY: _exit has no preconditions; it skips destructors and exit handlers, which belong to
    // the parent.
    unsafe { libc::_exit(0) }
}

/// Sets the resource limits of this process.
fn limit() {
    // SAFETY: sysconf only reads a constant of the system.
    let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(4096) as u64;
    let used_bytes = std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|text| text.split(' ').next()?.parse::<u64>().ok())
        .map_or(MEMORY_MAX_BYTES, |pages| pages.saturating_mul(page_bytes));
    // The hard limit of CPU time is above the soft limit, because the kernel sends SIGKILL at the
    // hard limit. With SIGXCPU at the soft limit, SIGKILL has another reason.
    let limits = [
        (
            libc::RLIMIT_AS,
            used_bytes.saturating_add(MEMORY_MAX_BYTES),
            0,
        ),
        (libc::RLIMIT_CPU, CPU_TIME_MAX_S, 1),
        (libc::RLIMIT_CORE, 0, 0),
    ];
    for (resource, most, margin) in limits {
        let limit = libc::rlimit {
            rlim_cur: most,
            rlim_max: most.saturating_add(margin),
        };
        // SAFETY: setrlimit only reads `limit`, which lives during the call. If the present hard
        // limit is lower, the call fails and that limit stays in force.
        unsafe { libc::setrlimit(resource, &raw const limit) };
    }
    // SAFETY: the calls change only the signal dispositions, the signal mask and the alarm of this
    // process. sigemptyset initialises the set `none` before sigprocmask reads it.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
        for signal in [
            libc::SIGALRM,
            libc::SIGABRT,
            libc::SIGSEGV,
            libc::SIGBUS,
            libc::SIGXCPU,
        ] {
            libc::signal(signal, libc::SIG_DFL);
        }
        libc::alarm(WALL_TIME_MAX_S);
    }
}

/// Discards hwloc's messages about foreign input; the parent reports errors itself.
fn quiet() {
    if let Ok(null) = File::options().write(true).open("/dev/null") {
        // SAFETY: both arguments are open descriptors; dup2 replaces the second.
        unsafe { libc::dup2(null.as_raw_fd(), libc::STDERR_FILENO) };
    }
}

/// The child's answer, or `None` if it is incomplete.
fn receive(mut receiver: File) -> Option<Vec<u8>> {
    let mut length = [0; 8];
    receiver.read_exact(&mut length).ok()?;
    let length = u64::from_le_bytes(length);
    if length > ANSWER_MAX_BYTES {
        return None;
    }
    let mut json = Vec::new();
    receiver.take(length).read_to_end(&mut json).ok()?;
    (json.len() as u64 == length).then_some(json)
}

/// Waits until the child has ended, and returns an error message with the reason of its end.
fn reap(pid: libc::pid_t) -> String {
    let mut status = 0;
    loop {
        // SAFETY: waitpid only writes `status`, which is valid for the write.
        if unsafe { libc::waitpid(pid, &raw mut status, 0) } == pid {
            break;
        }
        if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return "hwloc could not parse the file or description".to_owned();
        }
    }
    if !libc::WIFSIGNALED(status) {
        return "hwloc could not parse the file or description".to_owned();
    }
    match libc::WTERMSIG(status) {
        libc::SIGALRM => {
            format!("hwloc did not load the topology within {WALL_TIME_MAX_S} seconds")
        }
        libc::SIGXCPU => {
            format!("hwloc did not load the topology within {CPU_TIME_MAX_S} seconds of CPU time")
        }
        libc::SIGKILL => "the process that ran hwloc was killed (signal 9), for example because \
                          the machine had no free memory"
            .to_owned(),
        signal => format!(
            "hwloc crashed (signal {signal}): the file or description is malformed or too large"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returns_the_result_of_the_work() {
        assert_eq!(run(&[], || Ok(vec![1, 2, 3])), Ok(vec![1, 2, 3]));
        let refused: Result<(), String> = run(&[], || Err("no".to_owned()));
        assert_eq!(refused, Err("no".to_owned()));
        let long = "x".repeat(1 << 20);
        assert_eq!(run(&[], || Ok(long.clone())), Ok(long.clone()));
    }

    #[test]
    fn environment_changes_only_in_the_child() {
        let seen = run(&[("USHER_SANDBOX_TEST", "7")], || {
            Ok(std::env::vars().collect::<Vec<_>>())
        });
        let expected = vec![("USHER_SANDBOX_TEST".to_owned(), "7".to_owned())];
        assert_eq!(seen, Ok(expected));
        assert!(std::env::var_os("USHER_SANDBOX_TEST").is_none());
    }

    #[test]
    fn crash_panic_and_excessive_allocation_are_errors() {
        // SAFETY: abort has no preconditions.
        let crash: Result<(), String> = run(&[], || unsafe { libc::abort() });
        assert!(crash.unwrap_err().contains("signal 6"));
        for (signal, reason) in [
            (libc::SIGALRM, "load the topology within 20 seconds"),
            (libc::SIGXCPU, "within 10 seconds of CPU time"),
            (libc::SIGKILL, "was killed (signal 9)"),
        ] {
            // SAFETY: raise has no preconditions.
            let ended: Result<i32, String> = run(&[], || Ok(unsafe { libc::raise(signal) }));
            let error = ended.unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
        let panic: Result<(), String> = run(&[], || panic!("as asked"));
        assert!(
            panic
                .unwrap_err()
                .contains("hwloc returned is inconsistent")
        );
        let wild: Result<usize, String> = run(&[], || {
            // SAFETY: malloc has no preconditions, and the block is not used.
            let block = unsafe { libc::malloc(2 << 30) };
            match block.is_null() {
                true => Err("no memory".to_owned()),
                false => Ok(block as usize),
            }
        });
        assert_eq!(wild, Err("no memory".to_owned()));
    }
}
