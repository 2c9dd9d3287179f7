// SPDX-License-Identifier: MIT OR Apache-2.0
//! Load balancing of the simulated kernel: distributes threads over CPUs.
//!
//! - At fork, each new thread is placed on the CPU with the least load.
//! - In each balancing period, idle CPUs pull waiting threads. With SMT awareness, idle cores also
//!   pull running threads from cores that run several threads.
//! - In each period of busy balancing, each online CPU takes at most one waiting thread from the
//!   most loaded CPU, if the loads are more equal afterwards.
//!
//! A load is the sum of the weights of a CPU's threads. One balancing pass visits each pair of
//! CPUs, and for each idle or busy CPU the waiting threads, at most a few times. Placing a new
//! thread visits all CPUs. Under Usher's scheduler, this module only passes on new threads and
//! ticks.

use super::SimKernel;

impl SimKernel {
    /// Places the new threads of a program on the least loaded CPUs, as the kernel does at fork.
    pub(crate) fn place_new_threads(&mut self, program: usize) {
        if self.kernel.is_usher() {
            return self.create_tasks(program);
        }
        let mut loads = self.selection().loads();
        for thread in self.tasks.jobs[program].threads.clone() {
            let mask = &self.tasks.jobs[program].mask;
            if let Some(cpu) = self.selection().idlest(mask, thread, 0, &loads) {
                loads[cpu] += self.weight(thread);
                self.tasks.threads[thread].last = cpu;
            }
        }
    }

    /// Lets idle CPUs pull waiting threads. In each period of busy balancing, each CPU also pulls
    /// at most one waiting thread from a CPU with a load that is higher by more than a margin.
    pub(crate) fn balance(&mut self) {
        if self.kernel.is_usher() {
            return self.tick_usher();
        }
        for cpu in 0..self.cpus.len() {
            if self.waiting > 0 && self.cpus[cpu].online && self.cpus[cpu].is_idle() {
                self.dispatch(cpu);
            }
        }
        if self.now_ns >= self.balanced_ns + self.kernel.busy_balance_ns {
            self.balanced_ns = self.now_ns;
            let mut loads = self.selection().loads();
            let queues = |&cpu: &usize| !self.cpus[cpu].queue.is_empty();
            let busy: Vec<usize> = (0..self.cpus.len()).filter(queues).collect();
            for cpu in 0..self.cpus.len() {
                if self.cpus[cpu].online && self.has_waiters_for(cpu) {
                    self.pull_load(cpu, &busy, &mut loads);
                }
            }
        }
        if self.kernel.smt_aware {
            self.fill_idle_cores();
        }
    }

    /// Moves one waiting thread from the most loaded CPU to `cpu`, if the move balances the loads.
    /// `busy` are the CPUs that had waiting threads.
    fn pull_load(&mut self, cpu: usize, busy: &[usize], loads: &mut [f64]) {
        let Some((other, at)) = self.selection().overload(cpu, busy, loads) else {
            return;
        };
        let thread = self.cpus[other].queue.remove(at);
        let weight = self.weight(thread);
        loads[other] -= weight;
        loads[cpu] += weight;
        self.account(other);
        self.leave(thread, other);
        self.arm(other);
        self.account(cpu);
        self.enqueue(thread, cpu);
        match self.cpus[cpu].current {
            None => self.dispatch(cpu),
            Some(_) => self.arm(cpu),
        }
    }

    /// Moves running threads from cores that run several threads to idle cores.
    fn fill_idle_cores(&mut self) {
        for cpu in 0..self.cpus.len() {
            let has_siblings = !self.machine.places[cpu].siblings.is_empty();
            let selection = self.selection();
            if !has_siblings || !self.cpus[cpu].online || !selection.is_idle_core(cpu) {
                continue;
            }
            if let Some(thread) = selection.crowded(cpu) {
                self.move_running(thread, cpu);
            }
        }
    }
}
