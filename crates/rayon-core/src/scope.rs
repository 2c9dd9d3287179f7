// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scopes. A [`Scope`] is a scope of `usher-tasks` under another name. A [`ScopeFifo`] adds a queue
//! for each thread: a task of the scope takes the oldest function of the queue of the thread that
//! has spawned it.

use std::collections::VecDeque;
use std::fmt;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use usher_tasks::CurrentWorker;

use crate::broadcast::BroadcastContext;
use crate::current::current_num_threads;
use crate::global::global;

/// A set of tasks that may borrow data with lifetime `'scope`, and that end before the scope ends.
#[repr(transparent)]
pub struct Scope<'scope>(usher_tasks::TaskScope<'scope>);

impl<'scope> Scope<'scope> {
    pub(crate) fn from_ref<'a>(scope: &'a usher_tasks::TaskScope<'scope>) -> &'a Self {
        // SAFETY: the representation of this type is that of its only field.
        unsafe { &*ptr::from_ref(scope).cast::<Self>() }
    }

    /// Spawns a task of the scope. If it panics, the scope panics after all tasks have ended.
    pub fn spawn<BODY>(&self, body: BODY)
    where
        BODY: FnOnce(&Scope<'scope>) + Send + 'scope,
    {
        self.0.spawn(|scope| body(Self::from_ref(scope)));
    }

    /// Spawns one task on each thread of the pool.
    pub fn spawn_broadcast<BODY>(&self, body: BODY)
    where
        BODY: Fn(&Scope<'scope>, BroadcastContext<'_>) + Send + Sync + 'scope,
    {
        let threads = self.0.workers();
        self.0.spawn_broadcast(move |scope, index| {
            body(Self::from_ref(scope), BroadcastContext::new(index, threads));
        });
    }
}

impl fmt::Debug for Scope<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Opens a scope in the current pool: calls `op` with the scope, and returns its result after all
/// tasks of the scope have ended. A thread in no pool waits while a thread of the global pool calls
/// `op`.
///
/// # Panics
/// If the function or a task of the scope panics.
pub fn scope<'scope, OP, R>(op: OP) -> R
where
    OP: FnOnce(&Scope<'scope>) -> R + Send,
    R: Send,
{
    CurrentWorker::with(|worker| match worker {
        Some(worker) => worker.scope(|scope| op(Scope::from_ref(scope))),
        None => global().scope(|scope| op(Scope::from_ref(scope))),
    })
}

/// Opens a scope as [`scope()`] does, but calls `op` in the calling thread.
///
/// # Panics
/// If the function or a task of the scope panics.
pub fn in_place_scope<'scope, OP, R>(op: OP) -> R
where
    OP: FnOnce(&Scope<'scope>) -> R,
{
    CurrentWorker::with(|worker| match worker {
        Some(worker) => worker.scope(|scope| op(Scope::from_ref(scope))),
        None => global().scope_in_place(|scope| op(Scope::from_ref(scope))),
    })
}

type FifoTask<'scope> = Box<dyn FnOnce(&ScopeFifo<'scope>) + Send + 'scope>;

/// A scope in which the tasks of each thread begin in the order in which the thread has spawned
/// them.
pub struct ScopeFifo<'scope> {
    /// The scope. It is null until the scope is open.
    scope: AtomicPtr<usher_tasks::TaskScope<'scope>>,
    /// The functions that have not begun: a queue for each thread of the pool, and one for all
    /// other threads.
    fifos: Box<[Mutex<VecDeque<FifoTask<'scope>>>]>,
}

/// Sends the address of a scope to its tasks.
struct ScopePtr<'scope>(*const ScopeFifo<'scope>);

// SAFETY: `ScopeFifo` is `Sync`: any thread may spawn tasks, and the functions are `Send`.
unsafe impl Send for ScopePtr<'_> {}
// SAFETY: as above.
unsafe impl Sync for ScopePtr<'_> {}

impl<'scope> ScopePtr<'scope> {
    /// # Safety
    /// The scope has not ended.
    unsafe fn get<'a>(&self) -> &'a ScopeFifo<'scope> {
        // SAFETY: the caller guarantees that the scope exists.
        unsafe { &*self.0 }
    }
}

