// SPDX-License-Identifier: GPL-2.0-only
//! The threads that answer calls, so that a call that waits for the control loop does not block
//! other calls.
//!
//! 1. The event loop (`server`) starts a call if [`Workers::admits`] permits it.
//! 2. A thread calls the method, and queues the reply for the event loop.
//! 3. A method can register an action that undoes its call ([`if_undelivered`]). The action runs on
//!    one of the threads if the reply cannot be delivered, because the caller has disconnected.
//!
//! Bounds, for the number of threads that the event loop gives (32): a user other than root has at
//! most a quarter of the threads in use, all users except root together at most seven eighths.
//! Calls of root are always admitted, and wait in the queue if all threads are in use. Undo actions
//! also wait in the queue. A call has no time limit. A panic in a method, or an invalid message,
//! closes only the connection of its caller.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use varlink::{ConnectionHandler, VarlinkService};

/// A message to answer.
pub struct Call {
    /// Identifies the connection of the call.
    pub token: u64,
    /// The user at the other end.
    pub uid: u32,
    /// The service that answers it.
    pub service: Arc<VarlinkService>,
    /// The message with its final NUL.
    pub message: Vec<u8>,
}

/// The action that runs if a reply cannot be delivered.
pub type Undelivered = Box<dyn FnOnce() + Send>;

/// An answered call.
pub struct Done {
    /// Identifies the connection of the call.
    pub token: u64,
    /// The user at the other end.
    pub uid: u32,
    /// The action that the method requested in case its reply cannot be delivered.
    pub undelivered: Option<Undelivered>,
    /// The bytes to send, possibly none; `None`: close the connection.
    pub reply: Option<Vec<u8>>,
}

/// The threads, which end when this value is dropped.
pub struct Workers {
    calls: Sender<Job>,
    share: Share,
    done: Receiver<Done>,
    notify_fd: Arc<OwnedFd>,
}

enum Job {
    Answer(Call),
    Undo(Undelivered),
}

/// Number of threads in use, by user. One user may use only a share of the threads, and all users
/// together leave some threads to root, so that root can examine the daemon even during many long
/// calls.
struct Share {
    running: BTreeMap<u32, usize>,
    per_user: usize,
    users: usize,
}

impl Share {
    fn new(threads: usize) -> Self {
        Self {
            running: BTreeMap::new(),
            per_user: (threads / 4).max(1),
            users: (threads - threads / 8).max(1),
        }
    }

    fn admits(&self, uid: u32) -> bool {
        let of_users = self.running.iter().filter(|(uid, _)| **uid != 0);
        let users: usize = of_users.map(|(_, count)| count).sum();
        let theirs = self.running.get(&uid).copied().unwrap_or(0);
        uid == 0 || (theirs < self.per_user && users < self.users)
    }

    fn begin(&mut self, uid: u32) {
        *self.running.entry(uid).or_default() += 1;
    }

    fn end(&mut self, uid: u32) {
        if let Some(count) = self.running.get_mut(&uid) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.running.remove(&uid);
            }
        }
    }
}

thread_local! {
    static UNDELIVERED: Cell<Option<Undelivered>> = const { Cell::new(None) };
}

/// Registers an action for the case that the reply of this thread's call cannot be delivered,
/// because the caller is gone.
pub fn if_undelivered(undo: impl FnOnce() + Send + 'static) {
    UNDELIVERED.set(Some(Box::new(undo)));
}

/// Enough for the deepest JSON that the parser accepts.
const STACK_BYTES: usize = 1 << 20;

impl Workers {
    /// Starts `count` threads.
    ///
    /// # Errors
    /// A thread or a descriptor cannot be created.
    pub fn start(count: usize) -> io::Result<Self> {
        let (calls, queue) = channel();
        let (answers, done) = channel();
        let queue = Arc::new(Mutex::new(queue));
        let notify_fd = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        for _ in 0..count {
            let (queue, answers, notify_fd) = (queue.clone(), answers.clone(), notify_fd.clone());
            std::thread::Builder::new()
                .name("call".to_owned())
                .stack_size(STACK_BYTES)
                .spawn(move || work(&queue, &answers, &notify_fd))?;
        }
        let share = Share::new(count);
        Ok(Self {
            calls,
            share,
            done,
            notify_fd,
        })
    }

    /// Returns whether a call of this user may start: always for root, and for other users within
    /// their share of the threads.
    pub fn admits(&self, uid: u32) -> bool {
        self.share.admits(uid)
    }

    /// Starts a call.
    pub fn begin(&mut self, call: Call) {
        self.share.begin(call.uid);
        // Fails only if all threads have died, which cannot happen.
        let _ = self.calls.send(Job::Answer(call));
    }

    /// Undoes a call that could not deliver its reply.
    pub fn undo(&self, undo: Undelivered) {
        let _ = self.calls.send(Job::Undo(undo));
    }

    /// Returns the calls that were answered since the last call of this function.
    pub fn done(&mut self) -> Vec<Done> {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.notify_fd, &mut count);
        let done: Vec<Done> = self.done.try_iter().collect();
        done.iter().for_each(|one| self.share.end(one.uid));
        done
    }

    /// Returns a descriptor that is readable when a call has been answered.
    pub fn notify_fd(&self) -> BorrowedFd<'_> {
        self.notify_fd.as_fd()
    }
}

fn work(queue: &Mutex<Receiver<Job>>, answers: &Sender<Done>, notify_fd: &OwnedFd) {
    loop {
        let call = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let call = match call {
            Ok(Job::Answer(call)) => call,
            Ok(Job::Undo(undo)) => {
                let _ = catch_unwind(AssertUnwindSafe(undo));
                continue;
            }
            Err(_) => return,
        };
        let reply = answer(&call);
        let done = Done {
            token: call.token,
            uid: call.uid,
            undelivered: UNDELIVERED.take(),
            reply,
        };
        if answers.send(done).is_err() {
            return;
        }
        let _ = rustix::io::write(notify_fd, &1u64.to_ne_bytes());
    }
}

/// Calls the method; `None` if the message is invalid.
fn answer(call: &Call) -> Option<Vec<u8>> {
    let text = call.message.strip_suffix(&[0]).unwrap_or(&call.message);
    let request = serde_json::from_slice::<varlink::Request<'_>>(text).ok()?;
    let oneway = request.oneway == Some(true);
    let mut reply = Vec::new();
    // A panic in a method is a fault of Usher. The panic closes the connection of this peer, and
    // affects no other connection.
    let handled = catch_unwind(AssertUnwindSafe(|| {
        (call.service).handle(&mut &call.message[..], &mut reply, None)
    }));
    let answered = match handled {
        Ok(Ok((_, upgraded))) => upgraded.is_none(),
        // For arguments of the wrong type, the service returns an error and also writes a reply.
        Ok(Err(_)) => !reply.is_empty(),
        Err(_) => false,
    };
    if oneway {
        reply = Vec::new();
    }
    answered.then_some(reply)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_has_a_share_of_the_threads_and_root_always_has_one() {
        let mut share = Share::new(32);
        (0..8).for_each(|_| share.begin(1000));
        assert!(!share.admits(1000) && share.admits(1001));
        for uid in 1001..=1003 {
            while share.admits(uid) {
                share.begin(uid);
            }
        }
        assert!(!share.admits(1004) && share.admits(0));
        share.end(1000);
        assert!(share.admits(1000));
    }
}
