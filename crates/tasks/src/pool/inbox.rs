// SPDX-License-Identifier: MIT OR Apache-2.0
//! An inbox: anybody puts tasks in, anybody takes all that there are.
//!
//! A stack of links (Treiber's), of which nobody ever takes a part. That is what
//! makes it safe: the trouble with such stacks is a pop that reads the link of a
//! task which somebody else has taken and put back meanwhile (ABA), and there is
//! no pop. A push whose comparison succeeds after the whole stack has been taken
//! and built up again is right all the same: its task lies on what is there.

use std::ptr;

use crate::job::{Chain, Job, JobRef};
use crate::sync::{AtomicPtr, Ordering};

/// An inbox, on cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Inbox {
    head: AtomicPtr<Job>,
}

impl Default for Inbox {
    fn default() -> Self {
        Self {
            head: AtomicPtr::new(ptr::null_mut()),
        }
    }
}

impl Inbox {
    /// Puts a task in.
    pub fn push(&self, job: JobRef) {
        let mut chain = Chain::EMPTY;
        chain.push(job);
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            // SAFETY: the chain is given on by the exchange below, if at all.
            unsafe { chain.link_first_to(head) };
            let raw = chain.into_raw();
            let exchanged =
                (self.head).compare_exchange_weak(head, raw, Ordering::Release, Ordering::Relaxed);
            match exchanged {
                Ok(_) => return,
                Err(now) => head = now,
            }
            // SAFETY: not given on, so still ours.
            chain = unsafe { Chain::from_raw(raw) };
        }
    }

    /// Whether there seems to be nothing in it.
    pub fn is_empty(&self) -> bool {
        self.head.load(Ordering::Relaxed).is_null()
    }

    /// Takes all that is in it, in the order in which it was put in.
    pub fn take(&self) -> Chain {
        if self.is_empty() {
            return Chain::EMPTY;
        }
        let head = self.head.swap(ptr::null_mut(), Ordering::Acquire);
        // SAFETY: pushes have linked this chain, and the swap gives it to one.
        unsafe { Chain::from_raw(head) }.reversed()
    }
}
