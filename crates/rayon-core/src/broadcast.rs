// SPDX-License-Identifier: MIT OR Apache-2.0
//! Functions that run once on each thread of a pool.

use std::fmt;
use std::marker::PhantomData;

use usher_tasks::CurrentWorker;

use crate::current::current_num_threads;
use crate::global::global;
use crate::panics::caught;
use crate::spawn::spawn;

/// The argument of the function of a broadcast.
pub struct BroadcastContext<'a> {
    index: usize,
    threads: usize,
    /// Ends the life of the value with the call, and makes it not `Send`.
    marker: PhantomData<&'a mut dyn Fn()>,
}

impl BroadcastContext<'_> {
    pub(crate) fn new(index: usize, threads: usize) -> Self {
        Self {
            index,
            threads,
            marker: PhantomData,
        }
    }

    /// Returns the index of the thread, from 0.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Returns the number of threads that run the function.
    pub fn num_threads(&self) -> usize {
        self.threads
    }
}

impl fmt::Debug for BroadcastContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BroadcastContext")
            .field("index", &self.index)
            .field("num_threads", &self.threads)
            .finish()
    }
}

/// Calls a function once on each thread of the current pool, and returns the results in order of
/// the threads' indexes.
///
/// # Panics
/// If a call panics, after all calls have ended.
pub fn broadcast<OP, R>(op: OP) -> Vec<R>
where
    OP: Fn(BroadcastContext<'_>) -> R + Sync,
    R: Send,
{
    let threads = current_num_threads();
    let call = |index| op(BroadcastContext::new(index, threads));
    CurrentWorker::with(|worker| match worker {
        Some(worker) => worker.broadcast(call),
        None => global().broadcast(call),
    })
}

/// Calls a function once on each thread of the current pool, and returns before the calls have
/// ended. A panic is passed to the panic handler of the pool, or ends the process.
pub fn spawn_broadcast<OP>(op: OP)
where
    OP: Fn(BroadcastContext<'_>) + Send + Sync + 'static,
{
    spawn(move || broadcast_caught(op));
}

/// Calls a function once on each thread of the current pool, and passes each panic to the panic
/// handler.
pub(crate) fn broadcast_caught(op: impl Fn(BroadcastContext<'_>) + Sync) {
    broadcast(|context| caught(|| op(context)));
}
