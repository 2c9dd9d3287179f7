// SPDX-License-Identifier: GPL-2.0-only
//! One client connection of the daemon's socket: buffers received bytes, divides them into messages
//! that end with a zero byte, and buffers the part of the reply that is not sent yet.
//!
//! 1. While no whole message is buffered, `transfer` reads at most 16 KiB at a time.
//! 2. `next_call` takes the first whole message. The connection processes one call at a time.
//! 3. `answered` buffers the reply and writes as much as the peer accepts. The connection reads
//!    nothing while a reply is unsent, so that a client that does not read cannot fill memory.
//!
//! All transfers are non-blocking; the event loop polls the socket. The connection is closed in
//! these cases:
//!
//! - The peer disconnects, or a read or write fails.
//! - The peer sends an invalid message, or a method panics.
//! - A message, its zero byte included, is longer than the limit of a message (256 KiB by default),
//!   or the buffered bytes reach this limit and contain no zero byte. At most 16 KiB more than the
//!   limit are buffered.
//! - The peer delays the rest of a message, or the reading of a reply, for longer than the time
//!   limit (5 s by default). A part of the message or of the reply does not restart the time.
//!
//! The search for a zero byte reads each buffered byte once per message at most, and once more on
//! arrival.

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

/// The connection of one peer.
pub struct Connection {
    /// Identifies the connection while the daemon lives.
    pub token: u64,
    /// The peer.
    pub peer: Peer,
    /// Whether the connection is closed.
    pub closed: bool,
    stream: UnixStream,
    service: Arc<VarlinkService>,
    /// Received bytes that are not processed yet.
    inbox: Vec<u8>,
    /// Whether the inbox holds a whole message.
    whole: bool,
    /// Bytes that the peer has not accepted yet.
    outbox: Vec<u8>,
    /// Whether a call of this connection is being processed.
    in_progress: bool,
    /// The time at which the connection began to wait for the rest of a message, or for the peer to
    /// read a reply.
    delayed_since: Option<Instant>,
}

impl Connection {
    /// Makes a connection that has no messages yet.
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
            in_progress: false,
            delayed_since: None,
        }
    }

    /// Returns whether nothing can be sent or received at present.
    pub fn waits(&self) -> bool {
        self.in_progress || (self.whole && self.outbox.is_empty())
    }

    /// Returns the events to poll for on its socket.
    pub fn poll_fd(&self) -> PollFd<'_> {
        let interest = match self.outbox.is_empty() {
            true => PollFlags::IN,
            false => PollFlags::OUT,
        };
        PollFd::from_borrowed_fd(self.stream.as_fd(), interest)
    }

    /// Returns the time since which the peer has delayed a message or a reply.
    pub fn delayed_since(&self) -> Option<Instant> {
        self.delayed_since
    }

    /// Reads or writes as much as possible without waiting.
    pub fn transfer(&mut self, limits: &Limits) {
        let goes_on = match self.outbox.is_empty() {
            true => self.read(limits),
            false => self.flush(),
        };
        self.closed |= !goes_on;
        self.look_at_the_clock();
    }

    /// Returns the next complete message. Closes the connection if the message is too long.
    pub fn next_call(&mut self, limits: &Limits) -> Option<Call> {
        if !self.is_due() {
            return None;
        }
        let end = self.inbox.iter().position(|&byte| byte == 0)?;
        if end >= limits.message_bytes {
            self.refuse(&quota::refusal(Quota::Message, limits.message_bytes));
            return None;
        }
        let message: Vec<u8> = self.inbox.drain(..=end).collect();
        self.whole = self.inbox.contains(&0);
        if self.inbox.is_empty() {
            self.inbox = Vec::new();
        }
        self.in_progress = true;
        self.look_at_the_clock();
        Some(Call {
            token: self.token,
            uid: self.peer.uid,
            service: self.service.clone(),
            message,
        })
    }

    /// Returns the number of buffered bytes.
    pub fn held_bytes(&self) -> usize {
        self.inbox.len() + self.outbox.len()
    }

    /// Returns whether the connection has a complete message of which the processing has not begun.
    pub fn is_due(&self) -> bool {
        !self.closed && !self.in_progress && self.whole && self.outbox.is_empty()
    }

    /// Sends as much of a last message as possible without waiting, and closes.
    pub fn refuse(&mut self, message: &[u8]) {
        let _ = self.stream.write(message);
        self.closed = true;
        self.inbox = Vec::new();
        self.outbox = Vec::new();
    }

    /// Records that the call of this connection has been answered, or was invalid.
    pub fn answered(&mut self, done: &mut Done) {
        self.in_progress = false;
        match done.reply.take() {
            Some(reply) => {
                self.outbox = reply;
                self.closed |= !self.flush();
            }
            None => self.closed = true,
        }
        self.look_at_the_clock();
    }

    /// Closes the connection if the peer has delayed a message or a reply for too long.
    pub fn close_if_late(&mut self, timeout: Duration) {
        self.closed |= self
            .delayed_since
            .is_some_and(|since| since.elapsed() > timeout);
    }

    fn look_at_the_clock(&mut self) {
        let half_sent = !self.whole && !self.in_progress && !self.inbox.is_empty();
        let is_delayed = half_sent || !self.outbox.is_empty();
        self.delayed_since = is_delayed.then(|| self.delayed_since.unwrap_or_else(Instant::now));
    }

    /// Reads once. Returns false if the connection must be closed.
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

    /// Writes what the peer accepts. Returns false if the connection must be closed.
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
