// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rules of the runtime's default policy as a dispatcher: one thread, no
//! atomics, the same answers every time.
//!
//! The runtime spreads that policy over its workers (`worker.rs`, `pool`), which
//! run at the same time; a model of a chip needs its order alone. The rules are
//!
//! 1. What a worker's task has made ready is the worker's own, unless its spatial
//!    group is another's: then it is sent there. A group without an owner becomes
//!    the worker's.
//! 2. Of what the worker may keep, one runs at once, ahead of all that waits: the
//!    first, or the first of the spatial group of the task that has just run.
//! 3. Else the worker goes on with its active temporal group, last in, first out;
//!    when that has run out, with the next one by number, and round again; tasks
//!    without a temporal group come last.
//! 4. Else it takes half of what another worker has waiting, at most
//!    [`CHAIN_MAX`], the longest waiting of the group farthest ahead, else all that
//!    was sent to another. Spatial groups go along: they are the thief's.
//!
//! Two things differ. A [`Dispatcher`] is not told who has made a task ready: what
//! has become ready since the last [`Dispatcher::next`] is taken for the work of
//! the worker that asks next. And a thief takes from the other's lanes, where the
//! runtime takes what the other has laid out on its shelf before each task.

use std::collections::VecDeque;

use super::{Dispatch, Dispatcher, Groups};

/// Temporal groups that are told apart at a time, as in the runtime.
const LANES: usize = 256;
/// Tasks that are taken together, as in the runtime.
const CHAIN_MAX: usize = 32;

/// A task that waits.
type Waiting<I> = (I, Groups);

/// What one worker has.
#[derive(Debug, Clone)]
struct Post<I> {
    /// By temporal group; group 0 apart.
    lanes: Vec<VecDeque<Waiting<I>>>,
    /// The lane of the active group.
    active: usize,
    /// Without a temporal group.
    others: VecDeque<Waiting<I>>,
    /// What is in lanes and others.
    len: usize,
    /// Sent by other workers.
    inbox: VecDeque<Waiting<I>>,
    /// The spatial group of the task that it ran last.
    last_s: u32,
}

impl<I> Post<I> {
    fn new() -> Self {
        Self {
            lanes: std::iter::repeat_with(VecDeque::new).take(LANES).collect(),
            active: 0,
            others: VecDeque::new(),
            len: 0,
            inbox: VecDeque::new(),
            last_s: 0,
        }
    }

    fn push(&mut self, waiting: Waiting<I>) {
        self.len += 1;
        match waiting.1.t as usize {
            0 => self.others.push_back(waiting),
            t => self.lanes[t % LANES].push_back(waiting),
        }
    }

    /// The next to run here.
    fn pop(&mut self) -> Option<Waiting<I>> {
        let round = (self.active..LANES).chain(0..self.active);
        let lane = round.into_iter().find(|&lane| !self.lanes[lane].is_empty());
        let waiting = match lane {
            Some(lane) => {
                self.active = lane;
                self.lanes[lane].pop_back()
            }
            None => self.others.pop_back(),
        }?;
        self.len -= 1;
        Some(waiting)
    }

    /// What has waited longest in the group that is farthest ahead.
    fn pop_far(&mut self) -> Option<Waiting<I>> {
        let waiting = self.others.pop_front().or_else(|| {
            let mut back = (0..self.active).rev().chain((self.active..LANES).rev());
            let lane = back.find(|&lane| !self.lanes[lane].is_empty())?;
            self.lanes[lane].pop_front()
        })?;
        self.len -= 1;
        Some(waiting)
    }
}

/// Workers with what waits for each, and who owns what.
#[derive(Debug, Clone)]
pub struct Usher<I> {
    posts: Vec<Post<I>>,
    /// By spatial group: whose it is.
    owners: Vec<Option<usize>>,
    /// Became ready since a worker asked last.
    fresh: VecDeque<Waiting<I>>,
    len: usize,
}

impl<I> Usher<I> {
    /// For that many workers, one at least.
    pub fn new(workers: usize) -> Self {
        Self {
            posts: std::iter::repeat_with(Post::new)
                .take(workers.max(1))
                .collect(),
            owners: Vec::new(),
            fresh: VecDeque::new(),
            len: 0,
        }
    }

    /// Whom a spatial group belongs to.
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

