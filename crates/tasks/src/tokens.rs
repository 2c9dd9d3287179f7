// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tasks that are registered one by one and identified by tokens (paper 5, section 3.2).
//! `register(token, count, entry)` adds a task that waits for `count` resolutions; `resolve(token)`
//! is one resolution, before or after the registration.
//!
//! A token belongs to a task from its first use until the task has run; after that it is free
//! again. Tokens are divided into shards with a lock each. The lock of the token's shard protects
//! the state of the task until the task is ready. From then on the worker that holds the task owns
//! it. Registration and resolution take constant time on average.

use std::hash::BuildHasher;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::closure::{Closure, ClosureStorage, ClosureVtable, NO_CLOSURE};
use crate::color::Blocks;
use crate::dispatch::Groups;
use crate::error::{Panicked, TaskError, UnfinishedTasks, WaitError, discard, message};
use crate::job::{Chain, Job, JobRef};
use crate::slab::{self, Slab};
use crate::sync::{AtomicBool, AtomicUsize, Condvar, Mutex, MutexGuard, Ordering};
use crate::worker::Worker;

/// Number of shards, each with a lock. There are many, so that threads rarely compete for one.
const SHARDS: usize = 64;

/// The state of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TaskState {
    /// Resolved, but not registered yet. The field is the number of resolutions.
    Early(u32),
    /// Registered. The fields are the missing resolutions, at least one, and the resolutions
    /// required in total.
    Waiting(u32, u32),
    /// Ready or running. The field is the number of resolutions required in total.
    Ready(u32),
}

/// A [`TaskState`] in eight bytes, as two numbers. `left > count` is impossible for a waiting task,
/// so such pairs encode early tasks.
#[derive(Debug, Clone, Copy)]
struct PackedState {
    left: u32,
    count: u32,
}

impl PackedState {
    const fn of(state: TaskState) -> Self {
        let (left, count) = match state {
            TaskState::Early(u32::MAX) => (1, 0),
            TaskState::Early(times) => (u32::MAX, times),
            TaskState::Waiting(left, count) => (left, count),
            TaskState::Ready(count) => (0, count),
        };
        Self { left, count }
    }

    const fn state(self) -> TaskState {
        match (self.left, self.count) {
            (0, count) => TaskState::Ready(count),
            (1, 0) => TaskState::Early(u32::MAX),
            (left, count) if left > count => TaskState::Early(count),
            (left, count) => TaskState::Waiting(left, count),
        }
    }
}

#[repr(C)]
struct Task {
    job: Job,
    token: u64,
    /// The state of the task, protected by the lock of the shard.
    state: PackedState,
    /// The closure, whose type the vtable knows. It belongs to the thread that may write the state,
    /// and after the task has become ready to the thread that runs the task.
    storage: ClosureStorage,
}

// SAFETY: the link of the job belongs to the holder of the job, and the closure may be sent.
unsafe impl Send for Task {}

impl Task {
    /// Moves the closure out of the task.
    ///
    /// # Safety
    /// The task belongs to the caller, and this function is called at most once for it.
    unsafe fn closure(task: *const Self) -> Closure {
        // SAFETY: guaranteed by the caller. The vtables of tasks are static values of this type.
        unsafe {
            let vtable = (*task).job.vtable().cast::<ClosureVtable>().as_ref();
            Closure::from_parts(vtable, (*task).storage)
        }
    }
}

/// The address of a task. Different threads own different fields of a task, so a reference to the
/// whole task is never made.
#[derive(Clone, Copy)]
struct TaskPtr(NonNull<Task>);

// SAFETY: a task may go to other threads. The comments on its fields state which thread may access
// them.
unsafe impl Send for TaskPtr {}

impl TaskPtr {
    fn token(self) -> u64 {
        // SAFETY: a task in a table lives, and its token is never written.
        unsafe { (*self.0.as_ptr()).token }
    }

    /// Returns the state. The argument proves that the caller holds the lock of the shard.
    fn state(self, _: &Shard) -> TaskState {
        // SAFETY: a task in a table lives. States are accessed only under the lock, which the shard
        // proves.
        unsafe { (*self.0.as_ptr()).state }.state()
    }

    fn set_state(self, _: &mut Shard, state: TaskState) {
        // SAFETY: a task in a table lives. States are accessed only under the lock, which the shard
        // proves.
        unsafe { (*self.0.as_ptr()).state = PackedState::of(state) };
    }

