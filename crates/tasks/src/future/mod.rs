// SPDX-License-Identifier: MIT OR Apache-2.0
//! Futures: waits for single tasks and sets of tasks, and their results.
//!
//! Problem: a task may wait for any other task. A worker that runs arbitrary tasks during the wait
//! may put a task on its stack that waits for a task below it, and both would wait forever,
//! although no task of the program waits for itself.
//!
//! Idea: a worker that waits runs only tasks that may not wait for the tasks below them.
//!
//! 1. A submitted task is a *node* (module `task_node`), and an entry in the queues like that of other
//!    submitted tasks. The worker that takes the entry claims the node and runs it.
//! 2. A worker that waits for a node that has not begun claims it and runs it at once, on the stack
//!    of the waiting task. The entry has no effect later.
//! 3. A worker that waits for a running node runs *descendants* of the waiting task: tasks with
//!    futures that it has submitted, that these have submitted, and so on. A task must not wait for
//!    its ancestors. If a task that is no descendant of any task waits, its worker runs descendants
//!    of the running node. If there are none, the worker sleeps. Before, it injects the tasks of its
//!    queues, so that other workers run them.
//!
//! A wait that could not end is an error. Each node lists the running nodes for which it waits, and
//! the node above it on the same stack, without whose end it cannot continue. Before a wait for a
//! running node, the worker follows these edges under a lock. If they lead back to the waiting task
//! or to a task below it on the stack, the wait is rejected. Functions of joins, scopes, loops and
//! graphs that a task runs count as parts of that task. Waits for other runtimes are checked by the
//! module `waits`.
//!
//! Submission takes constant time and three allocations. The depth of step 2 depends on the program:
//! a wait is an error if less than a quarter of the worker's stack is left. Step 3 is nested up to
//! the limit of nested waits (module `worker::wait`).

mod wait;

use std::fmt;
use std::sync::{Arc, Weak};

use crate::current_worker;
use crate::dispatch::Groups;
use crate::error::{SubmitError, forked};
use crate::handle::{self, Handle, TaskHint};
use crate::join::resume_after_drop;
use crate::runtime::Runtime;
use crate::sync::Mutex;
pub use crate::task_node::TaskStatus;
use crate::task_node::{NodeRuntime, TaskNode};
use crate::worker::{Registry, Worker};

/// The reason for which a wait for a task has failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TaskWaitError {
    /// The task panicked.
    #[error("the submitted task {task} panicked: {message}")]
    Panicked {
        /// Number of the task ([`TaskRef::number`]).
        task: u64,
        /// The message of the panic.
        message: String,
    },
    /// The task was cancelled before it began.
    #[error("the submitted task {task} was cancelled before it began")]
    Cancelled {
        /// Number of the task.
        task: u64,
    },
    /// The wait could never end: the task is the waiting task, has submitted the waiting task, or
    /// waits for it directly or through other tasks.
    #[error(
        "the calling task cannot wait for the submitted task {task}: it is the calling task or an \
         ancestor of it, or waits for it"
    )]
    Cycle {
        /// Number of the task for which the calling task would wait.
        task: u64,
    },
    /// The calling task would wait for another runtime, whose tasks wait for the runtime of the
    /// calling task.
    #[error(
        "deadlock: the calling task would wait for the submitted task {task} of another runtime, \
         whose tasks wait for the runtime of the calling task"
    )]
    Deadlock {
        /// Number of the task.
        task: u64,
    },
    /// The task has not begun, and the worker's stack is too full to run it during the wait.
    #[error(
        "the waits for submitted tasks are nested too deeply: the stack of the worker is too full \
         to run the submitted task {task}"
    )]
    StackFull {
        /// Number of the task.
        task: u64,
    },
    /// The calling task is in an isolate region, and the task was submitted outside it.
    #[error(
        "the calling task is in an isolate region and cannot wait for the submitted task {task}, \
         which was submitted outside the region"
    )]
    Isolated {
        /// Number of the task.
        task: u64,
    },
    /// The caller is in a forked child, but the workers are threads of the parent process.
    #[error("{}", forked(*.creator_pid))]
    Forked {
        /// The process that created the runtime.
        creator_pid: u32,
    },
}

/// A submitted task, without the type of its result. Clones refer to the same task.
///
/// [`Self::number`] identifies the task in errors and traces.
pub struct TaskRef {
    node: Arc<TaskNode>,
}

impl TaskRef {
    fn new(node: Arc<TaskNode>) -> Self {
        node.add_handle();
        Self { node }
    }

