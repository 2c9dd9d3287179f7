// SPDX-License-Identifier: GPL-2.0-only
//! Signals that request the end of this process: a handler makes an eventfd readable, which the
//! event loops poll.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Makes the descriptor readable when one of these signals requests the end.
///
/// # Errors
/// A signal cannot be caught.
pub fn catch(ending: &Arc<OwnedFd>, signals: &[i32]) -> std::io::Result<()> {
    for &signal in signals {
        let ending = ending.clone();
        let notify = move || {
            let _ = rustix::io::write(ending.as_fd(), &1u64.to_ne_bytes());
        };
        // SAFETY: the handler only calls `write(2)`, which is async-signal-safe.
        unsafe { signal_hook::low_level::register(signal, notify) }?;
    }
    Ok(())
}
