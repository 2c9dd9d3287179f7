// SPDX-License-Identifier: MIT OR Apache-2.0
//! Signals that end programs, as something that can be waited for beside a
//! guest: so that the guest ends first.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use crate::LabError;

/// Taken over from their defaults for good.
#[derive(Debug)]
pub(crate) struct Interrupts {
    wake: UnixStream,
    last: Arc<AtomicUsize>,
}

impl Interrupts {
    /// Takes the signals over.
    pub fn new() -> Result<Self, LabError> {
        let register = || {
            let (wake, sender) = UnixStream::pair()?;
            let last = Arc::new(AtomicUsize::new(0));
            for signal in [SIGINT, SIGTERM, SIGHUP, SIGQUIT] {
                // First which, then that.
                let number = usize::try_from(signal).unwrap_or_default();
                signal_hook::flag::register_usize(signal, Arc::clone(&last), number)?;
                signal_hook::low_level::pipe::register(signal, sender.try_clone()?)?;
            }
            Ok(Self { wake, last })
        };
        register().map_err(LabError::io("asking for signals"))
    }

    /// Readable once one has come.
    pub fn wake(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// The one that has come last.
    pub fn last(&self) -> usize {
        self.last.load(Ordering::SeqCst)
    }
}
