// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tasks that are registered one by one, and known by tokens (paper 5, section
//! 3.2): `register(token, count, entry)` files one that waits to be resolved that
//! often, and `resolve(token)` takes one off, before or after.
//!
//! A token is a task's from its first mention until it has run, and then free for
//! another. All that is known of a task is behind the lock of its token's shard,
//! until the task is ready; from then on it is its worker's.

use std::hash::BuildHasher;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::closure::{Closure, ClosureKind, NO_CLOSURE, Room};
use crate::color::Blocks;
use crate::dispatch::Groups;
use crate::error::{Left, Panicked, TaskError, WaitError, discard, message};
use crate::job::{Chain, Job, JobRef};
use crate::slab::{self, Slab};
use crate::sync::{AtomicBool, AtomicUsize, Condvar, Mutex, MutexGuard, Ordering};
use crate::worker::Worker;

/// Locks, so that few wait for the same.
const SHARDS: usize = 64;

/// How far a task has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Resolved that often, and not registered yet.
    Early(u32),
    /// To be resolved that often yet, of how many times; once at least.
    Waiting(u32, u32),
    /// It is ready, or runs; it was to be resolved that often.
    Ready(u32),
}

/// A state in eight bytes. Nobody waits to be resolved more often than he was to be,
/// so that pairs which say so are free for those who are early.
#[derive(Debug, Clone, Copy)]
struct Packed {
    left: u32,
    count: u32,
}

impl Packed {
    const fn of(state: State) -> Self {
        let (left, count) = match state {
            State::Early(u32::MAX) => (1, 0),
            State::Early(times) => (u32::MAX, times),
            State::Waiting(left, count) => (left, count),
            State::Ready(count) => (0, count),
        };
        Self { left, count }
    }

    const fn state(self) -> State {
        match (self.left, self.count) {
            (0, count) => State::Ready(count),
            (1, 0) => State::Early(u32::MAX),
            (left, count) if left > count => State::Early(count),
            (left, count) => State::Waiting(left, count),
        }
    }
}

#[repr(C)]
struct Task {
    job: Job,
    token: u64,
    /// Behind the lock of the shard.
    state: Packed,
    /// What it does, as its kind knows. Whoever may write the state has it, until the
    /// task is ready; then whoever runs it.
    room: Room,
}

// SAFETY: the link of its job is the job's holder's alone, and the closure may be sent.
unsafe impl Send for Task {}

impl Task {
    /// What it does, which it does not have any more.
    ///
    /// # Safety
    /// The task is the caller's alone, and this is called once, if at all.
    unsafe fn closure(task: *const Self) -> Closure {
        // SAFETY: the caller's promise; the kinds of tasks are such ones, and stay.
        unsafe {
            let kind = (*task).job.kind().cast::<ClosureKind>().as_ref();
            Closure::from_parts(kind, (*task).room)
        }
    }
}

/// A task at its place in memory. Its fields belong to different threads at times,
/// so there is never a reference to all of it.
#[derive(Clone, Copy)]
struct Place(NonNull<Task>);

// SAFETY: a task may go to other threads, and who may touch what of it is said
// above.
unsafe impl Send for Place {}

impl Place {
    fn token(self) -> u64 {
        // SAFETY: a task in a table lives, and its token is never written.
        unsafe { (*self.0.as_ptr()).token }
    }

    /// The state, for whoever holds the lock.
    fn state(self, _: &Shard) -> State {
        // SAFETY: a task in a table lives; states are read and written behind the
        // lock alone, of which the shard is the proof.
        unsafe { (*self.0.as_ptr()).state }.state()
    }

    fn set_state(self, _: &mut Shard, state: State) {
        // SAFETY: as above.
        unsafe { (*self.0.as_ptr()).state = Packed::of(state) };
    }

    /// What an early one is to do, and in which groups.
    ///
    /// # Safety
    /// The task is an early one.
    unsafe fn set_entry(self, _: &mut Shard, groups: Groups, entry: Closure) {
        let task = self.0.as_ptr();
        let (kind, room) = entry.into_parts();
        // SAFETY: nobody but the holder of the lock touches an early task.
        unsafe {
            (*task).job = Job::new(NonNull::from(kind).cast(), groups);
            (*task).room = room;
        }
    }
}

