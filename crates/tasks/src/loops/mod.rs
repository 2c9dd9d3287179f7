// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parallel loops over ranges of integers, and reductions.
//!
//! Problem: the cost of an item is unknown and may differ from item to item. Pieces that are too
//! small cost time, and pieces that are too large leave workers without work at the end.
//!
//! Idea: lazy binary splitting (Tzannes, Caragea, Barua, Vishkin: "Lazy binary-splitting: a
//! run-time adaptive work-stealing scheduler", PPoPP 2010). A worker splits its piece only when
//! the other workers would find too little to steal from it. Between these checks, the worker runs
//! blocks that last about 64 µs ([`BLOCK_NS`]), and 8 µs near the end of a piece.
//!
//! 1. A *piece* is a range of items that one worker runs in ascending order. The whole range is the
//!    first piece.
//! 2. Before each *block* of a piece, the worker checks whether other workers could steal a task
//!    from it. If they could not, and the rest of the piece is longer than an eighth of a block,
//!    the worker forks the second half of the rest as a new piece ([`join`]), and continues with
//!    the first half.
//! 3. The worker measures how long blocks last, and computes how many items last 64 µs
//!    ([`Pace`]). A block has at most this number of items, at most a quarter of the rest of the
//!    piece, and at least an eighth of this number. Pieces thus end with short blocks, so that all
//!    workers end at about the same time.
//! 4. The result of a forked piece is combined with the result of the piece from which it was
//!    split. Only neighbours are combined, in ascending order.
//! 5. If a function panics, the other pieces end after their current blocks, and no further piece
//!    begins. The panic continues in the caller after all pieces have ended.
//!
//! Bounds: if no other worker steals, a loop of n items forks at most log2(n) times. A piece is
//! halved at most 24 times ([`HALVINGS_MAX`]), which bounds the depth of the stack. A check for
//! thieves takes some loads, and a measurement takes a clock read. A single expensive item cannot
//! be split, and a block may take longer than 64 µs if the items become more expensive.
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

/// Time that a long block should take, in ns. A check for thieves and the interruption of the loop
/// take about 0.1 % of this time.
const BLOCK_NS: u64 = 64_000;
/// Ratio of the lengths of long and of short blocks.
const SHORT_BLOCKS: u64 = 8;
/// Minimum number of blocks into which the rest of a piece is divided, if they are not short.
const BLOCKS_OF_REST: u64 = 4;
/// Number of blocks that are measured together when blocks no longer grow. A clock read takes about
/// as long as several checks for thieves.
const BLOCKS_PER_CLOCK_READ: u32 = 4;

