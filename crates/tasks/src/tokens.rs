// SPDX-License-Identifier: MIT OR Apache-2.0
//! Single tasks: tasks that are identified by tokens (paper 5, section 3.2), and tasks without
//! tokens (module `submitted`).
//!
//! `register(token, count, entry)` adds a task that waits for `count` resolutions. `resolve(token)`
//! is one resolution, which may precede the registration.
//!
//! 1. The first call with a token creates a task. A hash of the token selects one of 64 shards.
//!    Each shard has a lock, a hash table from tokens to tasks, and memory for tasks.
//! 2. Each call locks the shard and updates the state of the task ([`TaskState`]).
//! 3. When the task is registered and no resolution is missing, the task becomes ready. From then
//!    on it belongs to the worker that holds it.
//! 4. After the task has run, it is removed from the table. The token may then be used for another
//!    task.
//!
//! The module `submitted` adds ready tasks without tokens to the shards. The module `dense` keeps
//! tasks whose tokens are in a declared range in an array instead of the shards.
//!
//! Registration and resolution take constant time on average. A wait and a cancellation take time
//! linear in the number of tokens in use, and a wait has no time limit. A task waits for at most
//! 2^32 - 1 resolutions. A token in use, too many resolutions and lack of memory for a task are
//! errors.

mod dense;
mod submitted;

use std::any::Any;
use std::hash::BuildHasher;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

use dense::DenseTokens;
use hashbrown::{DefaultHashBuilder, HashTable};

use crate::closure::{Closure, ClosureStorage, ClosureVtable, NO_CLOSURE};
use crate::color::Blocks;
use crate::dispatch::Groups;
use crate::error::{Panicked, TaskError, UnfinishedTasks, WaitError, discard, message};
use crate::job::{Chain, Job, JobRef};
use crate::slab::{self, Slab};
use crate::sync::{AtomicBool, AtomicUsize, Condvar, Mutex, MutexGuard, Ordering};
use crate::worker::Worker;

/// Number of shards, each with a lock. With many shards, two threads rarely need the same lock.
const SHARDS: usize = if cfg!(feature = "loom") { 1 } else { 64 };

/// The state of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TaskState {
    /// Resolved, but not registered yet. The field is the number of resolutions up to now.
    Early(u32),
    /// Registered and not ready. The fields are the number of missing resolutions, at least 1, and
    /// the total number of required resolutions.
    Waiting(u32, u32),
    /// Ready or running. The field is the total number of required resolutions.
    Ready(u32),
}

/// A [`TaskState`] in eight bytes, as two numbers. For a waiting task `left` is at most `count`, so
/// pairs with `left > count` encode early tasks.
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
    /// The state of the task. The lock of the shard protects it.
    state: PackedState,
    /// The closure, of the type to which the vtable belongs. Only the thread that holds the lock of
    /// the shard may access it until the task is ready, and then only the thread that runs the
    /// task.
    storage: ClosureStorage,
}

// SAFETY: only the holder of the job accesses the job's link, and the closure is `Send`.
unsafe impl Send for Task {}

impl Task {
    /// Moves the closure out of the task.
    ///
    /// # Safety
    /// Only the caller accesses the task's closure, and this function is called at most once per
    /// task.
    unsafe fn closure(task: *const Self) -> Closure {
        // SAFETY: only the caller accesses the closure, and each closure is moved out at most once.
        // The vtable of a task is a static value of type `ClosureVtable`.
        unsafe {
            let vtable = (*task).job.vtable().cast::<ClosureVtable>().as_ref();
            Closure::from_parts(vtable, (*task).storage)
        }
    }
}

/// The address of a task. Different threads may access different fields of a task at the same time,
/// so the code never creates a reference to the whole task.
#[derive(Clone, Copy)]
struct TaskPtr(NonNull<Task>);

// SAFETY: a task is `Send`. The comments on its fields state which thread may access each field.
unsafe impl Send for TaskPtr {}

impl TaskPtr {
    fn token(self) -> u64 {
        // SAFETY: a task exists until it is freed: it is in a table, or one thread or container holds
        // it. Its token is never written.
        unsafe { (*self.0.as_ptr()).token }
    }

    /// Returns the state. The argument of type `Shard` proves that the caller holds the lock of the
    /// shard.
    fn state(self, _: &Shard) -> TaskState {
        // SAFETY: a task in a table exists. The argument of type `Shard` proves that this thread
        // holds the lock that protects the state.
        unsafe { (*self.0.as_ptr()).state }.state()
    }

    fn set_state(self, _: &mut Shard, state: TaskState) {
        // SAFETY: the task exists: it is in a table, or this thread has just created it. The argument
        // of type `Shard` proves that this thread holds the lock that protects the state.
        unsafe { (*self.0.as_ptr()).state = PackedState::of(state) };
    }

