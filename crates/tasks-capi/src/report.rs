// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reports of failed and unfinished tasks for C callers. A report consists of lines, one for each
//! task. The text of the last error lists up to 20 tasks per kind in one line. A report may be
//! created because memory is short, so each allocation of this file can fail, and the failure is
//! returned instead of aborting the process. The number of lines has no limit. Reading line n takes
//! O(n) time.

use std::ffi::{c_char, c_int};
use std::fmt::{self, Write as _};
use std::ptr;

use usher_tasks::{Panicked, UnfinishedTasks};

use crate::error::{ErrorCode, Failure, boundary, boundary_or};

/// Maximum number of tasks of each kind in the error text. The report lists all tasks.
const SHOWN: usize = 20;

/// `enum usher_tasks_unfinished_kind`.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnfinishedKind {
    /// The task failed.
    Failed = 1,
    /// The task was registered, but resolved less often than its count.
    Unresolved = 2,
    /// The token was resolved, but no task was registered.
    Unregistered = 3,
    /// The task is part of a dependency cycle.
    Cycle = 4,
    /// The task was submitted without a token, and failed.
    SubmittedFailed = 5,
}

/// `usher_tasks_unfinished`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct UnfinishedTask {
    /// Token of the task, or its number in the graph. For a submitted task, a number that the
    /// runtime has given to the task.
    pub task: u64,
    /// The message of a failed task, valid until the report is freed; null for other tasks.
    pub message: *const c_char,
    /// Kind of the line, an [`UnfinishedKind`].
    pub kind: u32,
    /// Number of missing resolutions.
    pub missing: u32,
}

/// The target of a `usher_tasks_report *`.
#[derive(Debug, Default)]
pub struct Report {
    /// The unfinished tasks. Each message ends with a 0 byte and contains no further 0 byte.
    unfinished: UnfinishedTasks,
    cycle: Vec<usize>,
    skipped: u64,
}

/// Converts a message to a C string: removes all 0 bytes and appends one at the end. Returns false
/// if there is no memory for it.
fn terminate(message: &mut String) -> bool {
    message.retain(|letter| letter != '\0');
    let has_room = message.try_reserve(1).is_ok();
    if has_room {
        message.push('\0');
    }
    has_room
}

/// A text. Appending returns an error if there is no memory.
struct FallibleText(String);

impl fmt::Write for FallibleText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.try_reserve(text.len()).map_err(|_| fmt::Error)?;
        self.0.push_str(text);
        Ok(())
    }
}

impl FallibleText {
    /// Appends a separator unless the text is empty.
    fn separate(&mut self) -> &mut Self {
        if !self.0.is_empty() {
            // The error is ignored, because the following write also fails if there is no memory.
            let _ = self.write_str("; ");
        }
        self
    }

    /// Appends a description and the tasks to which it applies. Appends nothing if there are no
    /// such tasks.
    fn list<T>(
        &mut self,
        what: &str,
        tasks: &[T],
        format: impl Fn(&mut Self, &T) -> fmt::Result,
    ) -> fmt::Result {
        if tasks.is_empty() {
            return Ok(());
        }
        write!(self.separate(), "{what}: ")?;
        for (at, task) in tasks.iter().take(SHOWN).enumerate() {
            if at > 0 {
                self.write_str(", ")?;
            }
            format(self, task)?;
        }
        match tasks.len() > SHOWN {
            true => write!(self, ", ... ({} in all)", tasks.len()),
            false => Ok(()),
        }
    }
}

impl Report {
    /// Creates a report from the result of a wait. Returns the argument as an error if there is no
    /// memory.
    pub fn from_unfinished(mut unfinished: UnfinishedTasks) -> Result<Self, UnfinishedTasks> {
        match unfinished
            .panicked
            .iter_mut()
            .all(|panic| terminate(&mut panic.message))
        {
            true => Ok(Self {
                unfinished,
                ..Self::default()
            }),
            false => Err(unfinished),
        }
    }

    /// Creates a report of the failed tasks of a graph and the number of tasks that were skipped;
    /// `None` if there is no memory.
    pub fn from_failed(panicked: Vec<Panicked>, skipped: u64) -> Option<Self> {
        let unfinished = UnfinishedTasks {
            panicked,
            ..UnfinishedTasks::default()
        };
        let report = Self::from_unfinished(unfinished).ok()?;
        Some(Self { skipped, ..report })
    }

    /// Creates a report of a dependency cycle.
    pub fn from_cycle(cycle: Vec<usize>) -> Self {
        Self {
            cycle,
            ..Self::default()
        }
    }

    /// Returns the unfinished tasks.
    pub fn into_unfinished(self) -> UnfinishedTasks {
        self.unfinished
    }

    /// Formats the report as one line of text; `None` if there is no memory.
    pub fn text(&self) -> Option<String> {
        let mut text = FallibleText(String::new());
        self.write(&mut text).ok()?;
        Some(text.0)
    }

