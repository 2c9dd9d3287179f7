// SPDX-License-Identifier: MIT OR Apache-2.0
//! A worker: takes ready tasks and runs each to its end.

mod share;
mod wait;

use std::cell::{Cell, RefCell};
use std::time::Instant;
use std::{hint, mem, process};

use crate::at_work::AtWork;
use crate::counters::{AllCounters, Counts};
use crate::dispatch::Groups;
use crate::guess::{Guess, SAMPLE};
use crate::job::{Chain, JobRef};
use crate::levels::Levels;
use crate::places::Places;
use crate::pool::{Inbox, Lanes, Shelf};
use crate::sleep::{Parked, Sleepers};
use crate::sync::{AtomicBool, AtomicU32, AtomicUsize, Mutex, MutexGuard, Ordering};
use crate::tokens::Tokens;
use crate::trace::{Running, Tracer};

/// Looks for something to do before a worker goes to sleep.
const LOOKS: u32 = 200;
/// Looks before it counts as idle: more than it takes while it leaves the others alone.
const LOOKS_BUSY: u32 = 50;
/// Waits that may lie on one another on a worker's stack while each takes what there
/// is, whosever it is. Above them a worker runs what it waits for itself and nothing
/// else, so that no more waits pile up than the program has nested.
const WAITS_MAX: usize = 16;
/// What each of them may have of the stack: where that is small there are fewer.
const WAIT_BYTES: usize = 128 << 10;
/// Tasks that a worker takes from its own before it looks whether there are any from
/// outside, who would have to wait for as long as those make others ready.
const TURN: u32 = 64;
/// Such looks before it takes the task that has waited longest, for the same reason.
const TURNS: u32 = 16;
/// Spatial groups that are told apart; others share an owner.
const OWNERS: usize = 1024;
/// Nobody's.
const NOBODY: u32 = u32::MAX;

/// What others see of a worker.
#[derive(Debug, Default)]
struct Post {
    shelf: Shelf,
    inbox: Inbox,
    counts: Counts,
    /// Of a policy with one order for all: the least level of the tasks that may run
    /// there next.
    least: AtomicUsize,
}

/// Ready tasks behind one lock.
type Locked = Mutex<Levels>;

/// What the workers of a runtime share.
pub(crate) struct Crew {
    /// The order of a policy that has one for all; else each worker has its own.
    locked: Option<Locked>,
    posts: Box<[Post]>,
    /// What comes from outside.
    injector: Inbox,
    /// By spatial group: whose it is.
    owners: Box<[AtomicU32]>,
    places: Places,
    sleepers: Sleepers,
    /// Those who wait for something and may not take whatever there is meanwhile.
    waiters: Sleepers,
    closing: AtomicBool,
    /// Workers that may have something to do; asked for when the runtime is closing.
    at_work: AtWork,
    /// Tasks that were registered one by one.
    pub tokens: Tokens,
    /// Groups must be below these numbers, temporal and spatial.
    pub groups_below: (u32, u32),
    pub tracer: Tracer,
    /// Groups for tasks that were registered without any.
    pub guess: Guess,
}

impl Crew {
    pub fn new(places: Places, groups_below: (u32, u32), locked: Option<Levels>) -> Self {
        let workers = places.workers();
        Self {
            locked: locked.map(Mutex::new),
            posts: std::iter::repeat_with(Post::default)
                .take(workers)
                .collect(),
            injector: Inbox::default(),
            owners: std::iter::repeat_with(|| AtomicU32::new(NOBODY))
                .take(OWNERS)
                .collect(),
            places,
            sleepers: Sleepers::new(workers),
            waiters: Sleepers::new(workers),
            closing: AtomicBool::new(false),
            at_work: AtWork::default(),
            tokens: Tokens::default(),
            groups_below,
            tracer: Tracer::default(),
            guess: Guess::default(),
        }
    }

    pub fn workers(&self) -> usize {
        self.posts.len()
    }

    /// Whether groups are found for tasks that have none.
    pub fn finds_groups(&self) -> bool {
        self.locked.is_none()
    }

    pub fn counters(&self) -> AllCounters {
        AllCounters(self.posts.iter().map(|post| post.counts.read()).collect())
    }

