// SPDX-License-Identifier: GPL-2.0-only
//! Threads that answer calls, so that one that waits for the loop keeps
//! nobody else waiting.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use varlink::{ConnectionHandler, VarlinkService};

/// A message to be answered.
pub struct Call {
    /// Whose.
    pub token: u64,
    /// Who answers it.
    pub service: Arc<VarlinkService>,
    /// The message with its final NUL.
    pub message: Vec<u8>,
}

/// An answered call.
pub struct Done {
    /// Whose.
    pub token: u64,
    /// What to send, which may be nothing; `None`: hang up.
    pub reply: Option<Vec<u8>>,
}

/// The threads. They end when this is dropped.
pub struct Workers {
    calls: Sender<Call>,
    done: Receiver<Done>,
    bell: Arc<OwnedFd>,
}

/// Enough for the deepest JSON that the parser takes.
const STACK_BYTES: usize = 1 << 20;

impl Workers {
    /// Starts so many.
    ///
    /// # Errors
    /// A thread or a descriptor cannot be had.
    pub fn start(count: usize) -> io::Result<Self> {
        let (calls, queue) = channel();
        let (answers, done) = channel();
        let queue = Arc::new(Mutex::new(queue));
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        for _ in 0..count {
            let (queue, answers, bell) = (queue.clone(), answers.clone(), bell.clone());
            std::thread::Builder::new()
                .name("call".to_owned())
                .stack_size(STACK_BYTES)
                .spawn(move || work(&queue, &answers, &bell))?;
        }
        Ok(Self { calls, done, bell })
    }

    /// Has a call answered.
    pub fn begin(&self, call: Call) {
        // Fails only where all threads have died, which they do not.
        let _ = self.calls.send(call);
    }

    /// What has been answered since the last look.
    pub fn done(&self) -> Vec<Done> {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.bell, &mut count);
        self.done.try_iter().collect()
    }

    /// Readable when something has been answered.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

fn work(queue: &Mutex<Receiver<Call>>, answers: &Sender<Done>, bell: &OwnedFd) {
    loop {
        let call = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(call) = call else {
            return;
        };
        let token = call.token;
        let reply = answer(&call);
        if answers.send(Done { token, reply }).is_err() {
            return;
        }
        let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
    }
}

/// Calls the method; `None` where the message makes no sense.
fn answer(call: &Call) -> Option<Vec<u8>> {
    let text = call.message.strip_suffix(&[0]).unwrap_or(&call.message);
    let request = serde_json::from_slice::<varlink::Request<'_>>(text).ok()?;
    let oneway = request.oneway == Some(true);
    let mut reply = Vec::new();
    // A method that panics is a bug of ours; it costs this peer its
    // connection and nobody else anything.
    let handled = catch_unwind(AssertUnwindSafe(|| {
        (call.service).handle(&mut &call.message[..], &mut reply, None)
    }));
    let answered = match handled {
        Ok(Ok((_, upgraded))) => upgraded.is_none(),
        // Arguments of the wrong type are answered and an error all the same.
        Ok(Err(_)) => !reply.is_empty(),
        Err(_) => false,
    };
    if oneway {
        reply = Vec::new();
    }
    answered.then_some(reply)
}
