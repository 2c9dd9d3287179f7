// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scopes: tasks that borrow data of the function that spawns them.
//!
//! 1. The body of a scope runs, and spawns tasks. Each task is a box with the closure and a pointer
//!    to the scope. The worker publishes it as a forked task at once, so that idle workers can take
//!    it while the body runs. Tasks of the scope spawn further tasks in the same way.
//! 2. The scope counts its body and its unfinished tasks. After the body has ended, the caller
//!    waits until the count is 0. A worker runs other tasks during the wait, beginning with its
//!    newest forked tasks.
//! 3. The scope keeps the payload of its first panic, and the caller resumes it at the end.
//!
//! The caller returns only after all tasks have ended, so borrowed data exist as long as the tasks.
//! Each task ends with an atomic decrement of the count, and does not access the scope after it.
//!
//! A *serial* scope runs its tasks one after the other in the thread of its caller, in the order in
//! which they were spawned, after the body has ended. A scope is serial under policies with a
//! global queue, because a waiting worker would run the oldest task of the queue, which may wait
//! itself. It is also serial in a forked child, which has no workers.
//!
//! Spawning takes constant time and one allocation. If there is no memory, `spawn` ends the
//! process, and `try_spawn` returns the closure. The number of tasks is limited by memory only.

use std::alloc::Layout;
use std::alloc::handle_alloc_error;
use std::fmt;
use std::marker::PhantomData;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::closure::try_box;
use crate::current_worker;
use crate::error::discard;
use crate::job::{Job, JobRef};
use crate::join::{Payload, WaitingThread, resume_after_drop};
use crate::latch::Latch;
use crate::pool::{FORKED, Inbox};
use crate::sync::{AtomicUsize, Mutex, Ordering};
use crate::task_node::Creator;
use crate::worker::{JobVtable, Registry, Worker};

/// A set of tasks that end before the function that opened the scope returns.
/// [`Runtime::scope`](crate::Runtime::scope) opens a scope.
///
/// `'scope` is the lifetime of the data that tasks of the scope may borrow.
#[repr(C)] // Tasks convert the address of the state into that of the scope.
pub struct TaskScope<'scope> {
    state: ScopeState,
    /// Makes `'scope` invariant, so that it can be neither lengthened nor shortened.
    marker: PhantomData<Mutex<&'scope mut &'scope ()>>,
}

/// The state of a scope, which its tasks access.
struct ScopeState {
    /// The registry of the workers that run the tasks. It exists until the scope ends: the caller
    /// of the scope is a worker of this registry or borrows its runtime.
    registry: NonNull<Registry>,
    /// Number of unfinished tasks, plus 1 for the body.
    unfinished: AtomicUsize,
    caller: WaitingThread,
    /// The task with a future that has opened the scope, if its worker runs the tasks.
    creator: Creator,
    /// The payload of the first panic.
    panic: Mutex<Option<Payload>>,
    /// The tasks of a serial scope that have not begun; `None` if the scope is not serial.
    serial: Option<Inbox>,
}

// SAFETY: any thread may access the registry and the caller, and all other fields are `Sync`.
unsafe impl Sync for ScopeState {}

/// The part of a task that does not depend on the type of its closure.
#[repr(C)]
struct ScopeTask {
    job: Job,
    scope: *const ScopeState,
    /// Calls the closure and frees the task.
    call: unsafe fn(NonNull<ScopeTask>),
}

/// A task with its closure.
#[repr(C)]
struct ScopeTaskOf<F> {
    task: ScopeTask,
    function: F,
}

/// The vtable of the tasks of all scopes.
static VTABLE: JobVtable = JobVtable { run };

/// Runs a task of a scope.
///
/// # Safety
/// The job is the first field of a [`ScopeTask`] that has not run.
unsafe fn run(job: JobRef, worker: &Worker<'_>) {
    worker.count_task();
    // SAFETY: the task exists, because it has not run, and so does its scope.
    let creator = unsafe { (*job.as_ptr().cast::<ScopeTask>().as_ref().scope).creator };
    let before = worker.replace_creator(creator);
    // SAFETY: the caller guarantees the conditions of `call`.
    unsafe { call(job) };
    worker.replace_creator(before);
}

/// Calls a task of a scope, and frees it.
///
/// # Safety
/// The job is the first field of a [`ScopeTask`] that has not run.
unsafe fn call(job: JobRef) {
    let task = job.as_ptr().cast::<ScopeTask>();
    // SAFETY: the task exists, because it has not run.
    let call = unsafe { task.as_ref().call };
    // SAFETY: the function comes from the task, so it has the type of the task's closure.
    unsafe { call(task) };
}

