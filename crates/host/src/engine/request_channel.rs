// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests to the loop's thread, which wake it at once.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::event::{EventfdFlags, eventfd};
use usher_act::{PreparedHome, Work};
use usher_model::{ProcessId, ProgramId, Topology};

use super::config::{Adopted, EngineError};
use super::log::LogEntry;
use super::newcomer::Newcomer;
use super::status::Status;

/// Where an answer goes.
pub(super) type Reply<T> = Sender<Result<T, EngineError>>;

/// What the loop's thread is asked.
pub(super) enum Request {
    /// Make a home for a program that this process is about to launch.
    Prepare {
        launcher: ProcessId,
        work: Work,
        reply: Reply<(ProgramId, PreparedHome)>,
    },
    /// The launch failed: take the home away.
    Abandon(ProgramId),
    /// Take a program in, in the home that was made for it, if one was. The
    /// answer comes when the policy has decided and its actions are done.
    Adopt {
        prepared: Option<ProgramId>,
        newcomer: Box<Newcomer>,
        reply: Reply<Adopted>,
    },
    Repeated {
        id: ProgramId,
        seconds: f64,
        asking: u32,
        reply: Reply<()>,
    },
    LetGo {
        id: ProgramId,
        asking: u32,
        reply: Reply<()>,
    },
    /// Which program is a process part of?
    ProgramOf {
        pid: i32,
        reply: Reply<Option<ProgramId>>,
    },
    /// Forbid or allow seats: another daemon plans this machine, or no longer.
    Seating {
        forbidden: Option<String>,
    },
    Topology(Reply<Topology>),
    Status(Reply<Status>),
    Log {
        since: usize,
        reply: Reply<(Vec<LogEntry>, usize)>,
    },
    Stop,
}

/// The sending side.
#[derive(Debug, Clone)]
pub(super) struct Postbox {
    sender: Sender<Request>,
    bell: Arc<OwnedFd>,
}

/// The receiving side.
#[derive(Debug)]
pub(super) struct Mailbox {
    receiver: Receiver<Request>,
    bell: Arc<OwnedFd>,
}

pub(super) fn mailbox() -> std::io::Result<(Postbox, Mailbox)> {
    let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let (sender, receiver) = channel();
    let postbox = Postbox {
        sender,
        bell: bell.clone(),
    };
    Ok((postbox, Mailbox { receiver, bell }))
}

impl Postbox {
    /// Hands a request in; false when nobody reads any more.
    pub fn post(&self, request: Request) -> bool {
        let posted = self.sender.send(request).is_ok();
        // Full only when it has rung 2^64 - 2 times unheard.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        posted
    }

    /// Hands a request in and waits for the answer.
    pub fn ask<T>(&self, request: impl FnOnce(Reply<T>) -> Request) -> Result<T, EngineError> {
        let (reply, answer) = channel();
        if !self.post(request(reply)) {
            return Err(EngineError::Stopped);
        }
        answer.recv().unwrap_or(Err(EngineError::Stopped))
    }
}

impl Mailbox {
    /// What has come, in order.
    pub fn take(&self) -> Vec<Request> {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.bell, &mut count);
        self.receiver.try_iter().collect()
    }

    /// Readable when something has come.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
