// SPDX-License-Identifier: MIT OR Apache-2.0
//! Synchronous wake-ups, which the scheduler uses to place tasks that exchange data, as at the two
//! ends of a pipe.

use super::{HostSched, TaskId, host_wake};

/// Flag of a wake-up: the waking task is about to sleep.
const WAKE_SYNC: u64 = 16;

impl HostSched {
    /// Wakes a sleeping task as [`Self::wake`] does, by a synchronous wake-up. The waker is the task
    /// that runs on `by_cpu`.
    pub fn wake_sync(&mut self, task: TaskId, by_cpu: usize) {
        let by_cpu = self.checked(by_cpu);
        // SAFETY: the instance is valid until `self` is dropped, and `self` is borrowed
        // exclusively; the task exists.
        unsafe { host_wake(self.host.as_ptr(), self.number_of(task), by_cpu, WAKE_SYNC) }
    }
}
