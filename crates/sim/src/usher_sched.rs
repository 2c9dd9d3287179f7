// SPDX-License-Identifier: MIT OR Apache-2.0
//! An instance of Usher's own scheduler for a simulated machine. All decisions come from the C
//! source of the scheduler's BPF programs, which is compiled for the host ([`HostSched`]). This
//! module maps simulated threads to the tasks of the instance; `sim_kernel/usher.rs` calls the
//! module. The mapping takes constant time, and the conversion of a thread's CPUs linear time in
//! the number of CPUs. The numbers of CPUs and LLCs are limited ([`Kernel::check`]); the caller
//! checks them.

use usher_rules::sched::{HostSched, HostSettings, Task, TaskId};
use usher_rules::select_cpu::{CPU_WORDS, CpuWords, Place};

use crate::job::ThreadId;
use crate::kernel::Kernel;
use crate::machine::{Machine, Mask};

/// The instance of the scheduler, and the thread of each of its tasks.
#[derive(Debug)]
pub(crate) struct UsherSched {
    host: HostSched,
    /// The thread of each task, by the number of the task.
    threads: Vec<ThreadId>,
    /// Number of CPUs.
    cpus: usize,
}

impl UsherSched {
    /// Creates the scheduler of an idle machine.
    pub fn new(machine: &Machine, kernel: &Kernel, seed: u64) -> Self {
        let settings = HostSettings {
            slice_ns: kernel.slice_ns,
            turn_ns: kernel.turn_ns,
            max_lag_ns: kernel.max_lag_ns,
            smt: kernel.smt_aware.into(),
            aggregate: kernel.aggregate.into(),
            llcs: machine.domains.len() as u32,
            ..HostSettings::default()
        };
        Self {
            host: HostSched::new(&places(machine), &settings, seed),
            threads: Vec::new(),
            cpus: machine.places.len(),
        }
    }

    /// Returns the scheduler, after setting its clock to `now_ns`.
    pub fn host(&mut self, now_ns: u64) -> &mut HostSched {
        self.host.set_now(now_ns);
        &mut self.host
    }

    /// Creates the task of a new thread. `parent` is the CPU on which the thread's parent runs.
    pub fn new_task(
        &mut self,
        now_ns: u64,
        thread: ThreadId,
        program: usize,
        parent: usize,
        allowed: &Mask,
    ) -> TaskId {
        let task = Task {
            mm: mm_of(program),
            cpu: parent as u32,
            cpus: words_of(allowed, self.cpus),
            ..Task::default()
        };
        let task = self.host(now_ns).new_task(&task);
        let tasks = self.threads.len().max(task.index() + 1);
        self.threads.resize(tasks, 0);
        self.threads[task.index()] = thread;
        task
    }

    /// Lets a CPU schedule. Returns the thread that runs there next.
    pub fn schedule(&mut self, now_ns: u64, cpu: usize) -> Option<ThreadId> {
        let task = self.host(now_ns).schedule(cpu)?;
        Some(self.threads[task.index()])
    }

    /// Passes a thread's changed affinity to the scheduler.
    pub fn set_cpus(&mut self, now_ns: u64, task: TaskId, allowed: &Mask) {
        let cpus = words_of(allowed, self.cpus);
        self.host(now_ns).set_cpus(task, &cpus);
    }
}

/// Returns the place of each CPU in the topology (core, LLC, NUMA node), in the scheduler's form.
fn places(machine: &Machine) -> Vec<Place> {
    let cpus = machine.places.iter().enumerate();
    let place = |(at, cpu): (usize, &crate::machine::Place)| {
        let node = machine.node_of[cpu.domain];
        let domains = 0..machine.domains.len();
        let domains = domains.filter(|&domain| machine.node_of[domain] == node);
        let node_cpus = domains.clone().flat_map(|domain| &machine.domains[domain]);
        Place {
            known: 1,
            llc: cpu.domain as u32,
            node_number: node as u32,
            node_llcs: domains.fold(0, |all, domain| all | 1 << (domain % 64)),
            core: words(cpu.siblings.iter().copied().chain([at])),
            near: words(machine.domains[cpu.domain].iter().copied()),
            node: words(node_cpus.copied()),
            ..Place::default()
        }
    };
    cpus.map(place).collect()
}

fn words(cpus: impl Iterator<Item = usize>) -> CpuWords {
    let mut words = [0; CPU_WORDS];
    for cpu in cpus {
        if let Some(word) = words.get_mut(cpu / 64) {
            *word |= 1 << (cpu % 64);
        }
    }
    words
}

fn words_of(mask: &Mask, cpus: usize) -> CpuWords {
    words((0..cpus).filter(|&cpu| mask.has(cpu)))
}

/// Returns the number of a program's address space.
fn mm_of(program: usize) -> u64 {
    (program as u64 + 1) << 6
}
