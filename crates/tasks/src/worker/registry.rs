// SPDX-License-Identifier: MIT OR Apache-2.0
//! The registry: the state that the workers of a runtime share. Threads outside the runtime add ready
//! tasks to it. All operations take constant time, except the search for visible tasks, which is
//! linear in the number of workers.

use std::{iter, process};

use crate::active_workers::ActiveWorkers;
use crate::counters::{AllCounters, AtomicWorkerCounters};
use crate::dispatch::Groups;
use crate::guess::GroupGuesser;
use crate::job::{Chain, JobRef};
use crate::levels::LevelQueues;
use crate::places::WorkerPlaces;
use crate::pool::{Inbox, StealSlots};
use crate::sleep::Sleepers;
use crate::sync::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Mutex, MutexGuard, Ordering};
use crate::task_node::WaitLock;
use crate::tokens::Tokens;
use crate::trace::Tracer;

/// Number of entries of the table of owners. Two spatial groups share an entry if their numbers
/// have the same remainder modulo this number.
const OWNER_TABLE_LEN: usize = 1024;
/// The entry of a spatial group without an owner.
pub(super) const NO_OWNER: u32 = u32::MAX;

/// The part of a worker's state that other workers access.
#[derive(Debug, Default)]
pub(super) struct WorkerShared {
    pub steal_slots: StealSlots,
    pub inbox: Inbox,
    /// Tasks that only this worker may run (module `forks`).
    pub mailbox: Inbox,
    pub counts: AtomicWorkerCounters,
    /// The lowest nesting level (see `levels`) of the tasks that the worker may run next. Used only
    /// by policies with a global queue.
    pub min_level: AtomicUsize,
    /// Number of tasks until the next check for overdue tasks, at least 1 between two tasks. The
    /// value 1 makes the worker check before its next task.
    pub until_check: AtomicU32,
    /// The thread of the worker; 0 before it has started.
    pub thread_id: AtomicI32,
}

/// The ready tasks of a policy with a global queue.
pub(super) type GlobalQueue = Mutex<LevelQueues>;

/// The state that the workers of a runtime share.
pub(crate) struct Registry {
    /// The ready tasks of a policy with a global queue. If it is `None`, each worker has queues of
    /// its own.
    pub(super) global_queue: Option<GlobalQueue>,
    pub(super) worker_shared: Box<[WorkerShared]>,
    /// Injected tasks, which threads outside this runtime have made ready.
    pub(super) injector: Inbox,
    /// The owner of each spatial group, or [`NO_OWNER`]. The index is the group number modulo
    /// [`OWNER_TABLE_LEN`].
    owners: Box<[AtomicU32]>,
    pub(super) places: WorkerPlaces,
    pub(super) sleepers: Sleepers,
    /// Whether tasks were found in the inboxes or steal slots of sleeping workers.
    pub(super) must_take_from_sleepers: AtomicBool,
    closing: AtomicBool,
    /// The process in which the workers run.
    pub(super) creator_pid: u32,
    /// The number of workers that may still make tasks ready. A worker ends only when this number
    /// is 0 and the runtime is closing.
    pub(super) active_workers: ActiveWorkers,
    /// Tasks by token and submitted tasks.
    pub tokens: Tokens,
    /// Exclusive upper limits of temporal and spatial group numbers.
    pub groups_below: (u32, u32),
    pub tracer: Tracer,
    /// Guesses groups for single tasks that have none.
    pub guess: GroupGuesser,
    /// The lock for waits of tasks for running tasks.
    pub(super) future_lock: WaitLock,
    /// Number of workers that sleep in waits for tasks with futures.
    pub(super) future_waits: AtomicUsize,
}

impl Registry {
    pub fn new(
        places: WorkerPlaces,
        groups_below: (u32, u32),
        global_queue: Option<LevelQueues>,
    ) -> Self {
        let workers = places.workers();
        Self {
            global_queue: global_queue.map(Mutex::new),
            worker_shared: iter::repeat_with(WorkerShared::default)
                .take(workers)
                .collect(),
            injector: Inbox::default(),
            owners: iter::repeat_with(|| AtomicU32::new(NO_OWNER))
                .take(OWNER_TABLE_LEN)
                .collect(),
            places,
            sleepers: Sleepers::new(workers),
            must_take_from_sleepers: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            creator_pid: process::id(),
            active_workers: ActiveWorkers::default(),
            tokens: Tokens::default(),
            groups_below,
            tracer: Tracer::default(),
            guess: GroupGuesser::default(),
            future_lock: WaitLock::default(),
            future_waits: AtomicUsize::new(0),
        }
    }

