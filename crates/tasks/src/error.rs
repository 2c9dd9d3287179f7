// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors of the runtime, of graphs, of registered tasks and of waits, with the numbers or tokens
//! of the tasks that they concern, and the handling of panic payloads. A message lists at most 20
//! tasks of each kind. A payload with a drop that panics again and again is leaked after 8 panics.

use std::any::Any;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::dispatch::Groups;

/// The reason for which a runtime cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// The number of workers is 0 or too large.
    #[error("the number of workers must be from 1 to {max}, not {count}")]
    Workers {
        /// The requested number.
        count: usize,
        /// Upper limit of the number of workers.
        max: usize,
    },
    /// The policy `paper` would need too many queues.
    #[error(
        "{t_groups} temporal groups x {s_groups} spatial groups need too many queues: the \
         maximum is {max}"
    )]
    Groups {
        /// The requested number of temporal groups.
        t_groups: u32,
        /// The requested number of spatial groups.
        s_groups: u32,
        /// Upper limit of the number of queues.
        max: u64,
    },
    /// There is no memory for the policy's queues.
    #[error("out of memory: the runtime cannot allocate {queues} queues of ready tasks")]
    Memory {
        /// The number of queues.
        queues: u64,
    },
    /// The range of dense tokens ends before it begins, or is too long.
    #[error(
        "invalid range of dense tokens {start}..{end}: the end must be at least the start, and at \
         most {max} more"
    )]
    DenseTokens {
        /// The first token of the range.
        start: u64,
        /// The first token after the range.
        end: u64,
        /// Upper limit of the number of tokens.
        max: u64,
    },
    /// There is no memory for the dense tokens.
    #[error("out of memory: the runtime cannot allocate {tokens} dense tokens of 64 bytes each")]
    DenseMemory {
        /// The number of tokens.
        tokens: u64,
    },
    /// The system could not start a thread for a worker.
    #[error("starting the thread of worker {worker}: {source}")]
    Thread {
        /// Number of the worker that was to run on the thread, from 0.
        worker: usize,
        /// The operating system's error.
        source: std::io::Error,
    },
}

/// The reason for which a graph cannot be built.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum GraphError {
    /// The dependencies form a cycle, so the tasks of the cycle would wait for themselves.
    #[error("dependency cycle: the tasks {} wait for one another", list(.tasks))]
    Cycle {
        /// The tasks of one cycle. Each task waits for the task before it in the list, and the
        /// first task waits for the last task.
        tasks: Vec<usize>,
    },
    /// A declaration names a task that does not exist.
    #[error("the graph has no task {task}: it has {count} tasks")]
    NoSuchTask {
        /// The number that the caller passed.
        task: usize,
        /// Number of tasks of the graph.
        count: usize,
    },
    /// The graph has more tasks or dependencies than 32-bit numbers can count.
    #[error("the graph has {count} {what}: the maximum is {}", u32::MAX)]
    TooLarge {
        /// Number of tasks or dependencies.
        count: usize,
        /// The name of what exceeds the limit: `tasks` or `dependencies`.
        what: &'static str,
    },
}

/// The reason for which a task cannot be registered or resolved.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TaskError {
    /// Another task with this token is registered and has not run yet.
    #[error(
        "the token {token} is in use: a task with this token is registered and has not run yet"
    )]
    Registered {
        /// The token.
        token: u64,
    },
    /// The token was resolved more often than the task waits for.
    #[error("task {token} was resolved {}, but waits for only {count}", self::times(*.times))]
    ResolvedTooOften {
        /// The token.
        token: u64,
        /// Number of resolutions.
        times: u32,
        /// The count given at registration.
        count: u32,
    },
    /// A group number of the task is not below the limits of the policy.
    #[error("task {token} has invalid groups: {}", outside(.groups, *.t_groups, *.s_groups))]
    Groups {
        /// The token.
        token: u64,
        /// The groups given.
        groups: Groups,
        /// Number of temporal groups, counting group 0.
        t_groups: u32,
        /// Number of spatial groups, counting group 0.
        s_groups: u32,
    },
    /// There is no memory for the task.
    #[error("out of memory: task {token} cannot be stored")]
    Memory {
        /// The token.
        token: u64,
    },
    /// The runtime has been dropped.
    #[error("task {token} is rejected, because the runtime has ended")]
    Ended {
        /// The token.
        token: u64,
    },
}