/// Maximum number of halvings from the whole range to a piece. Each halving takes a frame of the
/// stack. If a loop with equal costs takes 15 minutes on one worker, a piece with this number of
/// halvings takes 54 µs.
const HALVINGS_MAX: u32 = 24;

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
    /// The number of items of a recent long block, with which new pieces begin. Pieces write this
    /// field, so it is apart from the fields that they read for each block.
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
            true => self.piece(worker, (self.identity)(), range, 0),
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

    /// Runs a forked piece on the worker that runs on the calling thread.
    fn run_forked(&self, piece: Range<u64>, halvings: u32) -> A {
        match current_worker(self.registry) {
            Some(worker) => {
                let stops = StopOnUnwind(&self.is_stopped);
                let accumulator = (self.identity)();
                mem::forget(stops);
                self.piece(worker, accumulator, piece, halvings)
            }
            None => self.run_here(piece),
        }
    }

    /// Adds the items of a piece to an accumulator. The piece is a result of `halvings` halvings.
    fn piece(
        &self,
        worker: &Worker<'_>,
        mut accumulator: A,
        mut rest: Range<u64>,
        halvings: u32,
    ) -> A {
        let stops = StopOnUnwind(&self.is_stopped);
        let mut pace = Pace::begin(self.block_len.0.load(Ordering::Relaxed));
        while rest.start < rest.end && !self.is_stopped.load(Ordering::Relaxed) {
            let left = rest.end - rest.start;
            let may_fork = halvings < HALVINGS_MAX && left > pace.short_block();
            if may_fork && worker.should_fork() {
                self.block_len.0.store(pace.block, Ordering::Relaxed);
                accumulator = self.split(worker, accumulator, rest, halvings + 1);
                break;
            }
            let len = pace.len_of_next(left);
            let end = rest.start + len;
            accumulator = (self.fold)(accumulator, rest.start..end);
            rest.start = end;
            pace.block_ended(len);
        }
        mem::forget(stops);
        accumulator
    }

    /// Runs the first half of a range as a piece, and forks the second half.
    fn split(&self, worker: &Worker<'_>, accumulator: A, range: Range<u64>, halvings: u32) -> A {
        let middle = range.start + (range.end - range.start) / 2;
        let (first, second) = (range.start..middle, middle..range.end);
        let (first, second) = join(
            worker,
            |_| self.piece(worker, accumulator, first, halvings),
            |_| self.run_forked(second, halvings),
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

/// The lengths of the blocks of a piece, found by measuring.
///
/// 1. The first block of a piece is a short block: the items of the piece may take longer than
///    those that were measured before.
/// 2. The first block is measured alone, and later blocks in groups of 4
///    ([`BLOCKS_PER_CLOCK_READ`]), or alone while blocks grow.
/// 3. After each measurement, the length of a long block becomes the number of items that last 64
///    µs, but at most twice the previous length.
struct Pace {
    /// Number of items of a long block.
    block: u64,
    /// Whether the next block is the first one.
    is_first: bool,
    /// The time of the last clock read, and the number of items that have run since then.
    measured: Instant,
    items: u64,
    /// Number of blocks until the next clock read.
    until_clock_read: u32,
}

impl Pace {
    fn begin(block: u64) -> Self {
        Self {
            block,
            is_first: true,
            measured: Instant::now(),
            items: 0,
            until_clock_read: 1,
        }
    }

    fn short_block(&self) -> u64 {
        (self.block / SHORT_BLOCKS).max(1)
    }

    /// Returns the length of the next block, if `left` items are left of the piece.
    fn len_of_next(&self, left: u64) -> u64 {
        let len = match self.is_first {
            true => self.short_block(),
            false => (left / BLOCKS_OF_REST).clamp(self.short_block(), self.block),
        };
        len.min(left)
    }

    /// Counts a block of `len` items, and measures it or the group that it ends.
    #[inline]
    fn block_ended(&mut self, len: u64) {
        self.is_first = false;
        self.items += len;
        self.until_clock_read -= 1;
        if self.until_clock_read == 0 {
            let now = Instant::now();
            let ns = u64::try_from((now - self.measured).as_nanos()).unwrap_or(u64::MAX);
            self.measured = now;
            self.adapt(ns);
        }
    }

    /// Computes the length of a long block. The last `items` items took `ns` nanoseconds.
    fn adapt(&mut self, ns: u64) {
        let most = self.block.saturating_mul(2);
        let scaled = u128::from(self.items) * u128::from(BLOCK_NS) / u128::from(ns.max(1));
        self.block = u64::try_from(scaled).unwrap_or(u64::MAX).clamp(1, most);
        self.items = 0;
        self.until_clock_read = match self.block == most {
            true => 1,
            false => BLOCKS_PER_CLOCK_READ,
        };
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    /// Returns the length of the block after a group of blocks, and how many blocks are measured
    /// next.
    fn adapted(block: u64, items: u64, ns: u64) -> (u64, u32) {
        let mut pace = Pace {
            block,
            items,
            ..Pace::begin(1)
        };
        pace.adapt(ns);
        assert_eq!(pace.items, 0);
        (pace.block, pace.until_clock_read)
    }

    #[test]
    fn a_block_grows_at_most_twofold_and_shrinks_at_once() {
        assert_eq!(adapted(1, 1, 0), (2, 1));
        assert_eq!(adapted(1_000, 1_000, 1), (2_000, 1));
        assert_eq!(adapted(1_000, 1_000, BLOCK_NS), (1_000, 4));
        assert_eq!(adapted(1_000, 4_000, BLOCK_NS * 4), (1_000, 4));
        assert_eq!(adapted(1_000, 4_000, BLOCK_NS * 400), (10, 4));
        assert_eq!(
            adapted(1_000, 125, BLOCK_NS / 8),
            (1_000, 4),
            "a short block"
        );
        assert_eq!(adapted(1, 1, u64::MAX), (1, 4));
        assert_eq!(adapted(u64::MAX, u64::MAX, 1), (u64::MAX, 1));
        assert_eq!(adapted(u64::MAX, u64::MAX, u64::MAX), (BLOCK_NS, 4));
    }

    #[test]
    fn pieces_begin_and_end_with_short_blocks() {
        let mut pace = Pace::begin(800);
        assert_eq!(pace.len_of_next(1_000_000), 100);
        assert_eq!(pace.len_of_next(7), 7);
        pace.is_first = false;
        assert_eq!(pace.len_of_next(u64::MAX), 800);
        assert_eq!(pace.len_of_next(1_000), 250);
        assert_eq!(pace.len_of_next(150), 100);
        assert_eq!(pace.len_of_next(50), 50);
        pace.block = 1;
        assert_eq!(pace.len_of_next(1_000), 1);
    }

    #[test]
    fn the_clock_is_read_after_a_group_of_blocks() {
        let mut pace = Pace::begin(1);
        pace.adapt(u64::MAX);
        for _ in 1..BLOCKS_PER_CLOCK_READ {
            pace.block_ended(1);
        }
        assert_eq!((pace.items, pace.until_clock_read), (3, 1));
        pace.block_ended(1);
        assert_eq!(pace.items, 0);
    }
}
