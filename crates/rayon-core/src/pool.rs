// SPDX-License-Identifier: MIT OR Apache-2.0
//! Thread pools.

use std::fmt;

use usher_tasks::Runtime;

use crate::broadcast::{BroadcastContext, broadcast_caught};
use crate::current::{self, Yield};
use crate::join;
use crate::scope::{self, Scope, ScopeFifo};
use crate::spawn::{PoolId, next_of_fifo, spawn_in};

/// A pool of threads, separate from the global pool. Dropping the pool does not wait: its threads
/// end after all spawned tasks have run.
pub struct ThreadPool {
    runtime: Runtime,
    id: PoolId,
}

impl ThreadPool {
    pub(crate) fn new(runtime: Runtime, id: PoolId) -> Self {
        Self { runtime, id }
    }

    /// Calls a function on a thread of this pool and returns its result. Functions of this crate
    /// that it calls use this pool. A caller that is a thread of another pool runs tasks of its own
    /// pool while it waits.
    ///
    /// # Panics
    /// If the function panics.
    pub fn install<OP, R>(&self, op: OP) -> R
    where
        OP: FnOnce() -> R + Send,
        R: Send,
    {
        self.runtime.run_on_worker(op)
    }

    /// Calls a function once on each thread of this pool, as [`broadcast`](crate::broadcast())
    /// does.
    ///
    /// # Panics
    /// If a call panics, after all calls have ended.
    pub fn broadcast<OP, R>(&self, op: OP) -> Vec<R>
    where
        OP: Fn(BroadcastContext<'_>) -> R + Sync,
        R: Send,
    {
        let threads = self.current_num_threads();
        let call = |index| op(BroadcastContext::new(index, threads));
        self.runtime.broadcast(call)
    }

    /// Returns the number of threads of this pool.
    pub fn current_num_threads(&self) -> usize {
        self.runtime.workers()
    }

    /// Returns the index of the calling thread in this pool; `None` if it is not in this pool.
    pub fn current_thread_index(&self) -> Option<usize> {
        self.runtime.worker_index()
    }

    /// Returns whether the calling thread has tasks in its queues; `None` if it is not in this
    /// pool.
    pub fn current_thread_has_pending_tasks(&self) -> Option<bool> {
        self.if_current(current::current_thread_has_pending_tasks)
    }

    /// Calls [`join`](crate::join()) in this pool.
    ///
    /// # Panics
    /// If one of the functions panics.
    pub fn join<A, B, RA, RB>(&self, oper_a: A, oper_b: B) -> (RA, RB)
    where
        A: FnOnce() -> RA + Send,
        B: FnOnce() -> RB + Send,
        RA: Send,
        RB: Send,
    {
        self.install(|| join::join(oper_a, oper_b))
    }

    /// Calls [`scope`](crate::scope()) in this pool.
    ///
    /// # Panics
    /// If the function or a task of the scope panics.
    pub fn scope<'scope, OP, R>(&self, op: OP) -> R
    where
        OP: FnOnce(&Scope<'scope>) -> R + Send,
        R: Send,
    {
        self.install(|| scope::scope(op))
    }

    /// Calls [`scope_fifo`](crate::scope_fifo()) in this pool.
    ///
    /// # Panics
    /// If the function or a task of the scope panics.
    pub fn scope_fifo<'scope, OP, R>(&self, op: OP) -> R
    where
        OP: FnOnce(&ScopeFifo<'scope>) -> R + Send,
        R: Send,
    {
        self.install(|| scope::scope_fifo(op))
    }

    /// Opens a scope for tasks of this pool. The function itself runs in the calling thread.
    ///
    /// # Panics
    /// If the function or a task of the scope panics.
    pub fn in_place_scope<'scope, OP, R>(&self, op: OP) -> R
    where
        OP: FnOnce(&Scope<'scope>) -> R,
    {
        self.runtime
            .scope_in_place(|scope| op(Scope::from_ref(scope)))
    }

    /// Opens a scope as [`Self::in_place_scope`] does. Its tasks begin in the order of
    /// [`scope_fifo`](crate::scope_fifo()).
    ///
    /// # Panics
    /// If the function or a task of the scope panics.
    pub fn in_place_scope_fifo<'scope, OP, R>(&self, op: OP) -> R
    where
        OP: FnOnce(&ScopeFifo<'scope>) -> R,
    {
        scope::with_fifos(self.runtime.workers(), |fifos| {
            self.runtime.scope_in_place(|scope| op(fifos.open(scope)))
        })
    }

    /// Spawns a task in this pool, as [`spawn`](crate::spawn()) does.
    pub fn spawn<OP>(&self, op: OP)
    where
        OP: FnOnce() + Send + 'static,
    {
        spawn_in(&self.runtime, op);
    }

    /// Spawns a task in this pool, as [`spawn_fifo`](crate::spawn_fifo()) does.
    pub fn spawn_fifo<OP>(&self, op: OP)
    where
        OP: FnOnce() + Send + 'static,
    {
        spawn_in(&self.runtime, next_of_fifo(self.id, op));
    }

    /// Calls a function once on each thread of this pool, and returns before the calls have ended.
    pub fn spawn_broadcast<OP>(&self, op: OP)
    where
        OP: Fn(BroadcastContext<'_>) + Send + Sync + 'static,
    {
        self.spawn(move || broadcast_caught(op));
    }

    /// Calls [`yield_now()`](crate::yield_now()) if the calling thread is in this pool; returns
    /// `None` otherwise.
    pub fn yield_now(&self) -> Option<Yield> {
        self.if_current(current::yield_now)
    }

    /// Calls [`yield_local()`](crate::yield_local()) if the calling thread is in this pool; returns
    /// `None` otherwise.
    pub fn yield_local(&self) -> Option<Yield> {
        self.if_current(current::yield_local)
    }

    fn if_current<R>(&self, call: impl FnOnce() -> Option<R>) -> Option<R> {
        self.current_thread_index().and_then(|_| call())
    }
}

impl fmt::Debug for ThreadPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThreadPool")
            .field("num_threads", &self.current_num_threads())
            .finish_non_exhaustive()
    }
}
