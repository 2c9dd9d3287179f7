// SPDX-License-Identifier: MIT OR Apache-2.0
//! Adding single tasks to a runtime: registering and resolving tasks by token, and submitting ready
//! tasks without a token. [`Handle`] offers these functions to tasks.
//!
//! A task that is added by a task of the same runtime is published by the worker of the calling
//! task. A task that is added by any other thread is injected. Adding a task runs no other task.

use std::fmt;
use std::sync::{Arc, Weak};

use crate::closure::Closure;
use crate::current_worker::current_worker;
use crate::dispatch::Groups;
use crate::error::{SubmitError, TaskError};
use crate::job::JobRef;
#[cfg(doc)]
use crate::runtime::Runtime;
use crate::worker::Registry;

/// A reference to a runtime that does not keep the runtime alive.
///
/// If a thread that is no worker registers, resolves or submits a task while the runtime is being
/// dropped, the runtime may drop the task instead of running it.
#[derive(Clone)]
pub struct Handle {
    registry: Weak<Registry>,
}

impl Handle {
    pub(crate) fn new(registry: &Arc<Registry>) -> Self {
        Self {
            registry: Arc::downgrade(registry),
        }
    }

    /// Returns the registry; `None` if the runtime was dropped and its workers have ended.
    pub(crate) fn registry(&self) -> Option<Arc<Registry>> {
        self.registry.upgrade()
    }

    /// Submits a ready task as [`Runtime::submit`] does. A task that submits its successor uses
    /// this function.
    ///
    /// # Errors
    /// In the cases in which [`Runtime::submit`] returns an error, and if the runtime was dropped.
    pub fn submit(
        &self,
        groups: Groups,
        entry: impl FnOnce() + Send + 'static,
    ) -> Result<(), SubmitError> {
        let registry = self.registry.upgrade().ok_or(SubmitError::Ended)?;
        submit(&registry, TaskHint::Groups(groups), entry)
    }

    /// Submits a ready task as [`Runtime::submit_on`] does.
    ///
    /// # Errors
    /// In the cases in which [`Runtime::submit_on`] returns an error, and if the runtime was
    /// dropped.
    pub fn submit_on(
        &self,
        data: usize,
        entry: impl FnOnce() + Send + 'static,
    ) -> Result<(), SubmitError> {
        let registry = self.registry.upgrade().ok_or(SubmitError::Ended)?;
        submit(&registry, TaskHint::Data(data), entry)
    }

    /// Registers a task as [`Runtime::register`] does.
    ///
    /// # Errors
    /// In the cases in which [`Runtime::register`] returns an error, and if the runtime was
    /// dropped.
    pub fn register(
        &self,
        token: u64,
        count: u32,
        groups: Groups,
        entry: impl FnOnce() + Send + 'static,
    ) -> Result<(), TaskError> {
        let registry = self.registry.upgrade().ok_or(TaskError::Ended { token })?;
        register(&registry, token, count, TaskHint::Groups(groups), entry)
    }

    /// Registers a task as [`Runtime::register_on`] does.
    ///
    /// # Errors
    /// In the cases in which [`Runtime::register_on`] returns an error, and if the runtime was
    /// dropped.
    pub fn register_on(
        &self,
        token: u64,
        count: u32,
        data: usize,
        entry: impl FnOnce() + Send + 'static,
    ) -> Result<(), TaskError> {
        let registry = self.registry.upgrade().ok_or(TaskError::Ended { token })?;
        register(&registry, token, count, TaskHint::Data(data), entry)
    }