    fn write(&self, text: &mut FallibleText) -> fmt::Result {
        let UnfinishedTasks {
            panicked,
            unresolved,
            unregistered,
        } = &self.unfinished;
        if let [first, rest @ ..] = &panicked[..] {
            let message = first.message.trim_end_matches('\0');
            match first.is_submitted {
                true => write!(text, "a submitted task failed: {message}")?,
                false => write!(text, "task {} failed: {message}", first.task)?,
            }
            if !rest.is_empty() {
                write!(text, " (and {} more tasks failed)", rest.len())?;
            }
        }
        text.list(
            "tasks that were never resolved",
            unresolved,
            |text, (token, missing)| write!(text, "{token} (missing resolutions: {missing})"),
        )?;
        let what = "tasks that were resolved but never registered";
        text.list(what, unregistered, |text, token| write!(text, "{token}"))?;
        let what = "tasks of a dependency cycle";
        text.list(what, &self.cycle, |text, task| write!(text, "{task}"))?;
        match self.skipped {
            0 => Ok(()),
            1 => write!(text.separate(), "1 task was not run because of the failure"),
            skipped => write!(
                text.separate(),
                "{skipped} tasks were not run because of the failure"
            ),
        }
    }

    fn len(&self) -> usize {
        let UnfinishedTasks {
            panicked,
            unresolved,
            unregistered,
        } = &self.unfinished;
        panicked.len() + unresolved.len() + unregistered.len() + self.cycle.len()
    }

    fn line(&self, at: usize) -> Option<UnfinishedTask> {
        let line = |task, kind: UnfinishedKind| UnfinishedTask {
            task,
            message: ptr::null(),
            kind: kind as u32,
            missing: 0,
        };
        let failed = |panic: &Panicked| UnfinishedTask {
            message: panic.message.as_ptr().cast(),
            ..line(
                panic.task,
                match panic.is_submitted {
                    true => UnfinishedKind::SubmittedFailed,
                    false => UnfinishedKind::Failed,
                },
            )
        };
        let unresolved = |&(token, missing): &(u64, u32)| UnfinishedTask {
            missing,
            ..line(token, UnfinishedKind::Unresolved)
        };
        let mut lines = (self.unfinished.panicked.iter().map(failed))
            .chain(self.unfinished.unresolved.iter().map(unresolved))
            .chain(
                (self.unfinished.unregistered.iter())
                    .map(|&token| line(token, UnfinishedKind::Unregistered)),
            )
            .chain((self.cycle.iter()).map(|&task| line(task as u64, UnfinishedKind::Cycle)));
        lines.nth(at)
    }

    /// Sets the caller's report pointer to null.
    ///
    /// # Safety
    /// `pointer` is null or writable.
    pub unsafe fn clear(pointer: *mut *mut Self) {
        if !pointer.is_null() {
            // SAFETY: `pointer` is not null, so it is writable, as the caller guarantees.
            unsafe { pointer.write(ptr::null_mut()) };
        }
    }

    /// Moves the report to the heap and writes its address to `pointer`. Drops the report if
    /// `pointer` is null. Returns the report as an error if there is no memory.
    ///
    /// # Safety
    /// `pointer` is null or writable.
    pub unsafe fn write_to(self, pointer: *mut *mut Self) -> Result<(), Self> {
        if pointer.is_null() {
            return Ok(());
        }
        let mut room = Vec::new();
        if room.try_reserve_exact(1).is_err() {
            return Err(self);
        }
        room.push(self);
        // The cast is valid, because a boxed slice with one element has the same memory layout and
        // allocator as a box of that element.
        let report = Box::into_raw(room.into_boxed_slice()).cast::<Self>();
        // SAFETY: `pointer` is not null, so it is writable, as the caller guarantees.
        unsafe { pointer.write(report) };
        Ok(())
    }
}

/// Returns the number of lines.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_report_count(report: *const Report) -> usize {
    boundary_or(0, || {
        // SAFETY: `report` is null or valid, as the caller guarantees.
        unsafe { report.as_ref() }.map_or(0, Report::len)
    })
}

/// Returns the number of skipped tasks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_report_skipped(report: *const Report) -> u64 {
    boundary_or(0, || {
        // SAFETY: `report` is null or valid, as the caller guarantees.
        unsafe { report.as_ref() }.map_or(0, |report| report.skipped)
    })
}

/// Returns a line.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_report_at(
    report: *const Report,
    line: usize,
    unfinished: *mut UnfinishedTask,
) -> c_int {
    boundary(|| {
        // SAFETY: `report` is null or valid, as the caller guarantees.
        let report = unsafe { report.as_ref() }.ok_or_else(|| Failure::null("report"))?;
        if unfinished.is_null() {
            return Err(Failure::null("the pointer to the line"));
        }
        let count = report.len();
        let line = report.line(line).ok_or_else(|| {
            Failure::new(
                ErrorCode::Range,
                format!("the report has no line {line}: it has {count} lines"),
            )
        })?;
        // SAFETY: `unfinished` is not null, so it is writable, as the caller guarantees.
        unsafe { unfinished.write(line) };
        Ok(())
    })
}

/// Frees a report.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_report_destroy(report: *mut Report) {
    boundary_or((), || {
        if !report.is_null() {
            // SAFETY: this crate created the report from a box, and the caller does not use it
            // after this call.
            drop(unsafe { Box::from_raw(report) });
        }
    });
}