    /// Sets the closure and groups of an early task.
    ///
    /// # Safety
    /// The task is early.
    unsafe fn set_entry(self, _: &mut Shard, groups: Groups, entry: Closure) {
        let task = self.0.as_ptr();
        let (vtable, storage) = entry.into_parts();
        // SAFETY: only the holder of the lock accesses an early task.
        unsafe {
            (*task).job = Job::new(NonNull::from(vtable).cast(), groups);
            (*task).storage = storage;
        }
    }
}

/// A part of the tasks, protected by one lock.
#[derive(Default)]
struct Shard {
    table: HashTable<TaskPtr>,
    tasks: Slab<Task>,
    /// Number of tasks of the shard that are ready or running.
    active: usize,
}

/// All tokens in use.
pub(crate) struct Tokens {
    shards: Box<[Mutex<Shard>]>,
    /// Memory of the tasks; `None` if it could not be allocated.
    blocks: Option<Blocks>,
    hasher: DefaultHashBuilder,
    /// Number of shards with ready or running tasks. The number changes only when a shard gets its
    /// first such task or loses its last, which is rare with many tasks.
    busy: AtomicUsize,
    /// Held by the thread that ends the last task, and by threads that wait for the end of the last
    /// task.
    idle: Mutex<()>,
    became_idle: Condvar,
    /// Whether tasks that become ready are dropped.
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
            idle: Mutex::default(),
            became_idle: Condvar::default(),
            cancelled: AtomicBool::new(false),
            panicked: Mutex::default(),
        }
    }
}

impl Tokens {
    fn shard(&self, token: u64) -> (u64, MutexGuard<'_, Shard>) {
        let hash = self.hasher.hash_one(token);
        // The shard is selected by the bits from 40 on, because the table uses the lower and the
        // uppermost bits of the hash.
        (hash, self.shards[(hash >> 40) as usize % SHARDS].lock())
    }

    /// Registers a task, and returns its job if it is ready at once.
    pub fn register(
        &self,
        token: u64,
        count: u32,
        groups: Groups,
        entry: Closure,
    ) -> Result<Option<JobRef>, TaskError> {
        let (hash, mut shard) = self.shard(token);
        let found = shard
            .table
            .find(hash, |task_ptr| task_ptr.token() == token)
            .copied();
        let (task_ptr, early) = match found.map(|task_ptr| (task_ptr, task_ptr.state(&shard))) {
            Some((task_ptr, TaskState::Early(times))) => (task_ptr, times),
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
        // SAFETY: the task was early when it was found, or was created early above.
        unsafe { task_ptr.set_entry(&mut shard, groups, entry) };
        Ok(self.advance(task_ptr, &mut shard, left, count))
    }

    /// Resolves one dependency of a task, and returns its job if it is ready now.
    pub fn resolve(&self, token: u64) -> Result<Option<JobRef>, TaskError> {
        let (hash, mut shard) = self.shard(token);
        let found = shard
            .table
            .find(hash, |task_ptr| task_ptr.token() == token)
            .copied();
        let task_ptr = match found {
            Some(task_ptr) => task_ptr,
            None => self.insert(hash, &mut shard, token)?,
        };
        let too_often = |times: u32, count| TaskError::ResolvedTooOften {
            token,
            times: times.saturating_add(1),
            count,
        };
        match task_ptr.state(&shard) {
            TaskState::Early(u32::MAX) => Err(too_often(u32::MAX, u32::MAX)),
            TaskState::Early(times) => {
                task_ptr.set_state(&mut shard, TaskState::Early(times + 1));
                Ok(None)
            }
            TaskState::Waiting(left, count) => {
                Ok(self.advance(task_ptr, &mut shard, left - 1, count))
            }
            TaskState::Ready(count) => Err(too_often(count, count)),
        }
    }

    /// Updates a registered task to `left` missing resolutions.
    fn advance(
        &self,
        task_ptr: TaskPtr,
        shard: &mut Shard,
        left: u32,
        count: u32,
    ) -> Option<JobRef> {
        if left > 0 {
            task_ptr.set_state(shard, TaskState::Waiting(left, count));
            return None;
        }
        task_ptr.set_state(shard, TaskState::Ready(count));
        shard.active += 1;
        if shard.active == 1 {
            self.busy.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: the task lives until it has run, and becomes ready once.
        Some(unsafe { JobRef::new(task_ptr.0.cast()) })
    }

    /// Inserts an early task without resolutions.
    fn insert(&self, hash: u64, shard: &mut Shard, token: u64) -> Result<TaskPtr, TaskError> {
        let none = || TaskError::Memory { token };
        let hasher = |task_ptr: &TaskPtr| self.hasher.hash_one(task_ptr.token());
        shard.table.try_reserve(1, hasher).map_err(|_| none())?;
        let task = Task {
            job: Job::new(NonNull::from(&NO_CLOSURE).cast(), Groups::NONE),
            token,
            state: PackedState::of(TaskState::Early(0)),
            storage: ClosureStorage::uninit(),
        };
        let blocks = self.blocks.as_ref().ok_or_else(none)?;
        let task_ptr = TaskPtr(shard.tasks.insert(blocks, task).map_err(|_| none())?);
        shard.table.insert_unique(hash, task_ptr, hasher);
        Ok(task_ptr)
    }

    /// Moves the task out of its memory.
    ///
    /// # Safety
    /// The task belongs to this shard and was removed from its table, and no other thread has its
    /// address.
    unsafe fn remove_task(&self, shard: &mut Shard, task_ptr: TaskPtr) -> Option<Task> {
        let blocks = self.blocks.as_ref()?;
        // SAFETY: guaranteed by the caller.
        Some(unsafe { shard.tasks.remove(blocks, task_ptr.0) })
    }

    /// Ends a task that has run.
    fn end(&self, task_ptr: TaskPtr) {
        let (hash, mut shard) = self.shard(task_ptr.token());
        if let Ok(entry) = shard.table.find_entry(hash, |other| other.0 == task_ptr.0) {
            entry.remove();
        }
        // SAFETY: the task was removed from the table and was run by this thread, so no other
        // thread has its address.
        unsafe { self.remove_task(&mut shard, task_ptr) };
        shard.active -= 1;
        // Other tasks of this shard have ended under the lock of the shard, and thus before this
        // task.
        let was_last = shard.active == 0 && self.busy.fetch_sub(1, Ordering::AcqRel) == 1;
        drop(shard);
        if was_last {
            drop(self.idle.lock());
            self.became_idle.notify_all();
        }
    }

    /// Runs the closure of a task, or drops it after [`Self::cancel`].
    fn run(&self, token: u64, entry: Closure) {
        let is_cancelled = self.cancelled.load(Ordering::Relaxed);
        self.call(token, || match is_cancelled {
            false => entry.call(),
            true => drop(entry),
        });
    }

    /// Calls `call`, which runs or drops the closure of a task, and records a panic.
    fn call(&self, token: u64, call: impl FnOnce()) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(call)) {
            self.panicked.lock().push(Panicked {
                task: token,
                message: message(panic),
            });
        }
    }