/// The reason for which a task cannot be submitted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// A group number of the task is not below the limits of the policy.
    #[error("a submitted task has invalid groups: {}", outside(.groups, *.t_groups, *.s_groups))]
    Groups {
        /// The groups given.
        groups: Groups,
        /// Number of temporal groups, counting group 0.
        t_groups: u32,
        /// Number of spatial groups, counting group 0.
        s_groups: u32,
    },
    /// There is no memory for the task.
    #[error("out of memory: a submitted task cannot be stored")]
    Memory,
    /// The runtime has been dropped.
    #[error("a submitted task is rejected, because the runtime has ended")]
    Ended,
}

/// A handle was used to open a scope outside the tasks of its runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a handle can open a scope only in a task of its runtime; use Runtime::scope instead")]
pub struct NotATask;

/// A wait ended with unfinished tasks, or was rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WaitError {
    /// A task waited for all tasks of its own runtime, and thus for itself.
    #[error("a task cannot wait for all tasks of its own runtime")]
    Inside,
    /// A task waited for another runtime, whose tasks wait for the runtime of the waiting task.
    #[error(
        "deadlock: the calling task would wait for another runtime, whose tasks wait for the \
         runtime of the calling task"
    )]
    Deadlock,
    /// The caller is in a forked child, but the workers are threads of the parent process.
    #[error("{}", forked(*.creator_pid))]
    Forked {
        /// The process that created the runtime.
        creator_pid: u32,
    },
    /// No task is ready any more, and some tasks are unfinished or have panicked.
    #[error("{}", unfinished(.0))]
    Unfinished(UnfinishedTasks),
    /// No task is ready any more, some tasks are unfinished or have panicked, and there is no
    /// memory to list these tasks. The next wait lists the tasks that panicked.
    #[error(
        "tasks are unfinished, and no memory is left to list them: {panicked} panicked, \
         {unresolved} were never resolved, {unregistered} were resolved but never registered"
    )]
    Memory {
        /// Tasks that panicked.
        panicked: usize,
        /// Tasks that wait to be resolved.
        unresolved: usize,
        /// Tokens that were resolved and never registered.
        unregistered: usize,
    },
}

/// The tasks that have panicked or cannot run, reported when no task is ready any more.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnfinishedTasks {
    /// Tasks that panicked.
    pub panicked: Vec<Panicked>,
    /// Registered tasks that wait for resolutions: pairs of the token and the number of missing
    /// resolutions.
    pub unresolved: Vec<(u64, u32)>,
    /// Tokens that were resolved and never registered.
    pub unregistered: Vec<u64>,
}

impl UnfinishedTasks {
    pub(crate) fn is_empty(&self) -> bool {
        self.panicked.is_empty() && self.unresolved.is_empty() && self.unregistered.is_empty()
    }
}

/// A task that panicked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Panicked {
    /// Token of the task, or its number in the graph. For a submitted task, a number that the
    /// runtime has given to the task.
    pub task: u64,
    /// Whether the task was submitted without a token.
    pub is_submitted: bool,
    /// The message of the panic.
    pub message: String,
}

