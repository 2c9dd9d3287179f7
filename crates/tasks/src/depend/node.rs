// SPDX-License-Identifier: MIT OR Apache-2.0
//! A task with predecessors. It becomes ready when all predecessors have ended.
//!
//! 1. The number of pending events counts the predecessors that have not ended, and the declaration
//!    of the task itself. The thread that decrements the number to 0 submits the task.
//! 2. A task that ends takes its list of successors under its lock. Afterwards, a task that is
//!    declared as a successor sees that the task has ended, and does not wait for it.
//! 3. If a predecessor has failed or was dropped, the task is dropped instead of submitted, and
//!    counts as failed itself.
//!
//! The end of a task takes time linear in the number of its successors. Tasks that are dropped one
//! after the other use a list, not the stack.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::{mem, thread};

use crate::handle::TaskHint;
use crate::sync::{AtomicBool, AtomicUsize, Mutex, Ordering};

/// The message of a panic.
type Panic = Box<dyn Any + Send>;

/// The function of a task.
pub(super) type TaskFunction = Box<dyn FnOnce() + Send>;

/// A task, from its declaration to its end.
pub(super) struct Node {
    /// The groups of the task, or its data.
    pub hint: TaskHint,
    /// Predecessors that have not ended, and 1 until the task is declared.
    pending: AtomicUsize,
    /// Whether a predecessor has failed. It is written before the decrement of `pending`.
    is_skipped: AtomicBool,
    state: Mutex<State>,
}

/// The state that the lock of a task protects.
#[derive(Default)]
struct State {
    function: Option<TaskFunction>,
    successors: Vec<Arc<Node>>,
    outcome: Option<Outcome>,
}

/// How a task has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Succeeded,
    /// The task has panicked, or was dropped before it ran.
    Failed,
}

impl Node {
    pub fn new(hint: TaskHint, function: TaskFunction) -> Arc<Self> {
        Arc::new(Self {
            hint,
            pending: AtomicUsize::new(1),
            is_skipped: AtomicBool::new(false),
            state: Mutex::new(State {
                function: Some(function),
                ..State::default()
            }),
        })
    }

    /// Returns whether the task has ended successfully, so that no task waits for it.
    pub fn has_succeeded(&self) -> bool {
        self.state.lock().outcome == Some(Outcome::Succeeded)
    }

    /// Takes the function, which runs once.
    pub fn take_function(&self) -> Option<TaskFunction> {
        self.state.lock().function.take()
    }

    /// Makes `next`, which is being declared, wait for this task.
    pub fn precede(&self, next: &Arc<Self>) {
        let mut state = self.state.lock();
        match state.outcome {
            Some(Outcome::Succeeded) => (),
            Some(Outcome::Failed) => next.is_skipped.store(true, Ordering::Relaxed),
            None => {
                next.pending.fetch_add(1, Ordering::Relaxed);
                state.successors.push(Arc::clone(next));
            }
        }
    }

    /// Ends the declaration of the task: calls `submit` if the task is ready, and drops the task if
    /// a predecessor has failed.
    pub fn declare<E>(
        self: Arc<Self>,
        submit: impl FnOnce(Arc<Self>) -> Result<(), E>,
    ) -> Result<(), E> {
        match self.count_event() {
            true if self.is_skipped() => {
                self.end(Outcome::Failed, |_| ());
                Ok(())
            }
            true => submit(self),
            false => Ok(()),
        }
    }

    /// Counts an event for which the task waited, and returns whether it was the last one.
    fn count_event(&self) -> bool {
        // The last decrement sees the writes before all others.
        self.pending.fetch_sub(1, Ordering::AcqRel) == 1
    }

    fn is_skipped(&self) -> bool {
        self.is_skipped.load(Ordering::Relaxed)
    }

    /// Ends the task, and calls `submit` for each successor that is now ready. Successors of a
    /// failed task are dropped, and their successors, too. If the drop of a function panics, the
    /// panic continues after all tasks were ended, unless this thread panics already.
    pub fn end(self: Arc<Self>, outcome: Outcome, mut submit: impl FnMut(Arc<Self>)) {
        let mut panic = None;
        let mut ended = vec![(self, outcome)];
        while let Some((node, outcome)) = ended.pop() {
            let (successors, dropped) = node.take_successors(outcome);
            panic = panic.or(dropped.err());
            for next in successors {
                if outcome == Outcome::Failed {
                    next.is_skipped.store(true, Ordering::Relaxed);
                }
                match next.count_event() {
                    true if next.is_skipped() => ended.push((next, Outcome::Failed)),
                    true => submit(next),
                    false => (),
                }
            }
        }
        if let Some(panic) = panic.filter(|_| !thread::panicking()) {
            resume_unwind(panic);
        }
    }

    /// Records the outcome, drops the function if it did not run, and returns the successors, and
    /// the panic of the drop.
    fn take_successors(&self, outcome: Outcome) -> (Vec<Arc<Self>>, Result<(), Panic>) {
        let mut state = self.state.lock();
        state.outcome = Some(outcome);
        let function = state.function.take();
        let successors = mem::take(&mut state.successors);
        // The drop of a function may run code of the program, so the lock is released before.
        drop(state);
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(function)));
        (successors, dropped)
    }

    /// Marks a task that was rejected, so that later tasks ignore it.
    pub fn mark_rejected(&self) {
        self.state.lock().outcome = Some(Outcome::Succeeded);
    }
}
