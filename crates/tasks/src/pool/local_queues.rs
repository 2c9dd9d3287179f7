// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ready tasks of one worker, in one queue per temporal group. Only this worker accesses the
//! queues, so they need no atomic operations.
//!
//! 1. The worker runs tasks of the active group until that group has no ready task. Then the next
//!    higher group number with ready tasks becomes active, cyclically. When no task is left, the
//!    order begins again with the lowest group. Group numbers may be of any size: groups with
//!    numbers that differ by a multiple of 256 ([`T_QUEUES`]) share a queue, which affects only the
//!    order.
//! 2. Within a group, the task that became ready last runs first, because its data were used most
//!    recently and are probably in the cache.
//! 3. Tasks without a temporal group run after those with one (paper 5, lines 12 to 18).
//! 4. Tasks with high priority run before all of these, and tasks with low priority after them. Of
//!    two tasks with the same priority, the one that became ready first runs first.
//! 5. Forked tasks run before all others, because another task waits for them.
//! 6. Other workers get the tasks of the group that would be served last, beginning with the task
//!    that has waited longest. Before all others, they get the oldest fork, which usually contains
//!    the most work, and then the oldest task with high priority.
//!
//! Adding a task and removing the next task take constant time. Bitmaps of 4 words find the next
//! queue that has tasks. Removing a given fork takes time linear in the number of forks. At most 32
//! tasks ([`CHAIN_MAX`]) are given away at a time. The number of queued tasks has no limit.

use std::collections::VecDeque;
use std::mem;
use std::ptr::NonNull;

use crate::dispatch::Groups;
use crate::job::{Chain, Job, JobRef};

/// Number of queues for temporal groups.
pub(crate) const T_QUEUES: usize = 256;
const WORDS: usize = T_QUEUES / 64;
/// The groups of forked tasks. A program cannot give its tasks these groups.
pub(crate) const FORKED: Groups = Groups::new(u32::MAX, 0);
/// Maximum number of tasks that are given away together.
pub(crate) const CHAIN_MAX: usize = 32;
/// Up to this number of queued tasks, a worker may give away all of them. If no other worker takes
/// them, taking back so few tasks costs little.
pub(crate) const SMALL_BATCH: usize = 8;

/// At every call with a number divisible by this constant, [`LocalQueues::pop_in_turn`] removes a task
/// with low priority.
const LOW_TURN: usize = 4;

/// A task that these queues can contain: a job of the runtime, or a task of a simulation.
pub(crate) trait GroupedTask {
    /// Returns the groups of the task.
    fn groups(&self) -> Groups;

    /// Returns whether the task was forked, which means that another task waits for it.
    fn is_forked(&self) -> bool;
}

impl GroupedTask for JobRef {
    fn groups(&self) -> Groups {
        self.groups()
    }

    fn is_forked(&self) -> bool {
        self.groups() == FORKED
    }
}

/// The ready tasks of one worker.
#[derive(Debug, Clone)]
pub(crate) struct LocalQueues<T> {
    queues: Box<[VecDeque<T>]>,
    /// Bit *q* is set if queue *q* may have tasks. The bit of a queue with tasks is always set.
    filled: [u64; WORDS],
    /// The index of the active group's queue.
    active: usize,
    /// Tasks without a temporal group.
    others: VecDeque<T>,
    forked: VecDeque<T>,
    /// Tasks with high and with low priority, oldest first.
    high: VecDeque<T>,
    low: VecDeque<T>,
    len: usize,
    /// Index of the queue from which [`Self::pop_in_turn`] removes the next task. [`T_QUEUES`]
    /// means the tasks without a temporal group.
    next_in_turn: usize,
    /// Number of calls of [`Self::pop_in_turn`].
    turns: usize,
}

impl<T: GroupedTask> LocalQueues<T> {
    pub fn new() -> Self {
        match Self::try_new() {
            Some(queues) => queues,
            None => panic!("out of memory: the queues of a worker cannot be allocated"),
        }
    }

