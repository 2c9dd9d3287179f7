// SPDX-License-Identifier: MIT OR Apache-2.0
//! Binding to the workload in C (`peers/workload.c`), which every runtime under comparison runs.
//! The same compiled functions do the work of a task, time the frames and check their results in
//! Rust and C++ programs.
//!
//! The workload is a wavefront over the macroblocks of a frame, with one task per stage and
//! macroblock, or fib(n). A process has one workload, in static memory that is not written after it
//! was parsed.

use std::ffi::{CString, c_char, c_int, c_void};
use std::slice;

use anyhow::{Context, Result, ensure};

#[repr(C)]
#[derive(Debug)]
struct RawWorkload {
    threads: u32,
    fib: u32,
    columns: u32,
    rows: u32,
    stages: u32,
    tasks: u32,
    waits: *const u32,
    first: *const u32,
    successors: *const u32,
}

unsafe extern "C" {
    static mut workload_mode: u32;
    fn workload_begin(count: c_int, words: *mut *mut c_char) -> *const RawWorkload;
    fn workload_measure(
        frame: extern "C" fn(*mut c_void) -> u64,
        settled: extern "C" fn(*mut c_void, u32) -> c_int,
        context: *mut c_void,
    ) -> c_int;
    fn workload_do(task: u32);
}

/// A runner of frames.
pub trait Frames {
    /// Runs a whole frame and returns 0, or computes fib(n).
    fn run(&mut self) -> u64;

    /// Whether frames of the present case have reached their steady state after `frames` frames;
    /// otherwise another frame runs before any is timed.
    fn is_settled(&mut self, _frames: u32) -> bool {
        true
    }
}

/// Frames without a phase before the steady state.
struct SameFrames<F>(F);

impl<F: FnMut() -> u64> Frames for SameFrames<F> {
    fn run(&mut self) -> u64 {
        (self.0)()
    }
}

