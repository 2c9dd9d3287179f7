// SPDX-License-Identifier: MIT OR Apache-2.0
//! Work sharing: a worker publishes queued tasks in its steal slots, and other workers take them
//! from there.
//!
//! Other workers cannot access the queues of a worker, and the next task may take long. Before each
//! task, a worker therefore publishes tasks as follows:
//!
//! | state before a task | published tasks | tasks kept in the queues |
//! |---|---|---|
//! | a worker is idle | half of the queued tasks, half of the rest and so on, a chain per free slot | tasks for which no slot is free |
//! | no worker is idle, and the first slot is empty | half of the queued tasks, half of the rest and so on, a chain per free slot | tasks for which no slot is free, and the next task if there is a chain for each other worker |
//! | no worker is idle, and the first slot is full | no task | all tasks |
//!
//! Limit: if a worker becomes idle during a long task of another worker, it cannot run the tasks
//! that are queued behind the long task. Tasks that a running task submits or makes ready by token
//! are published at once.
//!
//! Cost: a publication moves at most 4 chains of at most 32 tasks. A steal visits the other workers
//! in the order of their cache distance, and pauses at least 2 µs after the last steal
//! ([`STEAL_BACKOFF`]).
//!
//! Wake-ups form a chain: a worker that publishes tasks wakes one sleeping worker. A worker that
//! takes tasks wakes the next sleeping worker if tasks are still visible in any queue, inbox or
//! slot. The publisher thus wakes at most one worker, and all sleeping workers are woken one after
//! the other while published tasks remain.
//!
//! A check of only the slots from which tasks were taken would be wrong. Suppose that workers A and
//! B were woken for the slots of two different workers, and both take tasks from the same slots.
//! Both then find these slots empty, and no worker is woken for the tasks in the other slots.

use std::ptr::NonNull;
use std::time::{Duration, Instant};

use super::registry::{NO_OWNER, WorkerShared};
use super::{Worker, some};
use crate::dispatch::Groups;
use crate::job::{Chain, Job, JobRef};
use crate::places::WorkerDistance;
use crate::pool::kept;
use crate::sync::Ordering;

/// Minimum time between two steals of a worker. If tasks take nanoseconds, a thief soon needs
/// another chain, and each steal costs thief and victim the time of tens of tasks. If tasks take
/// longer than this time, the pause has no effect.
pub(super) const STEAL_BACKOFF: Duration = Duration::from_micros(2);

