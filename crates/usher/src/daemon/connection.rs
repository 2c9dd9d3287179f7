// SPDX-License-Identifier: GPL-2.0-only
//! One peer's connection: bytes in and out, cut into messages.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use varlink::VarlinkService;

use super::quota::{self, Quota};
use super::server::{Limits, Peer};
use super::workers::{Call, Done};

/// One peer.
pub struct Connection {
    /// Tells it from all others, for as long as the daemon lives.
    pub token: u64,
    /// Who it is.
    pub peer: Peer,
    /// Whether it is over.
    pub closed: bool,
    stream: UnixStream,
    service: Arc<VarlinkService>,
    /// What has come and is not yet dealt with.
    inbox: Vec<u8>,
    /// Whether the inbox holds a whole message.
    whole: bool,
    /// What has not yet been taken.
    outbox: Vec<u8>,
    /// Whether a call of it is at work.
    at_work: bool,
    /// Since when the peer owes us the rest of a message, or room for a reply.
    owes_since: Option<Instant>,
}

impl Connection {
    /// A connection on which nothing has been said.
    pub fn new(token: u64, stream: UnixStream, peer: Peer, service: Arc<VarlinkService>) -> Self {
        Self {
            token,
            peer,
            closed: false,
            stream,
            service,
            inbox: Vec::new(),
            whole: false,
            outbox: Vec::new(),
            at_work: false,
            owes_since: None,
        }
    }

    /// Whether nothing is to be sent or received for now.
    pub fn waits(&self) -> bool {
        self.at_work || (self.whole && self.outbox.is_empty())
    }

    /// What to wait for on its socket.
    pub fn poll_fd(&self) -> PollFd<'_> {
        let interest = match self.outbox.is_empty() {
            true => PollFlags::IN,
            false => PollFlags::OUT,
        };
        PollFd::from_borrowed_fd(self.stream.as_fd(), interest)
    }

    /// Since when the peer owes us something.
    pub fn owes_since(&self) -> Option<Instant> {
        self.owes_since
    }

    /// Reads or writes as far as it goes without waiting.
    pub fn transfer(&mut self, limits: &Limits) {
        let goes_on = match self.outbox.is_empty() {
            true => self.read(limits),
            false => self.flush(),
        };
        self.closed |= !goes_on;
        self.look_at_the_clock();
    }

    /// The next whole message, to be answered.
    pub fn next_call(&mut self) -> Option<Call> {
        if !self.is_due() {
            return None;
        }
        let end = self.inbox.iter().position(|&byte| byte == 0)?;
        let message: Vec<u8> = self.inbox.drain(..=end).collect();
        self.whole = self.inbox.contains(&0);
        if self.inbox.is_empty() {
            self.inbox = Vec::new();
        }
        self.at_work = true;
        self.look_at_the_clock();
        Some(Call {
            token: self.token,
            uid: self.peer.uid,
            service: self.service.clone(),
            message,
        })
    }

    /// Bytes that are held for it.
    pub fn held_bytes(&self) -> usize {
        self.inbox.len() + self.outbox.len()
    }

    /// Whether a message is complete that is not yet being answered.
    pub fn is_due(&self) -> bool {
        !self.closed && !self.at_work && self.whole && self.outbox.is_empty()
    }

    /// Sends a last message, as far as it can be sent without waiting, and closes.
    pub fn refuse(&mut self, message: &[u8]) {
        let _ = self.stream.write(message);
        self.closed = true;
        self.inbox = Vec::new();
        self.outbox = Vec::new();
    }

    /// Its call has been answered, or made no sense.
    pub fn answered(&mut self, done: &mut Done) {
        self.at_work = false;
        match done.reply.take() {
            Some(reply) => {
                self.outbox = reply;
                self.closed |= !self.flush();
            }
            None => self.closed = true,
        }
        self.look_at_the_clock();
    }

    /// Hangs up on a peer that has owed us something for too long.
    pub fn lose_patience(&mut self, patience: Duration) {
        self.closed |= self
            .owes_since
            .is_some_and(|since| since.elapsed() > patience);
    }

    fn look_at_the_clock(&mut self) {
        let half_sent = !self.whole && !self.at_work && !self.inbox.is_empty();
        let owes = half_sent || !self.outbox.is_empty();
        self.owes_since = owes.then(|| self.owes_since.unwrap_or_else(Instant::now));
    }

    /// Reads once; false to hang up.
    fn read(&mut self, limits: &Limits) -> bool {
        let mut chunk = [0; 16 * 1024];
        let count = match self.stream.read(&mut chunk) {
            Ok(0) => return false,
            Ok(count) => count,
            Err(e) => return is_passing(&e),
        };
        self.whole = chunk[..count].contains(&0);
        self.inbox.extend_from_slice(&chunk[..count]);
        if !self.whole && self.inbox.len() >= limits.message_bytes {
            self.refuse(&quota::refusal(Quota::Message, limits.message_bytes));
        }
        !self.closed
    }

    /// Writes what the peer takes; false to hang up.
    fn flush(&mut self) -> bool {
        while !self.outbox.is_empty() {
            match self.stream.write(&self.outbox) {
                Ok(0) => return false,
                Ok(count) => drop(self.outbox.drain(..count)),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return is_passing(&e),
            }
        }
        self.outbox = Vec::new();
        true
    }
}

fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}
