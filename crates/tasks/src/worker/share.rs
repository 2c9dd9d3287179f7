// SPDX-License-Identifier: MIT OR Apache-2.0
//! What workers have of one another: tasks that one lays out, and another takes.
//!
//! A worker looks at its shelf before each task, as that may take long, and nobody sees
//! what it has to itself until it has ended:
//!
//! | before a task | it lays out | and keeps to itself |
//! |---|---|---|
//! | somebody is idle | half of what it has, half of the rest and so on | what finds no place |
//! | nobody is; its first place is empty | the same | that, and the task that it wants next, where there is a chain for each of the others |
//! | nobody is; else | nothing | all |
//!
//! So who comes to have nothing to do while a long task runs may find that more is kept
//! behind it. What a running task makes ready by token is not: others see it from the
//! moment that it is ready.
//!
//! Whoever lays something out wakes one that sleeps; whoever takes something and sees
//! more, wherever it is, wakes the next. So nobody sleeps beside something laid out for
//! longer than it takes to wake one after the other, and the worker whose shelf it is
//! wakes no more than one. To look at the shelf alone that it was taken from would not
//! do: of two that were woken for two shelves both may take from the same, each finding
//! it empty after that.

use std::ptr::NonNull;
use std::time::{Duration, Instant};

use super::{NOBODY, Post, Worker, some};
use crate::job::{Chain, Job, JobRef};
use crate::places::Distance;
use crate::sync::Ordering;

/// How long a worker leaves the others alone that has taken something from one. Where
/// tasks take nanoseconds, what is taken is soon done, and each taking costs both sides
/// as much as tens of tasks; where they take longer, nobody notices.
const REST: Duration = Duration::from_micros(2);