    /// The others of a worker, the nearest by caches first.
    fn near(&self, worker: usize) -> impl Iterator<Item = usize> + '_ {
        self.places.near(worker).iter().map(|&(other, _)| other)
    }

    /// A task from outside.
    pub fn inject(&self, job: JobRef) {
        match &self.locked {
            Some(locked) => lock(locked).ready(0, job),
            None => self.injector.push(job),
        }
        self.sleepers.wake_one(0..self.workers());
    }

    /// Lets the workers end when there is nothing more to do, and nobody runs anything
    /// that might make something ready.
    pub fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.sleepers.wake_all();
    }

    /// Whether it has been closed.
    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    fn owner(&self, s: u32) -> &AtomicU32 {
        &self.owners[s as usize % OWNERS]
    }
}

fn lock(locked: &Locked) -> MutexGuard<'_, Levels> {
    // A dispatcher that has panicked has lost no task.
    locked.lock()
}

/// Ends the process where a panic gets past all that catches those of tasks.
pub(crate) struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        eprintln!("usher-tasks: a panic came out of a task after it was caught: giving up");
        process::abort();
    }
}

/// One worker, on its thread.
pub(crate) struct Worker<'a> {
    crew: &'a Crew,
    post: &'a Post,
    index: usize,
    /// What is ready, of the innermost graph that is run by a task that runs here; and
    /// before any is, of all.
    lanes: RefCell<Lanes>,
    /// What else is ready: as `lanes` was when each such graph began.
    outer: RefCell<Vec<Lanes>>,
    /// Lanes for graphs that tasks will run.
    spare: RefCell<Vec<Lanes>>,
    /// Waits that lie on one another on this worker's stack, and how many of them may
    /// each take what there is.
    waits: Cell<usize>,
    waits_max: usize,
    /// Of a policy with one order for all: the level of the task that runs here.
    level: Cell<usize>,
    /// Tasks to be taken before one is taken out of turn, and how often that was.
    until_turn: Cell<u32>,
    turns: Cell<u32>,
    /// There are others, who may take what is ready here.
    shares: bool,
    /// Something was laid out beside a task that runs here.
    has_added: Cell<bool>,
    /// When it took something from another worker last.
    took: Cell<Option<Instant>>,
    /// Tasks with groups that were guessed that ran since one was timed.
    untimed: Cell<u64>,
}

impl<'a> Worker<'a> {
    pub fn new(crew: &'a Crew, index: usize, stack_bytes: usize) -> Self {
        Self {
            crew,
            post: &crew.posts[index],
            index,
            lanes: RefCell::new(Lanes::new()),
            outer: RefCell::default(),
            spare: RefCell::default(),
            waits: Cell::new(0),
            waits_max: (stack_bytes / WAIT_BYTES).min(WAITS_MAX),
            level: Cell::new(0),
            until_turn: Cell::new(TURN),
            turns: Cell::new(0),
            shares: crew.workers() > 1 && crew.locked.is_none(),
            has_added: Cell::new(false),
            took: Cell::new(None),
            untimed: Cell::new(0),
        }
    }

    pub fn index(&self) -> usize {
        self.index
    }

    /// The least level of the tasks that may run here next.
    fn least(&self) -> usize {
        self.post.least.load(Ordering::Relaxed)
    }

    /// Whether nobody else runs tasks of this runtime, so that nothing that only
    /// tasks touch needs to be atomic.
    #[inline]
    pub fn is_alone(&self) -> bool {
        self.crew.workers() == 1
    }

    /// Runs a registered task whose groups were guessed, and times one now and then:
    /// one that has run no other inside it, whose time would be in its own.
    pub fn timing(&self, run: impl FnOnce()) {
        let untimed = self.untimed.get() + 1;
        if untimed < SAMPLE {
            self.untimed.set(untimed);
            return run();
        }
        self.untimed.set(0);
        let before = self.counts().tasks.get();
        let begun = Instant::now();
        run();
        let ns = begun.elapsed().as_nanos();
        if self.counts().tasks.get() == before {
            self.crew.guess.ran(u64::try_from(ns).unwrap_or(u64::MAX));
        }
    }

    /// The tasks that were registered one by one.
    pub fn tokens(&self) -> &Tokens {
        &self.crew.tokens
    }

    /// Works until the runtime closes.
    pub fn work(&self) {
        self.crew.sleepers.enrol(self.index);
        self.crew.waiters.enrol(self.index);
        let crew = self.crew;
        crew.at_work.begins();
        loop {
            // Asked first: what was ready before it was closed is seen after that.
            let is_closing = crew.is_closing();
            self.work_while(|| true);
            if !is_closing {
                let look = || self.sees_something() || crew.is_closing();
                self.sleep(&crew.sleepers, look);
            } else if !self.sees_something() && self.rests() {
                return;
            }
        }
    }

