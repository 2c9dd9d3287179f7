// SPDX-License-Identifier: MIT OR Apache-2.0
//! What was not well, line by line.

use std::ffi::{CString, c_char, c_int};
use std::ptr;

use usher_tasks::{Left, Panicked};

use crate::error::{Code, Failure, boundary, boundary_or};

/// Lines that are told in words; all are in the report.
const SHOWN: usize = 20;

/// `enum usher_tasks_left_kind`.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It failed.
    Failed = 1,
    /// It was not resolved often enough.
    Unresolved = 2,
    /// It was not registered.
    Unregistered = 3,
    /// It is part of a circle.
    Cycle = 4,
}

/// `usher_tasks_left`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Line {
    /// The token, or the number in the graph.
    pub task: u64,
    /// Why it failed, as long as the report.
    pub message: *const c_char,
    /// A [`Kind`].
    pub kind: u32,
    /// Resolves that are missing.
    pub missing: u32,
}

#[derive(Debug)]
struct Told {
    task: u64,
    message: Option<CString>,
    kind: Kind,
    missing: u32,
}

/// What a `usher_tasks_report *` points to.
#[derive(Debug, Default)]
pub struct Report {
    lines: Vec<Told>,
    skipped: u64,
}

fn told(task: u64, kind: Kind) -> Told {
    Told {
        task,
        message: None,
        kind,
        missing: 0,
    }
}

impl Report {
    /// Of tokens.
    pub fn of_left(left: Left) -> Self {
        let mut report = Self::of_failed(left.panicked, 0);
        let unresolved = left.unresolved.into_iter().map(|(token, missing)| Told {
            missing,
            ..told(token, Kind::Unresolved)
        });
        report.lines.extend(unresolved);
        let unregistered = left.unregistered.into_iter();
        let unregistered = unregistered.map(|token| told(token, Kind::Unregistered));
        report.lines.extend(unregistered);
        report
    }

    /// Of tasks that failed, and so many that were not run for it.
    pub fn of_failed(failed: Vec<Panicked>, skipped: u64) -> Self {
        let line = |failed: Panicked| Told {
            message: CString::new(failed.message.replace('\0', "")).ok(),
            ..told(failed.task, Kind::Failed)
        };
        Self {
            lines: failed.into_iter().map(line).collect(),
            skipped,
        }
    }

    /// Of a circle.
    pub fn of_circle(tasks: &[usize]) -> Self {
        let lines = tasks.iter().map(|&task| told(task as u64, Kind::Cycle));
        Self {
            lines: lines.collect(),
            skipped: 0,
        }
    }

    /// All in one line.
    pub fn words(&self) -> String {
        let of = |kind: Kind| self.lines.iter().filter(move |line| line.kind == kind);
        let mut words = Vec::new();
        for line in of(Kind::Failed).take(1) {
            let message = line.message.as_deref().unwrap_or_default();
            let more = match of(Kind::Failed).count() {
                1 => String::new(),
                count => format!(" (and {} more)", count - 1),
            };
            let message = message.to_string_lossy();
            words.push(format!("task {} failed: {message}{more}", line.task));
        }
        let lists = [
            (Kind::Unresolved, "never resolved"),
            (Kind::Unregistered, "resolved and never registered"),
            (Kind::Cycle, "wait for one another in a circle"),
        ];
        for (kind, what) in lists {
            let each = of(kind).take(SHOWN).map(|line| match line.missing {
                0 => line.task.to_string(),
                missing => format!("{} ({missing} more)", line.task),
            });
            let mut tasks: Vec<String> = each.collect();
            let count = of(kind).count();
            if count > SHOWN {
                tasks.push(format!("... ({count} in all)"));
            }
            if count > 0 {
                words.push(format!("{what}: {}", tasks.join(", ")));
            }
        }
        if self.skipped > 0 {
            words.push(format!("{} tasks were not run after that", self.skipped));
        }
        words.join("; ")
    }

    /// Nothing has been found yet.
    ///
    /// # Safety
    /// The place is null, or valid for writes.
    pub unsafe fn clear(place: *mut *mut Self) {
        if !place.is_null() {
            // SAFETY: the caller's promise.
            unsafe { place.write(ptr::null_mut()) };
        }
    }

    /// Gives it to whoever wants it.
    ///
    /// # Safety
    /// As [`Self::clear`].
    pub unsafe fn give(self, place: *mut *mut Self) {
        if !place.is_null() {
            // SAFETY: the caller's promise.
            unsafe { place.write(Box::into_raw(Box::new(self))) };
        }
    }
}

/// How many lines there are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_report_count(report: *const Report) -> usize {
    boundary_or(0, || {
        // SAFETY: the caller promises one that lives, or null.
        unsafe { report.as_ref() }.map_or(0, |report| report.lines.len())
    })
}

/// How many tasks were not run.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_report_skipped(report: *const Report) -> u64 {
    boundary_or(0, || {
        // SAFETY: the caller promises one that lives, or null.
        unsafe { report.as_ref() }.map_or(0, |report| report.skipped)
    })
}

/// A line.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_report_at(
    report: *const Report,
    line: usize,
    left: *mut Line,
) -> c_int {
    boundary(|| {
        // SAFETY: the caller promises one that lives, or null.
        let report = unsafe { report.as_ref() }.ok_or_else(|| Failure::null("report"))?;
        if left.is_null() {
            return Err(Failure::null("the place for the line"));
        }
        let count = report.lines.len();
        let told = report.lines.get(line).ok_or_else(|| {
            Failure::new(Code::Range, format!("line {line} of a report of {count}"))
        })?;
        let line = Line {
            task: told.task,
            message: told
                .message
                .as_ref()
                .map_or(ptr::null(), |words| words.as_ptr()),
            kind: told.kind as u32,
            missing: told.missing,
        };
        // SAFETY: not null, so the caller's to be written.
        unsafe { left.write(line) };
        Ok(())
    })
}

/// Frees a report.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_report_destroy(report: *mut Report) {
    boundary_or((), || {
        if !report.is_null() {
            // SAFETY: made by us from a box, and by the caller's promise used no more.
            drop(unsafe { Box::from_raw(report) });
        }
    });
}
