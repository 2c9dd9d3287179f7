// SPDX-License-Identifier: MIT OR Apache-2.0
//! The *node* of a task with a future: its function, its outcome, the threads that wait for it, and
//! its relations to other tasks.
//!
//! A task begins when a thread *claims* it, by a compare-exchange of its state. Three threads may
//! try: the worker that takes the task from a queue, a worker that waits for the task, and a thread
//! that cancels it. Exactly one of them succeeds.
//!
//! A thread that waits adds itself to the list of waiting threads, under the lock that is also held
//! while the state changes to an end state. The thread that ends the task wakes the listed threads.
//! A thread that comes later sees the end state and does not wait.
//!
//! All operations take constant time, apart from the functions of tasks, the search for an ancestor
//! or a descendant, and the wake-ups.

mod edges;

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Weak};
use std::{mem, ptr};

pub(crate) use edges::{TaskWait, WaitFault, WaitLock};

use crate::error::{Panicked, discard};
use crate::latch::Latch;
use crate::region::Region;
use crate::sync::{AtomicU8, AtomicU64, Mutex, Ordering};

/// The payload of a panic.
type Payload = Box<dyn Any + Send>;

/// The runtime of a node, which this module knows only by these functions.
pub(crate) trait NodeRuntime: Send + Sync {
    /// Wakes a worker that waits for a node. The node has ended before.
    fn wake_for_node(&self, worker: usize);

    /// Reports a panic that no thread has seen.
    fn report_panic(&self, panicked: Panicked);
}

/// A thread that waits for a node and may sleep.
#[derive(Clone)]
pub(crate) enum NodeWaiter {
    /// A worker of the node's runtime, by its index.
    Worker(usize),
    /// Any other thread, and the latch at which it sleeps.
    Outside(Arc<Latch>),
}

/// A node that is on the stack of a worker, or null.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Creator(*const TaskNode);

// SAFETY: any thread may use a node. `Creator::node` has a condition on its life.
unsafe impl Send for Creator {}
// SAFETY: as above.
unsafe impl Sync for Creator {}

impl Creator {
    pub const NONE: Self = Self(ptr::null());

    /// Refers to a node that the caller keeps alive while its task runs.
    pub fn of(node: &Arc<TaskNode>) -> Self {
        Self(Arc::as_ptr(node))
    }

    /// Returns the node. A creator is used only by code during which the task of the node runs: by
    /// the task itself, and by tasks for which the task waits.
    pub fn node(self) -> Option<Arc<TaskNode>> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: the task of the node runs, so the frame that runs it holds a reference. The
        // pointer came from an `Arc`.
        unsafe {
            Arc::increment_strong_count(self.0);
            Some(Arc::from_raw(self.0))
        }
    }
}

impl PartialEq for Creator {
    fn eq(&self, other: &Self) -> bool {
        ptr::eq(self.0, other.0)
    }
}

/// The function of a task. It stores the result itself.
pub(crate) type Function = Box<dyn FnOnce() + Send>;

/// The state of a task with a future.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum TaskStatus {
    /// The task has not begun.
    Pending = 0,
    /// The task has begun and has not ended.
    Running,
    /// The task has ended, and its result is available.
    Ready,
    /// The task has panicked.
    Panicked,
    /// The task was cancelled before it began, and will not run.
    Cancelled,
}

const PENDING: u8 = TaskStatus::Pending as u8;
const RUNNING: u8 = TaskStatus::Running as u8;
const READY: u8 = TaskStatus::Ready as u8;
const PANICKED: u8 = TaskStatus::Panicked as u8;
const CANCELLED: u8 = TaskStatus::Cancelled as u8;

/// What the end of a task concerns. A lock protects it.
#[derive(Default)]
struct Ending {
    /// The threads to wake at the end.
    waiting: Vec<NodeWaiter>,
    /// Number of references that programs hold.
    handles: usize,
    /// The payload and the message of the task's panic.
    panic: Option<Payload>,
    message: String,
    /// Whether the panic was passed to a thread that waited, or to the list of panics.
    is_reported: bool,
}

/// For which tasks a running task waits.
#[derive(Default)]
struct Edges {
    /// The task that runs above this task on the same stack.
    above: Option<Arc<TaskNode>>,
    /// The running tasks for which this task waits, or for which tasks wait that belong to it.
    targets: Vec<Arc<TaskNode>>,
}

