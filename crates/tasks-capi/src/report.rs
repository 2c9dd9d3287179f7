// SPDX-License-Identifier: MIT OR Apache-2.0
//! What was not well, line by line.

use std::ffi::{c_char, c_int};
use std::fmt::{self, Write as _};
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

/// What a `usher_tasks_report *` points to.
#[derive(Debug, Default)]
pub struct Report {
    /// Messages end with a 0, and have no other.
    left: Left,
    circle: Vec<usize>,
    skipped: u64,
}

/// What has been said, for C: where there is memory for its end.
fn ended(message: &mut String) -> bool {
    message.retain(|letter| letter != '\0');
    let has_room = message.try_reserve(1).is_ok();
    if has_room {
        message.push('\0');
    }
    has_room
}

/// Words, as far as there is memory for them.
struct Words(String);

impl fmt::Write for Words {
    fn write_str(&mut self, words: &str) -> fmt::Result {
        self.0.try_reserve(words.len()).map_err(|_| fmt::Error)?;
        self.0.push_str(words);
        Ok(())
    }
}

impl Words {
    /// Goes on with what comes after others.
    fn next(&mut self) -> &mut Self {
        if !self.0.is_empty() {
            // There is memory for these, or none for what comes.
            let _ = self.write_str("; ");
        }
        self
    }

    /// Some tasks, if there are any, and what is the matter with them.
    fn list<T>(
        &mut self,
        what: &str,
        tasks: &[T],
        one: impl Fn(&mut Self, &T) -> fmt::Result,
    ) -> fmt::Result {
        if tasks.is_empty() {
            return Ok(());
        }
        write!(self.next(), "{what}: ")?;
        for (at, task) in tasks.iter().take(SHOWN).enumerate() {
            if at > 0 {
                self.write_str(", ")?;
            }
            one(self, task)?;
        }
        match tasks.len() > SHOWN {
            true => write!(self, ", ... ({} in all)", tasks.len()),
            false => Ok(()),
        }
    }
}

impl Report {
    /// Of tokens; those again where there is no memory for it.
    pub fn of_left(mut left: Left) -> Result<Self, Left> {
        match left.panicked.iter_mut().all(|one| ended(&mut one.message)) {
            true => Ok(Self {
                left,
                ..Self::default()
            }),
            false => Err(left),
        }
    }

    /// Of tasks that failed, and so many that were not run for it; `None`: there is no
    /// memory for it.
    pub fn of_failed(panicked: Vec<Panicked>, skipped: u64) -> Option<Self> {
        let left = Left {
            panicked,
            ..Left::default()
        };
        let report = Self::of_left(left).ok()?;
        Some(Self { skipped, ..report })
    }

    /// Of a circle.
    pub fn of_circle(circle: Vec<usize>) -> Self {
        Self {
            circle,
            ..Self::default()
        }
    }

    /// What was left, if that is what it is of.
    pub fn into_left(self) -> Left {
        self.left
    }

    /// All in one line; `None`: there is no memory for it.
    pub fn words(&self) -> Option<String> {
        let mut words = Words(String::new());
        self.write(&mut words).ok()?;
        Some(words.0)
    }

    fn write(&self, words: &mut Words) -> fmt::Result {
        let Left {
            panicked,
            unresolved,
            unregistered,
        } = &self.left;
        if let [first, rest @ ..] = &panicked[..] {
            let message = first.message.trim_end_matches('\0');
            write!(words, "task {} failed: {message}", first.task)?;
            if !rest.is_empty() {
                write!(words, " (and {} more)", rest.len())?;
            }
        }
        words.list("never resolved", unresolved, |words, (token, missing)| {
            write!(words, "{token} ({missing} more)")
        })?;
        let what = "resolved and never registered";
        words.list(what, unregistered, |words, token| write!(words, "{token}"))?;
        let what = "wait for one another in a circle";
        words.list(what, &self.circle, |words, task| write!(words, "{task}"))?;
        match self.skipped {
            0 => Ok(()),
            1 => write!(words.next(), "1 task was not run after that"),
            skipped => write!(words.next(), "{skipped} tasks were not run after that"),
        }
    }

    fn len(&self) -> usize {
        let Left {
            panicked,
            unresolved,
            unregistered,
        } = &self.left;
        panicked.len() + unresolved.len() + unregistered.len() + self.circle.len()
    }

    fn line(&self, at: usize) -> Option<Line> {
        let line = |task, kind: Kind| Line {
            task,
            message: ptr::null(),
            kind: kind as u32,
            missing: 0,
        };
        let failed = |one: &Panicked| Line {
            message: one.message.as_ptr().cast(),
            ..line(one.task, Kind::Failed)
        };
        let unresolved = |&(token, missing): &(u64, u32)| Line {
            missing,
            ..line(token, Kind::Unresolved)
        };
        let mut lines = (self.left.panicked.iter().map(failed))
            .chain(self.left.unresolved.iter().map(unresolved))
            .chain((self.left.unregistered.iter()).map(|&token| line(token, Kind::Unregistered)))
            .chain((self.circle.iter()).map(|&task| line(task as u64, Kind::Cycle)));
        lines.nth(at)
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

    /// Gives it to whoever wants it; it again where there is no memory for it.
    ///
    /// # Safety
    /// As [`Self::clear`].
    pub unsafe fn give(self, place: *mut *mut Self) -> Result<(), Self> {
        if place.is_null() {
            return Ok(());
        }
        let mut room = Vec::new();
        if room.try_reserve_exact(1).is_err() {
            return Err(self);
        }
        room.push(self);
        // As a box of one: as many bytes, from the same allocator.
        let report = Box::into_raw(room.into_boxed_slice()).cast::<Self>();
        // SAFETY: the caller's promise.
        unsafe { place.write(report) };
        Ok(())
    }
}

/// How many lines there are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_report_count(report: *const Report) -> usize {
    boundary_or(0, || {
        // SAFETY: the caller promises one that lives, or null.
        unsafe { report.as_ref() }.map_or(0, Report::len)
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
        let count = report.len();
        let line = report.line(line).ok_or_else(|| {
            Failure::new(Code::Range, format!("line {line} of a report of {count}"))
        })?;
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
