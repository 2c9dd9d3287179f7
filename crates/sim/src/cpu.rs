// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state of one simulated CPU: the running thread, the waiting threads, and the times up to
//! which run time and vtime are charged. The waiting threads have no order; `queue_order.rs`
//! selects the next one in time proportional to their number. This file contains only data, which
//! the kernel model (`sim_kernel`) changes.

use crate::job::ThreadId;

/// A CPU, its queue and its current thread.
#[derive(Debug, Clone)]
pub(crate) struct CpuState {
    pub current: Option<ThreadId>,
    pub queue: Vec<ThreadId>,
    pub online: bool,
    /// Virtual time up to which the CPU's time has been charged.
    pub since_ns: u64,
    /// Start of the current thread's run.
    pub started_ns: u64,
    pub slice_end_ns: u64,
    /// Rate of the running thread, in work per nanosecond.
    pub rate: f64,
    /// Total time during which the CPU ran a thread.
    pub busy_ns: u64,
    /// Virtual time of the queue when a thread was last in it.
    pub vtime: f64,
    /// The thread that ran last on this CPU, and its program.
    pub before: Option<(ThreadId, usize)>,
}

impl CpuState {
    /// Returns the state of an idle CPU at time 0.
    pub fn idle() -> Self {
        Self {
            current: None,
            queue: Vec::new(),
            online: true,
            since_ns: 0,
            started_ns: 0,
            slice_end_ns: 0,
            rate: 0.0,
            busy_ns: 0,
            vtime: 0.0,
            before: None,
        }
    }

    /// Returns whether the CPU has neither a current nor a waiting thread.
    pub fn is_idle(&self) -> bool {
        self.current.is_none() && self.queue.is_empty()
    }

    /// Returns the number of running and waiting threads.
    pub fn runnable(&self) -> usize {
        self.queue.len() + usize::from(self.current.is_some())
    }

    /// Returns the running and the waiting threads.
    pub fn threads(&self) -> impl Iterator<Item = ThreadId> {
        self.queue.iter().chain(&self.current).copied()
    }
}
