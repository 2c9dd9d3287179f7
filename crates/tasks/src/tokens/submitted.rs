// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tasks without tokens, which are ready at once.
//!
//! A submitted task uses the memory, the lock and the count of active tasks of a shard, but it is
//! in no table. A submission therefore computes no hash and searches no table.
//!
//! 1. The submitting thread selects a shard: 32 successive submissions of a thread use one shard,
//!    and the next 32 submissions use the next shard. The first 64 threads begin at different shards.
//! 2. The task gets a number for reports and traces. The lowest 6 bits of the number are the index
//!    of the shard, and the other bits count the submissions of the shard.
//! 3. After the task has run, its worker finds the shard by the number and frees the task.
//!
//! A submission takes constant time. Lack of memory for a task is an error.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{SHARDS, Shard, Task, TaskPtr, Tokens};
use crate::closure::{Closure, ClosureVtable};
use crate::dispatch::Groups;
use crate::error::{SubmitError, discard};
use crate::job::JobRef;
use crate::sync::{MutexGuard, Ordering as Sync};

/// Number of successive submissions of a thread that use one shard. The memory of their tasks is
/// adjacent. A thief takes a chain of at most this many tasks.
const SUBMISSIONS_PER_SHARD: usize = 32;
/// Distance in shards between the first shards of two threads, coprime to the number of shards.
const FIRST_SHARD_STEP: usize = 23;

thread_local! {
    /// Number of submissions of this thread, plus the position of its first shard;
    /// `usize::MAX` before the first submission. The cell has no destructor, so destructors of
    /// other thread-local values may submit tasks.
    static POSITION: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Returns the index of the shard for the next submission of this thread.
fn next_shard() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    let position = match POSITION.get() {
        usize::MAX => {
            let thread = THREADS.fetch_add(1, Ordering::Relaxed) % SHARDS;
            thread * FIRST_SHARD_STEP * SUBMISSIONS_PER_SHARD
        }
        position => position,
    };
    POSITION.set(position.wrapping_add(1));
    position / SUBMISSIONS_PER_SHARD % SHARDS
}

impl Tokens {
    /// Creates a ready task without a token, and returns its job and its number.
    pub fn submit(&self, groups: Groups, entry: Closure) -> Result<(JobRef, u64), SubmitError> {
        let index = next_shard();
        // If there is no memory, the lock is released before the closure is dropped, because the
        // closure may submit tasks when it is dropped.
        let mut shard = self.shards[index].lock();
        let number = shard.submitted * SHARDS as u64 + index as u64;
        let task_ptr = self
            .allocate(&mut shard, number)
            .ok_or(SubmitError::Memory)?;
        shard.submitted += 1;
        // SAFETY: `allocate` creates early tasks.
        unsafe { task_ptr.set_entry(&mut shard, groups, entry) };
        Ok((self.activate(task_ptr, &mut shard, 0), number))
    }

    /// Counts a task that is not in the shards as running.
    pub fn begin_active(&self) {
        self.busy.fetch_add(1, Sync::Relaxed);
    }

    /// Counts a task that is not in the shards as ended.
    pub fn end_active(&self) {
        if self.busy.fetch_sub(1, Sync::AcqRel) == 1 {
            drop(self.idle.lock());
            self.became_idle.notify_all();
        }
    }

    /// Returns whether [`Self::cancel`] was called.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Sync::Relaxed)
    }

    fn shard_of_submitted(&self, task_ptr: TaskPtr) -> MutexGuard<'_, Shard> {
        self.shards[task_ptr.token() as usize % SHARDS].lock()
    }

    /// Frees a submitted task that has run, or that will not run.
    ///
    /// # Safety
    /// The task was submitted to these `Tokens`, its closure was moved out, and no other thread has
    /// its address. It is not used after this call.
    pub(super) unsafe fn end_submitted(&self, task_ptr: TaskPtr) {
        let shard = self.shard_of_submitted(task_ptr);
        // SAFETY: the caller guarantees the conditions of `free`.
        unsafe { self.free(task_ptr, shard) };
    }

    /// Drops a ready task if it was submitted. A panic of the closure's destructor is discarded.
    ///
    /// # Safety
    /// The job is the first field of a [`Task`] of these `Tokens`, and no worker exists any more.
    pub unsafe fn discard_submitted(&self, job: JobRef) {
        let task_ptr = TaskPtr(job.as_ptr().cast());
        // SAFETY: the job belongs to a task, as the caller guarantees, and the vtable of a task is
        // a static value of type `ClosureVtable`.
        if !unsafe { job.vtable().cast::<ClosureVtable>().as_ref() }.is_submitted {
            return;
        }
        // SAFETY: the task is ready and will not run, so only this thread accesses the closure.
        let closure = unsafe { Task::closure(task_ptr.0.as_ptr()) };
        // SAFETY: the task was submitted, as the vtable shows, and its closure was moved out. No worker
        // exists, so no other thread has its address.
        unsafe { self.end_submitted(task_ptr) };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(closure))) {
            discard(panic);
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::places::on_this_machine;
    use crate::policy::Policy;
    use crate::worker::Registry;

    /// Submitted tasks and tasks by token that no worker takes are dropped with the registry.
    #[test]
    fn tasks_that_no_worker_takes_are_dropped_once() {
        let paper = Policy::Paper {
            t_groups: 3,
            s_groups: 3,
        };
        for policy in [Policy::Usher, Policy::Fcfs, paper] {
            let levels = policy.levels(2).unwrap();
            let registry = Registry::new(on_this_machine(2).0, (3, 3), levels);
            let alive = Arc::new(());
            for number in 0..100 {
                let own = Arc::clone(&alive);
                let groups = Groups::new(number % 3, number / 3 % 3);
                let closure = Closure::without_token(move || drop(own), false).unwrap();
                registry.inject(registry.tokens.submit(groups, closure).unwrap().0);
                let own = Arc::clone(&alive);
                let closure = Closure::new(move || drop(own), false).unwrap();
                let token = u64::from(number);
                let job = registry.tokens.register(token, 0, groups, closure).unwrap();
                registry.inject(job.unwrap());
            }
            assert_eq!(Arc::strong_count(&alive), 201);
            drop(registry);
            assert_eq!(Arc::strong_count(&alive), 1);
        }
    }

    #[test]
    fn a_thread_uses_all_shards_in_turn() {
        let first = next_shard();
        let shards: Vec<usize> = (1..SHARDS * SUBMISSIONS_PER_SHARD)
            .map(|_| next_shard())
            .collect();
        for (at, &shard) in shards.iter().enumerate() {
            assert_eq!(shard, (first + (at + 1) / SUBMISSIONS_PER_SHARD) % SHARDS);
        }
    }
}
