// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tasks that are ordered by the data that they read and write, as by OpenMP's clause `depend`.
//!
//! The program submits tasks in the order of a sequential program, and names the data of each task
//! by addresses. A task that reads data runs after the last task before it that writes the data. A
//! task that writes data runs after all tasks before it that use the data. A table contains, for
//! each address, the last task that writes and the tasks that have read since.
//!
//! Submitting a task takes time linear in the number of its accesses and predecessors. Entries of
//! tasks that have ended are removed when the table has doubled in size, and those of a list of
//! readers when the list has doubled. The table thus has at most twice the entries that unfinished
//! and failed tasks need, or 64 entries. Entries of failed tasks remain, because the tasks that
//! depend on them are dropped, whenever they are submitted.

mod node;

use std::fmt;
use std::sync::Arc;
use std::thread;

use hashbrown::HashMap;

use self::node::{Node, Outcome};
use crate::dispatch::Groups;
use crate::error::SubmitError;
use crate::handle::{self, Handle, TaskHint};
use crate::sync::Mutex;

/// Minimum size of the table, and of a list of readers, before ended tasks are removed.
const SWEEP_MIN: usize = 64;

/// How a task uses the data at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// The task reads the data. OpenMP: `depend(in: …)`.
    In(usize),
    /// The task writes the data, or reads and writes it. OpenMP: `depend(out: …)` and
    /// `depend(inout: …)`, which have the same effect.
    Out(usize),
}

impl Access {
    fn address(self) -> usize {
        match self {
            Self::In(address) | Self::Out(address) => address,
        }
    }
}

/// Submits tasks that are ordered by the data that they read and write.
///
/// ```
/// use std::sync::atomic::{AtomicU32, Ordering};
/// use std::sync::Arc;
/// use usher_tasks::{Access, DataDependencies, Groups, Runtime};
///
/// let runtime = Runtime::new(2)?;
/// let tasks = DataDependencies::new(runtime.handle());
/// let value = Arc::new(AtomicU32::new(0));
/// for step in [3, 4] {
///     let value = Arc::clone(&value);
///     let accesses = [Access::Out(Arc::as_ptr(&value).addr())];
///     tasks.submit(Groups::NONE, &accesses, move || {
///         // The tasks run in this order, because both write the value.
///         value.store(value.load(Ordering::Relaxed) * 10 + step, Ordering::Relaxed);
///     })?;
/// }
/// runtime.wait()?;
/// assert_eq!(value.load(Ordering::Relaxed), 34);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The addresses are only compared: they may be any numbers that identify data. Two accesses
/// overlap only if their addresses are equal. Only tasks of the same `DataDependencies` are ordered.
/// Any thread and any task may submit tasks; tasks that are submitted at the same time by several
/// threads are ordered by the order of the calls.
///
/// `Runtime::wait` waits for the tasks, and they may be dropped by `Runtime::cancel`, as for other
/// submitted tasks. If a task panics or is dropped, all tasks that depend on it, directly or through
/// other tasks, are dropped without being run, whenever they are submitted. Use a new
/// `DataDependencies` after a failure.
///
/// The drop of a `DataDependencies` does not affect its tasks.
pub struct DataDependencies {
    runtime: Handle,
    data: Mutex<Table>,
}

/// The tasks that use the data at an address.
#[derive(Default)]
struct Datum {
    writer: Option<Arc<Node>>,
    /// The tasks that read the data since they were written last.
    readers: Vec<Arc<Node>>,
    /// The number of readers at which those that have ended are removed.
    sweep_at: usize,
}

struct Table {
    data: HashMap<usize, Datum>,
    /// The number of entries at which those without unfinished tasks are removed.
    sweep_at: usize,
}

impl DataDependencies {
    /// Creates an empty table for tasks of this runtime.
    pub fn new(runtime: Handle) -> Self {
        Self {
            runtime,
            data: Mutex::new(Table {
                data: HashMap::new(),
                sweep_at: SWEEP_MIN,
            }),
        }
    }

