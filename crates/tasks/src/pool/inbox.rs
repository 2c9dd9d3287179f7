// SPDX-License-Identifier: MIT OR Apache-2.0
//! An inbox: any thread adds tasks, any thread takes all of them.
//!
//! The inbox is Treiber's linked stack without a pop of single elements. Such a pop may read the
//! link of a task that another thread has removed and pushed again meanwhile (ABA problem). A push
//! is safe: if its compare-exchange succeeds after the stack was taken and rebuilt, the new task is
//! linked to the current head all the same.

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
            // SAFETY: the chain is published only by the exchange below.
            unsafe { chain.link_first_to(head) };
            let raw = chain.into_raw();
            let exchanged =
                (self.head).compare_exchange_weak(head, raw, Ordering::Release, Ordering::Relaxed);
            match exchanged {
                Ok(_) => return,
                Err(now) => head = now,
            }
            // SAFETY: the exchange failed, so the chain still belongs to this thread.
            chain = unsafe { Chain::from_raw(raw) };
        }
    }

    /// Returns whether the inbox seems to be empty.
    pub fn is_empty(&self) -> bool {
        self.head.load(Ordering::Relaxed).is_null()
    }

    /// Takes all tasks, oldest first.
    pub fn take(&self) -> Chain {
        if self.is_empty() {
            return Chain::EMPTY;
        }
        let head = self.head.swap(ptr::null_mut(), Ordering::Acquire);
        // SAFETY: pushes have linked this chain, and only this swap returned it.
        unsafe { Chain::from_raw(head) }.reversed()
    }
}
