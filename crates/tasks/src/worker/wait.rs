// SPDX-License-Identifier: MIT OR Apache-2.0
//! A worker that waits: for a graph that a task runs here, or for a task that was forked.
//! It works meanwhile, on top of the stack of who waits.

use std::hint;

use super::{LOOKS, Worker, lock};
use crate::levels::NoMemory;
use crate::pool::Lanes;
use crate::sleep::Parked;
use crate::sync::Ordering;

impl<'a> Worker<'a> {
    /// Begins to wait for a graph that a task runs here, until that is dropped: what
    /// becomes ready from now on comes before what is ready already.
    ///
    /// # Errors
    /// Where there is no memory for what becomes ready; then it has not begun.
    pub fn nest(&self) -> Result<Nest<'_, 'a>, NoMemory> {
        let (level, least) = (self.level.get(), self.least());
        if let Some(locked) = &self.crew.locked {
            lock(locked).reach(level + 1)?;
            self.waits.set(self.waits.get() + 1);
            self.level.set(level + 1);
            self.post.least.store(level + 1, Ordering::Relaxed);
        } else {
            let fresh = self.fresh_lanes().ok_or(NoMemory)?;
            self.waits.set(self.waits.get() + 1);
            if self.is_deep() {
                // Of what lies there it is going to take its own alone.
                self.clear_shelf();
            }
            self.outer.borrow_mut().push(self.lanes.replace(fresh));
        }
        Ok(Nest {
            worker: self,
            level,
            least,
        })
    }

    /// Lanes to be put in place of those there are, and room for these meanwhile; and
    /// for them afterwards.
    fn fresh_lanes(&self) -> Option<Lanes> {
        let (mut outer, mut spare) = (self.outer.borrow_mut(), self.spare.borrow_mut());
        outer.try_reserve(1).ok()?;
        spare.try_reserve(outer.len() + 1).ok()?;
        spare.pop().or_else(Lanes::try_new)
    }

    /// Whether a task that runs here runs a graph that this worker works for.
    pub fn is_nested(&self) -> bool {
        !self.outer.borrow().is_empty()
    }

    /// Whether so many waits lie on one another that what is waited for is all that may
    /// run here.
    pub fn is_deep(&self) -> bool {
        self.waits.get() > self.waits_max
    }

    /// Works until that is so, and sleeps where there is nothing to do. Whoever makes
    /// it so wakes this worker after that.
    pub fn work_until(&self, is_so: impl Fn() -> bool) {
        let crew = self.crew;
        let mut was_woken = false;
        loop {
            self.work_while(|| !is_so());
            if is_so() {
                if was_woken {
                    self.pass_on();
                }
                return;
            }
            let parked = match &crew.locked {
                Some(locked) => {
                    let look = || lock(locked).has(self.least()) || is_so();
                    self.sleep(&crew.waiters, look)
                }
                // All of what it waits for is with others.
                None if self.is_deep() => self.sleep(&crew.waiters, &is_so),
                None => self.sleep(&crew.sleepers, || self.sees_something() || is_so()),
            };
            was_woken |= parked != Parked::Stayed;
        }
    }

    /// This worker was woken, maybe for a task, and has something else to do: somebody
    /// else is to see to the task.
    fn pass_on(&self) {
        let crew = self.crew;
        let Some(locked) = &crew.locked else {
            let sees_any = || self.sees_something();
            crew.sleepers.wake_if(sees_any, crew.near(self.index));
            return;
        };
        // Which of them it was woken for cannot be told.
        let mut next = lock(locked).filled_from(0);
        while let Some(level) = next {
            self.wake_for_level(level);
            next = lock(locked).filled_from(level + 1);
        }
    }

    /// Wakes somebody for a task of that level: whoever waits, too, but for tasks above
    /// it alone.
    pub(super) fn wake_for_level(&self, level: usize) {
        let crew = self.crew;
        let near = || crew.near(self.index);
        if !crew.sleepers.wake_one(near()) && level > 0 {
            let may_run =
                |&worker: &usize| crew.posts[worker].least.load(Ordering::Relaxed) <= level;
            crew.waiters.wake_one(near().filter(may_run));
        }
    }

    /// As [`Self::work_until`] for a task that another worker has, which can take long.
    /// What else is ready here is not of it.
    pub fn work_for(&self, is_so: impl Fn() -> bool) {
        self.waits.set(self.waits.get() + 1);
        if self.is_deep() {
            // Nobody runs here what is left with it.
            self.show();
            self.look_until(is_so);
        } else {
            self.work_until(is_so);
            // Of what it has taken meanwhile some may be left, and who waited goes on.
            self.show();
        }
        self.waits.set(self.waits.get() - 1);
    }

    /// Runs nothing until that is so.
    fn look_until(&self, is_so: impl Fn() -> bool) {
        let mut looks = 0;
        while !is_so() {
            match looks < LOOKS {
                true => hint::spin_loop(),
                false => {
                    self.sleep(&self.crew.waiters, &is_so);
                }
            }
            looks += 1;
        }
    }
}

/// A wait for a graph that a task runs.
pub(crate) struct Nest<'w, 'a> {
    worker: &'w Worker<'a>,
    level: usize,
    least: usize,
}

impl Drop for Nest<'_, '_> {
    /// What other tasks have left there waits on among those that were ready before.
    fn drop(&mut self) {
        let worker = self.worker;
        worker.waits.set(worker.waits.get() - 1);
        worker.level.set(self.level);
        worker.post.least.store(self.least, Ordering::Relaxed);
        let Some(outer) = worker.outer.borrow_mut().pop() else {
            return;
        };
        let mut inner = worker.lanes.replace(outer);
        worker.lanes.borrow_mut().append(&mut inner);
        worker.spare.borrow_mut().push(inner);
        worker.show();
    }
}
