// SPDX-License-Identifier: MIT OR Apache-2.0
//! The runtime's default policy as a single-threaded, deterministic dispatcher.
//!
//! The runtime implements the policy with concurrent workers (`worker.rs`, and for graphs
//! `graph/chain.rs`). A simulated chip only needs to know which task runs next, and uses this
//! dispatcher. The runtime and this dispatcher keep a worker's tasks in [`LocalQueues`], which
//! select the next task and the tasks to give away. This file replaces the data that the threads of
//! the runtime share: steal slots, inboxes and the owners of spatial groups. The rules are:
//!
//! 1. A task made ready by a worker's task stays with that worker, unless the task's spatial
//!    group has another owner. In that case the task is sent to the owner. If the group has no
//!    owner, the worker becomes its owner.
//! 2. Of the tasks that stay, one runs next, before all queued tasks. It is the first task that is
//!    in the spatial group of the task that has just run, or the first of all if no task is in that
//!    group. The rest of the tasks that stay is queued. Within a temporal group, tasks of that
//!    spatial group run before other tasks of the rest, and otherwise in the order in which they
//!    became ready. Tasks with priorities are always queued, and while a task with high priority is
//!    queued, no task runs before the queued tasks.
//! 3. Before each task a worker publishes queued tasks, if its first steal slot is empty or a
//!    worker is idle. Each free steal slot gets a chain of half of the tasks that are then queued,
//!    at most 32, beginning with the oldest tasks of the group that is served last. If no worker is
//!    idle and there are as many published chains as other workers, the worker keeps its last task.
//!    If a worker is idle, the last free slot gets all queued tasks if these are at most 8.
//! 4. A worker continues with its active temporal group, beginning with the task that was queued
//!    last. When that group is empty, the next group by number becomes active, cyclically. Tasks
//!    without a temporal group come last. When all its queues are empty, the worker takes back its
//!    published tasks, the latest first.
//! 5. A worker without any task takes a chain that another worker has published, else all injected
//!    tasks, else all tasks that were sent to another worker. The worker becomes the owner of the
//!    spatial groups of the tasks that it takes.
//!
//! A choice takes time linear in the number of workers, of newly ready tasks, and of the tasks that
//! are published or taken. The table of owners has one entry for each number up to the largest
//! spatial group. `tests/model.rs` compares this dispatcher with the runtime, which differs as
//! follows:
//!
//! - A [`Dispatcher`] does not know which worker made a task ready. Tasks that became ready since
//!   the last [`Dispatcher::next`] are attributed to the worker that makes the following call. If
//!   that worker got no task in its last call, the tasks are attributed to a thread outside the
//!   runtime.
//! - The caller must pass the preferred successor of a task first. In the runtime, the preferred
//!   successor is the successor with the next higher number than the task, or with the lowest
//!   number if all successors have lower numbers than the task.
//! - A worker is idle if it got nothing in its last call. A worker of the runtime searches for a
//!   while before it becomes idle, and stays idle until it is woken and searches again.
//! - A worker of the runtime pauses between two steals, whereas the dispatcher reads no clock. In
//!   the dispatcher, all workers have the same distance from one another.
//! - The runtime keeps the owners of spatial groups in a table of fixed size, in which two distant
//!   group numbers may share an entry.

use std::array;
use std::collections::VecDeque;
use std::mem;

use super::{Dispatch, Dispatcher, Groups};
use crate::pool::{GroupedTask, LocalQueues, SLOTS, kept};

/// A queued task with its groups.
type QueuedTask<I> = (I, Groups);

impl<I> GroupedTask for QueuedTask<I> {
    fn groups(&self) -> Groups {
        self.1
    }

    fn is_forked(&self) -> bool {
        false
    }
}

/// Tasks that a worker gives away together. A thief runs the last element first.
type Chain<I> = Vec<QueuedTask<I>>;

/// The state of one worker.
#[derive(Debug, Clone)]
struct WorkerQueues<I> {
    /// The worker's own queues, which other workers do not access.
    local: LocalQueues<QueuedTask<I>>,
    /// Tasks published for other workers.
    steal_slots: [Chain<I>; SLOTS],
    /// Tasks sent by other workers.
    inbox: VecDeque<QueuedTask<I>>,
    /// The spatial group of the task that the worker ran last.
    last_s: u32,
    /// Whether the worker got a task in its last call of `next`.
    is_busy: bool,
    /// Whether the worker got no task in its last call of `next`.
    is_idle: bool,
}

