// SPDX-License-Identifier: MIT OR Apache-2.0
//! Real-time threads of the simulated machine. They are no tasks of the instance: they take a CPU,
//! and release it.

use super::{HostSched, Instance};

unsafe extern "C" {
    fn host_set_realtime(host: *mut Instance, cpu: u32, is_taken: bool);
    fn host_set_immediate(host: *mut Instance, is_immediate: bool);
}

impl HostSched {
    /// Marks a CPU as taken, or released, by a real-time thread. No task runs on a taken CPU. The running
    /// task is preempted, and may run on another CPU when that CPU schedules.
    pub fn set_realtime(&mut self, cpu: usize, is_taken: bool) {
        let cpu = self.checked(cpu);
        // SAFETY: the instance is valid until `self` is dropped, and `self` is borrowed
        // exclusively.
        unsafe { host_set_realtime(self.host.as_ptr(), cpu, is_taken) }
    }

    /// Determines whether the kernel enqueues tasks again that were dispatched to a taken CPU, as
    /// Linux 7.1 and newer do. Older kernels only call `cpu_release` when a CPU is taken.
    pub fn set_immediate(&mut self, is_immediate: bool) {
        // SAFETY: the instance is valid until `self` is dropped, and `self` is borrowed
        // exclusively.
        unsafe { host_set_immediate(self.host.as_ptr(), is_immediate) }
    }
}