impl Worker<'_> {
    /// Enqueues a registered task that the running task has made ready. The task goes to the
    /// overflow slot, where other workers can take it at once: the running task may take long, or
    /// wait for the new task. If another worker owns the task's spatial group, the task is sent to
    /// that worker instead.
    pub fn publish_ready(&self, job: JobRef) {
        let registry = self.registry;
        if registry.global_queue.is_some() || self.is_nested() || self.is_isolated() {
            // With a global queue all tasks go there. During a nested wait, the queues and slots of
            // this worker are for the graph of that wait, to which the task does not belong.
            return registry.inject(job);
        }
        if job.groups().t == Groups::HIGH_PRIORITY.t {
            // The chain of a graph ends before its next task.
            self.has_published_high_priority.set(true);
            self.set_until_check(1);
        }
        if !self.allows_stealing() {
            return self.push(job);
        }
        if self.other_owner(&job).is_some() {
            return self.ready(job);
        }
        self.shared.steal_slots.push_overflow(job);
        self.overflow_used.set(true);
        self.wake_near();
    }

    /// Returns whether other workers may steal from this worker.
    pub fn allows_stealing(&self) -> bool {
        self.allows_stealing.get()
    }

    /// Enqueues a forked task, which another worker may run. Requires [`Self::allows_stealing`].
    pub fn fork(&self, job: JobRef) {
        self.local_queues.borrow_mut().push(job);
        self.share();
    }

    /// Takes back all published tasks that were not stolen.
    pub(super) fn reclaim_published(&self) {
        while let Some(chain) = self.shared.steal_slots.reclaim() {
            self.local_queues.borrow_mut().requeue(chain);
        }
    }

    /// Takes back all published tasks that were not stolen, as the tasks that have waited longest.
    pub(super) fn reclaim_oldest(&self) {
        // The chain that was published first is taken back last.
        while let Some(chain) = self.shared.steal_slots.reclaim() {
            self.local_queues.borrow_mut().requeue_oldest(chain);
        }
    }

    /// Takes the task that was published first, and takes back the other published tasks. Published
    /// tasks have waited longer than queued tasks. Without this function they would starve while
    /// new tasks become ready.
    pub(super) fn take_oldest_published(&self) -> Option<JobRef> {
        let steal_slots = &self.shared.steal_slots;
        let mut oldest_chain = steal_slots.reclaim()?;
        while let Some(older) = steal_slots.reclaim() {
            let newer = std::mem::replace(&mut oldest_chain, older);
            self.local_queues.borrow_mut().requeue_oldest(newer);
        }
        // The first task of a chain was removed from the queues last.
        let mut from_oldest = oldest_chain.reversed();
        let oldest = from_oldest.pop();
        let others = from_oldest.reversed();
        self.local_queues.borrow_mut().requeue_oldest(others);
        oldest
    }

    /// Removes a forked task if it is the newest forked task in the queues. Returns whether it was
    /// removed.
    pub fn pop_fork(&self, job: NonNull<Job>) -> bool {
        self.local_queues.borrow_mut().pop_fork(job)
    }

    /// Removes a forked task from this worker's steal slots or queues. Returns whether the task was
    /// found.
    pub fn unpublish(&self, job: NonNull<Job>) -> bool {
        let outcome = self.shared.steal_slots.remove(job);
        if outcome.republished {
            self.wake_near();
        }
        outcome.found || self.local_queues.borrow_mut().remove_fork(job)
    }

    /// Publishes queued tasks if other workers need tasks.
    #[inline]
    pub fn share(&self) {
        if self.allows_stealing() {
            let is_any_idle = self.registry.running().is_any_idle();
            if (is_any_idle || self.shared.steal_slots.needs_refill()) && self.has_queued() {
                self.publish(is_any_idle);
            }
        }
    }

    /// Publishes queued tasks if other workers need tasks, and returns whether a running loop
    /// should fork another piece: while a further worker could run, a piece for each other worker
    /// that may run, and otherwise one piece. Returns false if other workers cannot steal.
    pub fn should_fork(&self) -> bool {
        if !self.allows_stealing() {
            return false;
        }
        self.share();
        let running = self.registry.running();
        let wanted = match running.could_more_run() {
            true => running.limit() - 1,
            false => 1,
        };
        self.shared.steal_slots.len() + self.local_queues.borrow().len() < wanted
    }

    /// Returns whether tasks may be in the queues of this worker, where other workers cannot see
    /// them.
    #[inline]
    fn has_queued(&self) -> bool {
        self.local_queues.borrow().len() > 0 || self.is_nested()
    }

    /// Publishes all queued tasks for which there are free slots. Called when a task continues
    /// after a wait, or begins a wait without running other tasks.
    pub fn publish_all(&self) {
        if self.allows_stealing() {
            self.publish(true);
        }
    }

    /// Publishes half of the queued tasks, half of the rest and so on, one chain per free slot. The
    /// last task is kept if `all` is not set and there is a chain for each other worker.
    fn publish(&self, all: bool) {
        let steal_slots = &self.shared.steal_slots;
        let others = self.registry.workers() - 1;
        let mut published = steal_slots.len();
        let (mut own, mut outer_queues) = (
            self.local_queues.borrow_mut(),
            self.outer_queues.borrow_mut(),
        );
        let mut has_published = false;
        loop {
            let kept = kept(all, published, others);
            // The tasks in the outermost queues have waited longest, so they are published first.
            // In a deep wait the outer queues are not published.
            let mut waiting = outer_queues.iter_mut().filter(|_| !self.is_deep());
            let local_queues = match waiting.find(|local_queues| local_queues.len() > kept) {
                Some(waiting) => waiting,
                None => &mut *own,
            };
            if local_queues.len() <= kept
                || !steal_slots.publish(|is_last| local_queues.split(is_last && all))
            {
                break;
            }
            has_published = true;
            published += 1;
        }
        drop((own, outer_queues));
        if has_published {
            self.wake_near();
        }
    }

    /// Returns whether [`STEAL_BACKOFF`] has passed since the last steal.
    fn may_steal(&self) -> bool {
        match self.last_steal.get() {
            Some(last) if last.elapsed() < STEAL_BACKOFF => false,
            _ => {
                self.last_steal.set(None);
                true
            }
        }
    }

    /// Takes a published chain, else the first task of an overflow slot, else all injected tasks,
    /// else all tasks of another worker's inbox. This worker becomes the owner of the spatial
    /// groups of these tasks.
    pub(super) fn steal(&self) -> Option<Chain> {
        let may_steal = self.may_steal();
        let from_slots = || self.steal_from(|shared| shared.steal_slots.steal());
        let from_overflow = || self.steal_from(|shared| shared.steal_slots.take_overflow());
        let from_inboxes = || self.steal_from(|shared| some(shared.inbox.take()));
        let chain = (may_steal.then(from_slots).flatten())
            .or_else(|| Some(self.republish_rest(may_steal.then(from_overflow).flatten()?)))
            .or_else(|| self.take_injected())
            .or_else(|| may_steal.then(from_inboxes).flatten())?;
        let registry = self.registry;
        let sees_more = || registry.sees_work();
        registry
            .sleepers
            .wake_if(sees_more, registry.near(self.index));
        self.take_ownership(&chain);
        Some(chain)
    }

    /// Returns the first task of a chain from another worker's overflow slot, and publishes the
    /// rest in this worker's overflow slot. The other worker may wait for all of these tasks, so
    /// further workers should run them at the same time.
    fn republish_rest(&self, mut chain: Chain) -> Chain {
        self.take_ownership(&chain);
        let mut first = Chain::EMPTY;
        if let Some(job) = chain.pop() {
            first.push(job);
        }
        if !chain.is_empty() {
            self.shared.steal_slots.fill_overflow(chain);
            self.overflow_used.set(true);
        }
        first
    }

    /// Moves the tasks of the overflow slot into the queues, unless a nested wait is in progress.
    #[inline]
    pub(super) fn drain_overflow(&self) {
        if self.overflow_used.get() && self.wait_depth.get() == 0 {
            self.overflow_used.set(false);
            if let Some(added) = self.shared.steal_slots.take_overflow() {
                self.local_queues.borrow_mut().requeue(added);
            }
        }
    }

    /// Takes a chain from the nearest worker that has a chain.
    fn steal_from(&self, take: impl Fn(&WorkerShared) -> Option<Chain>) -> Option<Chain> {
        let registry = self.registry;
        let mut near = registry.places.near(self.index).iter();
        let found = near
            .find_map(|&(other, distance)| Some((take(&registry.worker_shared[other])?, distance)));
        let (chain, distance): (_, WorkerDistance) = found?;
        self.counts().steals[distance as usize].add(1);
        self.last_steal.set(Some(Instant::now()));
        Some(chain)
    }

    pub(super) fn take_injected(&self) -> Option<Chain> {
        let chain = some(self.registry.injector.take())?;
        self.counts().outside.add(1);
        Some(chain)
    }

    /// Makes this worker the owner of the spatial groups of the tasks.
    pub(super) fn take_ownership(&self, chain: &Chain) {
        let own = self.index as u32;
        for groups in chain.groups().filter(|groups| groups.s != 0) {
            let owner = self.registry.owner(groups.s);
            let before = owner.load(Ordering::Relaxed);
            if before != own {
                owner.store(own, Ordering::Relaxed);
                self.counts().group_moves.add((before != NO_OWNER).into());
            }
        }
    }
}