    /// Creates empty queues; `None` if there is no memory.
    pub fn try_new() -> Option<Self> {
        let mut queues = Vec::new();
        queues.try_reserve_exact(T_QUEUES).ok()?;
        queues.resize_with(T_QUEUES, VecDeque::new);
        Some(Self {
            queues: queues.into_boxed_slice(),
            filled: [0; WORDS],
            active: 0,
            others: VecDeque::new(),
            forked: VecDeque::new(),
            high: VecDeque::new(),
            low: VecDeque::new(),
            len: 0,
            next_in_turn: 0,
            turns: 0,
        })
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn push(&mut self, task: T) {
        self.len += 1;
        self.queue_of(&task).push_back(task);
    }

    /// Enqueues a task before all tasks of its queue, as the task that has waited longest.
    fn push_oldest(&mut self, task: T) {
        self.len += 1;
        self.queue_of(&task).push_front(task);
    }

    /// Returns the queue of a task, which counts as filled from now on.
    #[inline]
    fn queue_of(&mut self, task: &T) -> &mut VecDeque<T> {
        match task.groups().t {
            0 => &mut self.others,
            t if t < Groups::LOW_PRIORITY.t => {
                let queue = t as usize % T_QUEUES;
                self.filled[queue / 64] |= 1 << (queue % 64);
                &mut self.queues[queue]
            }
            _ if task.is_forked() => &mut self.forked,
            t if t == Groups::LOW_PRIORITY.t => &mut self.low,
            _ => &mut self.high,
        }
    }

    /// Returns whether a task with high priority is queued.
    pub fn has_high_priority(&self) -> bool {
        !self.high.is_empty()
    }

    /// Enqueues tasks that other workers have published or sent.
    pub fn push_all(&mut self, tasks: impl IntoIterator<Item = T>) {
        tasks.into_iter().for_each(|task| self.push(task));
    }

    /// Removes the task to run next.
    pub fn pop(&mut self) -> Option<T> {
        let first = (self.forked.pop_back()).or_else(|| self.high.pop_front());
        let job = match first.or_else(|| self.queues[self.active].pop_back()) {
            Some(job) => job,
            None => self.pop_elsewhere()?,
        };
        self.len -= 1;
        Some(job)
    }

    fn pop_elsewhere(&mut self) -> Option<T> {
        loop {
            let Some(queue) = self.filled_from(self.active) else {
                let job = self.others.pop_back();
                if job.is_none() {
                    self.active = 0;
                }
                return job.or_else(|| self.low.pop_front());
            };
            if let Some(job) = self.queues[queue].pop_back() {
                self.active = queue;
                return Some(job);
            }
            self.mark_empty(queue);
        }
    }

    /// Moves all tasks from the queues `others` to these queues.
    pub fn append(&mut self, others: &mut Self) {
        others.drain(|job| self.push(job));
    }

    /// Removes all tasks, in the order in which thieves get them.
    pub fn drain(&mut self, mut take: impl FnMut(T)) {
        while let Some(job) = self.pop_for_thief() {
            self.len -= 1;
            take(job);
        }
    }

    /// Removes the oldest task of the next queue in cyclic order, at every [`LOW_TURN`]-th call a task
    /// with low priority. A worker that regularly uses this order runs each task eventually, even if
    /// many tasks become ready after it.
    pub fn pop_in_turn(&mut self) -> Option<T> {
        self.turns = self.turns.wrapping_add(1);
        let low = match self.turns.is_multiple_of(LOW_TURN) {
            true => self.low.pop_front(),
            false => None,
        };
        let job = low.or_else(|| self.pop_first_in_turn())?;
        self.len -= 1;
        Some(job)
    }

    fn pop_first_in_turn(&mut self) -> Option<T> {
        // Tasks without a temporal group come after the last queue.
        while self.next_in_turn < T_QUEUES {
            let next = self
                .filled_from(self.next_in_turn)
                .filter(|&queue| queue >= self.next_in_turn);
            let Some(queue) = next else { break };
            self.next_in_turn = queue + 1;
            if let Some(job) = self.queues[queue].pop_front() {
                return Some(job);
            }
            self.mark_empty(queue);
        }
        self.next_in_turn = 0;
        (self.others.pop_front())
            .or_else(|| self.high.pop_front())
            .or_else(|| self.forked.pop_front())
            .or_else(|| self.low.pop_front())
    }

    /// Removes half of the tasks, at least one and at most [`CHAIN_MAX`], in the order in which
    /// thieves get them. If `all` is set and there are at most [`SMALL_BATCH`] tasks, removes all
    /// tasks.
    pub fn give_away(&mut self, all: bool, mut take: impl FnMut(T)) {
        let count = match all && self.len <= SMALL_BATCH {
            true => self.len,
            false => (self.len / 2).clamp(1, CHAIN_MAX),
        };
        for _ in 0..count {
            let Some(task) = self.pop_for_thief() else {
                break;
            };
            take(task);
            self.len -= 1;
        }
    }

    /// Removes the task that another worker gets next: the oldest fork, else the oldest task with
    /// high priority, else the oldest task without a temporal group, else the oldest task of the group
    /// that is served last, else the oldest task with low priority.
    fn pop_for_thief(&mut self) -> Option<T> {
        let first = (self.forked.pop_front()).or_else(|| self.high.pop_front());
        if let Some(job) = first.or_else(|| self.others.pop_front()) {
            return Some(job);
        }
        loop {
            let Some(queue) = self.filled_before(self.active) else {
                return self.low.pop_front();
            };
            if let Some(job) = self.queues[queue].pop_front() {
                return Some(job);
            }
            self.mark_empty(queue);
        }
    }

    fn mark_empty(&mut self, queue: usize) {
        self.filled[queue / 64] &= !(1 << (queue % 64));
    }

    /// Returns the first queue with a set bit in `filled`, searching cyclically upwards from
    /// `queue`, inclusive.
    fn filled_from(&self, queue: usize) -> Option<usize> {
        let (word, bit) = (queue / 64, queue % 64);
        let first = self.filled[word] & (u64::MAX << bit);
        if first != 0 {
            return Some(word * 64 + first.trailing_zeros() as usize);
        }
        let rest = (1..=WORDS).map(|step| (word + step) % WORDS);
        rest.filter(|&word| self.filled[word] != 0)
            .map(|word| word * 64 + self.filled[word].trailing_zeros() as usize)
            .next()
    }

    /// Returns the first queue with a set bit in `filled`, searching cyclically downwards from
    /// `queue`, exclusive.
    fn filled_before(&self, queue: usize) -> Option<usize> {
        let (word, bit) = (queue / 64, queue % 64);
        let last = |word: usize, bits: u64| word * 64 + 63 - bits.leading_zeros() as usize;
        let below = self.filled[word] & !(u64::MAX << bit);
        if below != 0 {
            return Some(last(word, below));
        }
        let rest = (1..=WORDS).map(|step| (word + WORDS - step) % WORDS);
        rest.filter(|&word| self.filled[word] != 0)
            .map(|word| last(word, self.filled[word]))
            .next()
    }
}

impl LocalQueues<JobRef> {
    /// Removes tasks as [`Self::give_away`] does, and returns them as a chain. The task removed
    /// last is the first task of the chain.
    pub fn split(&mut self, all: bool) -> Chain {
        let mut chain = Chain::EMPTY;
        self.give_away(all, |job| chain.push(job));
        chain
    }

