// SPDX-License-Identifier: MIT OR Apache-2.0
//! Transitions of CPUs to idle in steps, and CPUs that schedule late: races between a CPU that
//! becomes idle and a task that is enqueued.

use super::{HostSched, Instance};
use crate::select_cpu::{CPU_WORDS, CpuWords};

unsafe extern "C" {
    fn host_split_idle(host: *mut Instance, marks_late: bool);
    fn host_becomes_idle(host: *const Instance, cpu: u32) -> bool;
    fn host_continue_idle(host: *mut Instance, cpu: u32);
    fn host_read_marked(host: *const Instance, marked: *mut CpuWords);
    fn host_lose_idle_kicks(host: *mut Instance, is_lost: bool);
}

impl HostSched {
    /// From now on, CPUs become idle in steps: after [`Self::schedule`] has found no task, two calls
    /// of [`Self::continue_idle`] complete the transition. With `marks_late`, the kernel updates its
    /// masks of idle CPUs after it calls `update_idle`; otherwise before.
    pub fn split_idle(&mut self, marks_late: bool) {
        // SAFETY: the instance is valid until `self` is dropped, and `self` is borrowed
        // exclusively.
        unsafe { host_split_idle(self.host.as_ptr(), marks_late) }
    }

    /// Returns whether a CPU is in a transition to idle.
    pub fn becomes_idle(&self, cpu: usize) -> bool {
        let cpu = self.checked(cpu);
        // SAFETY: the instance is valid until `self` is dropped, and is only read.
        unsafe { host_becomes_idle(self.host.as_ptr(), cpu) }
    }

    /// Makes the next step of a transition to idle, if the CPU is in a transition.
    pub fn continue_idle(&mut self, cpu: usize) {
        let cpu = self.checked(cpu);
        // SAFETY: the instance is valid until `self` is dropped, and `self` is borrowed
        // exclusively.
        unsafe { host_continue_idle(self.host.as_ptr(), cpu) }
    }

    /// Returns the CPUs that have to schedule.
    pub fn marked(&self) -> CpuWords {
        let mut marked = [0; CPU_WORDS];
        // SAFETY: the instance is valid until `self` is dropped, and is only read; `marked` has the
        // layout of `struct cpu_set`.
        unsafe { host_read_marked(self.host.as_ptr(), &mut marked) };
        marked
    }

    /// While `is_lost` is true, kicks of CPUs that run no task have no effect.
    pub fn lose_idle_kicks(&mut self, is_lost: bool) {
        // SAFETY: the instance is valid until `self` is dropped, and `self` is borrowed
        // exclusively.
        unsafe { host_lose_idle_kicks(self.host.as_ptr(), is_lost) }
    }
}