/// Some of the tasks, behind one lock.
#[derive(Default)]
struct Shard {
    places: HashTable<Place>,
    tasks: Slab<Task>,
    /// Tasks that are ready or run.
    active: usize,
}

/// All tasks that are registered, or expected to be.
pub(crate) struct Tokens {
    shards: Box<[Mutex<Shard>]>,
    /// Where tasks lie; `None`: there is no memory for any.
    blocks: Option<Blocks>,
    hasher: DefaultHashBuilder,
    /// Shards with tasks that are ready or run. It changes where a shard has the first
    /// one or the last: hardly ever, where there are many.
    busy: AtomicUsize,
    /// Held by whoever ends the last one, and by those who wait for that.
    quiet: Mutex<()>,
    is_quiet: Condvar,
    /// Tasks that become ready are dropped.
    cancelled: AtomicBool,
    panicked: Mutex<Vec<Panicked>>,
}

impl Default for Tokens {
    fn default() -> Self {
        Self {
            shards: std::iter::repeat_with(Mutex::default)
                .take(SHARDS)
                .collect(),
            blocks: slab::blocks().ok(),
            hasher: DefaultHashBuilder::default(),
            busy: AtomicUsize::new(0),
            quiet: Mutex::default(),
            is_quiet: Condvar::default(),
            cancelled: AtomicBool::new(false),
            panicked: Mutex::default(),
        }
    }
}

impl Tokens {
    fn shard(&self, token: u64) -> (u64, MutexGuard<'_, Shard>) {
        let hash = self.hasher.hash_one(token);
        // The table goes by the lower and the uppermost bits.
        (hash, self.shards[(hash >> 40) as usize % SHARDS].lock())
    }

    /// Files a task; it, where it is ready at once.
    pub fn register(
        &self,
        token: u64,
        count: u32,
        groups: Groups,
        entry: Closure,
    ) -> Result<Option<JobRef>, TaskError> {
        let (hash, mut shard) = self.shard(token);
        let found = shard
            .places
            .find(hash, |place| place.token() == token)
            .copied();
        let (place, early) = match found.map(|place| (place, place.state(&shard))) {
            Some((place, State::Early(times))) => (place, times),
            Some(_) => return Err(TaskError::Registered { token }),
            None => (self.insert(hash, &mut shard, token)?, 0),
        };
        let Some(left) = count.checked_sub(early) else {
            let times = early;
            return Err(TaskError::ResolvedTooOften {
                token,
                times,
                count,
            });
        };
        // SAFETY: found early, or made early just now.
        unsafe { place.set_entry(&mut shard, groups, entry) };
        Ok(self.advance(place, &mut shard, left, count))
    }

    /// Takes one off what a task waits for; it, where it is ready now.
    pub fn resolve(&self, token: u64) -> Result<Option<JobRef>, TaskError> {
        let (hash, mut shard) = self.shard(token);
        let found = shard
            .places
            .find(hash, |place| place.token() == token)
            .copied();
        let place = match found {
            Some(place) => place,
            None => self.insert(hash, &mut shard, token)?,
        };
        let too_often = |times: u32, count| TaskError::ResolvedTooOften {
            token,
            times: times.saturating_add(1),
            count,
        };
        match place.state(&shard) {
            State::Early(u32::MAX) => Err(too_often(u32::MAX, u32::MAX)),
            State::Early(times) => {
                place.set_state(&mut shard, State::Early(times + 1));
                Ok(None)
            }
            State::Waiting(left, count) => Ok(self.advance(place, &mut shard, left - 1, count)),
            State::Ready(count) => Err(too_often(count, count)),
        }
    }

