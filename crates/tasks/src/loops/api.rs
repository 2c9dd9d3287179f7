// SPDX-License-Identifier: MIT OR Apache-2.0
//! The public functions for loops. A loop runs on the worker of the calling task, or as a task of
//! the runtime if another thread calls. The loop runs in the calling thread where it could wait
//! forever: in a forked child, in a deadlock cycle, and by a [`Handle`] outside the runtime.

use std::ops::Range;

use super::{Loop, LoopIndex, run_here};
use crate::current_worker::current_worker;
use crate::handle::Handle;
use crate::join;
use crate::runtime::Runtime;
use crate::waits::DeadlockCycle;

/// Returns the function that maps and combines each item of a block.
fn fold_each<N: LoopIndex, A>(
    map: impl Fn(N) -> A + Sync,
    combine: &(impl Fn(A, A) -> A + Sync),
) -> impl Fn(A, Range<N>) -> A + Sync {
    move |accumulator, block| {
        N::fold(block, accumulator, |folded, item| {
            combine(folded, map(item))
        })
    }
}

impl Runtime {
    /// Calls `body` for each item of a range, in parallel. Returns when all calls have ended. The
    /// function may borrow from the caller.
    ///
    /// Idle workers take parts of the range. The items of a part run in ascending order. The
    /// runtime finds the sizes of the parts while the loop runs, by measuring how long items take.
    /// Items may differ in their costs. Loops may be nested, and called inside tasks and by any
    /// thread.
    ///
    /// If a task of this runtime calls, the loop begins on the task's worker. If another thread
    /// calls, the whole loop runs as a task of the runtime, and the thread waits. The items run one
    /// after the other in the cases in which the functions of [`Self::join`] do.
    ///
    /// **Hold no lock over this call in a task**, and no borrow of a `RefCell` that other tasks
    /// use. The worker runs other tasks while it waits for parts that other workers have taken. If
    /// such a task locks a mutex that the calling task holds, the worker waits for itself forever.
    ///
    /// ```
    /// use std::sync::atomic::{AtomicU64, Ordering};
    ///
    /// let runtime = usher_tasks::Runtime::new(2)?;
    /// let squares: Vec<AtomicU64> = (0..1_000).map(|_| AtomicU64::new(0)).collect();
    /// runtime.for_each(0..squares.len(), |i| squares[i].store((i * i) as u64, Ordering::Relaxed));
    /// assert_eq!(squares[30].load(Ordering::Relaxed), 900);
    /// # Ok::<(), usher_tasks::RuntimeError>(())
    /// ```
    ///
    /// # Panics
    /// If `body` panics. Blocks in progress end, no further block begins, and then the panic
    /// continues in the caller. If several calls panic, one of the panics continues.
    pub fn for_each<N: LoopIndex>(&self, range: Range<N>, body: impl Fn(N) + Sync) {
        self.for_each_block(range, |block| N::fold(block, (), |(), item| body(item)));
    }

    /// Calls `body` for blocks of a range, in parallel, as [`Self::for_each`] does. The blocks are
    /// disjoint and not empty, and together they are the range. The runtime chooses the blocks so
    /// that a block takes about 64 µs, and 8 µs near the ends of the parts. With one worker, the
    /// whole range is one block.
    ///
    /// A body that needs scratch memory or loads constants uses this function, and does so once per
    /// block.
    ///
    /// # Panics
    /// In the cases in which [`Self::for_each`] panics.
    pub fn for_each_block<N: LoopIndex>(&self, range: Range<N>, body: impl Fn(Range<N>) + Sync) {
        self.reduce_blocks(range, || (), |(), block| body(block), |(), ()| ());
    }

    /// Computes `map` for each item of a range, and combines the results, in parallel. Other
    /// properties are those of [`Self::for_each`].
    ///
    /// `combine` must be associative, and `identity` must return its neutral element. `combine`
    /// need not be commutative: its first argument is the result of a range that ends where the
    /// range of the second argument begins. The division of the range depends on the run. With an
    /// operation that is only nearly associative, such as the addition of floating-point numbers,
    /// the result may therefore differ slightly from run to run.
    ///
    /// Returns `identity()` if the range is empty.
    ///
    /// ```
    /// let runtime = usher_tasks::Runtime::new(2)?;
    /// let sum = runtime.reduce(1..1_001_u64, || 0, |i| i * i, |a, b| a + b);
    /// assert_eq!(sum, 333_833_500);
    /// let text = runtime.reduce(0..10, String::new, |i| i.to_string(), |a, b| a + &b);
    /// assert_eq!(text, "0123456789");
    /// # Ok::<(), usher_tasks::RuntimeError>(())
    /// ```
    ///
    /// # Panics
    /// If one of the functions panics, as [`Self::for_each`] does.
    pub fn reduce<N: LoopIndex, A: Send>(
        &self,
        range: Range<N>,
        identity: impl Fn() -> A + Sync,
        map: impl Fn(N) -> A + Sync,
        combine: impl Fn(A, A) -> A + Sync,
    ) -> A {
        self.reduce_blocks(range, identity, fold_each(map, &combine), &combine)
    }

