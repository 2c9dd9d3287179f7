// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can go wrong, and with which task.

use std::any::Any;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::dispatch::Groups;

/// A runtime that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// There would be nobody to run a task, or more threads than can be.
    #[error("{count} workers: there can be 1 to {most}")]
    Workers {
        /// Those asked for.
        count: usize,
        /// The most.
        most: usize,
    },
    /// The paper's policy would keep too many queues.
    #[error("{t_groups} x {s_groups} groups: there can be {most} queues")]
    Groups {
        /// Temporal groups asked for.
        t_groups: u32,
        /// Spatial groups asked for.
        s_groups: u32,
        /// The most queues.
        most: u64,
    },
    /// There is no memory for the policy's queues.
    #[error("no memory for {queues} queues of ready tasks")]
    Memory {
        /// How many.
        queues: u64,
    },
    /// The system has no thread for us.
    #[error("starting worker {worker}: {source}")]
    Thread {
        /// Which one, from 0.
        worker: usize,
        /// What the system says.
        source: std::io::Error,
    },
}

/// A graph that cannot be run.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum GraphError {
    /// Some tasks would wait for themselves.
    #[error("the tasks {} wait for one another in a circle", list(.tasks))]
    Cycle {
        /// One circle, each after the one before it and the first after the last.
        tasks: Vec<usize>,
    },
    /// What is named is no task of this graph.
    #[error("task {task} is none: the graph has {count}")]
    NoSuchTask {
        /// The number.
        task: usize,
        /// How many there are.
        count: usize,
    },
    /// A graph has more tasks or dependencies than can be numbered.
    #[error("a graph of {count} {what}: there can be {}", u32::MAX)]
    TooLarge {
        /// How many.
        count: usize,
        /// Of what.
        what: &'static str,
    },
}

/// A task that cannot be registered or resolved.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TaskError {
    /// There is a task of that token, which has not run yet.
    #[error("task {token} is registered already and has not run")]
    Registered {
        /// The token.
        token: u64,
    },
    /// It waits for less than has been resolved.
    #[error("task {token} was resolved {} and waits for {count}", self::times(*.times))]
    ResolvedTooOften {
        /// The token.
        token: u64,
        /// How often it was resolved.
        times: u32,
        /// What it was registered with.
        count: u32,
    },
    /// The policy keeps tables of groups, and these lie outside.
    #[error("task {token} in groups {}", outside(.groups, *.t_groups, *.s_groups))]
    Groups {
        /// The token.
        token: u64,
        /// Those asked for.
        groups: Groups,
        /// How many temporal groups there are, 0 included.
        t_groups: u32,
        /// How many spatial groups there are, 0 included.
        s_groups: u32,
    },
    /// No memory.
    #[error("task {token}: no memory")]
    Memory {
        /// The token.
        token: u64,
    },
    /// The runtime has been dropped.
    #[error("task {token}: the runtime has ended")]
    Ended {
        /// The token.
        token: u64,
    },
}

/// Waiting for tasks that have not all run in the end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WaitError {
    /// A task waits for all tasks, itself included.
    #[error("a task cannot wait for all tasks of its own runtime")]
    Inside,
    /// A task waits for a runtime whose tasks wait for its own.
    #[error(
        "the calling task would wait for a runtime whose tasks wait for the runtime of that task"
    )]
    Deadlock,
    /// The runtime's workers are threads of another process.
    #[error("{}", forked(*.maker))]
    Forked {
        /// The process that made it.
        maker: u32,
    },
    /// Nothing is ready any more, and not all is well.
    #[error("{}", left(.0))]
    Left(Left),
    /// Nothing is ready any more, not all is well, and there is no memory to say with
    /// which tasks. Those that panicked are told by the next wait.
    #[error(
        "no memory to name what is left: {panicked} panicked, {unresolved} never resolved, \
         {unregistered} resolved and never registered"
    )]
    Memory {
        /// Tasks that panicked.
        panicked: usize,
        /// Tasks that wait.
        unresolved: usize,
        /// Tokens that were resolved and never registered.
        unregistered: usize,
    },
}

/// What was left when nothing was ready any more.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Left {
    /// Tasks that panicked.
    pub panicked: Vec<Panicked>,
    /// Tasks that wait, with how often they have to be resolved yet: for one
    /// another, or for somebody who does not come.
    pub unresolved: Vec<(u64, u32)>,
    /// Tokens that were resolved and never registered.
    pub unregistered: Vec<u64>,
}