    /// Sets the closure and groups of an early task.
    ///
    /// # Safety
    /// The task is early.
    unsafe fn set_entry(self, _: &mut Shard, groups: Groups, entry: Closure) {
        let task = self.0.as_ptr();
        let (vtable, storage) = entry.into_parts();
        // SAFETY: only the thread that holds the lock of the shard accesses an early task, and the
        // second argument proves that this thread holds it.
        unsafe {
            (*task).job = Job::new(NonNull::from(vtable).cast(), groups);
            (*task).storage = storage;
        }
    }
}

/// The tasks of one shard. The lock of the shard protects this structure.
#[derive(Default)]
struct Shard {
    table: HashTable<TaskPtr>,
    tasks: Slab<Task>,
    /// Number of tasks of the shard that are ready or running.
    active: usize,
    /// Number of tasks without tokens that were added to the shard.
    submitted: u64,
}

/// All tokens in use.
pub(crate) struct Tokens {
    shards: Box<[Mutex<Shard>]>,
    /// The tokens of the declared range, which are in no shard.
    dense: DenseTokens,
    /// The source of memory for tasks; `None` if it could not be allocated.
    blocks: Option<Blocks>,
    hasher: DefaultHashBuilder,
    /// Number of shards, and of blocks of dense tokens, with ready or running tasks. It changes only
    /// when a shard or block gets its first ready task or ends its last running task, which is rare
    /// if there are many tasks.
    busy: AtomicUsize,
    /// The thread that ends the last task locks this mutex to notify waiting threads. A thread that
    /// waits for the end of all tasks holds the mutex from its check of `busy` until it sleeps.
    idle: Mutex<()>,
    became_idle: Condvar,
    /// Whether ready tasks are dropped instead of run.
    cancelled: AtomicBool,
    panicked: Mutex<Vec<Panicked>>,
}