    /// Reduces a range as [`Self::reduce`] does, by a function that adds the items of a whole block
    /// to an accumulator. The blocks are those of [`Self::for_each_block`], but those of a part are
    /// added to the same accumulator.
    ///
    /// ```
    /// let numbers: Vec<f64> = (0..10_000).map(f64::from).collect();
    /// let runtime = usher_tasks::Runtime::new(2)?;
    /// let largest = runtime.reduce_blocks(
    ///     0..numbers.len(),
    ///     || f64::NEG_INFINITY,
    ///     |largest, block| numbers[block].iter().copied().fold(largest, f64::max),
    ///     f64::max,
    /// );
    /// assert_eq!(largest, 9_999.0);
    /// # Ok::<(), usher_tasks::RuntimeError>(())
    /// ```
    ///
    /// # Panics
    /// If one of the functions panics, as [`Self::for_each`] does.
    pub fn reduce_blocks<N: LoopIndex, A: Send>(
        &self,
        range: Range<N>,
        identity: impl Fn() -> A + Sync,
        fold: impl Fn(A, Range<N>) -> A + Sync,
        combine: impl Fn(A, A) -> A + Sync,
    ) -> A {
        let (start, numbers) = (range.start, 0..N::len_of(&range));
        let fold = |accumulator, numbers| fold(accumulator, N::part(start, numbers));
        let work = Loop::new(self.registry(), identity, fold, combine);
        match self.current_worker() {
            Some(worker) => work.run_on(worker, numbers),
            None if self.foreign_creator().is_some() => work.run_here(numbers),
            None => match self.wait_begins() {
                Ok(_wait) => join::run_inside(
                    |job| self.registry().inject(job),
                    || work.run_on_current(numbers),
                ),
                Err(DeadlockCycle) => work.run_here(numbers),
            },
        }
    }
}

/// Loops inside tasks. If the calling thread is no worker of the runtime, the loop runs in the
/// calling thread, because the runtime may end at any time; such a thread uses the functions of
/// [`Runtime`].
impl Handle {
    /// Calls `body` for each item of a range, as [`Runtime::for_each`] does.
    ///
    /// # Panics
    /// In the cases in which [`Runtime::for_each`] panics.
    pub fn for_each<N: LoopIndex>(&self, range: Range<N>, body: impl Fn(N) + Sync) {
        self.for_each_block(range, |block| N::fold(block, (), |(), item| body(item)));
    }

    /// Calls `body` for blocks of a range, as [`Runtime::for_each_block`] does.
    ///
    /// # Panics
    /// In the cases in which [`Runtime::for_each`] panics.
    pub fn for_each_block<N: LoopIndex>(&self, range: Range<N>, body: impl Fn(Range<N>) + Sync) {
        self.reduce_blocks(range, || (), |(), block| body(block), |(), ()| ());
    }

    /// Reduces a range, as [`Runtime::reduce`] does.
    ///
    /// # Panics
    /// In the cases in which [`Runtime::reduce`] panics.
    pub fn reduce<N: LoopIndex, A: Send>(
        &self,
        range: Range<N>,
        identity: impl Fn() -> A + Sync,
        map: impl Fn(N) -> A + Sync,
        combine: impl Fn(A, A) -> A + Sync,
    ) -> A {
        self.reduce_blocks(range, identity, fold_each(map, &combine), &combine)
    }

    /// Reduces a range by blocks, as [`Runtime::reduce_blocks`] does.
    ///
    /// # Panics
    /// In the cases in which [`Runtime::reduce_blocks`] panics.
    pub fn reduce_blocks<N: LoopIndex, A: Send>(
        &self,
        range: Range<N>,
        identity: impl Fn() -> A + Sync,
        fold: impl Fn(A, Range<N>) -> A + Sync,
        combine: impl Fn(A, A) -> A + Sync,
    ) -> A {
        let (start, numbers) = (range.start, 0..N::len_of(&range));
        let fold = |accumulator, numbers| fold(accumulator, N::part(start, numbers));
        let registry = self.registry();
        let worker = registry.as_ref().and_then(current_worker);
        match (&registry, worker) {
            (Some(registry), Some(worker)) => {
                Loop::new(registry, identity, fold, combine).run_on(worker, numbers)
            }
            _ => run_here(identity, fold, numbers),
        }
    }
}