impl Worker<'_> {
    /// A registered task has become ready by one that runs here, which may take long, or
    /// wait for it: others see it from now on. One of a spatial group that is another's
    /// goes there.
    pub fn ready_beside(&self, job: JobRef) {
        let crew = self.crew;
        if crew.locked.is_some() || self.is_nested() {
            // Not as one of the graph that is run here, which it is no part of.
            return crew.inject(job);
        }
        if !self.shares || self.other_owner(&job).is_some() {
            return self.ready(job);
        }
        self.post.shelf.add(job);
        self.has_added.set(true);
        crew.sleepers.wake_one(crew.near(self.index));
    }

    /// Whether others may take what is ready here.
    pub fn shares(&self) -> bool {
        self.shares
    }

    /// A task that the caller waits for when it has done something else: another
    /// worker may run it meanwhile. For a worker that shares.
    pub fn fork(&self, job: JobRef) {
        self.lanes.borrow_mut().push(job);
        self.share();
    }

    /// Takes back what was laid out before a task and nobody has taken.
    pub(super) fn clear_shelf(&self) {
        while let Some(chain) = self.post.shelf.take_back() {
            self.lanes.borrow_mut().put_back(chain);
        }
    }

    /// One of those that were laid out and nobody has taken. They have waited for longer
    /// than what has become ready since, and would lie there as long as something does.
    pub(super) fn take_one_back(&self) -> Option<JobRef> {
        let mut chain = self.post.shelf.take_back()?;
        let first = chain.pop();
        self.lanes.borrow_mut().put_back(chain);
        first
    }

    /// Takes a forked task back, if it is where it was put; whether it was.
    pub fn unfork(&self, job: NonNull<Job>) -> bool {
        self.lanes.borrow_mut().take_back(job)
    }

    /// Takes a forked task back, wherever it lies here; whether it was still ours.
    pub fn unlay(&self, job: NonNull<Job>) -> bool {
        let taken = self.post.shelf.take_out(job);
        if taken.has_left {
            self.crew.sleepers.wake_one(self.crew.near(self.index));
        }
        taken.was_there || self.lanes.borrow_mut().take_out(job)
    }

    /// Lets others have some of what waits here, unless something is there for them.
    #[inline]
    pub fn share(&self) {
        if self.shares {
            let is_any_idle = self.crew.sleepers.is_any_idle();
            if (is_any_idle || self.post.shelf.needs_more()) && self.has_waiting() {
                self.lay_out(is_any_idle);
            }
        }
    }

    /// Whether anything may wait here, and nobody else sees it.
    #[inline]
    fn has_waiting(&self) -> bool {
        self.lanes.borrow().len() > 0 || self.is_nested()
    }

    /// Lets others have all of what waits here that there is a place for, as the task
    /// that runs here goes on.
    pub(super) fn show(&self) {
        if self.shares {
            self.lay_out(true);
        }
    }

    /// Lays out for others what waits, half of it and half of the rest and so on; the
    /// last of it only if they are to have `all`, or not each of them finds something here
    /// without it.
    fn lay_out(&self, all: bool) {
        let shelf = &self.post.shelf;
        let others = self.crew.workers() - 1;
        let mut laid_out = shelf.len();
        let (mut own, mut outer) = (self.lanes.borrow_mut(), self.outer.borrow_mut());
        let mut has_put = false;
        loop {
            let kept = usize::from(!all && laid_out >= others);
            // What has waited longest first; but who takes its own alone may not find
            // other.
            let mut waiting = outer.iter_mut().filter(|_| !self.is_deep());
            let lanes = match waiting.find(|lanes| lanes.len() > kept) {
                Some(waiting) => waiting,
                None => &mut *own,
            };
            if lanes.len() <= kept || !shelf.put(|is_last| lanes.split(is_last && all)) {
                break;
            }
            has_put = true;
            laid_out += 1;
        }
        drop((own, outer));
        if has_put {
            self.crew.sleepers.wake_one(self.crew.near(self.index));
        }
    }

    /// Whether it is time to take something from others again.
    fn may_take(&self) -> bool {
        match self.took.get() {
            Some(took) if took.elapsed() < REST => false,
            _ => {
                self.took.set(None);
                true
            }
        }
    }

    /// Takes what others have laid out, else what has come from outside, else what
    /// others have been sent. Spatial groups go along.
    pub(super) fn steal(&self) -> Option<Chain> {
        let may_take = self.may_take();
        let of_shelves = || self.take_from(|post| post.shelf.take());
        let of_added = || self.take_from(|post| post.shelf.take_added());
        let of_inboxes = || self.take_from(|post| some(post.inbox.take()));
        let chain = (may_take.then(of_shelves).flatten())
            .or_else(|| Some(self.show_rest(may_take.then(of_added).flatten()?)))
            .or_else(|| self.take_outside())
            .or_else(|| may_take.then(of_inboxes).flatten())?;
        let crew = self.crew;
        let sees_more = || self.sees_something();
        crew.sleepers.wake_if(sees_more, crew.near(self.index));
        self.take_over(&chain);
        Some(chain)
    }

    /// The first of those that another has made ready beside a task that may wait for all
    /// of them: the rest is to be seen as before.
    fn show_rest(&self, mut chain: Chain) -> Chain {
        self.take_over(&chain);
        let mut first = Chain::EMPTY;
        if let Some(job) = chain.pop() {
            first.push(job);
        }
        if !chain.is_empty() {
            self.post.shelf.add_all(chain);
            self.has_added.set(true);
        }
        first
    }

    /// What was laid out beside the task that has just ended waits like all that is ready
    /// here, and so does what was taken from who did.
    #[inline]
    pub(super) fn take_added(&self) {
        if self.has_added.get() && self.waits.get() == 0 {
            self.has_added.set(false);
            if let Some(added) = self.post.shelf.take_added() {
                self.lanes.borrow_mut().put_back(added);
            }
        }
    }

    /// What the nearest of the others has that has any.
    fn take_from(&self, take: impl Fn(&Post) -> Option<Chain>) -> Option<Chain> {
        let crew = self.crew;
        let mut near = crew.places.near(self.index).iter();
        let found = near.find_map(|&(other, distance)| Some((take(&crew.posts[other])?, distance)));
        let (chain, distance): (_, Distance) = found?;
        self.counts().steals[distance as usize].add(1);
        self.took.set(Some(Instant::now()));
        Some(chain)
    }

    pub(super) fn take_outside(&self) -> Option<Chain> {
        let chain = some(self.crew.injector.take())?;
        self.counts().outside.add(1);
        Some(chain)
    }

    /// Makes the spatial groups of tasks this worker's.
    pub(super) fn take_over(&self, chain: &Chain) {
        let own = self.index as u32;
        for groups in chain.groups().filter(|groups| groups.s != 0) {
            let owner = self.crew.owner(groups.s);
            let before = owner.load(Ordering::Relaxed);
            if before != own {
                owner.store(own, Ordering::Relaxed);
                self.counts().group_moves.add((before != NOBODY).into());
            }
        }
    }
}
