// SPDX-License-Identifier: MIT OR Apache-2.0
//! Forwards signals from the launcher to the launched program.
//!
//! A terminal sends its signals (Ctrl-C, Ctrl-Z, a changed window) to the whole foreground
//! process group. A program in the launcher's session belongs to this group and receives these
//! signals itself. In this case, only signals that another process sent to the launcher are
//! forwarded. A program that leads another group in this session, such as `timeout`, does not
//! receive the signals of the terminal; they are forwarded to its group. If the program has a
//! session of its own, all signals are forwarded to its process group. Signals that arrived before
//! the creation of the program's process ([`Forwarder::keep_pending`]) did not reach it, and all of
//! them are forwarded.
//!
//! Fourteen signals are forwarded ([`FROM_TERMINAL`] and [`FROM_OTHERS`]), except those that the
//! launcher ignores. SIGTSTP also stops the launcher. Signals that arrive several times between two
//! calls of [`Forwarder::forward`] may be forwarded once. Each signal that requests an end also makes
//! an eventfd readable ([`Forwarder::end_fd`]), by which a launcher ends a wait before the program
//! runs.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::ptr;
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use signal_hook::SigId;
use signal_hook::consts::signal::{
    SIGALRM, SIGCONT, SIGHUP, SIGINT, SIGIO, SIGPROF, SIGQUIT, SIGSTOP, SIGTERM, SIGTSTP, SIGUSR1,
    SIGUSR2, SIGVTALRM, SIGWINCH, SIGXCPU,
};
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::{Cause, Origin};

use super::ChildProcess;

/// The signals that a terminal, or the shell that controls it, sends to a whole process group.
const FROM_TERMINAL: [i32; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGWINCH, SIGTSTP, SIGCONT];

/// Forwarded signals that no terminal sends. A timer that was set before the launcher was executed
/// (`alarm(2)`), and batch systems, send them to the launcher. By default, each of them would end
/// the launcher but not the program.
const FROM_OTHERS: [i32; 8] = [
    SIGTERM, SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGXCPU, SIGIO,
];

/// The forwarded signals that request a program's end: all whose default action ends a program,
/// except SIGUSR1 and SIGUSR2. Programs define their own meaning for these two, such as a progress
/// report of `dd`.
const ENDING: [i32; 9] = [
    SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGALRM, SIGVTALRM, SIGPROF, SIGXCPU, SIGIO,
];

/// Catches the launcher's signals from its creation on. A forwarder must be created before the
/// program is launched, because earlier signals are not caught.
#[derive(Debug)]
pub struct Forwarder {
    signals: SignalDelivery<UnixStream, WithOrigin>,
    /// Signals that arrived before the creation of the program's process.
    early: Vec<Origin>,
    own_session: bool,
    end: Arc<OwnedFd>,
    end_actions: Vec<SigId>,
}

impl Forwarder {
    /// Creates a forwarder and starts to catch signals. Signals that the launcher ignores (`nohup`,
    /// background jobs) stay ignored.
    ///
    /// `own_session` means that the program gets a new session.
    ///
    /// # Errors
    /// A signal handler cannot be set.
    pub fn new(own_session: bool) -> io::Result<Self> {
        let (read, write) = UnixStream::pair()?;
        let forwarded = FROM_TERMINAL.into_iter().chain(FROM_OTHERS);
        let caught: Vec<i32> = forwarded.filter(|&signal| !ignored(signal)).collect();
        let ending = caught.clone().into_iter();
        let ending = ending.filter(|signal| ENDING.contains(signal));
        let end = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let mut forwarder = Self {
            signals: SignalDelivery::with_pipe(read, write, WithOrigin::default(), caught)?,
            early: Vec::new(),
            own_session,
            end: end.clone(),
            end_actions: Vec::new(),
        };
        for signal in ending {
            let end = end.clone();
            let notify = move || {
                // Fails only if the counter is full. The descriptor is readable in this case, too.
                let _ = rustix::io::write(&end, &1u64.to_ne_bytes());
            };
            // SAFETY: `notify` makes one system call, `write`, which is async-signal-safe.
            let action = unsafe { signal_hook::low_level::register(signal, notify) };
            forwarder.end_actions.push(action?);
        }
        Ok(forwarder)
    }