/// A task with a future.
pub(crate) struct TaskNode {
    state: AtomicU8,
    number: AtomicU64,
    registry: Weak<dyn NodeRuntime>,
    creator_pid: u32,
    /// The isolate region in which the task was submitted.
    region: Option<Arc<Region>>,
    /// The task that has submitted this task.
    parent: Weak<TaskNode>,
    /// The function, until the task begins or is cancelled.
    function: Mutex<Option<Function>>,
    ending: Mutex<Ending>,
    edges: Mutex<Edges>,
    /// The tasks that this task has submitted, without tasks that have ended long ago. It is empty
    /// after the end of this task.
    children: Mutex<VecDeque<Arc<TaskNode>>>,
}

impl TaskNode {
    pub fn new(
        registry: Weak<dyn NodeRuntime>,
        creator_pid: u32,
        region: Option<Arc<Region>>,
        parent: Weak<TaskNode>,
        function: Function,
    ) -> Self {
        Self {
            state: AtomicU8::new(PENDING),
            number: AtomicU64::new(0),
            registry,
            creator_pid,
            region,
            parent,
            function: Mutex::new(Some(function)),
            ending: Mutex::default(),
            edges: Mutex::default(),
            children: Mutex::default(),
        }
    }

    pub fn number(&self) -> u64 {
        self.number.load(Ordering::Relaxed)
    }

    pub fn set_number(&self, number: u64) {
        self.number.store(number, Ordering::Relaxed);
    }

    pub fn region(&self) -> Option<&Arc<Region>> {
        self.region.as_ref()
    }

    pub fn creator_pid(&self) -> u32 {
        self.creator_pid
    }

    pub fn registry(&self) -> &Weak<dyn NodeRuntime> {
        &self.registry
    }

    pub fn status(&self) -> TaskStatus {
        match self.state.load(Ordering::Acquire) {
            PENDING => TaskStatus::Pending,
            RUNNING => TaskStatus::Running,
            READY => TaskStatus::Ready,
            PANICKED => TaskStatus::Panicked,
            _ => TaskStatus::Cancelled,
        }
    }

    pub fn has_ended(&self) -> bool {
        self.state.load(Ordering::Acquire) > RUNNING
    }

    pub fn is_pending(&self) -> bool {
        self.state.load(Ordering::Relaxed) == PENDING
    }

    /// Begins the task. Returns whether the caller must run or cancel it.
    pub fn claim(&self) -> bool {
        let exchanged =
            (self.state).compare_exchange(PENDING, RUNNING, Ordering::AcqRel, Ordering::Relaxed);
        exchanged.is_ok()
    }

    /// Calls the function of a claimed task, and wakes the threads that wait for it.
    pub fn run_claimed(&self, registry: Option<&dyn NodeRuntime>) {
        let function = mem::take(&mut *self.function.lock());
        let call = || function.into_iter().for_each(|function| function());
        let outcome = catch_unwind(AssertUnwindSafe(call));
        self.end(
            registry,
            outcome.err().map_or(Outcome::Ready, Outcome::Panicked),
        );
    }