impl Default for Tokens {
    fn default() -> Self {
        Self {
            shards: std::iter::repeat_with(Mutex::default)
                .take(SHARDS)
                .collect(),
            dense: DenseTokens::default(),
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
        // Bits 40 to 45 of the hash select the shard, because the table uses the lowest and the
        // highest bits.
        (hash, self.shards[(hash >> 40) as usize % SHARDS].lock())
    }

    /// Registers a task, and returns its job if no resolution is missing.
    pub fn register(
        &self,
        token: u64,
        count: u32,
        groups: Groups,
        entry: Closure,
    ) -> Result<Option<JobRef>, TaskError> {
        if let Some(index) = self.dense.index_of(token) {
            return self.register_dense(index, count, groups, entry);
        }
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
        // SAFETY: the task is early: it was early when it was found, or it was created above as an
        // early task.
        unsafe { task_ptr.set_entry(&mut shard, groups, entry) };
        Ok(self.advance(task_ptr, &mut shard, left, count))
    }

    /// Resolves one dependency of a task, and returns the task's job if this was the last missing
    /// resolution.
    #[inline]
    pub fn resolve(&self, token: u64) -> Result<Option<JobRef>, TaskError> {
        match self.dense.index_of(token) {
            Some(index) => self.resolve_dense(index),
            None => self.resolve_in_shard(token),
        }
    }

    fn resolve_in_shard(&self, token: u64) -> Result<Option<JobRef>, TaskError> {
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

    /// Sets the number of missing resolutions of a registered task to `left`. Returns the task's
    /// job if the number is 0.
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
        Some(self.activate(task_ptr, shard, count))
    }

    /// Marks a task without missing resolutions as ready, and returns its job.
    #[inline(always)]
    fn activate(&self, task_ptr: TaskPtr, shard: &mut Shard, count: u32) -> JobRef {
        task_ptr.set_state(shard, TaskState::Ready(count));
        shard.active += 1;
        if shard.active == 1 {
            self.busy.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: the task exists until it has run. It becomes ready once, so the returned
        // reference is the only holder.
        unsafe { JobRef::new(task_ptr.0.cast()) }
    }

    /// Inserts an early task with 0 resolutions.
    fn insert(&self, hash: u64, shard: &mut Shard, token: u64) -> Result<TaskPtr, TaskError> {
        let none = || TaskError::Memory { token };
        let hasher = |task_ptr: &TaskPtr| self.hasher.hash_one(task_ptr.token());
        shard.table.try_reserve(1, hasher).map_err(|_| none())?;
        let task_ptr = self.allocate(shard, token).ok_or_else(none)?;
        shard.table.insert_unique(hash, task_ptr, hasher);
        Ok(task_ptr)
    }

    /// Creates an early task with 0 resolutions that is in no table; `None` if there is no memory.
    #[inline(always)]
    fn allocate(&self, shard: &mut Shard, token: u64) -> Option<TaskPtr> {
        let task = Task {
            job: Job::new(NonNull::from(&NO_CLOSURE).cast(), Groups::NONE),
            token,
            state: PackedState::of(TaskState::Early(0)),
            storage: ClosureStorage::uninit(),
        };
        let blocks = self.blocks.as_ref()?;
        Some(TaskPtr(shard.tasks.insert(blocks, task).ok()?))
    }

    /// Moves the task out of its memory.
    ///
    /// # Safety
    /// The task belongs to this shard and was removed from its table, and no other thread has its
    /// address.
    unsafe fn remove_task(&self, shard: &mut Shard, task_ptr: TaskPtr) -> Option<Task> {
        let blocks = self.blocks.as_ref()?;
        // SAFETY: the task belongs to this shard and no other thread has its address, as the caller
        // guarantees.
        Some(unsafe { shard.tasks.remove(blocks, task_ptr.0) })
    }

    /// Ends a task that has run.
    fn end(&self, task_ptr: TaskPtr) {
        let (hash, mut shard) = self.shard(task_ptr.token());
        if let Ok(entry) = shard.table.find_entry(hash, |other| other.0 == task_ptr.0) {
            entry.remove();
        }
        // SAFETY: the task was removed from the table, and only this thread, which ran the task, has
        // its address.
        unsafe { self.free(task_ptr, shard) };
    }

    /// Frees a task that is in no table. The guard is that of the task's shard.
    ///
    /// # Safety
    /// The task is active, belongs to this shard and is in no table. No other thread has its address,
    /// and it is not used after this call.
    #[inline(always)] // A call would cost instructions for each task by token.
    unsafe fn free(&self, task_ptr: TaskPtr, mut shard: MutexGuard<'_, Shard>) {
        // SAFETY: the caller guarantees the conditions of `remove_task`.
        unsafe { self.remove_task(&mut shard, task_ptr) };
        shard.active -= 1;
        // Each task of this shard ends under the lock of the shard. If no task is active now, all
        // other tasks of the shard have therefore ended before this task.
        let was_last = shard.active == 0 && self.busy.fetch_sub(1, Ordering::AcqRel) == 1;
        drop(shard);
        if was_last {
            self.notify_idle();
        }
    }

    /// Wakes the threads that wait for the end of all tasks.
    fn notify_idle(&self) {
        drop(self.idle.lock());
        self.became_idle.notify_all();
    }

    /// Runs the closure of a task, or drops it after [`Self::cancel`].
    #[inline]
    fn run(&self, token: u64, is_submitted: bool, entry: Closure) {
        let is_cancelled = self.cancelled.load(Ordering::Relaxed);
        self.call(token, is_submitted, || match is_cancelled {
            false => entry.call(),
            true => drop(entry),
        });
    }

    /// Calls `call`, which runs or drops the closure of a task. Records a panic of the call.
    #[inline]
    pub fn call(&self, token: u64, is_submitted: bool, call: impl FnOnce()) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(call)) {
            self.record(token, is_submitted, panic);
        }
    }

