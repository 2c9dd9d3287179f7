// SPDX-License-Identifier: GPL-2.0-only
//! Load for the guest's checks: loops that compute, with or without sleeps, on given CPUs and with
//! a given nice value, until they are dropped.

use std::fs;
use std::process::{Child, Command, Stdio};

use rustix::process::Pid;
use rustix::thread::{CpuSet as Mask, sched_setaffinity};

/// A loop that may run on the given CPUs; it ends when dropped.
pub struct Loop(Child);

impl Loop {
    pub fn start(nice: &str, cpus: &[usize]) -> Self {
        Self::run(nice, "while :; do :; done", cpus)
    }

    /// Starts a loop that computes for some milliseconds between sleeps.
    pub fn that_sleeps(cpus: &[usize]) -> Self {
        let burst = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done";
        Self::run(
            "0",
            &format!("while :; do {burst}; sleep 0.005; done"),
            cpus,
        )
    }

    fn run(nice: &str, script: &str, cpus: &[usize]) -> Self {
        let child = Command::new("nice")
            .args(["-n", nice, "sh", "-c", script])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let started = Self(child);
        started.may_run_on(cpus);
        started
    }

    pub fn may_run_on(&self, cpus: &[usize]) {
        let mut mask = Mask::new();
        cpus.iter().for_each(|&cpu| mask.set(cpu));
        sched_setaffinity(Pid::from_raw(self.pid().cast_signed()), &mask).unwrap();
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    pub fn ran_ns(&self) -> u64 {
        let path = format!("/proc/{}/schedstat", self.pid());
        let text = fs::read_to_string(path).unwrap();
        text.split(' ').next().unwrap().parse().unwrap()
    }

    /// Returns the CPU on which the loop runs, or ran last.
    pub fn cpu(&self) -> usize {
        let text = fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap();
        // The CPU is field 39 (proc(5)). The name of the process, before field 3, may contain
        // spaces.
        let (_, fields) = text.rsplit_once(") ").unwrap();
        fields.split(' ').nth(36).unwrap().parse().unwrap()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
