// SPDX-License-Identifier: MIT OR Apache-2.0
//! Binding to the workload in C (`peers/workload.c`), which all compared runtimes run. In the Rust
//! program and in the C++ programs, the same compiled functions execute the work of a task, time
//! the frames and check the results.
//!
//! The workload is a wavefront over the macroblocks of a frame, with one task per stage and
//! macroblock, or fib(n), or a loop over items, or a Cholesky factorisation. A process has one
//! workload. It is in static memory, which is not written after [`Workload::begin`].

use std::ffi::{CString, c_char, c_int, c_void};
use std::ops::Range;
use std::slice;

use anyhow::{Context, Result, ensure};

#[repr(C)]
#[derive(Debug)]
struct RawWorkload {
    threads: u32,
    fib: u32,
    items: u32,
    columns: u32,
    rows: u32,
    stages: u32,
    tasks: u32,
    waits: *const u32,
    first: *const u32,
    successors: *const u32,
    tiles: u32,
    tile_tasks: *const TileTask,
}

/// A task of a Cholesky factorisation by tiles.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct TileTask {
    kind: c_int,
    /// The tile that the task writes.
    pub tile: u32,
    reads: [u32; 2],
    read_count: u32,
}

impl TileTask {
    /// The tiles that the task reads.
    pub fn reads(&self) -> &[u32] {
        &self.reads[..self.read_count as usize]
    }
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
    static mut workload_reduces: u32;
    fn workload_item(item: u32);
    fn workload_value(item: u32) -> u64;
    fn workload_items(begin: u32, end: u32);
    fn workload_values(begin: u32, end: u32) -> u64;
    fn workload_tile(task: u32);
}

/// The functions of a runtime that run frames.
pub trait Frames {
    /// Runs a whole frame and returns 0, or computes fib(n).
    fn run(&mut self) -> u64;

    /// Returns whether the runtime has reached its steady state after `frames` frames of the
    /// present case. After the result false, another frame runs without timing.
    fn is_settled(&mut self, _frames: u32) -> bool {
        true
    }
}

/// A function that runs frames of a runtime that is in its steady state from the first frame on.
struct SameFrames<F>(F);

impl<F: FnMut() -> u64> Frames for SameFrames<F> {
    fn run(&mut self) -> u64 {
        (self.0)()
    }
}