    /// Enqueues the tasks of a chain from [`Self::split`] that no other worker took. The tasks have
    /// the same order in the queues as before the split.
    pub fn requeue(&mut self, chain: Chain) {
        self.push_all(chain.reversed());
    }

    /// Enqueues the tasks of a chain from [`Self::split`] that no other worker took, before all tasks
    /// that became ready since the split.
    pub fn requeue_oldest(&mut self, chain: Chain) {
        chain.into_iter().for_each(|job| self.push_oldest(job));
    }

    /// Removes the newest forked task if it is `job`.
    pub fn pop_fork(&mut self, job: NonNull<Job>) -> bool {
        let is_last = (self.forked.back()).is_some_and(|last| last.as_ptr() == job);
        if is_last {
            self.forked.pop_back();
            self.len -= 1;
        }
        is_last
    }

    /// Removes the newest forked task for which `is_wanted` returns true.
    pub fn take_fork(&mut self, is_wanted: impl Fn(&JobRef) -> bool) -> Option<JobRef> {
        let at = self.forked.iter().rposition(is_wanted)?;
        let job = self.forked.remove(at)?;
        self.len -= 1;
        Some(job)
    }

    /// Removes all forked tasks, oldest first.
    pub fn take_forks(&mut self) -> VecDeque<JobRef> {
        self.len -= self.forked.len();
        mem::take(&mut self.forked)
    }

    /// Removes a forked task from any position among the forks. Returns whether the task was found.
    pub fn remove_fork(&mut self, job: NonNull<Job>) -> bool {
        // The newest forks are searched first, because their callers wait first.
        let at = (self.forked.iter()).rposition(|fork| fork.as_ptr() == job);
        let was = at.and_then(|at| self.forked.remove(at)).is_some();
        self.len -= usize::from(was);
        was
    }
}

/// Returns the number of queued tasks that a worker keeps when it publishes tasks. The number is 0
/// if `all` is set or there are fewer published chains than other workers, and 1 otherwise.
pub(crate) fn kept(all: bool, published: usize, others: usize) -> usize {
    usize::from(!all && published >= others)
}