    /// The other worker that a spatial group belongs to; nobody's become this one's.
    fn other_owner(&mut self, s: u32, worker: usize) -> Option<usize> {
        if s == 0 || self.posts.len() == 1 {
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

    /// Rules 1 and 2: spreads what is fresh; what runs at once.
    fn spread(&mut self, worker: usize) -> Option<Waiting<I>> {
        let last_s = self.posts[worker].last_s;
        let mut at_once: Option<Waiting<I>> = None;
        while let Some(waiting) = self.fresh.pop_front() {
            let s = waiting.1.s;
            if let Some(owner) = self.other_owner(s, worker) {
                self.posts[owner].inbox.push_back(waiting);
                continue;
            }
            let prefers = match &at_once {
                None => true,
                Some((_, before)) => before.s != last_s && s == last_s,
            };
            let waits = match prefers {
                true => at_once.replace(waiting),
                false => Some(waiting),
            };
            if let Some(waiting) = waits {
                self.posts[worker].push(waiting);
            }
        }
        at_once
    }

    /// Rule 4: whether there is something in the worker's lanes now.
    fn steal(&mut self, worker: usize) {
        let count = self.posts.len();
        let others = || (1..count).map(move |step| (worker + step) % count);
        let taken: Vec<Waiting<I>> = if let Some(other) =
            others().find(|&other| self.posts[other].len >= 2)
        {
            let post = &mut self.posts[other];
            let half = (post.len / 2).min(CHAIN_MAX);
            (0..half).map_while(|_| post.pop_far()).collect()
        } else if let Some(other) = others().find(|&other| !self.posts[other].inbox.is_empty()) {
            self.posts[other].inbox.drain(..).collect()
        } else {
            return;
        };
        for waiting in taken {
            if waiting.1.s != 0 {
                self.own(waiting.1.s, worker);
            }
            self.posts[worker].push(waiting);
        }
    }

    /// Rule 3, and 4 where that finds nothing; whether it was stolen.
    fn find(&mut self, worker: usize) -> Option<(Waiting<I>, bool)> {
        while let Some(sent) = self.posts[worker].inbox.pop_front() {
            self.posts[worker].push(sent);
        }
        if let Some(waiting) = self.posts[worker].pop() {
            return Some((waiting, false));
        }
        self.steal(worker);
        let waiting = self.posts[worker].pop()?;
        Some((waiting, true))
    }
}

impl<I> Dispatcher<I> for Usher<I> {
    fn ready(&mut self, item: I, groups: Groups) {
        self.fresh.push_back((item, groups));
        self.len += 1;
    }

    /// # Panics
    /// Where there is no such worker.
    fn next(&mut self, worker: usize) -> Option<Dispatch<I>> {
        let at_once = self.spread(worker).map(|waiting| (waiting, false));
        let ((item, groups), stolen) = at_once.or_else(|| self.find(worker))?;
        self.posts[worker].last_s = groups.s;
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

    fn ready(order: &mut Usher<char>, tasks: &[(char, u32, u32)]) {
        for &(name, t, s) in tasks {
            order.ready(name, Groups::new(t, s));
        }
    }

    #[test]
    fn one_runs_at_once_and_the_others_last_in_first_out_by_temporal_group() {
        let mut order = Usher::new(1);
        ready(
            &mut order,
            &[
                ('a', 2, 1),
                ('b', 1, 1),
                ('c', 1, 2),
                ('d', 0, 1),
                ('e', 2, 2),
            ],
        );
        assert_eq!(order.len(), 5);
        assert_eq!(names(&mut order, 0), "acbed");
        assert!(order.is_empty());
    }

    #[test]
    fn the_same_code_goes_on() {
        let mut order = Usher::new(1);
        ready(&mut order, &[('a', 1, 7)]);
        assert_eq!(order.next(0).unwrap().item, 'a');
        ready(&mut order, &[('b', 1, 1), ('c', 1, 7), ('d', 1, 7)]);
        assert_eq!(names(&mut order, 0), "cdb");
    }

    #[test]
    fn groups_stick_to_their_owner_until_it_is_robbed() {
        let mut order = Usher::new(3);
        ready(&mut order, &[('a', 1, 1)]);
        assert_eq!(order.next(0).unwrap().item, 'a');
        // Worker 1 makes a task of group 1 ready: it is sent to worker 0.
        ready(&mut order, &[('b', 1, 1), ('c', 1, 2)]);
        assert_eq!(order.next(1).unwrap().item, 'c');
        assert_eq!((order.owner(1), order.owner(2)), (Some(0), Some(1)));
        // Worker 2 finds nothing but what was sent to worker 0.
        let stolen = order.next(2).unwrap();
        assert_eq!((stolen.item, stolen.group_moved), ('b', true));
        assert_eq!(order.owner(1), Some(2));
        assert_eq!(order.next(0), None);
    }

    #[test]
    fn a_thief_takes_half_from_the_far_end() {
        let mut order = Usher::new(2);
        ready(
            &mut order,
            &[
                ('a', 1, 0),
                ('b', 1, 0),
                ('c', 1, 0),
                ('d', 2, 0),
                ('e', 2, 0),
            ],
        );
        assert_eq!(order.next(0).unwrap().item, 'a');
        // Of b, c, d and e it takes d and e, which are farthest ahead.
        assert_eq!(names(&mut order, 1), "edb");
        assert_eq!(names(&mut order, 0), "c");
    }
}