impl<I> WorkerQueues<I> {
    fn new() -> Self {
        Self {
            local: LocalQueues::new(),
            steal_slots: array::from_fn(|_| Vec::new()),
            inbox: VecDeque::new(),
            last_s: 0,
            is_busy: false,
            is_idle: false,
        }
    }

    /// Publishes queued tasks by rule 3 of the module documentation. `others` is the number of
    /// other workers, and `is_any_idle` states whether one of the other workers is idle.
    fn publish(&mut self, others: usize, is_any_idle: bool) {
        if !is_any_idle && !self.steal_slots[0].is_empty() {
            return;
        }
        loop {
            let mut free = (0..SLOTS).filter(|&slot| self.steal_slots[slot].is_empty());
            let free_slots = free.clone().count();
            let kept = kept(is_any_idle, SLOTS - free_slots, others);
            let Some(slot) = free.next().filter(|_| self.local.len() > kept) else {
                return;
            };
            let is_last = free_slots == 1;
            let chain = &mut self.steal_slots[slot];
            let take = |waiting| chain.push(waiting);
            self.local.give_away(is_last && is_any_idle, take);
        }
    }

    /// Takes the chain from the first steal slot that is not empty.
    fn steal(&mut self) -> Option<Chain<I>> {
        let slot = self.steal_slots.iter_mut().find(|slot| !slot.is_empty());
        slot.map(mem::take)
    }

    /// Takes the chain from the last steal slot that is not empty.
    fn reclaim(&mut self) -> Option<Chain<I>> {
        let mut free_slots = self.steal_slots.iter_mut().rev();
        free_slots.find(|slot| !slot.is_empty()).map(mem::take)
    }
}

/// The workers' queues, and the owners of the spatial groups.
#[derive(Debug, Clone)]
pub struct Usher<I> {
    workers: Vec<WorkerQueues<I>>,
    /// For each spatial group, the worker that owns the group.
    owners: Vec<Option<usize>>,
    /// Tasks that became ready since the last call of `next`.
    fresh: VecDeque<QueuedTask<I>>,
    /// Injected tasks.
    outside: VecDeque<QueuedTask<I>>,
    len: usize,
}

impl<I> Usher<I> {
    /// Creates queues for this number of workers, at least one.
    pub fn new(workers: usize) -> Self {
        Self {
            workers: std::iter::repeat_with(WorkerQueues::new)
                .take(workers.max(1))
                .collect(),
            owners: Vec::new(),
            fresh: VecDeque::new(),
            outside: VecDeque::new(),
            len: 0,
        }
    }

    /// Returns the owner of a spatial group.
    pub fn owner(&self, s: u32) -> Option<usize> {
        self.owners.get(s as usize).copied().flatten()
    }

    fn own(&mut self, s: u32, worker: usize) {
        let s = s as usize;
        if s >= self.owners.len() {
            self.owners.resize(s + 1, None);
        }
        self.owners[s] = Some(worker);
    }

    /// Returns the owner of a spatial group if the owner is another worker. If the group has no
    /// owner, `worker` becomes its owner.
    fn other_owner(&mut self, s: u32, worker: usize) -> Option<usize> {
        if s == 0 || self.workers.len() == 1 {
            return None;
        }
        match self.owner(s) {
            Some(owner) => (owner != worker).then_some(owner),
            None => {
                self.own(s, worker);
                None
            }
        }
    }

    /// Distributes the newly ready tasks by rules 1 and 2 of the module documentation. Returns the
    /// task that runs next.
    fn spread(&mut self, worker: usize) -> Option<QueuedTask<I>> {
        if !self.workers[worker].is_busy {
            self.outside.append(&mut self.fresh);
            return None;
        }
        let last_s = self.workers[worker].last_s;
        let mut fresh: Vec<QueuedTask<I>> = self.fresh.drain(..).collect();
        fresh.sort_by_key(|(_, groups)| groups.s != last_s);
        let mut at_once: Option<QueuedTask<I>> = None;
        // The most preferred task is handled last: of the tasks in a queue, the task queued last
        // runs first.
        for waiting in fresh.into_iter().rev() {
            if let Some(owner) = self.other_owner(waiting.1.s, worker) {
                self.workers[owner].inbox.push_back(waiting);
            } else if waiting.1.has_priority() {
                self.workers[worker].local.push(waiting);
            } else if let Some(before) = at_once.replace(waiting) {
                self.workers[worker].local.push(before);
            }
        }
        let local = &mut self.workers[worker].local;
        match at_once {
            Some(next) if local.has_high_priority() => {
                local.push(next);
                None
            }
            at_once => at_once,
        }
    }

