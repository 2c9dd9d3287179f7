// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs independent computations on several threads. The threads take the items one by one from a
//! shared counter. The results are in the order of the items, so that the output does not depend on
//! the number of threads.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Computes the results for all items on `workers` threads, and returns them in the order of the
/// items.
pub fn each<T: Sync, R: Send>(
    items: &[T],
    workers: usize,
    answer: &(dyn Fn(&T) -> R + Sync),
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut own = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(at) else {
                return own;
            };
            own.push((at, answer(item)));
        }
    };
    let mut answers: Vec<(usize, R)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..workers.max(1)).map(|_| scope.spawn(work)).collect();
        let joined = workers.into_iter().flat_map(|worker| match worker.join() {
            Ok(own) => own,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        joined.collect()
    });
    answers.sort_by_key(|&(at, _)| at);
    answers.into_iter().map(|(_, answer)| answer).collect()
}