    /// Drops the function of a claimed task, and wakes the threads that wait for it. A panic of the
    /// function's destructor continues after that.
    pub fn cancel_claimed(&self, registry: Option<&dyn NodeRuntime>) {
        let function = mem::take(&mut *self.function.lock());
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(function)));
        self.end(registry, Outcome::Cancelled);
        if let Err(panic) = dropped {
            resume_unwind(panic);
        }
    }

    /// Cancels the task if it has not begun. Returns whether it was cancelled.
    pub fn cancel(&self) -> bool {
        let is_claimed = self.claim();
        if is_claimed {
            self.cancel_claimed(self.registry.upgrade().as_deref());
        }
        is_claimed
    }

    fn end(&self, registry: Option<&dyn NodeRuntime>, outcome: Outcome) {
        let mut ending = self.ending.lock();
        let state = match outcome {
            Outcome::Ready => READY,
            Outcome::Cancelled => CANCELLED,
            Outcome::Panicked(payload) => {
                ending.message = message_of(&*payload);
                ending.panic = Some(payload);
                PANICKED
            }
        };
        self.state.store(state, Ordering::Release);
        let waiting = mem::take(&mut ending.waiting);
        let unreported = match ending.handles {
            0 => self.take_unreported(&mut ending),
            _ => None,
        };
        drop(ending);
        self.report(registry, unreported);
        for thread in waiting {
            match (thread, registry) {
                (NodeWaiter::Outside(latch), _) => latch.open(),
                (NodeWaiter::Worker(worker), Some(registry)) => registry.wake_for_node(worker),
                // Without a registry, there are no workers that wait.
                (_, None) => {}
            }
        }
        // The children keep one another alive no longer.
        let children = mem::take(&mut *self.children.lock());
        drop(children);
    }

    /// Adds a thread to be woken at the end of the task. Returns false if the task has ended.
    pub fn add_waiting(&self, thread: NodeWaiter) -> bool {
        let mut ending = self.ending.lock();
        let has_ended = self.has_ended();
        if !has_ended {
            ending.waiting.push(thread);
        }
        !has_ended
    }

    /// Adds a reference that a program holds.
    pub fn add_handle(&self) {
        self.ending.lock().handles += 1;
    }

    /// Removes a reference that a program holds. After the last one, a panic that no thread has
    /// seen is reported by the next wait for all tasks.
    pub fn remove_handle(&self) {
        let mut ending = self.ending.lock();
        ending.handles -= 1;
        let unreported = match ending.handles {
            0 => self.take_unreported(&mut ending),
            _ => None,
        };
        drop(ending);
        if unreported.is_some() {
            self.report(self.registry.upgrade().as_deref(), unreported);
        }
    }

    fn take_unreported(&self, ending: &mut Ending) -> Option<String> {
        let is_unreported = ending.panic.is_some() && !ending.is_reported;
        ending.is_reported |= is_unreported;
        is_unreported.then(|| ending.message.clone())
    }

    fn report(&self, registry: Option<&dyn NodeRuntime>, message: Option<String>) {
        if let (Some(registry), Some(message)) = (registry, message) {
            registry.report_panic(Panicked {
                task: self.number(),
                is_submitted: true,
                message,
            });
        }
    }

    /// Returns the message of the task's panic.
    pub fn panic_message(&self) -> String {
        let mut ending = self.ending.lock();
        ending.is_reported = true;
        ending.message.clone()
    }

    /// Takes the payload of the task's panic.
    pub fn take_panic(&self) -> Option<Payload> {
        let mut ending = self.ending.lock();
        ending.is_reported = true;
        ending.panic.take()
    }

    /// Returns whether this task is `other`, or a running ancestor of `other`.
    pub fn is_ancestor_or_self(&self, other: &Self) -> bool {
        if ptr::eq(self, other) {
            return true;
        }
        let mut at = other.parent.upgrade();
        while let Some(ancestor) = at.filter(|ancestor| !ancestor.has_ended()) {
            if ptr::eq(self, &raw const *ancestor) {
                return true;
            }
            at = ancestor.parent.upgrade();
        }
        false
    }

    /// Adds a task that this task has submitted. Removes tasks that have ended now and then, so
    /// that the list has at most twice as many tasks as have not ended, plus 64.
    pub fn add_child(&self, child: &Arc<Self>) {
        let mut children = self.children.lock();
        if children.len() == children.capacity() {
            children.retain(|child| !child.has_ended());
            let spare = children.len().max(64);
            children.reserve(spare);
        }
        children.push_back(Arc::clone(child));
    }

    /// Returns the oldest descendant that has not begun and for which `may_run` returns true; `None`
    /// if there is none.
    pub fn pending_descendant(&self, may_run: impl Fn(&Self) -> bool) -> Option<Arc<Self>> {
        let mut running = Vec::new();
        if let Some(found) = self.pending_child(&may_run, &mut running) {
            return Some(found);
        }
        while let Some(next) = running.pop() {
            if let Some(found) = next.pending_child(&may_run, &mut running) {
                return Some(found);
            }
        }
        None
    }

    /// Returns the oldest child that has not begun and may run, or adds the running children to a
    /// list. Children that have ended are removed from the front only, which takes constant time for
    /// each.
    fn pending_child(
        &self,
        may_run: &impl Fn(&Self) -> bool,
        running: &mut Vec<Arc<Self>>,
    ) -> Option<Arc<Self>> {
        let mut children = self.children.lock();
        while children.front().is_some_and(|child| child.has_ended()) {
            children.pop_front();
        }
        let mut pending = children.iter().filter(|child| child.is_pending());
        if let Some(found) = pending.find(|child| may_run(child)) {
            return Some(Arc::clone(found));
        }
        running.extend(children.iter().filter(|child| !child.has_ended()).cloned());
        None
    }

    pub fn set_above(&self, above: Option<Arc<Self>>) {
        let before = mem::replace(&mut self.edges.lock().above, above);
        drop(before);
    }

    pub fn add_target(&self, target: &Arc<Self>) {
        self.edges.lock().targets.push(Arc::clone(target));
    }

    pub fn remove_target(&self, target: &Arc<Self>) {
        let mut edges = self.edges.lock();
        let at = (edges.targets.iter()).position(|other| Arc::ptr_eq(other, target));
        let removed = at.map(|at| edges.targets.swap_remove(at));
        drop(edges);
        drop(removed);
    }

    /// Adds the tasks for which this task waits to `next`.
    pub fn waits_for(&self, next: &mut Vec<Arc<Self>>) {
        let edges = self.edges.lock();
        next.extend(edges.above.iter().chain(&edges.targets).cloned());
    }
}