    /// Publishes queued tasks by rule 3 of the module documentation, if there are other workers.
    fn share(&mut self, worker: usize) {
        if self.workers.len() > 1 {
            let is_any_idle = self.workers.iter().any(|queues| queues.is_idle);
            let others = self.workers.len() - 1;
            self.workers[worker].publish(others, is_any_idle);
        }
    }

    /// Takes tasks for a worker without tasks, by rule 5 of the module documentation. Also returns
    /// whether the tasks came from another worker instead of the injected tasks.
    fn steal(&mut self, worker: usize) -> Option<(Chain<I>, bool)> {
        let count = self.workers.len();
        let mut others = (1..count).map(|step| (worker + step) % count);
        let mut published = others.clone();
        let published = published.find_map(|other| self.workers[other].steal());
        let (chain, stolen) = if let Some(chain) = published {
            (chain, true)
        } else if !self.outside.is_empty() {
            (self.outside.drain(..).rev().collect(), false)
        } else {
            let other = others.find(|&other| !self.workers[other].inbox.is_empty())?;
            (self.workers[other].inbox.drain(..).rev().collect(), true)
        };
        for &(_, groups) in chain.iter().filter(|(_, groups)| groups.s != 0) {
            self.own(groups.s, worker);
        }
        Some((chain, stolen))
    }

    /// Returns the next task by rule 4 of the module documentation, or by rule 5 if the worker has
    /// no task. Also returns whether the task came from another worker.
    fn find(&mut self, worker: usize) -> Option<(QueuedTask<I>, bool)> {
        let queues = &mut self.workers[worker];
        queues.local.push_all(queues.inbox.drain(..));
        if let Some(waiting) = queues.local.pop() {
            return Some((waiting, false));
        }
        if let Some(chain) = queues.reclaim() {
            // `push_all` restores the order that the tasks had in the queues before they were
            // published.
            queues.local.push_all(chain);
            return queues.local.pop().map(|waiting| (waiting, false));
        }
        let (chain, stolen) = self.steal(worker)?;
        let local = &mut self.workers[worker].local;
        local.push_all(chain.into_iter().rev());
        Some((local.pop()?, stolen))
    }
}

impl<I> Dispatcher<I> for Usher<I> {
    fn ready(&mut self, item: I, groups: Groups) {
        self.fresh.push_back((item, groups));
        self.len += 1;
    }

    /// # Panics
    /// If there is no such worker.
    fn next(&mut self, worker: usize) -> Option<Dispatch<I>> {
        let at_once = self.spread(worker).map(|waiting| (waiting, false));
        self.workers[worker].is_idle = false;
        self.share(worker);
        let found = at_once.or_else(|| self.find(worker));
        let queues = &mut self.workers[worker];
        (queues.is_busy, queues.is_idle) = (found.is_some(), found.is_none());
        let ((item, groups), stolen) = found?;
        self.share(worker);
        self.workers[worker].last_s = groups.s;
        self.len -= 1;
        Some(Dispatch {
            item,
            groups,
            group_moved: stolen && groups.s != 0,
        })
    }