/// The workload of this process.
#[derive(Debug, Clone, Copy)]
pub struct Workload(&'static RawWorkload);

// SAFETY: the static workload is not written after `Workload::begin`; threads only read it.
unsafe impl Send for Workload {}
// SAFETY: the static workload is not written after `Workload::begin`; threads only read it.
unsafe impl Sync for Workload {}

impl Workload {
    /// Parses the words of a workload; `workload.h` describes them. A process must call this
    /// function at most once, because another call would change the workload while it is in use.
    ///
    /// # Errors
    /// The words are not a valid workload.
    pub fn begin(words: &[String]) -> Result<Self> {
        let words = words
            .iter()
            .map(|word| CString::new(word.as_str()))
            .collect::<Result<Vec<_>, _>>()
            .context("a word in the output of the workload")?;
        // The workload keeps pointers to the names of the cases. The strings are therefore never
        // freed.
        let mut words: Vec<*mut c_char> = words.into_iter().map(CString::into_raw).collect();
        let count = c_int::try_from(words.len())?;
        // SAFETY: `words` contains `count` pointers to strings that end in NUL, and the strings are
        // never freed.
        let raw = unsafe { workload_begin(count, words.as_mut_ptr()) };
        // SAFETY: `raw` is null or points to the static variable of the workload.
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

    /// Number of items of a loop, if the workload is a loop.
    pub fn items(self) -> Option<u32> {
        Some(self.0.items).filter(|&items| items > 0)
    }

    /// Returns whether the present case of a loop adds up the values of its items.
    pub fn reduces(self) -> bool {
        // SAFETY: the flag is written only between frames.
        unsafe { workload_reduces != 0 }
    }

    /// Does the work of an item of a loop.
    #[inline]
    pub fn run_item(self, item: u32) {
        debug_assert!(item < self.0.items);
        // SAFETY: the item has a byte of state of its own. Each frame runs each item once, and the
        // check of the results detects an item that runs twice.
        unsafe { workload_item(item) };
    }

    /// Returns the value of an item of a loop.
    #[inline]
    pub fn value(self, item: u32) -> u64 {
        // SAFETY: the function only reads the present case, which is written between frames.
        unsafe { workload_value(item) }
    }

    /// Does the work of a block of items of a loop.
    pub fn run_items(self, block: Range<u32>) {
        debug_assert!(block.end <= self.0.items);
        // SAFETY: each item has a byte of state of its own. Each frame runs each item once, and the
        // check of the results detects an item that runs twice.
        unsafe { workload_items(block.start, block.end) };
    }

    /// Returns the sum of the values of a block of items of a loop.
    pub fn values(self, block: Range<u32>) -> u64 {
        // SAFETY: the function only reads the present case, which is written between frames.
        unsafe { workload_values(block.start, block.end) }
    }

    /// The tasks of a factorisation, if the workload is one.
    pub fn tile_tasks(self) -> Option<&'static [TileTask]> {
        if self.0.tiles == 0 {
            return None;
        }
        // SAFETY: the array has `tasks` elements, which are not written after `begin`.
        Some(unsafe { slice::from_raw_parts(self.0.tile_tasks, self.tasks() as usize) })
    }

    /// Runs a task of a factorisation.
    pub fn run_tile(self, task: u32) {
        debug_assert!(task < self.tasks());
        // SAFETY: a task that writes a tile runs beside no other task that uses the tile, as the
        // accesses of its runtime state. The check of the results detects a conflict.
        unsafe { workload_tile(task) };
    }

    /// Number of macroblocks in a row.
    pub fn columns(self) -> u32 {
        self.0.columns
    }

    pub fn rows(self) -> u32 {
        self.0.rows
    }

    /// Number of stages of a macroblock.
    pub fn stages(self) -> u32 {
        self.0.stages
    }

    pub fn tasks(self) -> u32 {
        self.0.tasks
    }

    /// For each task, the number of tasks that it waits for.
    pub fn waits(self) -> &'static [u32] {
        if self.tasks() == 0 || self.0.tiles > 0 {
            return &[];
        }
        // SAFETY: the array `waits` has `tasks` elements, which are not written after `begin`.
        unsafe { slice::from_raw_parts(self.0.waits, self.tasks() as usize) }
    }

    /// The tasks that wait for `task`.
    pub fn successors(self, task: u32) -> &'static [u32] {
        assert!(task < self.tasks());
        // SAFETY: `first` has `tasks` + 1 elements, and `task` is less than `tasks`. The elements
        // of `first` ascend up to the length of `successors`; the slice is therefore within the
        // array.
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
        // SAFETY: `workload_mode` is written only between frames, and each runtime starts the tasks
        // of a frame after that write. Two tasks that access the same memory never run at the same
        // time, because one of them waits for the other.
        unsafe {
            if workload_mode != 0 {
                workload_do(task);
            }
        }
    }

    /// Measures a function that runs a whole frame and returns 0, or that returns fib(n). Prints a
    /// line for each case.
    ///
    /// # Errors
    /// A check of the results fails.
    pub fn measure(self, frame: impl FnMut() -> u64) -> Result<()> {
        self.measure_settled(&mut SameFrames(frame))
    }

    /// Measures frames as [`Self::measure`] does, but times only frames in the runtime's steady
    /// state.
    ///
    /// # Errors
    /// A check of the results fails.
    pub fn measure_settled<F: Frames>(self, frames: &mut F) -> Result<()> {
        extern "C" fn run<F: Frames>(frames: *mut c_void) -> u64 {
            // SAFETY: `frames` is the pointer `context` below, which is valid during the call of
            // `workload_measure`. Only this function and `settled` use the pointer, and neither of
            // the two functions is called during the other.
            unsafe { &mut *frames.cast::<F>() }.run()
        }
        extern "C" fn settled<F: Frames>(frames: *mut c_void, count: u32) -> c_int {
            // SAFETY: `frames` is the pointer `context` below, which is valid during the call of
            // `workload_measure`. Only this function and `run` use the pointer, and neither of the
            // two functions is called during the other.
            unsafe { &mut *frames.cast::<F>() }.is_settled(count).into()
        }
        let context = (&raw mut *frames).cast();
        // SAFETY: `context` points to a value of the type `F`, as the functions `run` and `settled`
        // require.
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

    /// Runs tasks in the order of their numbers, and is in its steady state after three frames of
    /// each case.
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

    /// All checks are in a single test, because a process has only one workload.
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
        // Frame 1 is a check, the tasks of frames 2 to 4 are empty, and those of frame 6 compute.
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
        // Frames: two checks; for each of three cases, three frames before the steady state and two
        // timed frames.
        assert_eq!(slow.1, 2 + 3 * (3 + 2));

        let edges: usize = (0..60).map(|task| work.successors(task).len()).sum();
        let waits: u32 = work.waits().iter().sum();
        assert_eq!(edges, waits as usize);
        // The task is stage 1 of the third macroblock in the second row. Its successors are the
        // next stage, and the same stage of the macroblocks to the right, below to the left, and
        // below.
        let task = (5 + 2) * 3 + 1;
        assert_eq!(
            work.successors(task),
            [task + 1, task + 3, task + 12, task + 15]
        );
        assert_eq!(work.waits()[task as usize], 4);
    }
}
