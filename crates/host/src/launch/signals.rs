// SPDX-License-Identifier: MIT OR Apache-2.0
//! Passing signals on to the launched program.
//!
//! A terminal sends its signals (Ctrl-C, Ctrl-Z, a changed window) to the
//! whole foreground process group. A program in the launcher's own session is
//! in that group and has had them already, so only those that another process
//! sent to the launcher alone are passed on; a program with a session of its
//! own gets all of them, and so does its process group.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::ptr;

use signal_hook::consts::signal::{
    SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGSTOP, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2, SIGWINCH,
};
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::{Cause, Origin};

use super::Running;

const FORWARDED: [i32; 9] = [
    SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH, SIGTSTP, SIGCONT,
];

/// Those of them that ask a program to end.
const ENDING: [i32; 4] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM];

/// Catches the launcher's signals from its making on; make it before the
/// program is launched, so that none is lost.
#[derive(Debug)]
pub struct Forwarder {
    signals: SignalDelivery<UnixStream, WithOrigin>,
    own_session: bool,
}

impl Forwarder {
    /// Catches the signals that are passed on. Those that the launcher was
    /// told to ignore (`nohup`, background jobs) stay ignored.
    ///
    /// `own_session`: whether the program gets a session of its own.
    ///
    /// # Errors
    /// When a handler cannot be set.
    pub fn new(own_session: bool) -> io::Result<Self> {
        let (read, write) = UnixStream::pair()?;
        let caught = FORWARDED.into_iter().filter(|&signal| !ignored(signal));
        Ok(Self {
            signals: SignalDelivery::with_pipe(read, write, WithOrigin::default(), caught)?,
            own_session,
        })
    }

    /// Whether the program gets a session of its own.
    pub fn own_session(&self) -> bool {
        self.own_session
    }

    /// Whether a signal that asks a program to end has come, after the launched
    /// program has ended: what has come since the last call is passed on to nobody.
    pub fn asked_to_end(&mut self) -> bool {
        self.come()
            .iter()
            .any(|origin| ENDING.contains(&origin.signal))
    }

    fn come(&mut self) -> Vec<Origin> {
        self.signals.pending().collect()
    }

    /// Passes on what has come since the last call. Answers whether one of it
    /// asks a program to end.
    pub fn forward(&mut self, program: &Running) -> bool {
        let mut asked = false;
        for origin in self.come() {
            asked |= ENDING.contains(&origin.signal);
            let from_terminal = matches!(origin.cause, Cause::Kernel);
            match self.own_session {
                // Nobody in a session without a shell heeds a terminal's stop.
                true if origin.signal == SIGTSTP => program.signal_group(SIGSTOP),
                true => program.signal_group(origin.signal),
                false if from_terminal => {}
                false => program.signal(origin.signal),
            }
            if origin.signal == SIGTSTP {
                stop_self();
            }
        }
        asked
    }
}

impl AsFd for Forwarder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.signals.get_read().as_fd()
    }
}

/// Stops as the terminal asked; goes on with SIGCONT, which is passed on too.
fn stop_self() {
    // SAFETY: raising a signal touches no memory.
    unsafe { libc::raise(libc::SIGSTOP) };
}

fn ignored(signal: i32) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: sigaction fills `action` when it answers 0.
    unsafe {
        libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) == 0
            && action.assume_init().sa_sigaction == libc::SIG_IGN
    }
}