impl Left {
    pub(crate) fn is_empty(&self) -> bool {
        self.panicked.is_empty() && self.unresolved.is_empty() && self.unregistered.is_empty()
    }
}

/// A task that panicked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Panicked {
    /// Its number or token.
    pub task: u64,
    /// What it said.
    pub message: String,
}

/// A run of a graph that has failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// The policy keeps tables of groups, and a task's lie outside. Nothing was run.
    #[error("task {task} in groups {}", outside(.groups, *.t_groups, *.s_groups))]
    Groups {
        /// The task's number.
        task: usize,
        /// Its groups.
        groups: Groups,
        /// How many temporal groups there are, 0 included.
        t_groups: u32,
        /// How many spatial groups there are, 0 included.
        s_groups: u32,
    },
    /// A task runs it on a runtime whose tasks wait for its own. Nothing was run.
    #[error(
        "the calling task would wait for a runtime whose tasks wait for the runtime of that task"
    )]
    Deadlock,
    /// The runtime's workers are threads of another process. Nothing was run.
    #[error("{}", forked(*.maker))]
    Forked {
        /// The process that made it.
        maker: u32,
    },
    /// A task runs it, and there is no memory for queues of what becomes ready by that.
    /// Nothing was run.
    #[error("no memory for the queues of a graph that a task runs")]
    Memory,
    /// Tasks panicked.
    #[error("{}; {} not run after that", told(.panicked), were(*.skipped))]
    Panicked {
        /// Those that did, in the order in which they did.
        panicked: Vec<Panicked>,
        /// Tasks that were not run, as others had panicked before.
        skipped: u64,
    },
}

/// Groups for which there is no place, and which there are.
fn outside(groups: &Groups, t_groups: u32, s_groups: u32) -> String {
    let Groups { t, s } = groups;
    format!("T {t} and S {s}: T must be below {t_groups} and S below {s_groups}")
}

fn times(count: u32) -> String {
    match count {
        1 => "once".to_owned(),
        _ => format!("{count} times"),
    }
}

fn were(tasks: u64) -> String {
    match tasks {
        1 => "1 task was".to_owned(),
        _ => format!("{tasks} tasks were"),
    }
}

fn forked(maker: u32) -> String {
    format!(
        "the runtime was made by process {maker}, from which this one was forked: it has no \
         workers here"
    )
}

fn list<T: ToString>(tasks: &[T]) -> String {
    const SHOWN: usize = 20;
    let mut words: Vec<String> = tasks.iter().take(SHOWN).map(T::to_string).collect();
    if tasks.len() > SHOWN {
        words.push(format!("... ({} in all)", tasks.len()));
    }
    words.join(", ")
}

fn left(error: &Left) -> String {
    let mut told = Vec::new();
    if !error.panicked.is_empty() {
        told.push(self::told(&error.panicked));
    }
    if !error.unresolved.is_empty() {
        let one = |(token, left): &(u64, u32)| format!("{token} ({left} more)");
        let tokens: Vec<String> = error.unresolved.iter().map(one).collect();
        told.push(format!("never resolved: {}", list(&tokens)));
    }
    if !error.unregistered.is_empty() {
        let tokens = list(&error.unregistered);
        told.push(format!("resolved and never registered: {tokens}"));
    }
    told.join("; ")
}

fn told(panicked: &[Panicked]) -> String {
    match panicked {
        [] => "no task panicked".to_owned(),
        [one] => format!("task {} panicked: {}", one.task, one.message),
        [first, rest @ ..] => format!(
            "task {} panicked: {} (and {} more)",
            first.task,
            first.message,
            rest.len()
        ),
    }
}

/// What a panic said, where it said it in words.
pub(crate) fn message(panic: Box<dyn Any + Send>) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    discard(panic);
    text.unwrap_or_else(|| "without a message".to_owned())
}

/// Drops what a panic threw. It may throw when it is dropped, and so on; at some point
/// nobody drops what comes of that.
pub(crate) fn discard(mut thrown: Box<dyn Any + Send>) {
    for _ in 0..8 {
        match catch_unwind(AssertUnwindSafe(|| drop(thrown))) {
            Ok(()) => return,
            Err(again) => thrown = again,
        }
    }
    mem::forget(thrown);
}