/// The reason for which the run of a graph failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// A group number of a task is not below the limits of the policy. No task was run.
    #[error("task {task} has invalid groups: {}", outside(.groups, *.t_groups, *.s_groups))]
    Groups {
        /// Number of the task.
        task: usize,
        /// Groups of the task.
        groups: Groups,
        /// Number of temporal groups, counting group 0.
        t_groups: u32,
        /// Number of spatial groups, counting group 0.
        s_groups: u32,
    },
    /// The calling task tried to run the graph on a runtime whose tasks wait for the calling task's
    /// own runtime. No task was run.
    #[error(
        "deadlock: the calling task would wait for another runtime, whose tasks wait for the \
         runtime of the calling task"
    )]
    Deadlock,
    /// The caller is in a forked child, but the workers are threads of the parent process. No task
    /// was run.
    #[error("{}", forked(*.creator_pid))]
    Forked {
        /// The process that created the runtime.
        creator_pid: u32,
    },
    /// The calling task tried to run the graph, and there is no memory for queues of the graph's
    /// tasks. No task was run.
    #[error("out of memory: the queues of a graph that a task runs cannot be allocated")]
    Memory,
    /// The run was cancelled, and no task panicked.
    #[error("the run of the graph was cancelled; {} not run", tasks_were(*.skipped))]
    Cancelled {
        /// Number of tasks that were not run.
        skipped: u64,
    },
    /// Tasks panicked.
    #[error("{}; {} not run because of the panic", panics(.panicked), tasks_were(*.skipped))]
    Panicked {
        /// The tasks that panicked, in order of time.
        panicked: Vec<Panicked>,
        /// Number of tasks that were not run because another task had panicked before.
        skipped: u64,
    },
}

/// Formats groups and the limits that they exceed.
fn outside(groups: &Groups, t_groups: u32, s_groups: u32) -> String {
    let Groups { t, s } = groups;
    format!("T is {t} and S is {s}, but T must be less than {t_groups} and S less than {s_groups}")
}

fn times(count: u32) -> String {
    match count {
        1 => "once".to_owned(),
        _ => format!("{count} times"),
    }
}

fn tasks_were(tasks: u64) -> String {
    match tasks {
        1 => "1 task was".to_owned(),
        _ => format!("{tasks} tasks were"),
    }
}

pub(crate) fn forked(creator_pid: u32) -> String {
    format!(
        "the runtime has no workers in this process: process {creator_pid} created the runtime, \
         and this process was forked from it"
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

fn unfinished(error: &UnfinishedTasks) -> String {
    let mut parts = Vec::new();
    if !error.panicked.is_empty() {
        parts.push(panics(&error.panicked));
    }
    if !error.unresolved.is_empty() {
        let text = |(token, left): &(u64, u32)| format!("{token} (missing resolutions: {left})");
        let tokens: Vec<String> = error.unresolved.iter().map(text).collect();
        parts.push(format!("tasks that were never resolved: {}", list(&tokens)));
    }
    if !error.unregistered.is_empty() {
        let tokens = list(&error.unregistered);
        parts.push(format!(
            "tasks that were resolved but never registered: {tokens}"
        ));
    }
    parts.join("; ")
}

fn panics(panicked: &[Panicked]) -> String {
    match panicked {
        [] => "no task panicked".to_owned(),
        [only] => panicked_task(only),
        [first, rest @ ..] => format!(
            "{} (and {} more tasks panicked)",
            panicked_task(first),
            rest.len()
        ),
    }
}

fn panicked_task(panicked: &Panicked) -> String {
    match panicked.is_submitted {
        true => format!("a submitted task panicked: {}", panicked.message),
        false => format!("task {} panicked: {}", panicked.task, panicked.message),
    }
}

/// Returns the message of a panic, if its payload is a string.
pub(crate) fn message(panic: Box<dyn Any + Send>) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    discard(panic);
    text.unwrap_or_else(|| "without a message".to_owned())
}

/// Drops the payload of a panic. If the drop panics, the new panic also has a payload, which is
/// dropped in the same way. After eight such panics, the last payload is leaked.
pub(crate) fn discard(mut payload: Box<dyn Any + Send>) {
    for _ in 0..8 {
        match catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            Ok(()) => return,
            Err(again) => payload = again,
        }
    }
    mem::forget(payload);
}
