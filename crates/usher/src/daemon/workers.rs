// SPDX-License-Identifier: GPL-2.0-only
//! Threads that answer calls, so that one that waits for the loop keeps
//! nobody else waiting.

use std::cell::Cell;
use std::collections::BTreeMap;
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
    /// The user at the other end.
    pub uid: u32,
    /// Who answers it.
    pub service: Arc<VarlinkService>,
    /// The message with its final NUL.
    pub message: Vec<u8>,
}

/// What is done when a reply cannot be delivered.
pub type Undelivered = Box<dyn FnOnce() + Send>;

/// An answered call.
pub struct Done {
    /// Whose.
    pub token: u64,
    /// The user at the other end.
    pub uid: u32,
    /// What the method has asked for if its reply cannot be delivered.
    pub undelivered: Option<Undelivered>,
    /// What to send, which may be nothing; `None`: hang up.
    pub reply: Option<Vec<u8>>,
}

/// The threads. They end when this is dropped.
pub struct Workers {
    calls: Sender<Job>,
    share: Share,
    done: Receiver<Done>,
    bell: Arc<OwnedFd>,
}

enum Job {
    Answer(Call),
    Undo(Undelivered),
}

/// Which user's calls occupy how many threads. One user has a share of them,
/// and all users together leave some to root: otherwise a few calls that take
/// long keep root from looking into it.
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

/// Has this done if the reply of the call that this thread answers cannot be
/// delivered, because the caller has gone.
pub fn if_undelivered(undo: impl FnOnce() + Send + 'static) {
    UNDELIVERED.set(Some(Box::new(undo)));
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
        let share = Share::new(count);
        Ok(Self {
            calls,
            share,
            done,
            bell,
        })
    }

    /// Whether a thread is free for a call of this user.
    pub fn admits(&self, uid: u32) -> bool {
        self.share.admits(uid)
    }

    /// Has a call answered.
    pub fn begin(&mut self, call: Call) {
        self.share.begin(call.uid);
        // Fails only where all threads have died, which they do not.
        let _ = self.calls.send(Job::Answer(call));
    }

    /// Undoes what a call has done whose reply could not be delivered.
    pub fn undo(&self, undo: Undelivered) {
        let _ = self.calls.send(Job::Undo(undo));
    }

    /// What has been answered since the last look.
    pub fn done(&mut self) -> Vec<Done> {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.bell, &mut count);
        let done: Vec<Done> = self.done.try_iter().collect();
        done.iter().for_each(|one| self.share.end(one.uid));
        done
    }

    /// Readable when something has been answered.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

fn work(queue: &Mutex<Receiver<Job>>, answers: &Sender<Done>, bell: &OwnedFd) {
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
