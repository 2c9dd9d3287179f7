// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ready tasks ([`Job`], [`JobRef`]) and linked lists of ready tasks ([`Chain`]).
//!
//! Each ready task has exactly one *holder*: a container (queue, chain, inbox or steal slot), or
//! the worker that is about to run the task. Each job contains a link to the next job, so a chain
//! needs no memory of its own. Only the holder of a job may read or write the job's link. A holder
//! passes a job to another thread by an atomic release operation, which the other thread acquires.
//! Adding a job to a chain or removing its first job takes constant time; removing any other job
//! takes time linear in the length of the chain.

use std::cell::UnsafeCell;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::dispatch::Groups;

/// The data that all jobs of one type share. The data begin with a `worker::JobVtable`. Containers
/// of jobs do not read it, so this type is opaque.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Vtable {
    _opaque: [u8; 0],
}

/// The part of a task that containers and workers use. It is the first field of each task.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Job {
    vtable: NonNull<Vtable>,
    /// The next job of a chain.
    link: UnsafeCell<*mut Job>,
    /// The temporal and the spatial group, packed. Only the holder of the task writes the groups.
    /// The release operation that passes the task on also publishes the groups.
    groups: AtomicU64,
}

impl Job {
    /// Creates a job. `vtable` points to data that begin with a `worker::JobVtable` and must
    /// outlive the job.
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

/// A pointer to a ready task. The owner of this value is the holder of the task.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct JobRef(NonNull<Job>);

// SAFETY: the creators of jobs guarantee that any worker may run them, and a job has one holder at
// a time.
unsafe impl Send for JobRef {}

impl JobRef {
    /// # Safety
    /// The job exists until it has run, and has no other holder.
    #[inline]
    pub unsafe fn new(job: NonNull<Job>) -> Self {
        Self(job)
    }

    #[inline]
    pub fn groups(&self) -> Groups {
        // SAFETY: the job exists, because it has not run.
        unsafe { self.0.as_ref() }.groups()
    }

    #[inline]
    pub fn as_ptr(&self) -> NonNull<Job> {
        self.0
    }

    #[inline]
    pub fn vtable(&self) -> NonNull<Vtable> {
        // SAFETY: the job exists, because it has not run.
        unsafe { self.0.as_ref() }.vtable()
    }
}

/// A linked list of ready tasks. A chain must be empty when it is dropped, because its tasks would
/// never run.
#[derive(Debug)]
#[must_use]
pub(crate) struct Chain {
    head: *mut Job,
}

// SAFETY: any worker may run the jobs, as the creators of the jobs guarantee, and the chain has one
// holder.
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
        // SAFETY: the jobs of a chain exist, because they have not run, and the holder of the chain
        // holds them.
        self.head = unsafe { *job.as_ref().link.get() };
        Some(JobRef(job))
    }

    pub fn is_empty(&self) -> bool {
        self.head.is_null()
    }

    /// Removes a job from any position in the chain. Returns whether the chain contained the job.
    pub fn remove(&mut self, job: NonNull<Job>) -> bool {
        let mut at = &raw mut self.head;
        loop {
            // SAFETY: `at` points to the head, or to the link of a job of the chain. The jobs of a
            // chain exist, because they have not run, and the holder of the chain holds them.
            let Some(one) = NonNull::new(unsafe { *at }) else {
                return false;
            };
            // SAFETY: the jobs of a chain exist, because they have not run.
            let link = unsafe { one.as_ref() }.link.get();
            if one == job {
                // SAFETY: the holder of the chain may write its head and the links of its jobs.
                unsafe { *at = *link };
                return true;
            }
            at = link;
        }
    }

    /// Returns whether a job has high priority.
    pub fn has_high_priority(&self) -> bool {
        self.groups()
            .any(|groups| groups.t == Groups::HIGH_PRIORITY.t)
    }

    /// Returns the groups of each job.
    #[inline]
    pub fn groups(&self) -> impl Iterator<Item = Groups> + '_ {
        let mut next = self.head;
        std::iter::from_fn(move || {
            let job = NonNull::new(next)?;
            // SAFETY: the jobs of a chain exist, because they have not run, and the holder of the
            // chain holds them.
            let job = unsafe { job.as_ref() };
            // SAFETY: only the holder of the chain writes links, and the holder cannot do so while
            // this iterator borrows the chain.
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
    /// `head` came from [`Self::into_raw`], and is passed to this function once.
    pub unsafe fn from_raw(head: *mut Job) -> Self {
        Self { head }
    }

    /// Returns the last job, in time linear in the length of the chain.
    pub fn last_job(&self) -> Option<NonNull<Job>> {
        let mut last = NonNull::new(self.head)?;
        // SAFETY: the jobs of a chain exist, because they have not run, and the holder of the chain
        // holds them.
        while let Some(next) = NonNull::new(unsafe { *last.as_ref().link.get() }) {
            last = next;
        }
        Some(last)
    }

    /// Links the last job of a chain to a chain that starts at `tail`.
    ///
    /// # Safety
    /// The caller holds the chain that ends with `last`. Until the chain is published, no thread
    /// follows the link, and the caller need not hold the jobs from `tail` on.
    pub unsafe fn link_last_to(last: NonNull<Job>, tail: *mut Job) {
        // SAFETY: the holder of a job may write its link.
        unsafe { *last.as_ref().link.get() = tail };
    }
}

/// Builds a chain of which the first job is the last job of the iterator.
impl FromIterator<JobRef> for Chain {
    fn from_iter<I: IntoIterator<Item = JobRef>>(jobs: I) -> Self {
        let mut chain = Self::EMPTY;
        jobs.into_iter().for_each(|job| chain.push(job));
        chain
    }
}

/// Removes and returns the jobs from the front to the back.
impl Iterator for Chain {
    type Item = JobRef;

    fn next(&mut self) -> Option<JobRef> {
        self.pop()
    }
}
