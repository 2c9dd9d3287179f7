// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rules of the runtime's default policy as a dispatcher: one thread, no
//! atomics, the same answers every time.
//!
//! The runtime spreads that policy over its workers (`worker.rs`, `pool`, and for
//! graphs `graph/chain.rs`), which run at the same time; a model of a chip needs its
//! order alone. The rules are
//!
//! 1. What a worker's task has made ready is the worker's own, unless its spatial
//!    group is another's: then it is sent there. A group without an owner becomes
//!    the worker's.
//! 2. Of what the worker may keep, one runs at once, ahead of all that waits: the
//!    first, or the first of the spatial group of the task that has just run. The
//!    others wait so that they would be run in that order.
//! 3. Before each task a worker lays out for others what waits for it, where the first
//!    place of its shelf is free or somebody is idle: half, half of what is left, and so
//!    on, at most [`CHAIN_MAX`] at a time. It keeps the last one where there is a chain
//!    for each of the others, and nobody is idle; for whom few that are left go to the
//!    last place together. It gives away what has waited longest of the group farthest ahead.
//! 4. A worker goes on with its active temporal group, last in, first out; when that
//!    has run out, with the next one by number, and round again; tasks without a
//!    temporal group come last. Then it takes back what it has laid out, the last first.
//! 5. Else it takes what another worker has laid out, else all that has come from
//!    outside, else all that was sent to another. Spatial groups go along: they are the
//!    thief's.
//!
//! `tests/model.rs` holds this against the runtime. What is different:
//!
//! - A [`Dispatcher`] is not told who has made a task ready: what has become ready
//!   since the last [`Dispatcher::next`] is taken for the work of the worker that asks
//!   next, or, where that one got nothing when it asked last, for something from
//!   outside. Of one task's successors the one wanted most is to come first: for the
//!   runtime that is the one declared next after the task, round at the end.
//! - Idle is who got nothing when it asked last; a worker of the runtime looks for a
//!   while before it is, and is so until it has been woken and looks again.
//! - It reads no clock, where a worker of the runtime rests for a moment between two
//!   thefts; and all workers are equally near.
//! - The runtime keeps owners of spatial groups in a table of fixed size, where groups
//!   whose numbers are far apart may share one.

use std::array;
use std::collections::VecDeque;
use std::mem;

use super::{Dispatch, Dispatcher, Groups};
use crate::pool::{CHAIN_MAX, FEW, LANES, PLACES};

/// A task that waits.
type Waiting<I> = (I, Groups);

/// Tasks that are given away together, those to be taken out first at the end.
type Chain<I> = Vec<Waiting<I>>;

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
    /// Laid out for other workers.
    shelf: [Chain<I>; PLACES],
    /// Sent by other workers.
    inbox: VecDeque<Waiting<I>>,
    /// The spatial group of the task that it ran last.
    last_s: u32,
    /// It was given a task when it asked last.
    is_busy: bool,
    /// It got nothing when it asked last.
    is_idle: bool,
}

impl<I> Post<I> {
    fn new() -> Self {
        Self {
            lanes: std::iter::repeat_with(VecDeque::new).take(LANES).collect(),
            active: 0,
            others: VecDeque::new(),
            len: 0,
            shelf: array::from_fn(|_| Vec::new()),
            inbox: VecDeque::new(),
            last_s: 0,
            is_busy: false,
            is_idle: false,
        }
    }

    fn push(&mut self, waiting: Waiting<I>) {
        self.len += 1;
        match waiting.1.t as usize {
            0 => self.others.push_back(waiting),
            t => self.lanes[t % LANES].push_back(waiting),
        }
    }

    fn push_all(&mut self, mut chain: Chain<I>) {
        while let Some(waiting) = chain.pop() {
            self.push(waiting);
        }
    }

