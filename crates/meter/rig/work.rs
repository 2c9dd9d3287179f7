// SPDX-License-Identifier: MIT OR Apache-2.0
//! CPU load of the rig: loops, short-lived processes, daemonised processes and waiting threads. The
//! used CPU time is reported as the kernel accounts it (`getrusage`).

use std::io;

use crate::{ready, report, wait};

/// Returns the CPU time of this process (`RUSAGE_SELF`) or of its ended children
/// (`RUSAGE_CHILDREN`) in microseconds, as the kernel accounts it.
fn used_us(target: i32) -> u64 {
    // SAFETY: all fields of `rusage` are numbers, for which zero is valid. `getrusage` writes only
    // to `usage`.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(target, &mut usage);
        usage
    };
    let us = |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
    us(usage.ru_utime) + us(usage.ru_stime)
}

fn burn(us: u64) {
    let enough = used_us(libc::RUSAGE_SELF) + us;
    while used_us(libc::RUSAGE_SELF) < enough {
        std::hint::spin_loop();
    }
}

pub fn burn_on_signal(ms: u64) -> io::Result<()> {
    ready()?;
    let before = used_us(libc::RUSAGE_SELF);
    burn(ms * 1000);
    report(&format!("{}", used_us(libc::RUSAGE_SELF) - before))?;
    wait()
}

/// Runs `count` short-lived processes, one after another.
pub fn storm(count: u64) -> io::Result<()> {
    ready()?;
    let before = used_us(libc::RUSAGE_SELF);
    for _ in 0..count {
        // SAFETY: this program has only one thread, and the child only computes and exits.
        match unsafe { libc::fork() } {
            0 => {
                for _ in 0..10_000 {
                    std::hint::spin_loop();
                }
                // SAFETY: `_exit` may be called in a forked child, and ends only this child.
                unsafe { libc::_exit(0) }
            }
            child => {
                // SAFETY: the null pointer is valid, and means that the caller does not need the
                // exit status of the child.
                unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
            }
        }
    }
    let own = used_us(libc::RUSAGE_SELF) - before;
    report(&format!("{} {own}", used_us(libc::RUSAGE_CHILDREN)))?;
    wait()
}

/// Forks, begins a new session and forks again. The grandchild computes after its parents have
/// ended.
pub fn daemonise(ms: u64) -> io::Result<()> {
    ready()?;
    // SAFETY: this program has one thread.
    if unsafe { libc::fork() } != 0 {
        return Ok(());
    }
    // SAFETY: `setsid` has no argument and accesses no memory.
    unsafe { libc::setsid() };
    // SAFETY: this program has one thread.
    if unsafe { libc::fork() } != 0 {
        return Ok(());
    }
    let before = used_us(libc::RUSAGE_SELF);
    burn(ms * 1000);
    report(&format!("{}", used_us(libc::RUSAGE_SELF) - before))?;
    wait()
}

/// Starts threads that only wait.
pub fn threads(count: u64) -> io::Result<()> {
    let mut handles = Vec::new();
    for _ in 1..count {
        let thread = std::thread::Builder::new().stack_size(16384);
        handles.push(thread.spawn(std::thread::park)?);
    }
    ready()?;
    for handle in handles {
        handle.thread().unpark();
        drop(handle.join());
    }
    Ok(())
}