/// Calls `open` with the queues for a pool of `threads` threads.
pub(crate) fn with_fifos<'scope, R>(
    threads: usize,
    open: impl FnOnce(&ScopeFifo<'scope>) -> R,
) -> R {
    open(&ScopeFifo {
        scope: AtomicPtr::new(ptr::null_mut()),
        fifos: (0..=threads).map(|_| Mutex::default()).collect(),
    })
}

impl<'scope> ScopeFifo<'scope> {
    /// Sets the scope. The queues must outlive the scope.
    pub(crate) fn open(&self, scope: &usher_tasks::TaskScope<'scope>) -> &Self {
        let scope = ptr::from_ref(scope).cast_mut();
        self.scope.store(scope, Ordering::Release);
        self
    }

    fn scope(&self) -> &usher_tasks::TaskScope<'scope> {
        // SAFETY: users get this value only after `open`, and only in the body and the tasks of the
        // scope, so the scope exists.
        unsafe { &*self.scope.load(Ordering::Acquire) }
    }

    /// Spawns a task of the scope. If it panics, the scope panics after all tasks have ended.
    pub fn spawn_fifo<BODY>(&self, body: BODY)
    where
        BODY: FnOnce(&ScopeFifo<'scope>) + Send + 'scope,
    {
        let others = self.fifos.len() - 1;
        let index = self.scope().worker_index().unwrap_or(others);
        self.queue(index).push_back(Box::new(body));
        let this = ScopePtr(self);
        self.scope().spawn(move |_| {
            // SAFETY: the scope ends after this task.
            let this = unsafe { this.get() };
            let oldest = this.queue(index).pop_front();
            if let Some(task) = oldest {
                task(this);
            }
        });
    }

    fn queue(&self, index: usize) -> MutexGuard<'_, VecDeque<FifoTask<'scope>>> {
        let queue = self.fifos[index].lock();
        queue.unwrap_or_else(PoisonError::into_inner)
    }

    /// Spawns one task on each thread of the pool.
    pub fn spawn_broadcast<BODY>(&self, body: BODY)
    where
        BODY: Fn(&ScopeFifo<'scope>, BroadcastContext<'_>) + Send + Sync + 'scope,
    {
        let threads = self.scope().workers();
        let this = ScopePtr(self);
        self.scope().spawn_broadcast(move |_, index| {
            // SAFETY: the scope ends after this task.
            let this = unsafe { this.get() };
            body(this, BroadcastContext::new(index, threads));
        });
    }
}

impl fmt::Debug for ScopeFifo<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScopeFifo").finish_non_exhaustive()
    }
}

/// Opens a scope as [`scope()`] does. The tasks of each thread begin in the order in which the
/// thread has spawned them.
///
/// # Panics
/// If the function or a task of the scope panics.
pub fn scope_fifo<'scope, OP, R>(op: OP) -> R
where
    OP: FnOnce(&ScopeFifo<'scope>) -> R + Send,
    R: Send,
{
    with_fifos(current_num_threads(), |fifos| {
        CurrentWorker::with(|worker| match worker {
            Some(worker) => worker.scope(|scope| op(fifos.open(scope))),
            None => global().scope(|scope| op(fifos.open(scope))),
        })
    })
}

/// Opens a scope as [`scope_fifo()`] does, but calls `op` in the calling thread.
///
/// # Panics
/// If the function or a task of the scope panics.
pub fn in_place_scope_fifo<'scope, OP, R>(op: OP) -> R
where
    OP: FnOnce(&ScopeFifo<'scope>) -> R,
{
    with_fifos(current_num_threads(), |fifos| {
        CurrentWorker::with(|worker| match worker {
            Some(worker) => worker.scope(|scope| op(fifos.open(scope))),
            None => global().scope_in_place(|scope| op(fifos.open(scope))),
        })
    })
}