    /// Waits until no task is ready or running.
    pub fn wait_until_idle(&self) {
        let mut idle = self.idle.lock();
        while self.busy.load(Ordering::Acquire) > 0 {
            idle = self.became_idle.wait(idle);
        }
    }

    /// Waits until no task is ready or running, and reports unfinished tasks.
    ///
    /// # Errors
    /// If tasks wait to be resolved, if tokens were resolved and never registered, or if tasks
    /// panicked. Without memory to list them all, the error has only their numbers, and panics stay
    /// recorded for the next wait.
    pub fn wait(&self) -> Result<(), WaitError> {
        self.wait_until_idle();
        let (mut unresolved, mut unregistered) = (FallibleList::default(), FallibleList::default());
        for shard in &self.shards {
            let shard = shard.lock();
            for task_ptr in shard.table.iter() {
                match task_ptr.state(&shard) {
                    TaskState::Early(_) => unregistered.push(task_ptr.token()),
                    TaskState::Waiting(more, _) => unresolved.push((task_ptr.token(), more)),
                    // Another thread has resolved the task meanwhile.
                    TaskState::Ready(_) => {}
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
        let unfinished = UnfinishedTasks {
            panicked: mem::take(&mut *panicked),
            unresolved: unresolved.sorted(),
            unregistered: unregistered.sorted(),
        };
        match unfinished.is_empty() {
            true => Ok(()),
            false => Err(WaitError::Unfinished(unfinished)),
        }
    }

    /// Records panics again that a wait has reported to its caller.
    pub fn restore_panics(&self, mut before: Vec<Panicked>) {
        let mut panicked = self.panicked.lock();
        // Panics that were recorded since then are rare, so copying them is cheap.
        before.append(&mut panicked);
        *panicked = before;
    }

    /// Drops all waiting tasks; from now on, drops tasks when they become ready.
    pub fn cancel(&self) -> usize {
        self.cancelled.store(true, Ordering::Relaxed);
        self.drop_waiting()
    }

    /// Drops all waiting tasks and returns their number. The tasks are linked in a chain, because
    /// there may be no memory for a list.
    fn drop_waiting(&self) -> usize {
        let mut waiting = Chain::EMPTY;
        let mut count = 0;
        for shard in &self.shards {
            let mut shard = shard.lock();
            let mut table = mem::take(&mut shard.table);
            let is_waiting =
                |task_ptr: &mut TaskPtr| !matches!(task_ptr.state(&shard), TaskState::Ready(_));
            for task_ptr in table.extract_if(is_waiting) {
                // SAFETY: the task was removed from the table and never ready, so no other thread
                // has its address.
                waiting.push(unsafe { JobRef::new(task_ptr.0.cast()) });
                count += 1;
            }
            shard.table = table;
        }
        // Dropping a closure may resolve or register tasks, so no lock is held here. Tasks
        // registered in this way are not dropped by this call.
        while let Some(job) = waiting.pop() {
            let task_ptr = TaskPtr(job.as_ptr().cast());
            let token = task_ptr.token();
            // SAFETY: the task is in no table, and was removed from the chain.
            if let Some(closure) = unsafe { self.remove_closure(task_ptr) } {
                self.call(token, || drop(closure));
            }
        }
        count
    }

    /// Moves the closure out of a task and frees the task.
    ///
    /// # Safety
    /// The task was removed from the table, and no other thread has its address.
    unsafe fn remove_closure(&self, task_ptr: TaskPtr) -> Option<Closure> {
        let (_, mut shard) = self.shard(task_ptr.token());
        // SAFETY: guaranteed by the caller.
        let task = unsafe { self.remove_task(&mut shard, task_ptr) }?;
        // SAFETY: the task is in no table, and this function has its only copy, which is not used
        // again.
        Some(unsafe { Task::closure(&raw const task) })
    }
}

/// A list, or only its length if there is no memory for the elements.
struct FallibleList<T> {
    list: Vec<T>,
    count: usize,
}

impl<T> Default for FallibleList<T> {
    fn default() -> Self {
        let (list, count) = (Vec::new(), 0);
        Self { list, count }
    }
}

impl<T: Ord> FallibleList<T> {
    fn is_whole(&self) -> bool {
        self.list.len() == self.count
    }

    fn push(&mut self, element: T) {
        let is_whole = self.is_whole();
        self.count += 1;
        if !is_whole {
            return;
        }
        match self.list.try_reserve(1) {
            Ok(()) => self.list.push(element),
            // Frees the memory of this list for other lists.
            Err(_) => self.list = Vec::new(),
        }
    }

    fn sorted(mut self) -> Vec<T> {
        self.list.sort_unstable();
        self.list
    }
}

impl Drop for Tokens {
    /// Drops the remaining tasks. No workers are left, so ready tasks do not run either.
    fn drop(&mut self) {
        for shard in &self.shards {
            let table = mem::take(&mut shard.lock().table);
            for task_ptr in table {
                // SAFETY: the task was removed from the table, and no thread is left that could run
                // it.
                let closure = unsafe { self.remove_closure(task_ptr) };
                // A panic must not prevent the other tasks from being dropped, and cannot be
                // reported any more.
                if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(closure))) {
                    discard(panic);
                }
            }
        }
    }
}

/// Runs a registered task. With `GUESSED`, the groups of the task are a guess.
///
/// # Safety
/// The job is the first field of a task of this worker's runtime.
pub(crate) unsafe fn run<const GUESSED: bool>(job: JobRef, worker: &Worker<'_>) {
    worker.count_task();
    let task_ptr = TaskPtr(job.as_ptr().cast());
    // SAFETY: the task is ready, and its closure belongs to this worker.
    let entry = unsafe { Task::closure(task_ptr.0.as_ptr()) };
    let tokens = worker.tokens();
    let (token, groups) = (task_ptr.token(), job.groups());
    let call = || tokens.run(token, entry);
    worker.trace(token, groups, || match GUESSED {
        true => worker.run_sampled(call),
        false => call(),
    });
    tokens.end(task_ptr);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_preserves_states() {
        let numbers = [0, 1, 2, 7, u32::MAX - 1, u32::MAX];
        for one in numbers {
            let waiting = numbers.map(|count| TaskState::Waiting(one, count));
            let all = [TaskState::Early(one), TaskState::Ready(one)]
                .into_iter()
                .chain(waiting);
            let may_be = |state: &TaskState| match *state {
                TaskState::Waiting(left, count) => (1..=count).contains(&left),
                TaskState::Early(_) | TaskState::Ready(_) => true,
            };
            for state in all.filter(may_be) {
                assert_eq!(PackedState::of(state).state(), state);
            }
        }
        assert_eq!(size_of::<Task>(), 64);
    }
}
