// SPDX-License-Identifier: GPL-2.0-only
//! Registers a running program with a daemon in a thread of its own, so that the launcher handles
//! signals and the program's end meanwhile.
//!
//! The thread waits for up to 60 s ([`TIMEOUT`]) for the daemon's answer. A busy daemon on a busy
//! machine may need several seconds, and an answer that arrives after the timeout is undone. The
//! timeout must therefore be much longer than a late answer takes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use crate::api::Register_Reply;
use crate::autostart::{self, DaemonOptions};
use crate::client::{Daemon, RegisterRequest, WaitLimits};

/// Upper limit of the time for an answer of the daemon.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The thread parses one reply, and may start a daemon.
const STACK_BYTES: usize = 1 << 20;

/// The result of a registration; `None` if no daemon listens, and none was to be started. An error
/// that is no `DaemonError` means that no daemon could be started.
pub type Registered = Option<anyhow::Result<(Daemon, Register_Reply)>>;

/// A registration that a thread makes.
#[derive(Debug)]
pub struct Registration {
    result: Receiver<Registered>,
    /// An eventfd that is readable when the result is known.
    done: Arc<OwnedFd>,
}

impl Registration {
    /// Starts the thread. If no daemon listens, the thread starts one with the options `start`, if
    /// they are given.
    ///
    /// # Errors
    /// A thread or a descriptor cannot be created.
    pub fn begin(
        runtime_dir: Option<PathBuf>,
        request: RegisterRequest,
        start: Option<DaemonOptions>,
    ) -> std::io::Result<Self> {
        let done = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (sender, result) = channel();
        let notify = done.clone();
        let thread = std::thread::Builder::new()
            .name("registration".to_owned())
            .stack_size(STACK_BYTES);
        thread.spawn(move || {
            // The launcher may have ended its wait, and then drops the receiver. The dropped
            // connection makes the daemon undo the registration.
            let _ = sender.send(register(runtime_dir, request, start));
            let _ = rustix::io::write(notify, &1u64.to_ne_bytes());
        })?;
        Ok(Self { result, done })
    }

    /// Returns the result, if it is known.
    pub fn take(&self) -> Option<Registered> {
        self.result.try_recv().ok()
    }
}

impl AsFd for Registration {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.done.as_fd()
    }
}

fn register(
    runtime_dir: Option<PathBuf>,
    request: RegisterRequest,
    start: Option<DaemonOptions>,
) -> Registered {
    let limits = WaitLimits {
        timeout: TIMEOUT,
        end: None,
    };
    if let Some(options) = start {
        let register = |daemon: &mut Daemon| daemon.register(request.clone());
        let dir = runtime_dir.as_deref();
        return Some(autostart::call(dir, &options, &limits, register));
    }
    let mut daemon = Daemon::find_with(runtime_dir.as_deref(), &limits)?;
    let reply = daemon.register(request);
    Some(reply.map(|reply| (daemon, reply)))
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    #[test]
    fn the_descriptor_is_readable_when_the_result_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let request = RegisterRequest::default();
        let registration = Registration::begin(Some(dir.path().to_owned()), request, None).unwrap();
        poll(&mut [PollFd::new(&registration, PollFlags::IN)], None).unwrap();
        let registered = registration.take();
        assert!(matches!(registered, Some(None)), "no daemon listens");
        assert!(registration.take().is_none());
    }
}