    /// Submits a task that runs after the tasks before it that use the same data, as `accesses`
    /// states. A task without groups is grouped by the address of its first access.
    ///
    /// # Errors
    /// In the cases in which [`crate::Runtime::submit`] returns an error, and if the runtime was
    /// dropped or belongs to the parent of this forked process. The task is then dropped. Tasks that other threads have submitted during the call,
    /// and that depend on it, are dropped, too.
    pub fn submit(
        &self,
        groups: Groups,
        accesses: &[Access],
        task: impl FnOnce() + Send + 'static,
    ) -> Result<(), SubmitError> {
        let hint = match (groups, accesses.first()) {
            (Groups::NONE, Some(access)) => TaskHint::Data(access.address()),
            _ => TaskHint::Groups(groups),
        };
        let registry = self.runtime.registry().ok_or(SubmitError::Ended)?;
        handle::check_submission(&registry, hint)?;
        if registry.is_in_forked_child() {
            return Err(SubmitError::Ended);
        }
        let node = Node::new(hint, Box::new(task));
        self.data.lock().add(&node, accesses);
        let declared = Arc::clone(&node).declare(|node| submit(&self.runtime, node));
        if declared.is_err() {
            node.mark_rejected();
        }
        declared
    }
}

impl Table {
    /// Makes a task wait for the tasks with which its accesses conflict, and enters it.
    fn add(&mut self, node: &Arc<Node>, accesses: &[Access]) {
        for &access in accesses {
            let datum = self.data.entry(access.address()).or_default();
            match access {
                Access::In(_) => datum.read(node),
                Access::Out(_) => datum.write(node),
            }
        }
        if self.data.len() >= self.sweep_at {
            self.data.retain(|_, datum| datum.is_used());
            self.sweep_at = (2 * self.data.len()).max(SWEEP_MIN);
        }
    }
}

impl Datum {
    fn read(&mut self, node: &Arc<Node>) {
        if let Some(writer) = self.writer.as_ref() {
            if Arc::ptr_eq(writer, node) {
                return;
            }
            writer.precede(node);
        }
        if self.readers.len() >= self.sweep_at {
            self.readers.retain(|reader| !reader.has_succeeded());
            self.sweep_at = (2 * self.readers.len()).max(SWEEP_MIN);
        }
        self.readers.push(Arc::clone(node));
    }

    fn write(&mut self, node: &Arc<Node>) {
        let is_other = |before: &&Arc<Node>| !Arc::ptr_eq(before, node);
        // The readers run after the last writer.
        let others = self.readers.iter().filter(is_other);
        match self.readers.is_empty() {
            true => (self.writer.iter().filter(is_other)).for_each(|writer| writer.precede(node)),
            false => others.for_each(|reader| reader.precede(node)),
        }
        self.readers.clear();
        self.writer = Some(Arc::clone(node));
    }

    /// Returns whether a later task may have to wait for a task of this entry.
    fn is_used(&self) -> bool {
        (self.writer.iter().chain(&self.readers)).any(|node| !node.has_succeeded())
    }
}

/// A ready task. If it is dropped without being run, it counts as failed.
struct ReadyTask {
    runtime: Handle,
    node: Arc<Node>,
    outcome: Outcome,
}

impl ReadyTask {
    fn run(mut self) {
        if let Some(function) = self.node.take_function() {
            function();
        }
        self.outcome = Outcome::Succeeded;
    }
}

impl Drop for ReadyTask {
    fn drop(&mut self) {
        let mut error = None;
        let node = Arc::clone(&self.node);
        node.end(self.outcome, |next| {
            error = submit(&self.runtime, next).err().or(error.take());
        });
        // There was no memory. The failure of this task reports it.
        if let Some(error) = error.filter(|_| !thread::panicking()) {
            panic!("{error}");
        }
    }
}

fn submit(runtime: &Handle, node: Arc<Node>) -> Result<(), SubmitError> {
    let registry = runtime.registry().ok_or(SubmitError::Ended)?;
    let hint = node.hint;
    let ready = ReadyTask {
        runtime: runtime.clone(),
        node,
        outcome: Outcome::Failed,
    };
    handle::submit(&registry, hint, move || ready.run())
}

impl fmt::Debug for DataDependencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses = self.data.lock().data.len();
        f.debug_struct("DataDependencies")
            .field("addresses", &addresses)
            .finish()
    }
}

#[cfg(all(test, feature = "loom"))]
mod interleavings;