    pub fn workers(&self) -> usize {
        self.worker_shared.len()
    }

    /// Returns whether the runtime finds groups for tasks that have none.
    pub fn finds_groups(&self) -> bool {
        self.global_queue.is_none()
    }

    pub fn counters(&self) -> AllCounters {
        AllCounters(
            self.worker_shared
                .iter()
                .map(|shared| shared.counts.read())
                .collect(),
        )
    }

    /// Returns the other workers, sorted by cache distance from `worker`.
    pub(super) fn near(&self, worker: usize) -> impl Iterator<Item = usize> + '_ {
        self.places.near(worker).iter().map(|&(other, _)| other)
    }

    /// Enqueues a task from a thread that is not a worker of this runtime.
    pub fn inject(&self, job: JobRef) {
        let has_high_priority = job.groups().t == Groups::HIGH_PRIORITY.t;
        match &self.global_queue {
            Some(global_queue) => lock(global_queue).ready(0, job),
            None => self.injector.push(job),
        }
        let was_woken = self.sleepers.wake_one(0..self.workers());
        if has_high_priority && !was_woken {
            self.request_checks();
        }
    }

    /// Makes busy workers check for injected tasks before their next task. A worker that counts a
    /// task at the same time may miss the request, and checks within 64 tasks.
    fn request_checks(&self) {
        for shared in &self.worker_shared {
            shared.until_check.store(1, Ordering::Relaxed);
        }
    }

    /// Enqueues the tasks of a chain, of which the first is the newest, from a thread that is not a
    /// worker of this runtime. The tasks become visible at the same time, so that a worker runs them
    /// in the order of its policy.
    pub fn inject_all(&self, chain: Chain) {
        if self.global_queue.is_some() {
            return chain.reversed().for_each(|job| self.inject(job));
        }
        let count = chain.groups().take(self.workers()).count();
        let has_high_priority = chain.has_high_priority();
        self.injector.push_all(chain);
        // The worker that takes the tasks publishes some of them for the other workers.
        let mut wakes = iter::repeat_with(|| self.sleepers.wake_one(0..self.workers()));
        let _ = wakes.by_ref().take(count).all(|was_woken| was_woken);
        if has_high_priority {
            self.request_checks();
        }
    }

    /// Requests the workers to end. The workers end when no task is ready and no running task can
    /// make a task ready.
    pub fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.sleepers.wake_all();
    }

    /// Returns whether the calling process is a forked child of the process that created the
    /// runtime. A forked child has no workers.
    pub fn is_in_forked_child(&self) -> bool {
        self.creator_pid != process::id()
    }

    /// Returns whether [`Self::close`] was called.
    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Returns whether any task is in a global queue, an inbox or a steal slot, and thus visible to
    /// all workers.
    pub fn sees_work(&self) -> bool {
        let global_queue = self.global_queue.as_ref();
        global_queue.is_some_and(|global_queue| lock(global_queue).has(0))
            || !self.injector.is_empty()
            || (self.worker_shared.iter())
                .any(|shared| !shared.inbox.is_empty() || !shared.steal_slots.is_empty())
    }

    pub(super) fn owner(&self, s: u32) -> &AtomicU32 {
        &self.owners[s as usize % OWNER_TABLE_LEN]
    }
}

impl Drop for Registry {
    /// Drops submitted tasks that a thread outside the runtime has injected after the workers had
    /// ended. Tasks by token are dropped with the table of tokens.
    fn drop(&mut self) {
        // The drop of a task cannot add tasks, because no reference to the registry is left.
        for job in self.injector.take() {
            // SAFETY: each worker owns a reference to the registry, so no worker exists. Graphs and
            // forks borrow their runtime until they end, so the injector contains only tasks of
            // this registry. This thread holds the task.
            unsafe { self.tokens.discard_submitted(job) };
        }
        if let Some(global_queue) = &self.global_queue {
            // A function, so that the lock is released before a task is dropped.
            let next = || lock(global_queue).next(0, 0);
            while let Some((_, dispatch)) = next() {
                // SAFETY: as above.
                unsafe { self.tokens.discard_submitted(dispatch.item) };
            }
        }
    }
}

pub(super) fn lock(global_queue: &GlobalQueue) -> MutexGuard<'_, LevelQueues> {
    global_queue.lock()
}
