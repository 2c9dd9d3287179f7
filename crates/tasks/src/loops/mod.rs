// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parallel loops over ranges of integers, and reductions.
//!
//! Problem: the cost of an item is unknown and may differ from item to item. Pieces that are too
//! small cost time, and pieces that are too large leave workers without work at the end.
//!
//! Idea: lazy binary splitting (Tzannes, Caragea, Barua, Vishkin: "Lazy binary-splitting: a
//! run-time adaptive work-stealing scheduler", PPoPP 2010). A worker splits its piece only when
//! the other workers would find nothing to steal from it. Between these checks, the worker runs
//! blocks that last about 16 µs ([`BLOCK_NS`]).
//!
//! 1. A *piece* is a range of items that one worker runs in ascending order. The whole range is the
//!    first piece.
//! 2. Before each *block* of a piece, the worker checks whether other workers could steal a task
//!    from it. If they could not, and the rest of the piece is longer than a block, the worker
//!    forks the second half of the rest as a new piece ([`join`]), and continues with the first
//!    half.
//! 3. The first block of a piece has one item. The worker measures each block, and computes the
//!    length of the next block so that it lasts 16 µs. A block has at most twice as many items as
//!    the block before it.
//! 4. The result of a forked piece is combined with the result of the piece from which it was
//!    split. Only neighbours are combined, in ascending order.
//! 5. If a function panics, the other pieces end after their current blocks, and no further piece
//!    begins. The panic continues in the caller after all pieces have ended.
//!
//! Bounds: if no other worker steals, a loop of n items forks at most log2(n) times. Pieces are
//! nested at most 64 deep, because each fork halves the piece. A worker checks for thieves once per
//! block, which costs two clock reads and some loads. A single expensive item cannot be split, and
//! a block may take longer than 16 µs if the items become more expensive within it.
//!
//! Limits: as with `join`, only the policy `usher` with several workers runs loops in parallel.
//! Otherwise the whole range is one block. Where the range is split depends on the run, so a
//! combination that is not associative, such as a sum of floating-point numbers, may give slightly
//! different results.

mod api;
mod index;

pub use index::LoopIndex;

use std::mem;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use crate::current_worker::current_worker;
use crate::join::join;
use crate::sync::{AtomicBool, AtomicU64, Ordering};
use crate::worker::{Registry, Worker};

/// Time that a block should take, in ns. A check for thieves takes less than 0.5 % of this time.
const BLOCK_NS: u64 = 16_000;

/// A value on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct OnOwnLines<T>(T);

/// A loop: the functions of the loop, and the state that its pieces share.
struct Loop<'a, I, F, C> {
    registry: &'a Arc<Registry>,
    /// Returns the accumulator of an empty range.
    identity: I,
    /// Adds the items of a block to an accumulator.
    fold: F,
    /// Combines the accumulators of two neighbouring ranges.
    combine: C,
    /// Whether a function of the loop has panicked.
    is_stopped: AtomicBool,
    /// The number of items of a recent block. A new piece with at most this number of items is not
    /// split before its first block. Pieces write this field, so it is apart from the fields that
    /// they read for each block.
    block_len: OnOwnLines<AtomicU64>,
}

/// Stops a loop if it is dropped, which happens if a function of the loop panics.
struct StopOnUnwind<'a>(&'a AtomicBool);

impl Drop for StopOnUnwind<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl<'a, A, I, F, C> Loop<'a, I, F, C>
where
    A: Send,
    I: Fn() -> A + Sync,
    F: Fn(A, Range<u64>) -> A + Sync,
    C: Fn(A, A) -> A + Sync,
{
    fn new(registry: &'a Arc<Registry>, identity: I, fold: F, combine: C) -> Self {
        Self {
            registry,
            identity,
            fold,
            combine,
            is_stopped: AtomicBool::new(false),
            block_len: OnOwnLines(AtomicU64::new(1)),
        }
    }

    /// Runs the whole range in the calling thread.
    fn run_here(&self, range: Range<u64>) -> A {
        run_here(&self.identity, &self.fold, range)
    }

    /// Runs the range on this worker, and on workers that steal pieces.
    fn run_on(&self, worker: &Worker<'_>, range: Range<u64>) -> A {
        match worker.allows_stealing() {
            true => self.piece(worker, (self.identity)(), range),
            false => self.run_here(range),
        }
    }

    /// Runs the range on the worker that runs on the calling thread.
    fn run_on_current(&self, range: Range<u64>) -> A {
        match current_worker(self.registry) {
            Some(worker) => self.run_on(worker, range),
            None => self.run_here(range),
        }
    }

    /// Adds the items of a piece to an accumulator.
    fn piece(&self, worker: &Worker<'_>, mut accumulator: A, mut rest: Range<u64>) -> A {
        let stops = StopOnUnwind(&self.is_stopped);
        let mut block = 1;
        let mut unsplit = self.block_len.0.load(Ordering::Relaxed);
        let mut begun = Instant::now();
        while rest.start < rest.end && !self.is_stopped.load(Ordering::Relaxed) {
            let left = rest.end - rest.start;
            if left > unsplit && worker.should_fork() {
                self.block_len.0.store(block, Ordering::Relaxed);
                accumulator = self.split(worker, accumulator, rest);
                mem::forget(stops);
                return accumulator;
            }
            let len = left.min(block);
            let end = rest.start + len;
            accumulator = (self.fold)(accumulator, rest.start..end);
            rest.start = end;
            let ended = Instant::now();
            let ns = u64::try_from((ended - begun).as_nanos()).unwrap_or(u64::MAX);
            begun = ended;
            block = next_len(len, ns);
            unsplit = block;
        }
        mem::forget(stops);
        accumulator
    }

    /// Runs the first half of a range as a piece, and forks the second half.
    fn split(&self, worker: &Worker<'_>, accumulator: A, range: Range<u64>) -> A {
        let middle = range.start + (range.end - range.start) / 2;
        let (first, second) = (range.start..middle, middle..range.end);
        let (first, second) = join(
            worker,
            || self.piece(worker, accumulator, first),
            || self.run_on_current(second),
        );
        (self.combine)(first, second)
    }
}

/// Runs the whole range in the calling thread, as a single block if it is not empty.
fn run_here<A>(
    identity: impl Fn() -> A,
    fold: impl Fn(A, Range<u64>) -> A,
    range: Range<u64>,
) -> A {
    match range.is_empty() {
        true => identity(),
        false => fold(identity(), range),
    }
}

/// Returns the length of the next block after a block of `len` items that took `ns` nanoseconds.
fn next_len(len: u64, ns: u64) -> u64 {
    let scaled = u128::from(len) * u128::from(BLOCK_NS) / u128::from(ns.max(1));
    let scaled = u64::try_from(scaled).unwrap_or(u64::MAX);
    scaled.clamp(1, len.saturating_mul(2))
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn a_block_grows_at_most_twofold_and_shrinks_at_once() {
        assert_eq!(next_len(1, 0), 2);
        assert_eq!(next_len(1_000, 1), 2_000);
        assert_eq!(next_len(1_000, BLOCK_NS), 1_000);
        assert_eq!(next_len(1_000, BLOCK_NS * 100), 10);
        assert_eq!(next_len(1, u64::MAX), 1);
        assert_eq!(next_len(u64::MAX, 1), u64::MAX);
        assert_eq!(next_len(u64::MAX, u64::MAX), BLOCK_NS);
    }
}
