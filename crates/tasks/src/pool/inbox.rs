// SPDX-License-Identifier: MIT OR Apache-2.0
//! An inbox: a lock-free queue to which any thread adds single tasks, and from which any thread
//! takes all tasks at once, oldest first.
//!
//! The inbox is Treiber's linked stack without a pop of single tasks.
//!
//! - *Push*: link the task to the current head, and replace the head by a compare-exchange, until
//!   it succeeds. A compare-exchange fails spuriously, or because another thread has changed the
//!   inbox; the number of repetitions has no limit.
//! - *Take*: swap the head with null, and reverse the chain, in time linear in its length.
//!
//! A pop of a single task would suffer from the ABA problem: it could use the link of a task that
//! another thread has removed and pushed again meanwhile. A push has no such problem. If other
//! threads take and refill the stack during a push, and the compare-exchange still succeeds, the
//! new task is linked to the current head.

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
    /// Adds a task.
    pub fn push(&self, job: JobRef) {
        let mut chain = Chain::EMPTY;
        chain.push(job);
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            // SAFETY: the chain has one job, and is published only by the compare-exchange below.
            unsafe { chain.link_first_to(head) };
            let raw = chain.into_raw();
            let exchanged =
                (self.head).compare_exchange_weak(head, raw, Ordering::Release, Ordering::Relaxed);
            match exchanged {
                Ok(_) => return,
                Err(now) => head = now,
            }
            // SAFETY: the compare-exchange failed, so this thread still holds the chain.
            chain = unsafe { Chain::from_raw(raw) };
        }
    }

    /// Returns whether the inbox seems to be empty. The answer may be outdated when the function
    /// returns.
    pub fn is_empty(&self) -> bool {
        self.head.load(Ordering::Relaxed).is_null()
    }

    /// Takes all tasks, oldest first.
    pub fn take(&self) -> Chain {
        if self.is_empty() {
            return Chain::EMPTY;
        }
        let head = self.head.swap(ptr::null_mut(), Ordering::Acquire);
        // SAFETY: `head` is a chain that pushes have linked, and only this swap returned it.
        unsafe { Chain::from_raw(head) }.reversed()
    }
}
