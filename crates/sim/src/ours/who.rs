// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who is next on a CPU.

use usher_rules::balance::{self, Load, Surplus};
use usher_rules::share;
use usher_rules::when::{Moment, Next, Passed, SPACES};

use super::{Chosen, URGENT};
use crate::engine::Engine;
use crate::job::ThreadId;
use crate::kernel::mix;

impl Engine {
    /// The first that waits in a queue, of some, and where in the line.
    pub(super) fn first_of(
        &self,
        domain: usize,
        queue: usize,
        is_meant: impl Fn(ThreadId) -> bool,
    ) -> Option<(usize, ThreadId)> {
        let line = &self.cpus[self.machine.domains[domain][0]].queue;
        let clock = self.ours.queues[domain].hall.clock();
        let here = line.iter().copied().enumerate().filter(|&(_, thread)| {
            self.threads[thread].standing.queue == Some(queue) && is_meant(thread)
        });
        here.min_by_key(|&(_, thread)| {
            self.threads[thread].standing.vtime.wrapping_sub(clock) as i64
        })
    }

    /// Takes the first of a queue who may run there.
    fn take_first(&mut self, domain: usize, queue: usize, cpu: usize) -> Option<ThreadId> {
        let first = self.first_of(domain, queue, |thread| self.may_run(thread, cpu));
        let (at, thread) = first?;
        self.cpus[self.machine.domains[domain][0]].queue.remove(at);
        Some(thread)
    }

    /// Urgent threads come first, but for others after a lead in which only such ran.
    fn take_urgent(&mut self, cpu: usize) -> Option<ThreadId> {
        let domain = self.domain(cpu);
        let now_ns = self.now_ns;
        let service = &mut self.ours.services[cpu];
        if self.ours.queues[domain].hall.waiting() == 0 {
            service.served_ns = None;
            self.catch_up(cpu);
        } else if share::is_late(
            *service.served_ns.get_or_insert(now_ns),
            now_ns,
            self.kernel.max_lag_ns,
        ) {
            let mut others = Moment {
                own: SPACES as u32,
                ..Moment::default()
            };
            if let Chosen::Other(thread) = self.next_turn(&mut others, domain, cpu) {
                self.go_to(cpu, others.least);
                return Some(thread);
            }
            self.catch_up(cpu);
        }
        self.take_first(domain, URGENT, cpu)
    }

    /// Takes the thread that is furthest behind in a domain.
    fn take_hindmost(&mut self, domain: usize, cpu: usize) -> Option<ThreadId> {
        if self.ours.queues[domain].waiting() == 0 {
            return None;
        }
        if let Some(thread) = self.take_first(domain, URGENT, cpu) {
            return Some(thread);
        }
        let mut is = Moment {
            own: SPACES as u32,
            ..Moment::default()
        };
        match self.next_turn(&mut is, domain, cpu) {
            Chosen::Other(thread) => Some(thread),
            Chosen::Same { .. } | Chosen::Nobody => None,
        }
    }

    /// Who is next of a domain's queues.
    fn next_turn(&mut self, is: &mut Moment, domain: usize, cpu: usize) -> Chosen {
        let none = Passed::default();
        for _ in 0..SPACES {
            let passed = match domain == self.domain(cpu) {
                true => &self.ours.services[cpu].passed,
                false => &none,
            };
            match self.ours.queues[domain].hall.ask(is, passed) {
                Next::Same => {
                    let alone = is.hindmost as usize == SPACES;
                    return Chosen::Same { alone };
                }
                Next::Queue(at) => match self.take_first(domain, at, cpu) {
                    Some(thread) => return Chosen::Other(thread),
                    None => is.not |= 1 << at,
                },
                Next::Nobody => break,
            }
        }
        Chosen::Nobody
    }

    /// A CPU serves whoever is as far as that.
    fn go_to(&mut self, cpu: usize, least: u64) {
        let service = &mut self.ours.services[cpu];
        service.clock = share::later(service.clock, least);
    }

    /// Another domain may have more to do: one is looked at now and then, but where nobody
    /// goes on or waits, as then all are.
    fn take_far(&mut self, cpu: usize, sleeps: bool) -> Option<ThreadId> {
        let (here, now_ns) = (self.domain(cpu), self.now_ns);
        let queues = &mut self.ours.queues;
        if sleeps && queues[here].waiting() == 0
            || !balance::begins_look(now_ns, &mut queues[here].look_at_ns)
        {
            return None;
        }
        let drawn = mix(self.seed, now_ns, here as u64) as u32;
        let far = balance::other_llc(here, queues.len(), drawn);
        if far == here {
            return None;
        }
        let load = |domain: usize| Load {
            waiting: self.ours.queues[domain].waiting(),
            cpus: self.machine.domains[domain].len() as u32,
        };
        let in_node = self.machine.node_of[far] == self.machine.node_of[here];
        let surplus = balance::surplus_of(load(far), load(here), sleeps, in_node);
        if surplus == Surplus::None {
            return None;
        }
        let taken = self.take_hindmost(far, cpu)?;
        if let Ok([here, far]) = self.ours.queues.get_disjoint_mut([here, far]) {
            balance::end_look(surplus, now_ns, &mut here.look_at_ns, &mut far.look_at_ns);
        }
        Some(taken)
    }

    /// Takes from other domains, by number from this one on.
    fn steal(&mut self, cpu: usize) -> Option<ThreadId> {
        let (here, domains) = (self.domain(cpu), self.ours.queues.len());
        let mut others = (1..domains).map(|step| (here + step) % domains);
        others.find_map(|domain| self.take_hindmost(domain, cpu))
    }

    /// Who is to run on a CPU where `prev` runs, or nobody.
    pub(super) fn next_ours(&mut self, cpu: usize, prev: Option<ThreadId>) -> Chosen {
        let domain = self.domain(cpu);
        if self.ours.queues[domain].urgent > 0
            && let Some(thread) = self.take_urgent(cpu)
        {
            return Chosen::Other(thread);
        }
        if let Some(thread) = self.take_far(cpu, prev.is_none()) {
            return Chosen::Other(thread);
        }
        let turn = self.ours.services[cpu].turn;
        let own = match self.kernel.aggregate {
            true => self.ours.queues[domain].hall.queue_of(turn.of),
            false => SPACES,
        };
        let prev_vtime = prev.map_or(0, |prev| {
            let vtime = self.vtime_now(prev);
            self.paced(vtime, cpu)
        });
        let mut is = Moment {
            began_ns: turn.began_ns,
            turn_ns: self.kernel.turn_ns,
            lead_ns: self.kernel.max_lag_ns,
            now_ns: self.now_ns,
            has_prev: u32::from(prev.is_some()),
            aggregate: u32::from(self.kernel.aggregate),
            prev_vtime,
            own: own as u32,
            ..Moment::default()
        };
        if self.ours.queues[domain].waiting() > 0 {
            match self.next_turn(&mut is, domain, cpu) {
                Chosen::Nobody => {}
                alone @ Chosen::Same { alone: true } => return alone,
                chosen => {
                    self.go_to(cpu, is.least);
                    return chosen;
                }
            }
        }
        self.catch_up(cpu);
        match prev {
            Some(_) => Chosen::Same { alone: true },
            None => self.steal(cpu).map_or(Chosen::Nobody, Chosen::Other),
        }
    }
}