    #[cold]
    fn record(&self, token: u64, is_submitted: bool, panic: Box<dyn Any + Send>) {
        self.panicked.lock().push(Panicked {
            task: token,
            is_submitted,
            message: message(panic),
        });
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
    /// panicked. If there is no memory to list them, the error contains only their numbers, and the
    /// next wait reports the panics.
    pub fn wait(&self) -> Result<(), WaitError> {
        self.wait_until_idle();
        let (mut unresolved, mut unregistered) = (FallibleList::default(), FallibleList::default());
        for shard in &self.shards {
            let shard = shard.lock();
            for task_ptr in shard.table.iter() {
                match task_ptr.state(&shard) {
                    TaskState::Early(_) => unregistered.push(task_ptr.token()),
                    TaskState::Waiting(more, _) => unresolved.push((task_ptr.token(), more)),
                    // Another thread has made the task ready since the wait ended.
                    TaskState::Ready(_) => {}
                }
            }
        }
        self.list_dense(&mut unresolved, &mut unregistered);
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

    /// Adds panics that [`Self::wait`] has returned to the recorded panics again.
    pub fn restore_panics(&self, mut before: Vec<Panicked>) {
        let mut panicked = self.panicked.lock();
        // Panics that were recorded since that wait are few, so copying them is cheap.
        before.append(&mut panicked);
        *panicked = before;
    }

    /// Drops all tasks that are not ready. From now on, ready tasks are dropped instead of run.
    /// Returns the number of tokens that were waiting.
    pub fn cancel(&self) -> usize {
        self.cancelled.store(true, Ordering::Relaxed);
        self.drop_waiting()
    }

    /// Drops all tasks that are not ready, and returns their number. A chain links the tasks,
    /// because there may be no memory for a list.
    fn drop_waiting(&self) -> usize {
        self.begin_cancel_dense();
        let mut waiting = Chain::EMPTY;
        let mut count = 0;
        for shard in &self.shards {
            let mut shard = shard.lock();
            let mut table = mem::take(&mut shard.table);
            let is_waiting =
                |task_ptr: &mut TaskPtr| !matches!(task_ptr.state(&shard), TaskState::Ready(_));
            for task_ptr in table.extract_if(is_waiting) {
                // SAFETY: the task was removed from the table and was never ready, so no other
                // thread has its address.
                waiting.push(unsafe { JobRef::new(task_ptr.0.cast()) });
                count += 1;
            }
            shard.table = table;
        }
        // The destructor of a closure may resolve or register tasks, so this thread holds no lock
        // here. This call does not drop tasks that are registered in this way.
        while let Some(job) = waiting.pop() {
            let task_ptr = TaskPtr(job.as_ptr().cast());
            let token = task_ptr.token();
            // SAFETY: the task is in no table and no chain, so no other thread has its address.
            if let Some(closure) = unsafe { self.remove_closure(task_ptr) } {
                self.call(token, false, || drop(closure));
            }
        }
        count + self.drop_cancelled_dense()
    }

    /// Moves the closure out of a task and frees the task.
    ///
    /// # Safety
    /// The task was removed from the table, and no other thread has its address.
    unsafe fn remove_closure(&self, task_ptr: TaskPtr) -> Option<Closure> {
        let (_, mut shard) = self.shard(task_ptr.token());
        // SAFETY: the task was removed from the table and no other thread has its address, as the
        // caller guarantees.
        let task = unsafe { self.remove_task(&mut shard, task_ptr) }?;
        // SAFETY: `task` is the only copy of a task that is in no table, and it is not used after
        // this call.
        Some(unsafe { Task::closure(&raw const task) })
    }
}

/// A list of items. If there is no memory for an item, only the number of items is kept.
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
            // Frees the memory of this list, because another list may need memory.
            Err(_) => self.list = Vec::new(),
        }
    }

    fn sorted(mut self) -> Vec<T> {
        self.list.sort_unstable();
        self.list
    }
}

impl Drop for Tokens {
    /// Drops the remaining tasks. No workers exist any more, so even ready tasks cannot run.
    fn drop(&mut self) {
        self.drop_dense();
        for shard in &self.shards {
            let table = mem::take(&mut shard.lock().table);
            for task_ptr in table {
                // SAFETY: the task was removed from the table, and no worker that could run it
                // exists any more.
                let closure = unsafe { self.remove_closure(task_ptr) };
                // A panic of a destructor is discarded: the other tasks must be dropped, too, and
                // no wait can report the panic any more.
                if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(closure))) {
                    discard(panic);
                }
            }
        }
    }
}

/// Runs a task. `GUESSED` states whether the runtime has guessed the groups of the task, and
/// `SUBMITTED` whether the task has no token.
///
/// # Safety
/// The job is the first field of a [`Task`], or of the slot of a dense token, of this worker's
/// runtime.
pub(crate) unsafe fn run<const GUESSED: bool, const SUBMITTED: bool>(
    job: JobRef,
    worker: &Worker<'_>,
) {
    worker.count_task();
    let tokens = worker.tokens();
    let (task_ptr, groups) = (TaskPtr(job.as_ptr().cast()), job.groups());
    let dense = match SUBMITTED {
        true => None,
        false => tokens.dense.index_of_job(&job),
    };
    let (token, entry) = match dense {
        // SAFETY: the task is ready, and this worker holds it.
        Some(index) => unsafe { tokens.take_dense(index) },
        // SAFETY: the task is ready, and this worker holds it, so only this worker may access the
        // closure.
        None => (task_ptr.token(), unsafe {
            Task::closure(task_ptr.0.as_ptr())
        }),
    };
    let call = || tokens.run(token, SUBMITTED, entry);
    worker.trace(token, groups, || match GUESSED {
        true => worker.run_sampled(call),
        false => call(),
    });
    if let Some(index) = dense {
        return tokens.end_dense(index);
    }
    match SUBMITTED {
        // SAFETY: the task was submitted to these `Tokens`, and its closure was moved out above. Only
        // this worker has its address.
        true => unsafe { tokens.end_submitted(task_ptr) },
        false => tokens.end(task_ptr),
    }
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
