// SPDX-License-Identifier: MIT OR Apache-2.0
//! The two workloads of paper 3a, chat and web server. A workload is a set of tasks; each task is a
//! state machine with its state in atomic variables. Workloads therefore run on simulated CPUs
//! ([`crate::engine`]) and also on threads of the host.

mod chat;
mod web;

pub use chat::Chat;
pub use web::Web;

/// Result of the attempt to execute an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperationResult {
    /// The task has executed the operation.
    Done,
    /// The task has executed nothing. It waits until it is woken, and then tries the operation
    /// again.
    Waits,
}

/// The tasks of a workload, which execute operations, wait for one another and wake one another.
///
/// Only one thread at a time may execute operations of a task. Before [`Workload::step`], the
/// thread must mark the task as sleeping, as `prepare_to_wait()` of Linux does. Otherwise, a wakeup
/// between the test of the wait condition and the mark would be lost.
pub trait Workload: Sync {
    /// Number of tasks. At the start, all tasks are runnable.
    fn tasks(&self) -> usize;
    /// Number of a task's address space, counted from 1.
    fn address_space(&self, task: usize) -> u32;
    /// Executes one operation of a task (a system call with the work around it). Adds the tasks
    /// that waited for the operation to `woken`.
    fn step(&self, task: usize, now_ns: u64, woken: &mut Vec<usize>) -> OperationResult;
    /// Handles the data that have arrived from outside until `now_ns`. Adds the tasks that waited
    /// for the data to `woken`.
    fn arrivals(&self, now_ns: u64, woken: &mut Vec<usize>);
    /// Time at which the next data arrive from outside; `None` if none are on their way.
    fn next_arrival_ns(&self) -> Option<u64>;
    /// Number of completed units of work: messages delivered, or requests answered.
    fn completed(&self) -> u64;
}
