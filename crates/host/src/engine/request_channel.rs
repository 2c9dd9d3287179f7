// SPDX-License-Identifier: MIT OR Apache-2.0
//! The channel by which other threads send requests to the control loop's thread. Each request
//! contains a channel for its answer. The sender also writes to an eventfd, which wakes the loop at
//! once. The queue has no length limit, but a sender that needs an answer has only one request in
//! the queue. A sender waits for an answer without a time limit; when the receiver has ended, the
//! sender gets the error `Stopped`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::event::{EventfdFlags, eventfd};
use usher_act::{HomeDirs, PreparedHome, WorkClass};
use usher_model::{ProcessId, ProgramId, Topology};

use super::arrival::ArrivingProgram;
use super::config::{AdoptedProgram, EngineError};
use super::log::LogEntry;
use super::status::Status;

/// The channel for an answer.
pub(super) type Reply<T> = Sender<Result<T, EngineError>>;

/// A request to the loop's thread.
pub(super) enum Request {
    /// Prepare a home for a program that this process is about to launch.
    Prepare {
        launcher: ProcessId,
        work: WorkClass,
        reply: Reply<(ProgramId, PreparedHome)>,
    },
    /// Prepare a home for a program that a process of this user is about to launch.
    PrepareFor {
        launcher: ProcessId,
        work: WorkClass,
        asking: u32,
        reply: Reply<(ProgramId, HomeDirs)>,
    },
    /// Remove the home of a program, because its launch failed.
    Abandon(ProgramId),
    /// Manage a program, in its prepared home if there is one. The answer is sent after the policy
    /// has decided about the program and the actions of the decision are done.
    Adopt {
        prepared: Option<ProgramId>,
        arriving: Box<ArrivingProgram>,
        reply: Reply<AdoptedProgram>,
    },
    Repeated {
        id: ProgramId,
        seconds: f64,
        asking: u32,
        reply: Reply<()>,
    },
    /// Release a program, which must have been attached with the group, if one is given.
    Release {
        id: ProgramId,
        group: Option<String>,
        asking: u32,
        reply: Reply<()>,
    },
    /// Find the program that a process belongs to.
    ProgramOf {
        pid: i32,
        reply: Reply<Option<ProgramId>>,
    },
    /// Forbid or permit seats. Seats are forbidden while another daemon plans this machine.
    Seating {
        forbidden: Option<String>,
    },
    Topology(Reply<Topology>),
    /// Count the managed programs, without a sample of their progress.
    ProgramCount(Reply<usize>),
    Status(Reply<Status>),
    Log {
        since: usize,
        reply: Reply<(Vec<LogEntry>, usize)>,
    },
    Stop,
}

/// The sending side.
#[derive(Debug, Clone)]
pub(super) struct RequestSender {
    sender: Sender<Request>,
    wakeup: Arc<OwnedFd>,
}

/// The receiving side.
#[derive(Debug)]
pub(super) struct RequestReceiver {
    receiver: Receiver<Request>,
    wakeup: Arc<OwnedFd>,
}

pub(super) fn request_channel() -> std::io::Result<(RequestSender, RequestReceiver)> {
    let wakeup = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let (sender, receiver) = channel();
    let requests = RequestSender {
        sender,
        wakeup: wakeup.clone(),
    };
    Ok((requests, RequestReceiver { receiver, wakeup }))
}

impl RequestSender {
    /// Sends a request. Returns `false` if the receiver is gone.
    pub fn send(&self, request: Request) -> bool {
        let sent = self.sender.send(request).is_ok();
        // The write fails only after 2^64 - 2 requests that were not received.
        let _ = rustix::io::write(&self.wakeup, &1u64.to_ne_bytes());
        sent
    }

    /// Sends a request and waits for the answer.
    pub fn call<T>(&self, request: impl FnOnce(Reply<T>) -> Request) -> Result<T, EngineError> {
        let (reply, answer) = channel();
        if !self.send(request(reply)) {
            return Err(EngineError::Stopped);
        }
        answer.recv().unwrap_or(Err(EngineError::Stopped))
    }
}

impl RequestReceiver {
    /// Returns the pending requests in the order of their arrival.
    pub fn take(&self) -> Vec<Request> {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.wakeup, &mut count);
        self.receiver.try_iter().collect()
    }

    /// Returns a function that wakes the loop, for another thread.
    pub fn wakeup(&self) -> impl FnOnce() + Send + 'static {
        let wakeup = self.wakeup.clone();
        move || {
            // The write fails only after 2^64 - 2 requests that were not received.
            let _ = rustix::io::write(wakeup, &1u64.to_ne_bytes());
        }
    }

    /// Returns a descriptor that is readable while requests are pending.
    pub fn wakeup_fd(&self) -> BorrowedFd<'_> {
        self.wakeup.as_fd()
    }
}
