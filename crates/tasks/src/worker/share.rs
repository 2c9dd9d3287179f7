// SPDX-License-Identifier: MIT OR Apache-2.0
//! Work sharing: a worker publishes queued tasks in its steal slots, and other workers take them.
//!
//! Before each task the worker checks its steal slots, because the task may take long, and other
//! workers cannot see the worker's own queues meanwhile:
//!
//! | before a task | published | kept |
//! |---|---|---|
//! | a worker is idle | half of the queued tasks, half of the rest and so on | tasks for which no slot is free |
//! | none is idle, and the first slot is empty | the same | these, and the next task if every other worker can take a chain |
//! | none is idle, and the first slot is full | nothing | everything |
//!
//! A worker that becomes idle during a long task of another worker may therefore miss tasks that
//! are still queued behind that task. Tasks that a running task makes ready by token are visible at
//! once.
//!
//! Wake-ups form a chain. A worker that publishes wakes one sleeper. A worker that takes tasks
//! wakes the next sleeper if it still sees tasks anywhere. No worker stays asleep beside published
//! tasks for longer than this chain takes, and the publisher never wakes more than one worker.
//! Checking only the slots from which a task was taken would not be enough: two workers that were
//! woken for two sets of slots may both take from the same set, and each would find that set empty.

use std::ptr::NonNull;
use std::time::{Duration, Instant};

use super::{NO_OWNER, Worker, WorkerShared, some};
use crate::job::{Chain, Job, JobRef};
use crate::places::WorkerDistance;
use crate::pool::kept;
use crate::sync::Ordering;

/// Pause after a steal. If tasks take nanoseconds, stolen tasks are soon done, and each steal costs
/// both workers the time of tens of tasks. If tasks take longer, the pause has no effect.
pub(super) const STEAL_BACKOFF: Duration = Duration::from_micros(2);

impl Worker<'_> {
    /// Makes a registered task ready, in the overflow slot, where other workers see it at once,
    /// because the running task may take long or wait for the new task. A task of a spatial group
    /// with another owner is sent to that owner.
    pub fn publish_ready(&self, job: JobRef) {
        let registry = self.registry;
        if registry.global_queue.is_some() || self.is_nested() {
            // The task is not part of the graph that runs on this worker.
            return registry.inject(job);
        }
        if !self.allows_stealing || self.other_owner(&job).is_some() {
            return self.ready(job);
        }
        self.shared.steal_slots.push_overflow(job);
        self.overflow_used.set(true);
        registry.sleepers.wake_one(registry.near(self.index));
    }

    /// Returns whether other workers may steal from this worker.
    pub fn allows_stealing(&self) -> bool {
        self.allows_stealing
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

    /// Takes one published task back. Published tasks have waited longer than the tasks made ready
    /// since then, and would starve if new tasks kept coming.
    pub(super) fn reclaim_one(&self) -> Option<JobRef> {
        let mut chain = self.shared.steal_slots.reclaim()?;
        let first = chain.pop();
        self.local_queues.borrow_mut().requeue(chain);
        first
    }

    /// Removes a forked task if it is at the top of the queues. Returns whether it was there.
    pub fn pop_fork(&self, job: NonNull<Job>) -> bool {
        self.local_queues.borrow_mut().pop_fork(job)
    }

    /// Removes a forked task from the steal slots or the queues. Returns whether it was found.
    pub fn unpublish(&self, job: NonNull<Job>) -> bool {
        let outcome = self.shared.steal_slots.remove(job);
        if outcome.republished {
            self.registry
                .sleepers
                .wake_one(self.registry.near(self.index));
        }
        outcome.found || self.local_queues.borrow_mut().remove_fork(job)
    }

    /// Publishes queued tasks if other workers need tasks.
    #[inline]
    pub fn share(&self) {
        if self.allows_stealing {
            let is_any_idle = self.registry.sleepers.is_any_idle();
            if (is_any_idle || self.shared.steal_slots.needs_refill()) && self.has_queued() {
                self.publish(is_any_idle);
            }
        }
    }

    /// Returns whether tasks may be queued that other workers cannot see.
    #[inline]
    fn has_queued(&self) -> bool {
        self.local_queues.borrow().len() > 0 || self.is_nested()
    }

    /// Publishes all queued tasks for which there are free slots, because the running task
    /// continues.
    pub(super) fn publish_all(&self) {
        if self.allows_stealing {
            self.publish(true);
        }
    }

    /// Publishes half of the queued tasks, half of the rest and so on. The last task is kept,
    /// unless `all` is set or another worker would find no chain.
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
            // The outermost queues have waited longest. In a deep wait only the queues of that wait
            // are published, because the worker may find nothing else to run.
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
            self.registry
                .sleepers
                .wake_one(self.registry.near(self.index));
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

    /// Takes published tasks, else overflow slots, else injected tasks, else tasks sent to other
    /// workers. This worker becomes the owner of the tasks' spatial groups.
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
        let sees_more = || self.sees_work();
        registry
            .sleepers
            .wake_if(sees_more, registry.near(self.index));
        self.take_ownership(&chain);
        Some(chain)
    }

    /// Keeps the first task of another worker's overflow slot and publishes the rest again, because
    /// the other worker may wait for all of these tasks.
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

    /// Moves the tasks of the overflow slot into the queues, when no wait is on the stack.
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