    /// Resolves one dependency as [`Runtime::resolve`] does.
    ///
    /// # Errors
    /// If the task has no unresolved dependency, or if the runtime was dropped.
    pub fn resolve(&self, token: u64) -> Result<(), TaskError> {
        let registry = self.registry.upgrade().ok_or(TaskError::Ended { token })?;
        resolve(&registry, token)
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}

/// The information about a task that its caller has passed.
#[derive(Debug, Clone, Copy)]
pub(crate) enum TaskHint {
    Groups(Groups),
    /// No groups, but the address of the task's data.
    Data(usize),
}

impl TaskHint {
    /// Returns the groups of the task, and whether the runtime has guessed the groups.
    #[inline]
    fn groups(self, registry: &Registry) -> (Groups, bool) {
        let data = match self {
            Self::Groups(groups) if groups != Groups::NONE => return (groups, false),
            Self::Groups(_) => None,
            Self::Data(data) => Some(data),
        };
        match registry.finds_groups() {
            true => (registry.guess.groups(data), true),
            false => (Groups::NONE, false),
        }
    }
}

/// Returns whether the calling thread may not add tasks any more, because the runtime is being
/// dropped.
#[inline]
fn is_closed_for_caller(registry: &Arc<Registry>) -> bool {
    registry.is_closing() && current_worker(registry).is_none()
}

/// Groups that are not below the limits of the policy, with these limits.
struct InvalidGroups {
    groups: Groups,
    t_groups: u32,
    s_groups: u32,
}

/// Returns the groups of a task, and whether the runtime has guessed them.
#[inline]
fn valid_groups(registry: &Registry, hint: TaskHint) -> Result<(Groups, bool), InvalidGroups> {
    let (groups, is_guessed) = hint.groups(registry);
    let (t_groups, s_groups) = registry.groups_below;
    if groups.t < t_groups && groups.s < s_groups {
        return Ok((groups, is_guessed));
    }
    Err(InvalidGroups {
        groups,
        t_groups,
        s_groups,
    })
}

pub(crate) fn register(
    registry: &Arc<Registry>,
    token: u64,
    count: u32,
    hint: TaskHint,
    entry: impl FnOnce() + Send + 'static,
) -> Result<(), TaskError> {
    if is_closed_for_caller(registry) {
        return Err(TaskError::Ended { token });
    }
    let (groups, is_guessed) =
        valid_groups(registry, hint).map_err(|invalid| TaskError::Groups {
            token,
            groups: invalid.groups,
            t_groups: invalid.t_groups,
            s_groups: invalid.s_groups,
        })?;
    let entry = Closure::new(entry, is_guessed).ok_or(TaskError::Memory { token })?;
    if let Some(job) = registry.tokens.register(token, count, groups, entry)? {
        make_ready(registry, job);
    }
    Ok(())
}

#[inline]
pub(crate) fn resolve(registry: &Arc<Registry>, token: u64) -> Result<(), TaskError> {
    if let Some(job) = registry.tokens.resolve(token)? {
        make_ready(registry, job);
    }
    Ok(())
}

pub(crate) fn submit(
    registry: &Arc<Registry>,
    hint: TaskHint,
    entry: impl FnOnce() + Send + 'static,
) -> Result<(), SubmitError> {
    submit_numbered(registry, hint, entry, |_| ())
}

/// Returns the groups of a task that the calling thread may submit, and whether the runtime has
/// guessed them.
pub(crate) fn check_submission(
    registry: &Arc<Registry>,
    hint: TaskHint,
) -> Result<(Groups, bool), SubmitError> {
    if is_closed_for_caller(registry) {
        return Err(SubmitError::Ended);
    }
    valid_groups(registry, hint).map_err(|invalid| SubmitError::Groups {
        groups: invalid.groups,
        t_groups: invalid.t_groups,
        s_groups: invalid.s_groups,
    })
}

/// Submits a ready task. Calls `begin` with the number of the task before the task can run.
pub(crate) fn submit_numbered(
    registry: &Arc<Registry>,
    hint: TaskHint,
    entry: impl FnOnce() + Send + 'static,
    begin: impl FnOnce(u64),
) -> Result<(), SubmitError> {
    let (groups, is_guessed) = check_submission(registry, hint)?;
    let entry = Closure::without_token(entry, is_guessed).ok_or(SubmitError::Memory)?;
    let (job, number) = registry.tokens.submit(groups, entry)?;
    begin(number);
    make_ready(registry, job);
    Ok(())
}

fn make_ready(registry: &Arc<Registry>, job: JobRef) {
    match current_worker(registry) {
        Some(worker) => worker.publish_ready(job),
        None => registry.inject(job),
    }
}
