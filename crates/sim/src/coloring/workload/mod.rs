// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the tasks do: the paper's two workloads, as state machines whose states
//! are atomics, so that simulated CPUs and threads of this machine run the same.

mod chat;
mod web;

pub use chat::Chat;
pub use web::Web;

/// What an operation came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// It was done.
    Done,
    /// Nothing was done: the task waits until it is woken, and tries again.
    Waits,
}

/// Tasks that do operations, wait for one another and wake one another.
///
/// A task is stepped by one thread at a time. Who is about to step it marks it as
/// sleeping before, as `prepare_to_wait()` does, so that no wake-up is lost.
pub trait Workload: Sync {
    /// How many tasks there are; all begin runnable.
    fn tasks(&self) -> usize;
    /// The number of a task's address space, from 1.
    fn address_space(&self, task: usize) -> u32;
    /// One operation of a task (a system call with what belongs to it). Tasks that
    /// waited for it are added to `woken`.
    fn step(&self, task: usize, now_ns: u64, woken: &mut Vec<usize>) -> Step;
    /// What comes from outside by now.
    fn arrivals(&self, now_ns: u64, woken: &mut Vec<usize>);
    /// When something comes from outside next.
    fn next_arrival_ns(&self) -> Option<u64>;
    /// Units of work done: messages delivered, requests answered.
    fn completed(&self) -> u64;
}
