// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tasks without a scope, which own their data.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use usher_tasks::{CurrentWorker, Groups, Runtime};

use crate::global::global;
use crate::panics::caught;

type Task = Box<dyn FnOnce() + Send>;

/// A number that identifies a pool. Threads outside all pools spawn tasks in the global pool, and
/// have the number 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PoolId(u64);

impl PoolId {
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Makes this pool the pool of the calling thread.
    pub fn set_current(self) {
        CURRENT_POOL.set(self);
    }
}

/// Tasks of one thread, with the pools that run them, in the order in which the thread has spawned
/// them.
type Fifo = Arc<Mutex<VecDeque<(PoolId, Task)>>>;

thread_local! {
    static CURRENT_POOL: Cell<PoolId> = const { Cell::new(PoolId(0)) };
    /// The tasks that this thread has spawned by [`spawn_fifo`] and that have not begun.
    static FIFO: Fifo = Fifo::default();
}

/// Spawns a task in the current pool, and returns before the task has ended. A panic of the task is
/// passed to the panic handler of the pool, or ends the process.
pub fn spawn<F>(func: F)
where
    F: FnOnce() + Send + 'static,
{
    let task = move || caught(func);
    CurrentWorker::with(|worker| {
        let spawned = match worker {
            Some(worker) => worker.submit(Groups::NONE, task),
            None => global().submit(Groups::NONE, task),
        };
        check(spawned);
    });
}

/// Spawns a task as [`spawn`] does. Tasks that one thread spawns by this function begin in the
/// order in which they were spawned.
pub fn spawn_fifo<F>(func: F)
where
    F: FnOnce() + Send + 'static,
{
    spawn(next_of_fifo(CURRENT_POOL.get(), func));
}

/// Spawns a task in this pool.
pub(crate) fn spawn_in(runtime: &Runtime, func: impl FnOnce() + Send + 'static) {
    check(runtime.submit(Groups::NONE, move || caught(func)));
}

/// Adds a task to the queue of the calling thread, and returns a function that runs the oldest task
/// of this pool in that queue.
pub(crate) fn next_of_fifo(
    pool: PoolId,
    func: impl FnOnce() + Send + 'static,
) -> impl FnOnce() + Send {
    let fifo = FIFO.with(Arc::clone);
    lock(&fifo).push_back((pool, Box::new(func)));
    move || {
        let next = remove_first(&mut lock(&fifo), pool);
        if let Some(next) = next {
            next();
        }
    }
}

fn remove_first(fifo: &mut VecDeque<(PoolId, Task)>, pool: PoolId) -> Option<Task> {
    let at = fifo.iter().position(|&(of, _)| of == pool)?;
    fifo.remove(at).map(|(_, task)| task)
}

fn lock<T>(fifo: &Mutex<T>) -> MutexGuard<'_, T> {
    fifo.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Panics if a task could not be stored, as lack of memory does elsewhere.
fn check(spawned: Result<(), usher_tasks::SubmitError>) {
    if let Err(error) = spawned {
        panic!("{error}");
    }
}