impl Drop for TaskNode {
    fn drop(&mut self) {
        let panic = self.ending.lock().panic.take();
        panic.into_iter().for_each(discard);
    }
}

/// How a task has ended.
enum Outcome {
    Ready,
    Panicked(Payload),
    Cancelled,
}

/// Returns the message of a panic, if its payload is a string.
fn message_of(payload: &(dyn Any + Send)) -> String {
    let text = payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned());
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "without a message".to_owned())
}

#[cfg(all(test, feature = "loom"))]
mod interleavings {
    use loom::cell::UnsafeCell;
    use loom::thread;

    use super::*;

    /// The result of a task, in a cell that loom checks.
    struct Data(UnsafeCell<u32>);

    // SAFETY: loom fails the test if an access overlaps with a write.
    unsafe impl Sync for Data {}
    // SAFETY: the value may be used on any thread.
    unsafe impl Send for Data {}

    /// A runtime without workers.
    struct NoRuntime;

    impl NodeRuntime for NoRuntime {
        fn wake_for_node(&self, _: usize) {}

        fn report_panic(&self, _: Panicked) {}
    }

    fn node(data: &loom::sync::Arc<Data>) -> loom::sync::Arc<TaskNode> {
        let own = loom::sync::Arc::clone(data);
        // SAFETY: loom fails the test if an access overlaps with this write.
        let write = move || own.0.with_mut(|data| unsafe { *data += 1 });
        loom::sync::Arc::new(TaskNode::new(
            Weak::<NoRuntime>::new(),
            0,
            None,
            Weak::new(),
            Box::new(write),
        ))
    }

    fn model(explore: impl Fn() + Send + Sync + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(explore);
    }

    fn wait(node: &TaskNode) {
        let latch = Arc::new(Latch::default());
        if node.add_waiting(NodeWaiter::Outside(Arc::clone(&latch))) {
            latch.wait();
        }
    }

    /// A worker takes the task from a queue, another worker waits for it and tries to run it, and a
    /// thread outside waits. The task runs once, and both waiting threads see its writes.
    #[test]
    fn waiting_threads_see_the_result_of_a_task_that_runs_once() {
        model(|| {
            let data = loom::sync::Arc::new(Data(UnsafeCell::new(0)));
            let node = node(&data);
            let runner = {
                let (node, data) = (loom::sync::Arc::clone(&node), loom::sync::Arc::clone(&data));
                thread::spawn(move || {
                    match node.claim() {
                        true => node.run_claimed(None),
                        false => wait(&node),
                    }
                    // SAFETY: loom fails the test if this read overlaps with a write.
                    data.0.with(|data| assert_eq!(unsafe { *data }, 1));
                })
            };
            let other = loom::sync::Arc::clone(&node);
            let queue = thread::spawn(move || {
                if other.claim() {
                    other.run_claimed(None);
                }
            });
            wait(&node);
            assert_eq!(node.status(), TaskStatus::Ready);
            // SAFETY: loom fails the test if this read overlaps with a write.
            data.0.with(|data| assert_eq!(unsafe { *data }, 1));
            assert!(runner.join().is_ok() && queue.join().is_ok());
        });
    }

    /// A thread cancels a task while a worker takes it from a queue. The task runs or is cancelled,
    /// and the waiting thread is woken in both cases.
    #[test]
    fn a_cancelled_task_does_not_run() {
        model(|| {
            let data = loom::sync::Arc::new(Data(UnsafeCell::new(0)));
            let node = node(&data);
            let [one, other] = [(); 2].map(|()| loom::sync::Arc::clone(&node));
            let queue = thread::spawn(move || {
                if one.claim() {
                    one.run_claimed(None);
                }
            });
            let canceller = thread::spawn(move || other.cancel());
            wait(&node);
            let is_cancelled = canceller.join().unwrap();
            assert!(queue.join().is_ok());
            let expected = match is_cancelled {
                true => (TaskStatus::Cancelled, 0),
                false => (TaskStatus::Ready, 1),
            };
            // SAFETY: loom fails the test if this read overlaps with a write.
            let ran = data.0.with(|data| unsafe { *data });
            assert_eq!((node.status(), ran), expected);
        });
    }
}