    /// What was laid out, as it was before.
    fn put_back(&mut self, chain: Chain<I>) {
        chain.into_iter().for_each(|waiting| self.push(waiting));
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

    /// Rule 3, for so many others, of whom somebody is idle or not.
    fn lay_out(&mut self, others: usize, is_any_idle: bool) {
        if !is_any_idle && !self.shelf[0].is_empty() {
            return;
        }
        loop {
            let mut free = (0..PLACES).filter(|&place| self.shelf[place].is_empty());
            let places = free.clone().count();
            let kept = usize::from(!is_any_idle && PLACES - places >= others);
            let Some(place) = free.next().filter(|_| self.len > kept) else {
                return;
            };
            let is_last = places == 1;
            let count = match is_last && is_any_idle && self.len <= FEW {
                true => self.len,
                false => (self.len / 2).clamp(1, CHAIN_MAX),
            };
            self.shelf[place] = (0..count).map_while(|_| self.pop_far()).collect();
        }
    }

    /// What was laid out first.
    fn take_from_shelf(&mut self) -> Option<Chain<I>> {
        let place = self.shelf.iter_mut().find(|place| !place.is_empty());
        place.map(mem::take)
    }

    /// What was laid out last.
    fn take_back(&mut self) -> Option<Chain<I>> {
        let mut places = self.shelf.iter_mut().rev();
        places.find(|place| !place.is_empty()).map(mem::take)
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
    /// Came from outside.
    outside: VecDeque<Waiting<I>>,
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
            outside: VecDeque::new(),
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
        if !self.posts[worker].is_busy {
            self.outside.append(&mut self.fresh);
            return None;
        }
        let last_s = self.posts[worker].last_s;
        let mut fresh: Vec<Waiting<I>> = self.fresh.drain(..).collect();
        fresh.sort_by_key(|(_, groups)| groups.s != last_s);
        let mut at_once: Option<Waiting<I>> = None;
        // What is wanted least is put in first, as what is put in last comes out first.
        for waiting in fresh.into_iter().rev() {
            if let Some(owner) = self.other_owner(waiting.1.s, worker) {
                self.posts[owner].inbox.push_back(waiting);
            } else if let Some(before) = at_once.replace(waiting) {
                self.posts[worker].push(before);
            }
        }
        at_once
    }

    /// Rule 3, where there are others.
    fn share(&mut self, worker: usize) {
        if self.posts.len() > 1 {
            let is_any_idle = self.posts.iter().any(|post| post.is_idle);
            let others = self.posts.len() - 1;
            self.posts[worker].lay_out(others, is_any_idle);
        }
    }

    /// Rule 5; whether it was another worker's.
    fn steal(&mut self, worker: usize) -> Option<(Chain<I>, bool)> {
        let count = self.posts.len();
        let mut others = (1..count).map(|step| (worker + step) % count);
        let mut laid_out = others.clone();
        let laid_out = laid_out.find_map(|other| self.posts[other].take_from_shelf());
        let (chain, stolen) = if let Some(chain) = laid_out {
            (chain, true)
        } else if !self.outside.is_empty() {
            (self.outside.drain(..).rev().collect(), false)
        } else {
            let other = others.find(|&other| !self.posts[other].inbox.is_empty())?;
            (self.posts[other].inbox.drain(..).rev().collect(), true)
        };
        for &(_, groups) in chain.iter().filter(|(_, groups)| groups.s != 0) {
            self.own(groups.s, worker);
        }
        Some((chain, stolen))
    }

    /// Rule 4, and 5 where that finds nothing; whether it was stolen.
    fn find(&mut self, worker: usize) -> Option<(Waiting<I>, bool)> {
        let post = &mut self.posts[worker];
        while let Some(sent) = post.inbox.pop_front() {
            post.push(sent);
        }
        if let Some(waiting) = post.pop() {
            return Some((waiting, false));
        }
        if let Some(chain) = post.take_back() {
            post.put_back(chain);
            return post.pop().map(|waiting| (waiting, false));
        }
        let (chain, stolen) = self.steal(worker)?;
        let post = &mut self.posts[worker];
        post.push_all(chain);
        Some((post.pop()?, stolen))
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
        self.posts[worker].is_idle = false;
        self.share(worker);
        let found = at_once.or_else(|| self.find(worker));
        let post = &mut self.posts[worker];
        (post.is_busy, post.is_idle) = (found.is_some(), found.is_none());
        let ((item, groups), stolen) = found?;
        self.share(worker);
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

    /// A task of the worker makes those ready.
    fn ready(order: &mut Usher<char>, worker: usize, tasks: &[(char, u32, u32)]) {
        if !order.posts[worker].is_busy {
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
    fn one_runs_at_once_and_the_others_by_temporal_group_the_latest_first() {
        let mut order = Usher::new(1);
        ready(&mut order, 0, &FIVE);
        assert_eq!(order.len(), 5);
        assert_eq!(order.next(0).unwrap().item, 'a');
        ready(&mut order, 0, &[('f', 1, 2), ('g', 1, 2)]);
        assert_eq!(names(&mut order, 0), "fgbced");
        assert!(order.is_empty());
    }

    #[test]
    fn from_outside_the_latest_comes_first() {
        let mut order = Usher::new(1);
        for (name, t, s) in FIVE {
            order.ready(name, Groups::new(t, s));
        }
        assert_eq!(names(&mut order, 0), "cbead");
        assert_eq!(order.owner(2), Some(0));
    }

    #[test]
    fn those_that_become_ready_together_run_in_the_order_in_which_they_came() {
        let mut order = Usher::new(1);
        let tasks = ['a', 'b', 'c', 'd'].map(|name| (name, 1, 0));
        ready(&mut order, 0, &tasks);
        assert_eq!(names(&mut order, 0), "abcd");
    }

    #[test]
    fn the_same_code_goes_on() {
        let mut order = Usher::new(1);
        ready(&mut order, 0, &[('a', 1, 7)]);
        assert_eq!(order.next(0).unwrap().item, 'a');
        ready(&mut order, 0, &[('b', 1, 1), ('c', 1, 7), ('d', 1, 7)]);
        assert_eq!(names(&mut order, 0), "cdb");
    }

    #[test]
    fn groups_stick_to_their_owner_until_it_is_robbed() {
        let mut order = Usher::new(3);
        ready(&mut order, 0, &[('a', 1, 1)]);
        assert_eq!(order.next(0).unwrap().item, 'a');
        // A task of worker 1 makes one of group 1 ready: it is sent to worker 0.
        ready(&mut order, 1, &[('b', 1, 1), ('c', 1, 2)]);
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
        let tasks = [('a', 1), ('b', 1), ('c', 1), ('d', 2), ('e', 2)];
        ready(&mut order, 0, &tasks.map(|(name, t)| (name, t, 0)));
        assert_eq!(order.next(0).unwrap().item, 'a');
        // Laid out are e and d, which are farthest ahead, then c.
        assert_eq!(names(&mut order, 1), "edc");
        assert_eq!(names(&mut order, 0), "b");
    }

    #[test]
    fn one_that_waits_alone_is_there_for_others() {
        let mut order = Usher::new(2);
        ready(&mut order, 0, &[('a', 1, 0), ('b', 1, 0)]);
        assert_eq!(order.next(0).unwrap().item, 'a');
        assert_eq!(names(&mut order, 1), "b");
    }

    #[test]
    fn who_has_nothing_to_do_is_given_all_there_is() {
        let mut order = Usher::new(3);
        ready(&mut order, 0, &[('a', 1, 0), ('b', 1, 0), ('c', 1, 0)]);
        assert_eq!(order.next(0).unwrap().item, 'a');
        // Nothing is kept back for the length of a.
        assert_eq!(order.next(1).unwrap().item, 'c');
        assert_eq!(order.next(2).unwrap().item, 'b');
        // Nor is what becomes ready while the first place is taken.
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
    fn what_nobody_has_taken_is_taken_back() {
        let mut order = Usher::new(2);
        let tasks = ['a', 'b', 'c', 'd', 'e'].map(|name| (name, 1, 0));
        ready(&mut order, 0, &tasks);
        // All but b were laid out: e and d, then c.
        assert_eq!(names(&mut order, 0), "abcde");
    }
}