    fn len(&self) -> usize {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(order: &mut Usher<char>, worker: usize) -> String {
        std::iter::from_fn(|| order.next(worker).map(|dispatch| dispatch.item)).collect()
    }

    /// Makes tasks ready, as if a task that `worker` runs had made them ready.
    fn ready(order: &mut Usher<char>, worker: usize, tasks: &[(char, u32, u32)]) {
        if !order.workers[worker].is_busy {
            order.ready('.', Groups::NONE);
            assert_eq!(order.next(worker).unwrap().item, '.');
        }
        for &(name, t, s) in tasks {
            order.ready(name, Groups::new(t, s));
        }
    }

    const FIVE: [(char, u32, u32); 5] = [
        ('a', 2, 1),
        ('b', 1, 1),
        ('c', 1, 2),
        ('d', 0, 1),
        ('e', 2, 2),
    ];

    #[test]
    fn one_task_runs_next_and_the_rest_by_temporal_group_latest_first() {
        let mut order = Usher::new(1);
        ready(&mut order, 0, &FIVE);
        assert_eq!(order.len(), 5);
        assert_eq!(order.next(0).unwrap().item, 'a');
        ready(&mut order, 0, &[('f', 1, 2), ('g', 1, 2)]);
        assert_eq!(names(&mut order, 0), "fgbced");
        assert!(order.is_empty());
    }

    #[test]
    fn injected_tasks_run_latest_first() {
        let mut order = Usher::new(1);
        for (name, t, s) in FIVE {
            order.ready(name, Groups::new(t, s));
        }
        assert_eq!(names(&mut order, 0), "cbead");
        assert_eq!(order.owner(2), Some(0));
    }

    #[test]
    fn tasks_made_ready_together_run_in_order() {
        let mut order = Usher::new(1);
        let tasks = ['a', 'b', 'c', 'd'].map(|name| (name, 1, 0));
        ready(&mut order, 0, &tasks);
        assert_eq!(names(&mut order, 0), "abcd");
    }

    #[test]
    fn the_spatial_group_of_the_last_task_is_preferred() {
        let mut order = Usher::new(1);
        ready(&mut order, 0, &[('a', 1, 7)]);
        assert_eq!(order.next(0).unwrap().item, 'a');
        ready(&mut order, 0, &[('b', 1, 1), ('c', 1, 7), ('d', 1, 7)]);
        assert_eq!(names(&mut order, 0), "cdb");
    }

    #[test]
    fn groups_keep_their_owner_until_stolen() {
        let mut order = Usher::new(3);
        ready(&mut order, 0, &[('a', 1, 1)]);
        assert_eq!(order.next(0).unwrap().item, 'a');
        // A task of worker 1 makes a task of group 1 ready, which is sent to worker 0.
        ready(&mut order, 1, &[('b', 1, 1), ('c', 1, 2)]);
        assert_eq!(order.next(1).unwrap().item, 'c');
        assert_eq!((order.owner(1), order.owner(2)), (Some(0), Some(1)));
        // Worker 2 finds only the task sent to worker 0.
        let stolen = order.next(2).unwrap();
        assert_eq!((stolen.item, stolen.group_moved), ('b', true));
        assert_eq!(order.owner(1), Some(2));
        assert_eq!(order.next(0), None);
    }

    #[test]
    fn a_thief_takes_half_of_the_group_served_last() {
        let mut order = Usher::new(2);
        let tasks = [('a', 1), ('b', 1), ('c', 1), ('d', 2), ('e', 2)];
        ready(&mut order, 0, &tasks.map(|(name, t)| (name, t, 0)));
        assert_eq!(order.next(0).unwrap().item, 'a');
        // Worker 0 has published two chains: e and d, which are served last, and then c.
        assert_eq!(names(&mut order, 1), "edc");
        assert_eq!(names(&mut order, 0), "b");
    }

    #[test]
    fn a_single_queued_task_can_be_stolen() {
        let mut order = Usher::new(2);
        ready(&mut order, 0, &[('a', 1, 0), ('b', 1, 0)]);
        assert_eq!(order.next(0).unwrap().item, 'a');
        assert_eq!(names(&mut order, 1), "b");
    }

    #[test]
    fn all_tasks_are_published_for_idle_workers() {
        let mut order = Usher::new(3);
        ready(&mut order, 0, &[('a', 1, 0), ('b', 1, 0), ('c', 1, 0)]);
        assert_eq!(order.next(0).unwrap().item, 'a');
        // Worker 0 has published all other tasks, so worker 1 can steal c while worker 0 runs a.
        assert_eq!(order.next(1).unwrap().item, 'c');
        assert_eq!(order.next(2).unwrap().item, 'b');
        // Worker 0 publishes e, because there are fewer published chains than other workers. Later
        // it keeps g, because the first slot is full and no worker is idle.
        ready(&mut order, 0, &[('d', 1, 0), ('e', 1, 0)]);
        assert_eq!(order.next(0).unwrap().item, 'd');
        ready(&mut order, 0, &[('f', 1, 0), ('g', 1, 0)]);
        assert_eq!(order.next(0).unwrap().item, 'f');
        assert_eq!(order.next(1).unwrap().item, 'e');
        assert_eq!(order.next(2), None);
        assert_eq!(names(&mut order, 0), "g");
        ready(&mut order, 0, &[('h', 1, 0), ('i', 1, 0)]);
        assert_eq!(order.next(0).unwrap().item, 'h');
        ready(&mut order, 0, &[('j', 1, 0), ('k', 1, 0)]);
        assert_eq!(order.next(0).unwrap().item, 'j');
        assert_eq!(names(&mut order, 2), "ik");
    }

    #[test]
    fn published_tasks_are_reclaimed_in_order() {
        let mut order = Usher::new(2);
        let tasks = ['a', 'b', 'c', 'd', 'e'].map(|name| (name, 1, 0));
        ready(&mut order, 0, &tasks);
        // Worker 0 publishes all tasks except b: e and d, then c.
        assert_eq!(names(&mut order, 0), "abcde");
    }
}
