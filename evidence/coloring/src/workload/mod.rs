// SPDX-License-Identifier: MIT OR Apache-2.0
//! The paper's two workloads as state machines with atomic states, which run on simulated CPUs and
//! on threads of the host.

mod chat;
mod web;

pub use chat::Chat;
pub use web::Web;

/// Result of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperationResult {
    /// The operation is done.
    Done,
    /// Nothing was done: the task waits until it is woken, then retries.
    Waits,
}

/// Tasks that execute operations, wait for one another and wake one another.
///
/// Only one thread steps a task at a time. It marks the task as sleeping before the step, as
/// `prepare_to_wait()` does, to avoid lost wakeups.
pub trait Workload: Sync {
    /// Number of tasks; all are runnable at the start.
    fn tasks(&self) -> usize;
    /// Number of a task's address space, from 1.
    fn address_space(&self, task: usize) -> u32;
    /// Executes one operation of a task (a system call with its surrounding work). Tasks that
    /// waited for it are added to `woken`.
    fn step(&self, task: usize, now_ns: u64, woken: &mut Vec<usize>) -> OperationResult;
    /// Handles external arrivals up to `now_ns`.
    fn arrivals(&self, now_ns: u64, woken: &mut Vec<usize>);
    /// Time of the next external arrival.
    fn next_arrival_ns(&self) -> Option<u64>;
    /// Completed units of work: messages delivered, requests answered.
    fn completed(&self) -> u64;
}
