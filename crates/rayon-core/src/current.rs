// SPDX-License-Identifier: MIT OR Apache-2.0
//! The pool of the calling thread, and tasks that the calling thread runs on request.

use usher_tasks::CurrentWorker;

use crate::global::global;

/// Returns the number of threads of the calling thread's pool; of the global pool if the calling
/// thread is in no pool.
#[inline]
pub fn current_num_threads() -> usize {
    CurrentWorker::with(|worker| match worker {
        Some(worker) => worker.workers(),
        None => global().workers(),
    })
}

/// Returns the index of the calling thread in its pool, from 0; `None` if the calling thread is in
/// no pool.
#[inline]
pub fn current_thread_index() -> Option<usize> {
    CurrentWorker::with(|worker| worker.map(|worker| worker.index()))
}

/// Returns whether the calling thread has tasks in its queues; `None` if it is in no pool.
pub fn current_thread_has_pending_tasks() -> Option<bool> {
    CurrentWorker::with(|worker| worker.map(|worker| worker.has_tasks()))
}

/// The result of [`yield_now`] and [`yield_local`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Yield {
    /// A task was run.
    Executed,
    /// No task was found.
    Idle,
}

/// Runs one task of the pool on the calling thread, if there is one. Returns `None` if the calling
/// thread is in no pool.
pub fn yield_now() -> Option<Yield> {
    yield_once(false)
}

/// Runs one task of the calling thread's own queue, if there is one. Returns `None` if the calling
/// thread is in no pool.
pub fn yield_local() -> Option<Yield> {
    yield_once(true)
}

fn yield_once(is_local: bool) -> Option<Yield> {
    CurrentWorker::with(|worker| {
        worker.map(|worker| match worker.run_one(is_local) {
            true => Yield::Executed,
            false => Yield::Idle,
        })
    })
}
