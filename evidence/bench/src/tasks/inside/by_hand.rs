// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the wavefront without a runtime, as video decoders do.
//!
//! 1. With n threads, thread i runs the rows i, i + n, i + 2n and so on.
//! 2. Before each macroblock, the thread polls the number of finished macroblocks of the row above
//!    until that row is two macroblocks ahead.
//! 3. The first thread starts a frame, and waits until all rows are finished.
//!
//! The program uses knowledge about the dependencies that no runtime has. Its time is therefore a
//! lower bound for the runtimes.

use std::hint;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use anyhow::Result;

use crate::tasks::workload::Workload;

/// Number of polls after which a thread yields its CPU.
const POLLS_PER_YIELD: u32 = 1 << 14;

/// A counter on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Padded(AtomicU32);

struct RowProgress {
    work: Workload,
    /// Number of finished macroblocks of each row, summed over all frames.
    done: Vec<Padded>,
    /// Number of frames that the first thread has started.
    begun: Padded,
    over: AtomicBool,
}

/// Measures frames with the workload's number of threads.
pub fn run(work: Workload) -> Result<()> {
    let frame = RowProgress {
        work,
        done: (0..work.rows()).map(|_| Padded::default()).collect(),
        begun: Padded::default(),
        over: AtomicBool::new(false),
    };
    thread::scope(|scope| {
        for thread in 1..work.threads() {
            let frame = &frame;
            scope.spawn(move || frame.serve(thread));
        }
        let measured = work.measure(|| frame.run());
        frame.over.store(true, Ordering::Release);
        measured
    })
}

impl RowProgress {
    /// Starts a frame, runs the rows of the first thread, and waits until all rows are finished.
    fn run(&self) -> u64 {
        let number = self.begun.0.fetch_add(1, Ordering::Release) + 1;
        self.rows(0, number);
        let all = number * self.work.columns();
        for row in &self.done {
            poll_until(|| row.0.load(Ordering::Acquire) == all);
        }
        0
    }

    /// Runs the rows of the thread `thread` in every frame, until the last frame has ended.
    fn serve(&self, thread: usize) {
        for number in 1.. {
            poll_until(|| {
                self.begun.0.load(Ordering::Acquire) >= number || self.over.load(Ordering::Acquire)
            });
            if self.begun.0.load(Ordering::Acquire) < number {
                return;
            }
            self.rows(thread, number);
        }
    }

    fn rows(&self, thread: usize, number: u32) {
        let (columns, stages) = (self.work.columns(), self.work.stages());
        let before = (number - 1) * columns;
        for row in (thread..self.done.len()).step_by(self.work.threads()) {
            for x in 0..columns {
                if let Some(above) = row.checked_sub(1) {
                    let wanted = before + (x + 2).min(columns);
                    poll_until(|| self.done[above].0.load(Ordering::Acquire) >= wanted);
                }
                let first = (row as u32 * columns + x) * stages;
                (first..first + stages).for_each(|task| self.work.run(task));
                self.done[row].0.store(before + x + 1, Ordering::Release);
            }
        }
    }
}

/// Polls until the condition is true.
fn poll_until(holds: impl Fn() -> bool) {
    for poll in 1_u32.. {
        if holds() {
            return;
        }
        match poll % POLLS_PER_YIELD {
            0 => thread::yield_now(),
            _ => hint::spin_loop(),
        }
    }
}
