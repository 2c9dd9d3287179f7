// SPDX-License-Identifier: MIT OR Apache-2.0
//! What workers have of one another: tasks that one lays out, and another takes.
//!
//! A worker looks at its shelf before each task. Where somebody has taken from it, or
//! is idle, it lays some of its own out, as the task that it is about to run may take
//! long, and nobody sees what it has to itself until that has ended. Where there is
//! something for each of the others it keeps the task that it wants next, for its own
//! order; where there is not, or somebody is idle, it keeps none, as far as there are
//! places.
//!
//! Whoever lays something out wakes one that sleeps; whoever takes something and sees
//! more, wherever it is, wakes the next. So nobody sleeps beside something to do for
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
    /// A registered task has become ready by one that runs here, which may take long
    /// yet: so that others are to see it at once.
    pub fn ready_beside(&self, job: JobRef) {
        let crew = self.crew;
        // It is not of what is waited for here.
        if crew.locked.is_some() || self.is_nested() {
            return crew.inject(job);
        }
        if self.shares && self.post.shelf.is_full() && crew.sleepers.is_any_idle() {
            return crew.inject(job);
        }
        self.ready(job);
        self.show();
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

    /// Takes back what was laid out and nobody has taken.
    pub(super) fn clear_shelf(&self) {
        while let Some(chain) = self.post.shelf.take() {
            self.lanes.borrow_mut().put_back(chain);
        }
    }

    /// Takes a forked task back, if it is where it was put; whether it was.
    pub fn unfork(&self, job: NonNull<Job>) -> bool {
        self.lanes.borrow_mut().take_back(job)
    }

    /// Takes a forked task back that may have been laid out; whether nobody has it.
    pub fn unlay(&self, job: NonNull<Job>) -> bool {
        self.clear_shelf();
        self.lanes.borrow_mut().take_out(job)
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
        let of_inboxes = || self.take_from(|post| some(post.inbox.take()));
        let chain = (may_take.then(of_shelves).flatten())
            .or_else(|| self.take_outside())
            .or_else(|| may_take.then(of_inboxes).flatten())?;
        let crew = self.crew;
        let sees_more = || self.sees_something();
        crew.sleepers.wake_if(sees_more, crew.near(self.index));
        self.take_over(&chain);
        Some(chain)
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
