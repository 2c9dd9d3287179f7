// SPDX-License-Identifier: MIT OR Apache-2.0
//! On which CPU a thread runs or waits.

use usher_rules::where_to::{self, CPU_WORDS, Outlook};

use super::{Standing, with};
use crate::engine::Engine;
use crate::job::ThreadId;
use crate::kernel::mix;

impl Engine {
    fn is_unused(&self, cpu: usize) -> bool {
        self.cpus[cpu].online && self.cpus[cpu].current.is_none()
    }

    /// Another thread works on its core.
    fn is_shared(&self, cpu: usize) -> bool {
        let mut siblings = self.machine.places[cpu].siblings.iter();
        siblings.any(|&other| self.cpus[other].current.is_some())
    }

    fn outlook(&self, thread: ThreadId) -> Outlook {
        let cpus = 0..self.cpus.len();
        let idle = cpus.clone().filter(|&cpu| self.is_unused(cpu));
        let cores = idle.clone().filter(|&cpu| !self.is_shared(cpu));
        let allowed = cpus.filter(|&cpu| self.may_run(thread, cpu));
        let allowed = allowed.fold([0; CPU_WORDS], with);
        Outlook {
            idle: idle.fold([0; CPU_WORDS], with),
            cores: cores.fold([0; CPU_WORDS], with),
            allowed,
            home: allowed,
            ..Outlook::default()
        }
    }

    /// An idle CPU for a thread that was on that one.
    pub(super) fn choose(&self, thread: ThreadId, last: usize) -> Option<usize> {
        let here = &self.ours.places[last];
        let sees = self.outlook(thread);
        where_to::choose_cpu(self.kernel.smt_aware, &sees, last as u32, here)
            .map(|cpu| cpu as usize)
    }

    /// One of an idle core.
    fn choose_core(&self, thread: ThreadId, last: usize) -> Option<usize> {
        let here = &self.ours.places[last];
        where_to::choose_core(&self.outlook(thread), last as u32, here).map(|cpu| cpu as usize)
    }

    /// Where the thread that runs on a shared core goes.
    pub(super) fn way_out(&self, thread: ThreadId, cpu: usize) -> Option<usize> {
        match self.kernel.smt_aware && self.is_shared(cpu) {
            true => self.choose_core(thread, cpu),
            false => None,
        }
    }

    /// A CPU that has nothing to do, of a core that has not either, takes over a thread
    /// that shares one.
    pub(crate) fn invite(&mut self, idle: usize) {
        if !self.kernel.smt_aware || !self.is_unused(idle) || self.is_shared(idle) {
            return;
        }
        let home = self.domain(idle);
        let fits = |cpu: usize| {
            let thread = self.cpus[cpu].current?;
            (self.may_run(thread, idle) && self.is_shared(cpu)).then_some((thread, cpu))
        };
        let near = self.machine.domains[home].iter().copied().find_map(fits);
        let Some((thread, cpu)) = near.or_else(|| (0..self.cpus.len()).find_map(fits)) else {
            return;
        };
        if let Some(to) = self.choose_core(thread, cpu) {
            self.move_running(thread, to);
        }
    }

    /// Where the threads of a new program are before they have run: at its parent's CPU,
    /// and at the clock there.
    pub(crate) fn spread_from_parent(&mut self, program: usize) {
        let any = mix(self.seed, self.threads_created, program as u64) % self.cpus.len() as u64;
        let parent = self.waker.unwrap_or(any as usize);
        let domain = self.domain(parent);
        let vtime = self.ours.queues[domain].hall.clock();
        for &thread in &self.jobs[program].threads {
            let thread = &mut self.threads[thread];
            thread.last = parent;
            thread.standing = Standing {
                vtime,
                domain,
                ..Standing::default()
            };
        }
    }

    /// A thread that has something to do goes to an idle CPU, or waits.
    pub(crate) fn ready_ours(&mut self, thread: ThreadId) {
        let last = self.threads[thread].last;
        let cpu = match self.may_run(thread, last) {
            true => Some(last),
            false => (0..self.cpus.len()).find(|&cpu| self.may_run(thread, cpu)),
        };
        let Some(cpu) = cpu else {
            self.stop(thread);
            return;
        };
        let program = self.threads[thread].program;
        self.jobs[program].runnable += 1;
        let slept = self.follow_sleep(thread);
        if let Some(idle) = self.choose(thread, last) {
            self.run_on(thread, idle);
            return;
        }
        if slept {
            self.hurry(thread);
        } else if !self.threads[thread].standing.has_run {
            self.threads[thread].standing.urgent = true;
        }
        self.join_ours(thread, cpu);
        let current = self.cpus[cpu].current;
        let others = current.is_some_and(|other| !self.threads[other].standing.urgent);
        if slept && self.threads[thread].standing.urgent && others {
            self.ask_again(cpu);
        } else {
            self.arm_domain(cpu);
        }
    }

    /// A thread that is nowhere now goes to a CPU that was idle, if it is still.
    pub(crate) fn arrive_ours(&mut self, thread: ThreadId, to: usize) {
        if !self.is_unused(to) {
            return self.ready_ours(thread);
        }
        let program = self.threads[thread].program;
        self.jobs[program].runnable += 1;
        self.run_on(thread, to);
    }
}