    /// With nothing left to do here, sleeps until there is again, or nobody has anything;
    /// whether that is so.
    fn rests(&self) -> bool {
        let crew = self.crew;
        let sleep = |has_ended: &dyn Fn() -> bool| {
            self.sleep(&crew.sleepers, || self.sees_something() || has_ended());
        };
        crew.at_work.rests(sleep, || crew.sleepers.wake_all())
    }

    fn sleep(&self, among: &Sleepers, look: impl FnOnce() -> bool) -> Parked {
        let asleep = &self.counts().asleep;
        let begin = || {
            self.counts().sleeps.add(1);
            asleep.begin();
        };
        let parked = among.park(self.index, look, begin);
        if parked == Parked::Slept {
            asleep.end();
        }
        parked
    }

    /// Wakes a worker of this runtime that waits for something other than a task, which
    /// has happened now.
    pub fn wake(&self, worker: usize) {
        // It sleeps among those or these.
        if !self.crew.sleepers.wake_for(worker) {
            self.crew.waiters.wake_for(worker);
        }
    }

    #[inline]
    fn counts(&self) -> &Counts {
        &self.post.counts
    }

    /// Counts a task that is about to run here.
    #[inline]
    pub fn count_task(&self) {
        self.counts().tasks.add(1);
    }

    /// Whether tasks are to be written down.
    #[inline]
    pub fn is_traced(&self) -> bool {
        self.crew.tracer.is_on()
    }

    /// Does what a task is there for, and writes it down where that is wanted, before
    /// anybody can know that it has been done.
    pub fn trace(&self, task: u64, groups: Groups, body: impl FnOnce()) {
        // Written where it is dropped, also by a panic.
        let to = self.crew.tracer.of(self.index);
        let _running = to.map(|to| Running::begin(to, task, groups));
        body();
    }

    /// Runs tasks as long as there are any and `goes_on` says so.
    fn work_while(&self, goes_on: impl Fn() -> bool) {
        while goes_on() {
            match self.next().or_else(|| self.look(&goes_on)) {
                Some(job) => self.run(job),
                None => return,
            }
        }
    }

    /// Looks for a task where there was none, for a while.
    #[cold]
    fn look(&self, goes_on: impl Fn() -> bool) -> Option<JobRef> {
        let mut idle = None;
        for looks in 1..LOOKS {
            // Deep down it may take nothing from anybody.
            if looks == LOOKS_BUSY && !self.is_deep() {
                idle = Some(self.crew.sleepers.idle());
            }
            hint::spin_loop();
            if !goes_on() {
                return None;
            }
            if let Some(job) = self.next() {
                return Some(job);
            }
        }
        drop(idle);
        None
    }

    /// Runs a task, and those that it hands on.
    fn run(&self, job: JobRef) {
        self.share();
        // Frames below may lie on the stack that other workers work for.
        let unwinding = AbortOnUnwind;
        job.run(self);
        mem::forget(unwinding);
    }

    /// Whether tasks that become ready here may have to go elsewhere, those with a
    /// spatial group if they have one.
    #[inline]
    pub fn sends(&self, has_s: bool) -> bool {
        (has_s && self.shares) || self.crew.locked.is_some()
    }

    /// A task has become ready by one that ran here, and stays here.
    pub fn push(&self, job: JobRef) {
        self.lanes.borrow_mut().push(job);
    }

    /// A task of a graph that begins here is ready.
    pub fn ready_inside(&self, job: JobRef) {
        match self.is_deep() && self.crew.locked.is_none() {
            // Who waits deep down looks into no inbox.
            true => self.push(job),
            false => self.ready(job),
        }
    }

    /// A task has become ready by one that ran here.
    pub fn ready(&self, job: JobRef) {
        let crew = self.crew;
        if let Some(locked) = &crew.locked {
            let level = self.level.get();
            lock(locked).ready(level, job);
            return self.wake_for_level(level);
        }
        match self.other_owner(&job) {
            Some(owner) => {
                crew.posts[owner].inbox.push(job);
                self.counts().sent.add(1);
                // Is it busy, whoever has nothing to do may take its place.
                if !crew.sleepers.wake_for(owner) {
                    crew.sleepers.wake_one(crew.near(owner));
                }
            }
            None => self.push(job),
        }
    }

    /// The other worker that a task's spatial group belongs to; nobody's become
    /// this one's.
    fn other_owner(&self, job: &JobRef) -> Option<usize> {
        let s = job.groups().s;
        if s == 0 || !self.shares {
            return None;
        }
        let owner = self.crew.owner(s);
        let own = self.index as u32;
        match owner.load(Ordering::Relaxed) {
            NOBODY => {
                owner.store(own, Ordering::Relaxed);
                None
            }
            now if now == own => None,
            other => Some(other as usize),
        }
    }