    /// Returns the number that the runtime has given to the task, as in
    /// [`Panicked::task`](crate::Panicked::task).
    pub fn number(&self) -> u64 {
        self.node.number()
    }

    /// Returns the present state of the task.
    pub fn status(&self) -> TaskStatus {
        self.node.status()
    }

    /// Waits until the task has ended. Any number of threads and tasks may wait for a task.
    ///
    /// A task of the same runtime that waits runs the awaited task itself if it has not begun.
    /// While the awaited task runs on another worker, the waiting worker runs tasks with futures
    /// that the waiting task has submitted, directly or through other such tasks. Otherwise it
    /// sleeps, and other workers run its tasks.
    ///
    /// **Hold no lock over this call in a task** that the awaited task or tasks submitted by the
    /// calling task lock.
    ///
    /// # Errors
    /// - The task panicked or was cancelled.
    /// - The calling task is the task, was submitted by it (also through other tasks with futures
    ///   that have not ended), or the task waits for the calling task.
    /// - A task of another runtime calls, for which tasks of this runtime wait.
    /// - The calling task is in an isolate region ([`Runtime::isolate`]), and the task was submitted
    ///   outside it.
    /// - The stack of the worker is too full to run the task.
    /// - The task has not ended, and the caller is in a forked child of the process that created the
    ///   runtime.
    pub fn wait(&self) -> Result<(), TaskWaitError> {
        if !self.node.has_ended() {
            wait::until_end(&self.node)?;
        }
        let task = self.number();
        match self.status() {
            TaskStatus::Panicked => Err(TaskWaitError::Panicked {
                task,
                message: self.node.panic_message(),
            }),
            TaskStatus::Cancelled => Err(TaskWaitError::Cancelled { task }),
            TaskStatus::Ready | TaskStatus::Pending | TaskStatus::Running => Ok(()),
        }
    }

    /// Waits until all tasks have ended. A task that calls first runs the tasks that have not begun,
    /// in the given order, and then waits for the others.
    ///
    /// # Errors
    /// The first error of [`Self::wait`] in the given order. If the wait for a task is rejected, the
    /// function still waits for the other tasks.
    pub fn wait_all<'a>(
        tasks: impl IntoIterator<Item = &'a Self, IntoIter: Clone>,
    ) -> Result<(), TaskWaitError> {
        let tasks = tasks.into_iter();
        Self::run_pending(tasks.clone());
        let mut first = Ok(());
        for task in tasks {
            first = first.and(task.wait());
        }
        first
    }

    /// If a task of their runtime calls, runs the tasks that have not begun, in the given order.
    /// [`Self::wait_all`] begins with this function.
    pub fn run_pending<'a>(tasks: impl IntoIterator<Item = &'a Self>) {
        (tasks.into_iter()).for_each(|task| wait::run_if_pending(&task.node));
    }

    /// Cancels the task if it has not begun, and drops its function. Waiting threads get
    /// [`TaskWaitError::Cancelled`]. Returns false, and has no effect, if the task has begun, has
    /// ended or was cancelled before.
    ///
    /// # Panics
    /// If the destructor of the function panics. The task is cancelled nevertheless.
    pub fn cancel(&self) -> bool {
        self.node.cancel()
    }
}

impl Clone for TaskRef {
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.node))
    }
}

impl Drop for TaskRef {
    fn drop(&mut self) {
        self.node.remove_handle();
    }
}

impl fmt::Debug for TaskRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskRef")
            .field("number", &self.number())
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}

/// The result of a task that [`Runtime::submit_future`] has submitted.
///
/// The task runs also if its future is dropped. If a task panics and all its futures and references
/// were dropped without a wait, [`Runtime::wait`] reports the panic.
pub struct TaskFuture<R> {
    task: TaskRef,
    result: Arc<Mutex<Option<R>>>,
}

impl<R> TaskFuture<R> {
    /// Waits until the task has ended, and returns its result.
    ///
    /// # Errors
    /// In the cases in which [`TaskRef::wait`] returns an error, except for a panic of the task.
    ///
    /// # Panics
    /// If the task panicked. The panic continues in the caller.
    pub fn value(self) -> Result<R, TaskWaitError> {
        let ended = self.task.wait();
        if let Some(panic) = self.task.node.take_panic() {
            resume_after_drop(panic, self);
        }
        ended?;
        let result = self.result.lock().take();
        match result {
            Some(result) => Ok(result),
            None => unreachable!("a task that has ended has stored its result"),
        }
    }

