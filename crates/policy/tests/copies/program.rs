// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program with processes that a test adds and ends, and its planner.

use std::collections::BTreeMap;

use usher_model::{CpuSet, ProcessId, Topology, TreeProcess};
use usher_policy::copies::{CopyPlanner, CopyState};

use crate::common::machine;

pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1_000 * MS;

/// Builds a machine with these numbers of cores per cache.
pub fn caches(cores: &[usize], smt: u32) -> Topology {
    let domains = cores.iter().map(|&count| vec![1.0; count]).collect();
    machine(&vec![vec![domains]], smt, 1 << 20)
}

/// A program whose processes the test adds and ends, and its planner.
pub struct Program {
    pub machine: Topology,
    pub planner: CopyPlanner,
    pub processes: BTreeMap<i32, TreeProcess>,
    pub masks: BTreeMap<i32, CpuSet>,
    pub at_ns: u64,
}

impl Program {
    pub fn new(cpus: usize) -> Self {
        let mut program = Self {
            machine: caches(&[cpus], 1),
            planner: CopyPlanner::default(),
            processes: BTreeMap::new(),
            masks: BTreeMap::new(),
            at_ns: SECOND,
        };
        program.start(1, 0, 1);
        program
    }

    /// Starts a process with an executable; it inherits the mask of its parent.
    pub fn start(&mut self, pid: i32, parent: i32, executable: u64) -> &mut TreeProcess {
        if let Some(mask) = self.masks.get(&parent).cloned() {
            self.masks.insert(pid, mask);
        }
        let process = TreeProcess {
            id: ProcessId {
                pid,
                start_ticks: self.at_ns,
            },
            parent,
            name: format!("exe{executable}"),
            executable: Some((0, executable)),
            shape: String::new(),
            executed: true,
            threads: 1,
            working_threads: 1,
            is_runnable: false,
            cpu_ns: 0,
            idle_since_ns: None,
            found_ns: self.at_ns,
            mapped_at_cpu_ns: Some(0),
        };
        self.processes.insert(pid, process);
        self.processes.get_mut(&pid).unwrap()
    }

    pub fn end(&mut self, pid: i32) {
        self.processes.remove(&pid);
        self.masks.remove(&pid);
    }

    pub fn step_with(&mut self, seat: &CpuSet, after_ns: u64) {
        self.at_ns += after_ns;
        let processes: Vec<TreeProcess> = self.processes.values().cloned().collect();
        let changes = self
            .planner
            .step(self.at_ns, &self.machine, seat, &processes);
        for change in changes {
            match change.cpus {
                Some(cpus) => self.masks.insert(change.process.pid, cpus),
                None => self.masks.remove(&change.process.pid),
            };
        }
    }

    pub fn step(&mut self, after_ns: u64) {
        self.step_with(&self.machine.all_cpus(), after_ns);
    }

    pub fn mask(&self, pid: i32) -> String {
        self.masks
            .get(&pid)
            .map_or("all".to_owned(), CpuSet::to_string)
    }

    pub fn masks(&self, pids: &[i32]) -> String {
        let masks: Vec<String> = pids.iter().map(|&pid| self.mask(pid)).collect();
        masks.join(" ")
    }

    pub fn state(&self, pid: i32) -> Option<CopyState> {
        let groups = self.planner.report();
        let mut copies = groups.iter().flat_map(|group| &group.copies);
        copies
            .find(|copy| copy.process.pid == pid)
            .map(|copy| copy.state)
    }
}