/// The workload of this process.
#[derive(Debug, Clone, Copy)]
pub struct Workload(&'static RawWorkload);

// SAFETY: nothing in it is written after it was made.
unsafe impl Send for Workload {}
// SAFETY: nothing in it is written after it was made.
unsafe impl Sync for Workload {}

impl Workload {
    /// Parses the words of a workload; see `workload.h`. At most once a process: another call
    /// would change the workload while it is in use.
    ///
    /// # Errors
    /// The words are not a valid workload.
    pub fn begin(words: &[String]) -> Result<Self> {
        let words = words
            .iter()
            .map(|word| CString::new(word.as_str()))
            .collect::<Result<Vec<_>, _>>()
            .context("a word in the output of the workload")?;
        // The workload keeps pointers to the names of cases, so the strings are never freed.
        let mut words: Vec<*mut c_char> = words.into_iter().map(CString::into_raw).collect();
        let count = c_int::try_from(words.len())?;
        // SAFETY: `words` holds `count` strings, and they are never freed.
        let raw = unsafe { workload_begin(count, words.as_mut_ptr()) };
        // SAFETY: null, or to a static.
        let raw = unsafe { raw.as_ref() };
        raw.map(Self)
            .context("the output of the workload is invalid")
    }

    pub fn threads(self) -> usize {
        self.0.threads as usize
    }

    /// n of fib(n), if the workload is fib.
    pub fn fib(self) -> Option<u32> {
        Some(self.0.fib).filter(|&n| n > 0)
    }

    /// Macroblocks in a row.
    pub fn columns(self) -> u32 {
        self.0.columns
    }

    pub fn rows(self) -> u32 {
        self.0.rows
    }

    /// Stages of a macroblock.
    pub fn stages(self) -> u32 {
        self.0.stages
    }

    pub fn tasks(self) -> u32 {
        self.0.tasks
    }

    /// Number of tasks that each task waits for, by task.
    pub fn waits(self) -> &'static [u32] {
        if self.tasks() == 0 {
            return &[];
        }
        // SAFETY: the array has `tasks` elements, and they are never written again.
        unsafe { slice::from_raw_parts(self.0.waits, self.tasks() as usize) }
    }

    /// The tasks that wait for `task`.
    pub fn successors(self, task: u32) -> &'static [u32] {
        assert!(task < self.tasks());
        // SAFETY: `first` has one more element than there are tasks, and its largest element is the
        // length of `successors`.
        unsafe {
            let from = *self.0.first.add(task as usize) as usize;
            let to = *self.0.first.add(task as usize + 1) as usize;
            slice::from_raw_parts(self.0.successors.add(from), to - from)
        }
    }

    /// Runs the work of a task; `task` must be below [`Self::tasks`].
    #[inline]
    pub fn run(self, task: u32) {
        debug_assert!(task < self.tasks());
        // SAFETY: `workload_mode` is written only between frames, and every runtime orders a frame
        // after such a write. The dependencies order the tasks that access the same memory.
        unsafe {
            if workload_mode != 0 {
                workload_do(task);
            }
        }
    }

    /// Times a function that runs a whole frame and returns 0, or that computes fib(n). Prints a
    /// line for each case.
    ///
    /// # Errors
    /// A check of the results fails.
    pub fn measure(self, frame: impl FnMut() -> u64) -> Result<()> {
        self.measure_settled(&mut SameFrames(frame))
    }

    /// As [`Self::measure`], but times only settled frames.
    ///
    /// # Errors
    /// A check of the results fails.
    pub fn measure_settled<F: Frames>(self, frames: &mut F) -> Result<()> {
        extern "C" fn run<F: Frames>(frames: *mut c_void) -> u64 {
            // SAFETY: the pointer given below, which outlives the call. Only this function and
            // `settled` use it, and neither is called from within the other.
            unsafe { &mut *frames.cast::<F>() }.run()
        }
        extern "C" fn settled<F: Frames>(frames: *mut c_void, count: u32) -> c_int {
            // SAFETY: the pointer given below, which outlives the call. Only this function and
            // `run` use it, and neither is called from within the other.
            unsafe { &mut *frames.cast::<F>() }.is_settled(count).into()
        }
        let context = (&raw mut *frames).cast();
        // SAFETY: the context is a pointer to `F`, as the functions expect.
        let status = unsafe { workload_measure(run::<F>, settled::<F>, context) };
        ensure!(
            status == 0,
            "the workload failed; the message above gives the reason"
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs tasks in their order, and needs three frames of each case before it is timed.
    struct Slow(Workload, u32);

    impl Frames for Slow {
        fn run(&mut self) -> u64 {
            self.1 += 1;
            (0..60).for_each(|task| self.0.run(task));
            0
        }

        fn is_settled(&mut self, frames: u32) -> bool {
            frames == 3
        }
    }

    /// A single test, as a process has one workload.
    #[test]
    fn skipped_repeated_and_reordered_tasks_are_detected() {
        let words = "1 0 2 wavefront 5 4 3 empty compute:7 memory:128";
        let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
        let work = Workload::begin(&words).unwrap();
        assert_eq!((work.tasks(), work.threads(), work.fib()), (60, 1, None));
        let run = |order: &mut dyn Iterator<Item = u32>| {
            order.for_each(|task| work.run(task));
            0
        };
        assert!(work.measure(|| run(&mut (0..60))).is_ok());
        assert!(work.measure(|| run(&mut (1..60))).is_err(), "skips one");
        assert!(work.measure(|| run(&mut (0..60).chain([7]))).is_err());
        assert!(work.measure(|| run(&mut (0..60).rev())).is_err());
        // One frame is checked, three are empty, and the sixth computes.
        let mut frame = 0;
        let repeats_later = || {
            frame += 1;
            run(&mut (0..60).chain((frame == 6).then_some(7)))
        };
        assert!(work.measure(repeats_later).is_err(), "in a timed frame");
        assert!(work.measure(|| run(&mut (0..60)) + 1).is_err(), "a value");
        assert!(work.measure(|| run(&mut (0..60))).is_ok());

        let mut slow = Slow(work, 0);
        assert!(work.measure_settled(&mut slow).is_ok());
        // Two checks, and of three cases three frames to settle and two that are timed.
        assert_eq!(slow.1, 2 + 3 * (3 + 2));

        let edges: usize = (0..60).map(|task| work.successors(task).len()).sum();
        let waits: u32 = work.waits().iter().sum();
        assert_eq!(edges, waits as usize);
        // The third macroblock of the second row, stage 1: the next stage, right,
        // below to the left, below.
        let task = (5 + 2) * 3 + 1;
        assert_eq!(
            work.successors(task),
            [task + 1, task + 3, task + 12, task + 15]
        );
        assert_eq!(work.waits()[task as usize], 4);
    }
}