    /// Waits until the task has ended, as [`TaskRef::wait`] does, and leaves the result in the
    /// future.
    ///
    /// # Errors
    /// In the cases in which [`TaskRef::wait`] returns an error.
    pub fn wait(&self) -> Result<(), TaskWaitError> {
        self.task.wait()
    }

    /// Returns a reference to the task, for waits of other tasks and sets of tasks.
    pub fn task(&self) -> &TaskRef {
        &self.task
    }
}

impl<R> fmt::Debug for TaskFuture<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TaskFuture").field(&self.task).finish()
    }
}

/// The entry of a node in the queues. If the entry is dropped instead of run, it cancels the node.
struct QueueEntry(Arc<TaskNode>);

impl QueueEntry {
    fn run(self) {
        if self.0.claim() {
            current_worker::with(|this| match this {
                Some(this) => this.worker().run_node(&self.0),
                None => unreachable!("workers run queued tasks"),
            });
        }
    }
}

impl Drop for QueueEntry {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl Runtime {
    /// Submits a ready task as [`Self::submit`] does, and returns a future of its result. Any thread
    /// and any task can wait for the task, for example a task that needs the result.
    ///
    /// Waits and drops of the runtime treat the task as a submitted task, and so does
    /// [`Self::cancel`]. A panic is passed to the threads that wait for the task.
    ///
    /// ```
    /// use usher_tasks::{Groups, Runtime, TaskRef};
    ///
    /// let runtime = Runtime::new(2)?;
    /// let left = runtime.submit_future(Groups::NONE, || (1..=50).sum::<u64>())?;
    /// let right = runtime.submit_future(Groups::NONE, || (51..=100).sum::<u64>())?;
    /// let sum = runtime.submit_future(Groups::NONE, || left.value().unwrap() + right.value().unwrap())?;
    /// assert_eq!(sum.value()?, 5050);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// In the cases in which [`Self::submit`] returns an error. If there is no memory for the future,
    /// the process ends.
    pub fn submit_future<R: Send + 'static>(
        &self,
        groups: Groups,
        function: impl FnOnce() -> R + Send + 'static,
    ) -> Result<TaskFuture<R>, SubmitError> {
        submit(self.registry(), TaskHint::Groups(groups), function)
    }

    /// Submits a task without groups that works on the data at the address `data`, and returns a
    /// future of its result. The address is used as by [`Self::register_on`].
    ///
    /// # Errors
    /// In the cases in which [`Self::submit_future`] returns an error.
    pub fn submit_future_on<R: Send + 'static>(
        &self,
        data: usize,
        function: impl FnOnce() -> R + Send + 'static,
    ) -> Result<TaskFuture<R>, SubmitError> {
        submit(self.registry(), TaskHint::Data(data), function)
    }
}

impl Handle {
    /// Submits a ready task as [`Runtime::submit_future`] does.
    ///
    /// # Errors
    /// In the cases in which [`Runtime::submit_future`] returns an error, and if the runtime was
    /// dropped.
    pub fn submit_future<R: Send + 'static>(
        &self,
        groups: Groups,
        function: impl FnOnce() -> R + Send + 'static,
    ) -> Result<TaskFuture<R>, SubmitError> {
        let registry = self.registry().ok_or(SubmitError::Ended)?;
        submit(&registry, TaskHint::Groups(groups), function)
    }
}

fn submit<R: Send + 'static>(
    registry: &Arc<Registry>,
    hint: TaskHint,
    function: impl FnOnce() -> R + Send + 'static,
) -> Result<TaskFuture<R>, SubmitError> {
    let result = Arc::new(Mutex::new(None));
    let to = Arc::clone(&result);
    let store = move || {
        let value = function();
        *to.lock() = Some(value);
    };
    let worker = current_worker::current_worker(registry);
    let parent = worker.and_then(|worker| worker.creator().node());
    let weak: Weak<Registry> = Arc::downgrade(registry);
    let owner: Weak<dyn NodeRuntime> = weak;
    let node = Arc::new(TaskNode::new(
        owner,
        registry.creator_pid(),
        worker.and_then(Worker::region),
        parent.as_ref().map_or_else(Weak::new, Arc::downgrade),
        Box::new(store),
    ));
    let task = TaskRef::new(Arc::clone(&node));
    let entry = QueueEntry(Arc::clone(&node));
    let begin = |number| {
        node.set_number(number);
        if let Some(parent) = &parent {
            parent.add_child(&node);
        }
    };
    handle::submit_numbered(registry, hint, || entry.run(), begin)?;
    if parent.is_some() {
        registry.wake_future_waits();
    }
    Ok(TaskFuture { task, result })
}
