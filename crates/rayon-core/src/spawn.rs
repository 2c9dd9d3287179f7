// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tasks without a scope, which own their data.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use usher_tasks::{CurrentWorker, Groups, Runtime};

use crate::global::global;
use crate::panics::caught;

type Task = Box<dyn FnOnce() + Send>;

/// Tasks of one thread in the order in which the thread has spawned them.
pub(crate) type Fifo = Arc<Mutex<VecDeque<Task>>>;

thread_local! {
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

/// Spawns a task as [`spawn`] does. Tasks that one thread spawns by this function begin in the order
/// in which they were spawned.
pub fn spawn_fifo<F>(func: F)
where
    F: FnOnce() + Send + 'static,
{
    spawn(next_of_fifo(func));
}

/// Spawns a task in this pool.
pub(crate) fn spawn_in(runtime: &Runtime, func: impl FnOnce() + Send + 'static) {
    check(runtime.submit(Groups::NONE, move || caught(func)));
}

/// Adds a task to the queue of the calling thread, and returns a function that runs the oldest task
/// of that queue.
pub(crate) fn next_of_fifo(func: impl FnOnce() + Send + 'static) -> impl FnOnce() + Send {
    let fifo = FIFO.with(Arc::clone);
    lock(&fifo).push_back(Box::new(func));
    move || {
        let next = lock(&fifo).pop_front();
        if let Some(next) = next {
            next();
        }
    }
}

fn lock<T>(fifo: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    fifo.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Panics if a task could not be stored, as lack of memory does elsewhere.
fn check(spawned: Result<(), usher_tasks::SubmitError>) {
    if let Err(error) = spawned {
        panic!("{error}");
    }
}
