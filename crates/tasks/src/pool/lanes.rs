// SPDX-License-Identifier: MIT OR Apache-2.0
//! A worker's own ready tasks, by temporal group.
//!
//! Temporal groups are gone through in the order of their numbers, and round
//! again: where an active group has run out of tasks the next one that has any
//! becomes active. Numbers may be as large as they like; groups that are
//! [`LANES`] apart share a lane, which costs order and nothing else. Within a
//! group the task that became ready last is first, as its data are the warmest;
//! what is given away is what has waited longest in the group that is farthest
//! ahead. Tasks without a temporal group come after all others (paper 5, lines 12
//! to 18). What was forked comes before all others, as somebody waits for it; and the
//! fork that was made first, which is the largest, is the first to be given away.
//!
//! Nothing here is shared between threads.

use std::collections::VecDeque;
use std::ptr::NonNull;

use crate::dispatch::Groups;
use crate::job::{Chain, Job, JobRef};

/// Temporal groups that are told apart at a time.
pub(crate) const LANES: usize = 256;
const WORDS: usize = LANES / 64;
/// The groups of what was forked; nobody else can have them.
pub(crate) const FORKED: Groups = Groups::new(u32::MAX, 0);
/// Tasks that are given away together.
pub(crate) const CHAIN_MAX: usize = 32;
/// So few that it costs little to take them back, and give them away again, often.
pub(crate) const FEW: usize = 8;

/// Ready tasks of one worker.
#[derive(Debug)]
pub(crate) struct Lanes {
    lanes: Box<[VecDeque<JobRef>]>,
    /// Bit *l*: lane *l* is not empty.
    filled: [u64; WORDS],
    /// The lane of the active group.
    active: usize,
    /// Without a temporal group.
    others: VecDeque<JobRef>,
    forked: VecDeque<JobRef>,
    len: usize,
    /// The lane whose turn it is, among all that are filled; behind the last: of tasks
    /// without one.
    turn: usize,
}

impl Lanes {
    pub fn new() -> Self {
        match Self::try_new() {
            Some(lanes) => lanes,
            None => panic!("no memory for the lanes of a worker"),
        }
    }

    /// `None`: there is no memory for them.
    pub fn try_new() -> Option<Self> {
        let mut lanes = Vec::new();
        lanes.try_reserve_exact(LANES).ok()?;
        lanes.resize_with(LANES, VecDeque::new);
        Some(Self {
            lanes: lanes.into_boxed_slice(),
            filled: [0; WORDS],
            active: 0,
            others: VecDeque::new(),
            forked: VecDeque::new(),
            len: 0,
            turn: 0,
        })
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn push(&mut self, job: JobRef) {
        self.len += 1;
        let groups = job.groups();
        match groups.t as usize {
            0 => self.others.push_back(job),
            _ if groups == FORKED => self.forked.push_back(job),
            t => {
                let lane = t % LANES;
                self.lanes[lane].push_back(job);
                self.filled[lane / 64] |= 1 << (lane % 64);
            }
        }
    }

    /// Puts in what others had laid out or sent.
    pub fn push_all(&mut self, mut chain: Chain) {
        while let Some(job) = chain.pop() {
            self.push(job);
        }
    }

    /// Puts in what was given away and nobody has taken, so that it comes out as if it
    /// had stayed.
    pub fn put_back(&mut self, chain: Chain) {
        self.push_all(chain.reversed());
    }

    /// The next to run.
    pub fn pop(&mut self) -> Option<JobRef> {
        let forked = self.forked.pop_back();
        let job = match forked.or_else(|| self.lanes[self.active].pop_back()) {
            Some(job) => job,
            None => self.pop_elsewhere()?,
        };
        self.len -= 1;
        Some(job)
    }

    fn pop_elsewhere(&mut self) -> Option<JobRef> {
        loop {
            let Some(lane) = self.filled_from(self.active) else {
                return self.others.pop_back();
            };
            if let Some(job) = self.lanes[lane].pop_back() {
                self.active = lane;
                return Some(job);
            }
            self.clear(lane);
        }
    }

    /// Takes back what was forked last, if it is this one.
    pub fn take_back(&mut self, job: NonNull<Job>) -> bool {
        let is_last = (self.forked.back()).is_some_and(|last| last.as_ptr() == job);
        if is_last {
            self.forked.pop_back();
            self.len -= 1;
        }
        is_last
    }

    /// Takes back what was forked, wherever it is among other forks; whether it was.
    pub fn take_out(&mut self, job: NonNull<Job>) -> bool {
        let at = (self.forked.iter()).position(|one| one.as_ptr() == job);
        let was = at.and_then(|at| self.forked.remove(at)).is_some();
        self.len -= usize::from(was);
        was
    }

    /// Takes over all that is in others.
    pub fn append(&mut self, others: &mut Self) {
        while let Some(job) = others.pop_far() {
            others.len -= 1;
            self.push(job);
        }
    }

    /// What has waited longest in one lane after the other, so that each task comes in
    /// the end, however many become ready after it.
    pub fn pop_in_turn(&mut self) -> Option<JobRef> {
        let job = self.pop_first_in_turn()?;
        self.len -= 1;
        Some(job)
    }

    fn pop_first_in_turn(&mut self) -> Option<JobRef> {
        // After the last lane come those without any.
        while self.turn < LANES {
            let next = self
                .filled_from(self.turn)
                .filter(|&lane| lane >= self.turn);
            let Some(lane) = next else { break };
            self.turn = lane + 1;
            if let Some(job) = self.lanes[lane].pop_front() {
                return Some(job);
            }
            self.clear(lane);
        }
        self.turn = 0;
        self.others.pop_front().or_else(|| self.forked.pop_front())
    }

    /// Gives half of what there is away; one where there is but one, and `all` where
    /// that is few.
    pub fn split(&mut self, all: bool) -> Chain {
        let mut chain = Chain::EMPTY;
        let count = match all && self.len <= FEW {
            true => self.len,
            false => (self.len / 2).clamp(1, CHAIN_MAX),
        };
        for _ in 0..count {
            let Some(job) = self.pop_far() else { break };
            chain.push(job);
            self.len -= 1;
        }
        chain
    }

    /// What has waited longest in the group that is farthest ahead.
    fn pop_far(&mut self) -> Option<JobRef> {
        if let Some(job) = self.forked.pop_front().or_else(|| self.others.pop_front()) {
            return Some(job);
        }
        loop {
            let lane = self.filled_before(self.active)?;
            if let Some(job) = self.lanes[lane].pop_front() {
                return Some(job);
            }
            self.clear(lane);
        }
    }

    fn clear(&mut self, lane: usize) {
        self.filled[lane / 64] &= !(1 << (lane % 64));
    }

    /// The first lane marked as filled, from that one on and round.
    fn filled_from(&self, lane: usize) -> Option<usize> {
        let (word, bit) = (lane / 64, lane % 64);
        let first = self.filled[word] & (u64::MAX << bit);
        if first != 0 {
            return Some(word * 64 + first.trailing_zeros() as usize);
        }
        let rest = (1..=WORDS).map(|step| (word + step) % WORDS);
        rest.filter(|&word| self.filled[word] != 0)
            .map(|word| word * 64 + self.filled[word].trailing_zeros() as usize)
            .next()
    }

    /// The last lane marked as filled, going round from that one.
    fn filled_before(&self, lane: usize) -> Option<usize> {
        let (word, bit) = (lane / 64, lane % 64);
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
