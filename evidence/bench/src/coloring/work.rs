// SPDX-License-Identifier: MIT OR Apache-2.0
//! Executes an operation of a task on this machine: it writes 32 cache lines of the task's own
//! memory, reads 48 cache lines that all tasks share, and runs an arithmetic loop. The numbers of
//! bytes are those of the simulation.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// Words of 64 bits per cache line.
const LINE_WORDS: usize = 8;
/// Cache lines of the task that an operation writes to.
const OWN_LINES: usize = 32;
/// Number of words of a task's memory (4 KiB).
const OWN_WORDS: usize = 512;
/// Cache lines of the memory that all tasks share which an operation reads.
const COMMON_LINES: usize = 48;
/// Number of words of the memory that all tasks share (128 KiB).
const COMMON_WORDS: usize = 16 << 10;

/// Memory of one task.
#[derive(Debug)]
pub struct TaskMemory(Box<[AtomicU64]>);

impl Default for TaskMemory {
    fn default() -> Self {
        Self((0..OWN_WORDS as u64).map(AtomicU64::new).collect())
    }
}

/// The memory that all tasks share, and the state of the CPU that executes the operations.
#[derive(Debug)]
pub struct OperationState {
    common: Vec<u64>,
    state: u64,
    turns: u64,
}

impl OperationState {
    /// Returns the state of a CPU that executes `turns` iterations of the arithmetic loop in each
    /// operation.
    pub fn new(seed: u64, turns: u64) -> Self {
        Self {
            common: (0..COMMON_WORDS as u64).collect(),
            state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            turns,
        }
    }

    fn turn(&mut self) -> u64 {
        self.state = self
            .state
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(1);
        self.state
    }

    /// Executes one operation.
    pub fn operation(&mut self, own: &TaskMemory) {
        let first = (self.turn() >> 40) as usize * LINE_WORDS;
        for nth in 0..OWN_LINES {
            let word = &own.0[(first + nth * LINE_WORDS) % OWN_WORDS];
            word.store(word.load(Relaxed) ^ self.state, Relaxed);
        }
        let mut sum = 0_u64;
        for _ in 0..COMMON_LINES {
            let at = (self.turn() >> 40) as usize * LINE_WORDS % COMMON_WORDS;
            sum = sum.wrapping_add(self.common[at]);
        }
        (0..self.turns).for_each(|_| sum = sum.wrapping_add(self.turn()));
        black_box(sum);
    }
}

/// Returns the number of iterations of the arithmetic loop with which an operation takes about
/// `operation_ns` nanoseconds on this machine.
pub fn turns_for(operation_ns: u64) -> u64 {
    let own = TaskMemory::default();
    let ns = |turns: u64| {
        let mut work = OperationState::new(1, turns);
        let once = |work: &mut OperationState| {
            let start = Instant::now();
            (0..1_000).for_each(|_| work.operation(&own));
            start.elapsed().as_nanos() as f64 / 1e3
        };
        let times = (0..15).map(|_| once(&mut work));
        times.fold(f64::INFINITY, f64::min)
    };
    let (none, many) = (ns(0), ns(1_000));
    let each = ((many - none) / 1e3).max(0.01);
    ((operation_ns as f64 - none) / each).max(0.0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_changes_lines_of_its_own() {
        let own = TaskMemory::default();
        OperationState::new(3, 5).operation(&own);
        let words = own.0.iter().enumerate();
        let changed = words
            .filter(|(n, word)| word.load(Relaxed) != *n as u64)
            .count();
        assert_eq!(changed, OWN_LINES);
    }

    #[test]
    fn zero_operation_time_gives_no_turns() {
        assert_eq!(turns_for(0), 0);
    }
}
