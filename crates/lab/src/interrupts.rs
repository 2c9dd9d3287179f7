// SPDX-License-Identifier: MIT OR Apache-2.0
//! Converts termination signals to a readable file descriptor. The lab polls the descriptor
//! together with the connections to a guest, so that after a signal the lab can end the guest
//! before it ends itself. The signals are SIGINT, SIGTERM, SIGHUP and SIGQUIT. Of several signals,
//! only the last number is kept.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use crate::LabError;

/// Handlers of termination signals, which replace the default actions until the process ends.
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
                // This handler is registered first, so the number is stored before the descriptor
                // becomes readable.
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

    /// Returns a descriptor that becomes readable when a signal arrives.
    pub fn wake(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Returns the number of the last signal.
    pub fn last(&self) -> usize {
        self.last.load(Ordering::SeqCst)
    }
}
