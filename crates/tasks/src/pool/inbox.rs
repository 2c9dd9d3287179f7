// SPDX-License-Identifier: MIT OR Apache-2.0
//! An inbox: a lock-free queue to which any thread adds a task or a chain of tasks, and from which
//! any thread takes all tasks at once, oldest first.
//!
//! The inbox is Treiber's linked stack without a pop of single tasks.
//!
//! - *Push*: link the last task of the chain to the current head, and replace the head by a
//!   compare-exchange, until it succeeds. A compare-exchange fails spuriously, or because another
//!   thread has changed the inbox; the number of repetitions has no limit.
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
        self.push_all(std::iter::once(job).collect());
    }

    /// Adds the tasks of a chain, of which the first is the newest.
    pub fn push_all(&self, chain: Chain) {
        let Some(last) = chain.last_job() else { return };
        let first = chain.into_raw();
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            // SAFETY: this thread holds the chain, which only the compare-exchange below publishes.
            unsafe { Chain::link_last_to(last, head) };
            let exchanged = (self.head).compare_exchange_weak(
                head,
                first,
                Ordering::Release,
                Ordering::Relaxed,
            );
            match exchanged {
                Ok(_) => return,
                Err(now) => head = now,
            }
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