    /// Whether a task may run here next, ahead of all that wait.
    pub fn keeps(&self, job: &JobRef) -> bool {
        self.crew.locked.is_none() && self.other_owner(job).is_none()
    }

    fn next(&self) -> Option<JobRef> {
        if let Some(locked) = &self.crew.locked {
            let (level, dispatch) = lock(locked).next(self.index, self.least())?;
            self.level.set(level);
            self.counts().group_moves.add(dispatch.group_moved.into());
            return Some(dispatch.item);
        }
        self.take_added();
        let until_turn = self.until_turn.get() - 1;
        self.until_turn.set(until_turn);
        if until_turn == 0
            && let Some(job) = self.out_of_turn()
        {
            return Some(job);
        }
        let mut lanes = self.lanes.borrow_mut();
        if !self.post.inbox.is_empty() && !self.is_nested() {
            lanes.push_all(self.post.inbox.take());
        }
        if let Some(job) = lanes.pop() {
            return Some(job);
        }
        drop(lanes);
        self.next_elsewhere()
    }

    /// Counts a task that another has handed on, without asking for the next; whether
    /// somebody else has his turn before it.
    #[inline]
    pub fn ends_turn(&self) -> bool {
        let until_turn = self.until_turn.get() - 1;
        self.until_turn.set(until_turn);
        until_turn == 0 && self.others_wait()
    }

    /// Whether there is anything that has its turn now; else the next turn begins.
    #[cold]
    fn others_wait(&self) -> bool {
        let turns = self.turns.get().wrapping_add(1);
        let is_any = turns.is_multiple_of(TURNS)
            || !self.crew.injector.is_empty()
            || !self.post.inbox.is_empty();
        let waits = is_any && !self.is_nested();
        match waits {
            // The next look is the one out of turn.
            true => self.until_turn.set(1),
            false => {
                self.until_turn.set(TURN);
                self.turns.set(turns);
            }
        }
        waits
    }

    /// What has come from outside, or has waited longest here, so that nothing waits for
    /// as long as others go on making others ready.
    #[cold]
    fn out_of_turn(&self) -> Option<JobRef> {
        self.until_turn.set(TURN);
        if self.is_nested() {
            return None;
        }
        let turns = self.turns.get().wrapping_add(1);
        self.turns.set(turns);
        if turns.is_multiple_of(TURNS) {
            let laid_out = self.take_one_back();
            return laid_out.or_else(|| self.lanes.borrow_mut().pop_in_turn());
        }
        let mut chain = self.take_outside()?;
        self.take_over(&chain);
        let mut lanes = self.lanes.borrow_mut();
        // Where nothing waits here it is in turn, and its group becomes the active one.
        let first = match lanes.len() {
            0 => None,
            _ => chain.pop(),
        };
        lanes.push_all(chain);
        first.or_else(|| lanes.pop())
    }

    /// What is not ready in the lanes of the innermost wait.
    fn next_elsewhere(&self) -> Option<JobRef> {
        let shelf = &self.post.shelf;
        let added = || match self.is_deep() {
            true => None,
            false => shelf.take_added(),
        };
        if let Some(chain) = shelf.take_back().or_else(added) {
            let mut lanes = self.lanes.borrow_mut();
            lanes.put_back(chain);
            return lanes.pop();
        }
        let mut chain = None;
        if !self.is_deep() {
            chain = some(self.post.inbox.take());
            chain = chain.or_else(|| self.steal());
        }
        match chain {
            Some(chain) => {
                let mut lanes = self.lanes.borrow_mut();
                lanes.push_all(chain);
                lanes.pop()
            }
            None if self.is_deep() => None,
            None => {
                let mut outer = self.outer.borrow_mut();
                outer.iter_mut().rev().find_map(Lanes::pop)
            }
        }
    }

    /// Whether there is anything to do.
    fn sees_something(&self) -> bool {
        let crew = self.crew;
        let locked = crew.locked.as_ref();
        locked.is_some_and(|locked| lock(locked).has(0))
            || !crew.injector.is_empty()
            || (crew.posts.iter()).any(|post| !post.inbox.is_empty() || !post.shelf.is_empty())
    }
}

fn some(chain: Chain) -> Option<Chain> {
    (!chain.is_empty()).then_some(chain)
}
