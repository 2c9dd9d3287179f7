// SPDX-License-Identifier: MIT OR Apache-2.0
//! A ready task, as containers and workers see it.
//!
//! A ready task is in one container, or with the worker that is about to run it. Only the holder of
//! the task may write the task's link. A holder passes a task on by an atomic release operation,
//! and the next holder acquires it.

use std::cell::UnsafeCell;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::dispatch::Groups;

/// The part that all jobs of one type share. It begins with a `worker::JobVtable`, which containers
/// of jobs do not access.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Vtable {
    _opaque: [u8; 0],
}

/// The first field of every task.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Job {
    vtable: NonNull<Vtable>,
    /// The next job of a chain.
    link: UnsafeCell<*mut Job>,
    /// Both groups, packed. Only a holder of the task writes the groups, and publishes them by the
    /// release operation that passes the task on.
    groups: AtomicU64,
}

impl Job {
    /// Creates a job. The vtable begins with a `worker::JobVtable` and must outlive the job.
    pub fn new(vtable: NonNull<Vtable>, groups: Groups) -> Self {
        Self {
            vtable,
            link: UnsafeCell::new(ptr::null_mut()),
            groups: AtomicU64::new(groups.packed()),
        }
    }

    #[inline]
    pub fn vtable(&self) -> NonNull<Vtable> {
        self.vtable
    }

    #[inline]
    pub fn groups(&self) -> Groups {
        Groups::unpacked(self.groups.load(Ordering::Relaxed))
    }

    pub fn set_groups(&self, groups: Groups) {
        self.groups.store(groups.packed(), Ordering::Relaxed);
    }
}

/// A ready task, owned by one holder.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct JobRef(NonNull<Job>);

// SAFETY: the creators of jobs guarantee that any worker may run them, and a job has one holder at
// a time.
unsafe impl Send for JobRef {}

impl JobRef {
    /// # Safety
    /// The job lives until it has run, and has no other holder.
    #[inline]
    pub unsafe fn new(job: NonNull<Job>) -> Self {
        Self(job)
    }

    #[inline]
    pub fn groups(&self) -> Groups {
        // SAFETY: the job lives, because it has not run.
        unsafe { self.0.as_ref() }.groups()
    }

    #[inline]
    pub fn as_ptr(&self) -> NonNull<Job> {
        self.0
    }

    #[inline]
    pub fn vtable(&self) -> NonNull<Vtable> {
        // SAFETY: the job lives, because it has not run.
        unsafe { self.0.as_ref() }.vtable()
    }
}

/// A linked list of ready tasks. Dropping a chain that is not empty would lose its tasks.
#[derive(Debug)]
#[must_use]
pub(crate) struct Chain {
    head: *mut Job,
}

// SAFETY: as for `JobRef`: any worker may run the jobs, and the chain has one holder.
unsafe impl Send for Chain {}

impl Chain {
    pub const EMPTY: Self = Self {
        head: ptr::null_mut(),
    };

    /// Adds a job at the front.
    pub fn push(&mut self, job: JobRef) {
        let job = job.0.as_ptr();
        // SAFETY: the holder of a job may write its link.
        unsafe { *(*job).link.get() = self.head };
        self.head = job;
    }

    /// Removes the job at the front.
    pub fn pop(&mut self) -> Option<JobRef> {
        let job = NonNull::new(self.head)?;
        // SAFETY: jobs of a chain live and belong to the holder of the chain.
        self.head = unsafe { *job.as_ref().link.get() };
        Some(JobRef(job))
    }

    pub fn is_empty(&self) -> bool {
        self.head.is_null()
    }

    /// Removes a job, wherever it is in the chain. Returns whether the chain contained it.
    pub fn remove(&mut self, job: NonNull<Job>) -> bool {
        let mut at = &raw mut self.head;
        loop {
            // SAFETY: `at` is the head, or the link of a job of the chain. Jobs of the chain live
            // and belong to the holder of the chain.
            let Some(one) = NonNull::new(unsafe { *at }) else {
                return false;
            };
            // SAFETY: a job of the chain lives.
            let link = unsafe { one.as_ref() }.link.get();
            if one == job {
                // SAFETY: the holder of the chain may write its head and the links of its jobs.
                unsafe { *at = *link };
                return true;
            }
            at = link;
        }
    }

    /// Returns the groups of each job.
    #[inline]
    pub fn groups(&self) -> impl Iterator<Item = Groups> + '_ {
        let mut next = self.head;
        std::iter::from_fn(move || {
            let job = NonNull::new(next)?;
            // SAFETY: jobs of a chain live and belong to the holder of the chain.
            let job = unsafe { job.as_ref() };
            // SAFETY: only the holder writes links, and it lends the chain to this iterator.
            next = unsafe { *job.link.get() };
            Some(job.groups())
        })
    }

    /// Returns the chain in reverse order.
    pub fn reversed(mut self) -> Self {
        let mut reversed = Self::EMPTY;
        while let Some(job) = self.pop() {
            reversed.push(job);
        }
        reversed
    }

    /// Converts the chain into a pointer that an atomic can hold.
    pub fn into_raw(self) -> *mut Job {
        self.head
    }

    /// # Safety
    /// The pointer came from [`Self::into_raw`] and is used once.
    pub unsafe fn from_raw(head: *mut Job) -> Self {
        Self { head }
    }

    /// Links the only job of this chain to a chain that starts at `tail`.
    ///
    /// # Safety
    /// No thread follows the link before this chain is published. Until then the holder of this
    /// chain need not own `tail`.
    pub unsafe fn link_first_to(&mut self, tail: *mut Job) {
        if let Some(first) = NonNull::new(self.head) {
            // SAFETY: the holder of a job may write its link.
            unsafe { *first.as_ref().link.get() = tail };
        }
    }
}

/// Removes the jobs from the front.
impl Iterator for Chain {
    type Item = JobRef;

    fn next(&mut self) -> Option<JobRef> {
        self.pop()
    }
}