    /// Returns a descriptor that stays readable after a signal has requested the program's end.
    pub fn end_fd(&self) -> Arc<OwnedFd> {
        self.end.clone()
    }

    /// Keeps the signals that have arrived until now for the program. Call this function just before
    /// the program's process is created.
    pub fn keep_pending(&mut self) {
        let pending = self.pending();
        self.early.extend(pending);
    }

    /// Returns whether the program has a session of its own.
    pub fn own_session(&self) -> bool {
        self.own_session
    }

    fn pending(&mut self) -> Vec<Origin> {
        self.signals.pending().collect()
    }

    /// Forwards the signals that have arrived since the last call. Returns whether one of these
    /// signals requests the end of a program.
    pub fn forward(&mut self, program: &ChildProcess) -> bool {
        self.forward_to(&[program])
    }

    /// Forwards the signals that have arrived since the last call to each of several programs.
    /// Returns whether one of these signals requests the end of a program.
    pub fn forward_to(&mut self, programs: &[&ChildProcess]) -> bool {
        let mut end_requested = false;
        let early = std::mem::take(&mut self.early).into_iter();
        let early = early.map(|origin| (origin, true));
        let later = self.pending().into_iter().map(|origin| (origin, false));
        for (origin, is_early) in early.chain(later) {
            end_requested |= ENDING.contains(&origin.signal);
            let by_kernel = matches!(origin.cause, Cause::Kernel);
            let from_terminal = !is_early && is_from_terminal(origin.signal, by_kernel);
            for program in programs {
                match self.own_session {
                    // SIGSTOP replaces SIGTSTP, because the kernel ignores SIGTSTP in a session
                    // without a shell.
                    true if origin.signal == SIGTSTP => program.signal_group(SIGSTOP),
                    true => program.signal_group(origin.signal),
                    false if from_terminal && program.leads_group() => {
                        program.signal_group(origin.signal);
                    }
                    false if from_terminal => {}
                    false => program.signal(origin.signal),
                }
            }
            if origin.signal == SIGTSTP {
                stop_self();
            }
        }
        end_requested
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        for action in self.end_actions.drain(..) {
            signal_hook::low_level::unregister(action);
        }
    }
}

impl AsFd for Forwarder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.signals.get_read().as_fd()
    }
}

/// Returns whether a terminal sent the signal. For the signals of a terminal and of timers, the
/// kernel reports itself as the sender.
fn is_from_terminal(signal: i32, by_kernel: bool) -> bool {
    by_kernel && FROM_TERMINAL.contains(&signal)
}

/// Stops the launcher, as the terminal requested. A later SIGCONT continues the launcher and is
/// also forwarded to the program.
fn stop_self() {
    // SAFETY: `raise` takes a number and accesses no memory.
    unsafe { libc::raise(libc::SIGSTOP) };
}

fn ignored(signal: i32) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: `sigaction` fills `action` if it returns 0, and `action` is read only in this case.
    unsafe {
        libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) == 0
            && action.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timers_signal_is_not_from_the_terminal() {
        assert!(is_from_terminal(SIGINT, true));
        assert!(!is_from_terminal(SIGINT, false));
        assert!(!is_from_terminal(SIGALRM, true));
        assert!(!is_from_terminal(SIGXCPU, true));
    }

    #[test]
    fn every_signal_that_ends_programs_by_default_requests_the_end() {
        let others = [SIGUSR1, SIGUSR2, SIGWINCH, SIGTSTP, SIGCONT];
        for signal in FROM_TERMINAL.into_iter().chain(FROM_OTHERS) {
            let ends = !others.contains(&signal);
            assert_eq!(ENDING.contains(&signal), ends, "signal {signal}");
        }
    }
}