    /// A registered task is to be resolved `left` times more.
    fn advance(&self, place: Place, shard: &mut Shard, left: u32, count: u32) -> Option<JobRef> {
        if left > 0 {
            place.set_state(shard, State::Waiting(left, count));
            return None;
        }
        place.set_state(shard, State::Ready(count));
        shard.active += 1;
        if shard.active == 1 {
            self.busy.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: it lives until it has run, and becomes ready once.
        Some(unsafe { JobRef::new(place.0.cast()) })
    }

    /// An early task, never resolved yet.
    fn insert(&self, hash: u64, shard: &mut Shard, token: u64) -> Result<Place, TaskError> {
        let none = || TaskError::Memory { token };
        let hasher = |place: &Place| self.hasher.hash_one(place.token());
        shard.places.try_reserve(1, hasher).map_err(|_| none())?;
        let task = Task {
            job: Job::new(NonNull::from(&NO_CLOSURE).cast(), Groups::NONE),
            token,
            state: Packed::of(State::Early(0)),
            room: Room::uninit(),
        };
        let blocks = self.blocks.as_ref().ok_or_else(none)?;
        let place = Place(shard.tasks.insert(blocks, task).map_err(|_| none())?);
        shard.places.insert_unique(hash, place, hasher);
        Ok(place)
    }

    /// The task itself, which is no more where it was.
    ///
    /// # Safety
    /// It is this shard's, is in its table no more, and nobody else knows of it.
    unsafe fn take_out(&self, shard: &mut Shard, place: Place) -> Option<Task> {
        let blocks = self.blocks.as_ref()?;
        // SAFETY: the caller's promise.
        Some(unsafe { shard.tasks.remove(blocks, place.0) })
    }

    /// A task has run.
    fn end(&self, place: Place) {
        let (hash, mut shard) = self.shard(place.token());
        if let Ok(entry) = shard.places.find_entry(hash, |one| one.0 == place.0) {
            entry.remove();
        }
        // SAFETY: out of the table, and run by us, so nobody else knows of it.
        unsafe { self.take_out(&mut shard, place) };
        shard.active -= 1;
        // Others of this shard have ended behind its lock, and by that before this one.
        let was_last = shard.active == 0 && self.busy.fetch_sub(1, Ordering::AcqRel) == 1;
        drop(shard);
        if was_last {
            drop(self.quiet.lock());
            self.is_quiet.notify_all();
        }
    }

    /// Runs a task, or drops it where all are cancelled.
    fn run(&self, token: u64, entry: Closure) {
        let is_cancelled = self.cancelled.load(Ordering::Relaxed);
        self.call(token, || match is_cancelled {
            false => entry.call(),
            true => drop(entry),
        });
    }

    /// Calls a task, or drops one: what it owns may panic when it goes.
    fn call(&self, token: u64, call: impl FnOnce()) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(call)) {
            self.panicked.lock().push(Panicked {
                task: token,
                message: message(panic),
            });
        }
    }

    /// Waits until nothing is ready or runs.
    pub fn wait_until_idle(&self) {
        let mut quiet = self.quiet.lock();
        while self.busy.load(Ordering::Acquire) > 0 {
            quiet = self.is_quiet.wait(quiet);
        }
    }

    /// Waits until nothing is ready or runs, and tells what is left.
    ///
    /// # Errors
    /// Where tasks wait that nobody is going to resolve, as far as this runtime goes;
    /// where tokens were resolved that nobody has registered; where tasks panicked. Where
    /// there is no memory to name all of them, how many; then nobody has been told of
    /// those that panicked.
    pub fn wait(&self) -> Result<(), WaitError> {
        self.wait_until_idle();
        let (mut unresolved, mut unregistered) = (Listed::default(), Listed::default());
        for shard in &self.shards {
            let shard = shard.lock();
            for place in shard.places.iter() {
                match place.state(&shard) {
                    State::Early(_) => unregistered.push(place.token()),
                    State::Waiting(more, _) => unresolved.push((place.token(), more)),
                    // Somebody else has resolved it just now.
                    State::Ready(_) => {}
                }
            }
        }
        let mut panicked = self.panicked.lock();
        if !unresolved.is_whole() || !unregistered.is_whole() {
            return Err(WaitError::Memory {
                panicked: panicked.len(),
                unresolved: unresolved.count,
                unregistered: unregistered.count,
            });
        }
        let left = Left {
            panicked: mem::take(&mut *panicked),
            unresolved: unresolved.sorted(),
            unregistered: unregistered.sorted(),
        };
        match left.is_empty() {
            true => Ok(()),
            false => Err(WaitError::Left(left)),
        }
    }

    /// Tasks that panicked are to be told of again.
    pub fn tell_again(&self, mut before: Vec<Panicked>) {
        let mut panicked = self.panicked.lock();
        // Hardly ever has another one panicked meanwhile.
        before.append(&mut panicked);
        *panicked = before;
    }

    /// Drops all tasks that wait, and from now on those that become ready.
    pub fn cancel(&self) -> usize {
        self.cancelled.store(true, Ordering::Relaxed);
        self.drop_waiting()
    }

    /// Drops all tasks that wait, of which there is no list, as there may be no memory
    /// for one; how many.
    fn drop_waiting(&self) -> usize {
        let mut waiting = Chain::EMPTY;
        let mut count = 0;
        for shard in &self.shards {
            let mut shard = shard.lock();
            let mut places = mem::take(&mut shard.places);
            let is_waiting = |place: &mut Place| !matches!(place.state(&shard), State::Ready(_));
            for place in places.extract_if(is_waiting) {
                // SAFETY: out of the table and never ready, so nobody else knows of it.
                waiting.push(unsafe { JobRef::new(place.0.cast()) });
                count += 1;
            }
            shard.places = places;
        }
        // What a closure owns may resolve or register in turn: not behind a lock; and
        // what is registered so does not belong to these.
        while let Some(job) = waiting.pop() {
            let place = Place(job.as_ptr().cast());
            let token = place.token();
            // SAFETY: in no table, and in this chain no more.
            if let Some(closure) = unsafe { self.closure_of(place) } {
                self.call(token, || drop(closure));
            }
        }
        count
    }

    /// What a task is to do; the task itself is no more.
    ///
    /// # Safety
    /// It is in the table no more, and nobody else knows of it.
    unsafe fn closure_of(&self, place: Place) -> Option<Closure> {
        let (_, mut shard) = self.shard(place.token());
        // SAFETY: the caller's promise.
        let task = unsafe { self.take_out(&mut shard, place) }?;
        // SAFETY: as above.
        Some(unsafe { Task::closure(&raw const task) })
    }
}

