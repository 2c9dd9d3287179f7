// SPDX-License-Identifier: MIT OR Apache-2.0
//! A task that is ready, as pools and workers see it.
//!
//! A ready task is in one place at a time: in a pool, or with the worker that is
//! about to run it. Whoever holds it may write its link; whoever passes it on does
//! so by an atomic that releases, and whoever gets it acquires.

use std::cell::UnsafeCell;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::dispatch::Groups;
use crate::worker::Worker;

/// What jobs of one kind have in common. It may be the head of something larger, of
/// which the kind's own function knows: all tasks of a graph point to the graph.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Kind {
    /// Runs a job of this kind, and maybe others that become ready by it.
    pub run: unsafe fn(JobRef, &Worker<'_>),
}

/// The head of every task.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Job {
    kind: NonNull<Kind>,
    /// The next in a chain.
    link: UnsafeCell<*mut Job>,
    /// Its groups, both in one. Whoever sets them has the task to itself, as whoever
    /// holds it has, who passes it on by a release.
    groups: AtomicU64,
}

impl Job {
    /// Of a kind that lives as long as jobs of it are run.
    pub fn new(kind: NonNull<Kind>, groups: Groups) -> Self {
        Self {
            kind,
            link: UnsafeCell::new(ptr::null_mut()),
            groups: AtomicU64::new(groups.packed()),
        }
    }

    #[inline]
    pub fn kind(&self) -> NonNull<Kind> {
        self.kind
    }

    #[inline]
    pub fn groups(&self) -> Groups {
        Groups::unpacked(self.groups.load(Ordering::Relaxed))
    }

    pub fn set_groups(&self, groups: Groups) {
        self.groups.store(groups.packed(), Ordering::Relaxed);
    }
}

/// A ready task that one holder has.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct JobRef(NonNull<Job>);

// SAFETY: a job may be run by any worker, as those who make them promise, and
// there is one holder of it at a time.
unsafe impl Send for JobRef {}

impl JobRef {
    /// # Safety
    /// The job lives until it has run, and nobody else holds it.
    #[inline]
    pub unsafe fn new(job: NonNull<Job>) -> Self {
        Self(job)
    }

    #[inline]
    pub fn groups(&self) -> Groups {
        // SAFETY: the job lives, as it has not run.
        unsafe { self.0.as_ref() }.groups()
    }

    #[inline]
    pub fn as_ptr(&self) -> NonNull<Job> {
        self.0
    }

    /// Runs it on this worker.
    #[inline]
    pub fn run(self, worker: &Worker<'_>) {
        // SAFETY: the function is the one made for this kind of job, which lives and
        // is ours, and is given away.
        unsafe {
            let run = self.0.as_ref().kind.as_ref().run;
            run(self, worker);
        }
    }
}

/// Ready tasks, linked; dropped with something in it, they would never run.
#[derive(Debug)]
#[must_use]
pub(crate) struct Chain {
    head: *mut Job,
}

// SAFETY: as for a single one.
unsafe impl Send for Chain {}

impl Chain {
    pub const EMPTY: Self = Self {
        head: ptr::null_mut(),
    };

    /// Puts one in front.
    pub fn push(&mut self, job: JobRef) {
        let job = job.0.as_ptr();
        // SAFETY: whoever holds a job may write its link.
        unsafe { *(*job).link.get() = self.head };
        self.head = job;
    }

    /// Takes the one in front.
    pub fn pop(&mut self) -> Option<JobRef> {
        let job = NonNull::new(self.head)?;
        // SAFETY: jobs in a chain live, and are the chain's holder's.
        self.head = unsafe { *job.as_ref().link.get() };
        Some(JobRef(job))
    }

    pub fn is_empty(&self) -> bool {
        self.head.is_null()
    }

    /// Takes that one out, wherever it is in the chain; whether it was.
    pub fn take_out(&mut self, job: NonNull<Job>) -> bool {
        let mut at = &raw mut self.head;
        loop {
            // SAFETY: the head, or the link of a job in the chain: these live, and are
            // the chain's holder's.
            let Some(one) = NonNull::new(unsafe { *at }) else {
                return false;
            };
            // SAFETY: as above.
            let link = unsafe { one.as_ref() }.link.get();
            if one == job {
                // SAFETY: as above.
                unsafe { *at = *link };
                return true;
            }
            at = link;
        }
    }

    /// The groups of each.
    #[inline]
    pub fn groups(&self) -> impl Iterator<Item = Groups> + '_ {
        let mut next = self.head;
        std::iter::from_fn(move || {
            let job = NonNull::new(next)?;
            // SAFETY: jobs in a chain live, and are the chain's holder's.
            let job = unsafe { job.as_ref() };
            // SAFETY: only the holder writes links, and lends the chain to us.
            next = unsafe { *job.link.get() };
            Some(job.groups())
        })
    }

    /// The first becomes the last.
    pub fn reversed(mut self) -> Self {
        let mut reversed = Self::EMPTY;
        while let Some(job) = self.pop() {
            reversed.push(job);
        }
        reversed
    }

    /// As a pointer that an atomic can hold, which is the chain from now on.
    pub fn into_raw(self) -> *mut Job {
        self.head
    }

    /// # Safety
    /// The pointer came from [`Self::into_raw`], and is used once.
    pub unsafe fn from_raw(head: *mut Job) -> Self {
        Self { head }
    }

    /// Hangs a chain that starts at `tail` behind this one's first, which is all
    /// there is in it.
    ///
    /// # Safety
    /// Nobody follows the link before this chain is given on; `tail` need not be
    /// this holder's until then.
    pub unsafe fn link_first_to(&mut self, tail: *mut Job) {
        if let Some(first) = NonNull::new(self.head) {
            // SAFETY: whoever holds a job may write its link.
            unsafe { *first.as_ref().link.get() = tail };
        }
    }
}