/// Calls the closure of a task, records its panic and counts the task as finished.
///
/// # Safety
/// The task is the first field of a boxed `ScopeTaskOf<F>`, for a closure of a scope with lifetime
/// `'scope`, and is not used after this call.
unsafe fn call_closure<'scope, F: FnOnce(&TaskScope<'scope>)>(task: NonNull<ScopeTask>) {
    // SAFETY: the caller guarantees that the task is in a box of this type and is not used again.
    let ScopeTaskOf { task, function } =
        *unsafe { Box::from_raw(task.cast::<ScopeTaskOf<F>>().as_ptr()) };
    // SAFETY: the state is the first field of a scope with this lifetime, which exists until this
    // task is counted as finished below.
    let scope = unsafe { &*task.scope.cast::<TaskScope<'scope>>() };
    scope.state.record(|| function(scope));
    // SAFETY: the scope exists, and this task does not access it again.
    unsafe { ScopeState::finish(task.scope) };
}

impl ScopeState {
    fn registry(&self) -> &Registry {
        // SAFETY: the registry exists until the scope ends, as the field's comment explains.
        unsafe { self.registry.as_ref() }
    }

    /// Calls a function, and records its panic. Returns the result if it has not panicked.
    fn record<R>(&self, function: impl FnOnce() -> R) -> Option<R> {
        match catch_unwind(AssertUnwindSafe(function)) {
            Ok(result) => Some(result),
            Err(payload) => {
                let mut panic = self.panic.lock();
                // Only the first panic is kept.
                let rest = match &*panic {
                    Some(_) => Some(payload),
                    None => panic.replace(payload),
                };
                drop(panic);
                rest.into_iter().for_each(discard);
                None
            }
        }
    }

    /// Counts a task as finished, and wakes the caller of the scope after the last one.
    ///
    /// # Safety
    /// The scope exists, because the task is unfinished. The task does not access it again.
    unsafe fn finish(state: *const Self) {
        // SAFETY: the scope exists, because this task is unfinished.
        let (caller, registry) = unsafe { ((*state).caller.clone(), (*state).registry) };
        // SAFETY: as above. The scope may end after this decrement.
        let before = unsafe { (*state).unfinished.fetch_sub(1, Ordering::AcqRel) };
        if before == 1 {
            // SAFETY: the body has ended before this task, so the scope is not serial and the task
            // has run on a worker of this registry, which owns a reference to the registry.
            caller.wake(unsafe { registry.as_ref() });
        }
    }

    fn is_done(&self) -> bool {
        self.unfinished.load(Ordering::Acquire) == 0
    }

    fn enqueue(&self, job: JobRef) {
        if let Some(serial) = &self.serial {
            return serial.push(job);
        }
        let registry = self.registry();
        current_worker::with_worker_of(registry, |worker| match worker {
            Some(worker) => worker.publish_fork(job),
            None => registry.inject_fork(job),
        });
    }

    /// Returns whether the job is a task of this scope.
    fn contains(&self, job: &JobRef) -> bool {
        job.vtable() == NonNull::from(&VTABLE).cast() && {
            // SAFETY: the vtable shows that the job is the first field of a task of a scope. The
            // task exists, because it has not run.
            let scope = unsafe { job.as_ptr().cast::<ScopeTask>().as_ref() }.scope;
            std::ptr::eq(scope, self)
        }
    }

    /// Runs the tasks of a serial scope.
    fn run_serial(&self) {
        let Some(serial) = &self.serial else { return };
        while !serial.is_empty() {
            for job in serial.take() {
                // SAFETY: only tasks of this scope are in the list, and no task was called before.
                unsafe { call(job) };
            }
        }
    }
}

impl<'scope> TaskScope<'scope> {
    fn new(registry: &Registry, caller: WaitingThread, creator: Creator, is_serial: bool) -> Self {
        Self {
            state: ScopeState {
                registry: NonNull::from(registry),
                unfinished: AtomicUsize::new(1),
                caller,
                creator,
                panic: Mutex::default(),
                serial: is_serial.then(Inbox::default),
            },
            marker: PhantomData,
        }
    }

    /// Spawns a task of the scope. The task may begin at once, and ends before the scope ends. Its
    /// argument is the scope, in which the task may spawn further tasks. A task sees all writes
    /// that its spawner made before.
    ///
    /// Without idle workers, a worker runs the tasks that it has spawned last first.
    ///
    /// If the task panics, the function that opened the scope panics after all tasks have ended. Of
    /// several panics, the first is kept. If there is no memory for the task, the process ends.
    pub fn spawn<F>(&self, function: F)
    where
        F: FnOnce(&TaskScope<'scope>) + Send + 'scope,
    {
        if self.try_spawn(function).is_err() {
            handle_alloc_error(Layout::new::<ScopeTaskOf<F>>());
        }
    }

    /// Spawns a task as [`Self::spawn`] does.
    ///
    /// # Errors
    /// If there is no memory for the task.
    pub fn try_spawn<F>(&self, function: F) -> Result<(), NoMemoryForTask>
    where
        F: FnOnce(&TaskScope<'scope>) + Send + 'scope,
    {
        let job = self.task(function).ok_or(NoMemoryForTask)?;
        self.state.unfinished.fetch_add(1, Ordering::Relaxed);
        self.state.enqueue(job);
        Ok(())
    }

    /// Spawns one task for each worker of the runtime. Each worker runs one of these tasks, and no
    /// other worker can run it. The second argument is the index of the worker. A worker runs its
    /// task when its queues are empty, or after some tasks.
    ///
    /// In a serial scope, all tasks run in the thread that opened the scope.
    ///
    /// If there is no memory for the tasks, the process ends.
    pub fn spawn_broadcast<F>(&self, function: F)
    where
        F: Fn(&TaskScope<'scope>, usize) + Send + Sync + 'scope,
    {
        let function = Arc::new(function);
        for index in 0..self.state.registry().workers() {
            let function = Arc::clone(&function);
            let of_worker = move |scope: &TaskScope<'scope>| function(scope, index);
            let layout = Layout::for_value(&of_worker);
            let Some(job) = self.task(of_worker) else {
                handle_alloc_error(layout)
            };
            self.state.unfinished.fetch_add(1, Ordering::Relaxed);
            match &self.state.serial {
                Some(serial) => serial.push(job),
                None => self.state.registry().send_mail(index, job),
            }
        }
    }

    /// Returns the number of workers of the runtime that runs the tasks of the scope.
    pub fn workers(&self) -> usize {
        self.state.registry().workers()
    }

    /// Returns the index of the calling worker; `None` if the calling thread is no worker of the
    /// runtime that runs the tasks of the scope.
    pub fn worker_index(&self) -> Option<usize> {
        current_worker::index_in(self.state.registry.as_ptr())
    }

    /// Creates a task; `None` if there is no memory.
    fn task<F>(&self, function: F) -> Option<JobRef>
    where
        F: FnOnce(&TaskScope<'scope>) + Send + 'scope,
    {
        let task = try_box(ScopeTaskOf {
            task: ScopeTask {
                job: Job::new(NonNull::from(&VTABLE).cast(), FORKED),
                scope: &raw const self.state,
                call: call_closure::<'scope, F>,
            },
            function,
        })?;
        let task = NonNull::from(Box::leak(task));
        // SAFETY: the task exists until it has run, and this is its only holder.
        Some(unsafe { JobRef::new(task.cast()) })
    }

    /// Calls the body, and waits for the tasks by `wait`.
    fn run<R>(&self, body: impl FnOnce(&Self) -> R, wait: impl FnOnce(&ScopeState)) -> R {
        let result = self.state.record(|| body(self));
        self.state.run_serial();
        if self.state.unfinished.fetch_sub(1, Ordering::AcqRel) > 1 {
            wait(&self.state);
        }
        let panic = mem::take(&mut *self.state.panic.lock());
        match (result, panic) {
            (Some(result), None) => result,
            (result, Some(panic)) => resume_after_drop(panic, result),
            (None, None) => unreachable!("a body without a result has panicked"),
        }
    }
}

impl fmt::Debug for TaskScope<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unfinished = self.state.unfinished.load(Ordering::Relaxed);
        f.debug_struct("TaskScope")
            .field("unfinished", &unfinished)
            .finish_non_exhaustive()
    }
}

/// There is no memory for a task of a scope. The task was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("out of memory: a task of a scope cannot be stored")]
pub struct NoMemoryForTask;

/// Opens a scope in a task of this worker.
pub(crate) fn on_worker<'scope, R>(
    worker: &Worker<'_>,
    body: impl FnOnce(&TaskScope<'scope>) -> R,
) -> R {
    let caller = WaitingThread::Worker(worker.index());
    let registry = worker.registry();
    let is_serial =
        !registry.finds_groups() || registry.is_in_forked_child() || worker.is_isolated();
    let scope = TaskScope::new(registry, caller, worker.creator(), is_serial);
    scope.run(body, |state| {
        worker.wait_for_forks(|job| state.contains(job), || state.is_done());
    })
}

/// Opens a scope whose body runs in the calling thread, which is no worker of the registry.
pub(crate) fn in_place<'scope, R>(
    registry: &Registry,
    is_serial: bool,
    body: impl FnOnce(&TaskScope<'scope>) -> R,
) -> R {
    let _wait = current_worker::record_wait_for(registry);
    current_worker::with(|worker| {
        let latch = Arc::new(Latch::default());
        let caller = match &worker {
            Some(this) => WaitingThread::OtherWorker(this.to_registry(), this.worker().index()),
            None => WaitingThread::Outside(Arc::clone(&latch)),
        };
        let scope = TaskScope::new(registry, caller, Creator::NONE, is_serial);
        scope.run(body, |state| match worker {
            Some(worker) => worker.worker().wait_across(|| state.is_done()),
            None => latch.wait(),
        })
    })
}
