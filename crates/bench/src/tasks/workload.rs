// SPDX-License-Identifier: MIT OR Apache-2.0
//! The workload of `peers/workload.c`, which every runtime under comparison runs,
//! those in Rust too: the same compiled function does the work of a task, times
//! the frames and checks what they have done.

use std::ffi::{CString, c_char, c_int, c_void};
use std::slice;

use anyhow::{Context, Result, ensure};

#[repr(C)]
#[derive(Debug)]
struct Raw {
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
    fn workload_begin(count: c_int, words: *mut *mut c_char) -> *const Raw;
    fn workload_measure(frame: extern "C" fn(*mut c_void) -> u64, context: *mut c_void) -> c_int;
    fn workload_do(task: u32);
}

/// The workload of this process: there is one.
#[derive(Debug, Clone, Copy)]
pub struct Workload(&'static Raw);

// SAFETY: nothing in it is written after it was made.
unsafe impl Send for Workload {}
// SAFETY: as above.
unsafe impl Sync for Workload {}

impl Workload {
    /// What those words ask for; see `workload.h`. Once a process: another call
    /// would change it under the first one's user.
    ///
    /// # Errors
    /// Where they ask for nothing that there is.
    pub fn begin(words: &[String]) -> Result<Self> {
        let words = words
            .iter()
            .map(|word| CString::new(word.as_str()))
            .collect::<Result<Vec<_>, _>>()
            .context("a word of the workload")?;
        // The cases' names are kept.
        let mut words: Vec<*mut c_char> = words.into_iter().map(CString::into_raw).collect();
        let count = c_int::try_from(words.len())?;
        // SAFETY: so many strings, which live on.
        let raw = unsafe { workload_begin(count, words.as_mut_ptr()) };
        // SAFETY: null, or to a static.
        let raw = unsafe { raw.as_ref() };
        raw.map(Self).context("the workload's words are wrong")
    }

    pub fn threads(self) -> usize {
        self.0.threads as usize
    }

    /// n of fib(n), where that is asked for.
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

    /// By task: how many others it waits for.
    pub fn waits(self) -> &'static [u32] {
        if self.tasks() == 0 {
            return &[];
        }
        // SAFETY: so many there are, if any, and they are never written again.
        unsafe { slice::from_raw_parts(self.0.waits, self.tasks() as usize) }
    }

    /// Who waits for that task.
    pub fn successors(self, task: u32) -> &'static [u32] {
        assert!(task < self.tasks());
        // SAFETY: one more than there are tasks; the largest is the number of all
        // successors.
        unsafe {
            let from = *self.0.first.add(task as usize) as usize;
            let to = *self.0.first.add(task as usize + 1) as usize;
            slice::from_raw_parts(self.0.successors.add(from), to - from)
        }
    }

    /// Does what that task has to do; 0 or more and below [`Self::tasks`].
    #[inline]
    pub fn run(self, task: u32) {
        debug_assert!(task < self.tasks());
        // SAFETY: written between frames alone, and every runtime orders a frame
        // after what was done before it; what a task may touch the graph orders.
        unsafe {
            if workload_mode != 0 {
                workload_do(task);
            }
        }
    }

    /// Times a function that runs a whole frame (and gives 0), or that computes
    /// fib(n), and prints a line for each case.
    ///
    /// # Errors
    /// Where what it did is wrong.
    pub fn measure<F: FnMut() -> u64>(self, mut frame: F) -> Result<()> {
        extern "C" fn call<F: FnMut() -> u64>(frame: *mut c_void) -> u64 {
            // SAFETY: the function given below, which lives and is not used but here.
            unsafe { (*frame.cast::<F>())() }
        }
        // SAFETY: the context is what the function takes it for.
        let status = unsafe { workload_measure(call::<F>, (&raw mut frame).cast()) };
        ensure!(status == 0, "what the workload says above");
        Ok(())
    }
}