/// A list, or how long it would be where there is no memory for it.
struct Listed<T> {
    list: Vec<T>,
    count: usize,
}

impl<T> Default for Listed<T> {
    fn default() -> Self {
        let (list, count) = (Vec::new(), 0);
        Self { list, count }
    }
}

impl<T: Ord> Listed<T> {
    fn is_whole(&self) -> bool {
        self.list.len() == self.count
    }

    fn push(&mut self, one: T) {
        let is_whole = self.is_whole();
        self.count += 1;
        if !is_whole {
            return;
        }
        match self.list.try_reserve(1) {
            Ok(()) => self.list.push(one),
            // So that there is some for others.
            Err(_) => self.list = Vec::new(),
        }
    }

    fn sorted(mut self) -> Vec<T> {
        self.list.sort_unstable();
        self.list
    }
}

impl Drop for Tokens {
    /// There are no workers any more: what is ready will not run either.
    fn drop(&mut self) {
        for shard in &self.shards {
            let places = mem::take(&mut shard.lock().places);
            for place in places {
                // SAFETY: out of the table, and nobody is left who could run it.
                let closure = unsafe { self.closure_of(place) };
                // One that panics keeps the others from nothing; nobody is left to be told.
                if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(closure))) {
                    discard(panic);
                }
            }
        }
    }
}

/// Runs a registered task, whose groups are a guess or not.
///
/// # Safety
/// The job is the head of a task of this worker's runtime.
pub(crate) unsafe fn run<const GUESSED: bool>(job: JobRef, worker: &Worker<'_>) {
    worker.count_task();
    let place = Place(job.as_ptr().cast());
    // SAFETY: the task is ready, and what it does ours.
    let entry = unsafe { Task::closure(place.0.as_ptr()) };
    let tokens = worker.tokens();
    let (token, groups) = (place.token(), job.groups());
    let call = || tokens.run(token, entry);
    worker.trace(token, groups, || match GUESSED {
        true => worker.timing(call),
        false => call(),
    });
    tokens.end(place);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_what_they_were_when_unpacked() {
        let numbers = [0, 1, 2, 7, u32::MAX - 1, u32::MAX];
        for one in numbers {
            let waiting = numbers.map(|count| State::Waiting(one, count));
            let all = [State::Early(one), State::Ready(one)]
                .into_iter()
                .chain(waiting);
            let may_be = |state: &State| match *state {
                State::Waiting(left, count) => (1..=count).contains(&left),
                State::Early(_) | State::Ready(_) => true,
            };
            for state in all.filter(may_be) {
                assert_eq!(Packed::of(state).state(), state);
            }
        }
        assert_eq!(size_of::<Task>(), 64);
    }
}
