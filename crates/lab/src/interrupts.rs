// SPDX-License-Identifier: MIT OR Apache-2.0
//! Termination signals as a file descriptor that can be polled together with a guest, which lets
//! the guest end first.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use crate::LabError;

/// Termination signals, handled instead of their defaults for the rest of the process.
#[derive(Debug)]
pub(crate) struct Interrupts {
    wake: UnixStream,
    last: Arc<AtomicUsize>,
}

impl Interrupts {
    /// Installs the handlers.
    pub fn new() -> Result<Self, LabError> {
        let register = || {
            let (wake, sender) = UnixStream::pair()?;
            let last = Arc::new(AtomicUsize::new(0));
            for signal in [SIGINT, SIGTERM, SIGHUP, SIGQUIT] {
                // The handler stores the number before it makes the descriptor readable.
                let number = usize::try_from(signal).unwrap_or_default();
                signal_hook::flag::register_usize(signal, Arc::clone(&last), number)?;
                signal_hook::low_level::pipe::register(signal, sender.try_clone()?)?;
            }
            Ok(Self { wake, last })
        };
        register().map_err(LabError::io(
            "installing the handlers of SIGINT and SIGTERM",
        ))
    }

    /// A descriptor that is readable after a signal.
    pub fn wake(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// The last signal.
    pub fn last(&self) -> usize {
        self.last.load(Ordering::SeqCst)
    }
}
