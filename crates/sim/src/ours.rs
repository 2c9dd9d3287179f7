// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel under Usher's own scheduler: where a thread goes and who is next are
//! decided by the very headers that its BPF program includes (crate `usher-rules`);
//! here are the CPUs and queues for them, as in that program's `where.h`, `when.h` and
//! `sched.bpf.c`.
//!
//! All CPUs of a domain share its queues, which lie with its first CPU. Seats are left
//! out, for the loop's are cpusets here; so are weights, beginning anew when CPUs come or
//! go, and whatever only races need.

use usher_rules::when::{self, Comer, Hall, Limits, Moment, Next, SPACES, WEIGHT_NORMAL};
use usher_rules::where_to::{self, CPU_WORDS, CpuWords, Outlook, Place};

use crate::engine::Engine;
use crate::job::{Doing, ThreadId};
use crate::kernel::{Order, mix};
use crate::machine::Machine;

/// Behind the queues of address spaces: that of urgent threads.
const URGENT: usize = SPACES;
/// LLCs that the scheduler knows, of which a busy CPU draws one to look at: seldom one that
/// is there.
pub(crate) const LLCS_MAX: u64 = 64;

/// What the scheduler knows of a thread.
#[derive(Debug, Clone, Default)]
pub(crate) struct Standing {
    /// By the clock of the hall of that domain.
    vtime: u64,
    domain: usize,
    /// Since when what it runs is to be charged.
    began_ns: u64,
    /// Ran since it woke.
    burst_ns: u64,
    burst_average_ns: u64,
    urgent: bool,
    /// The queue that it waits in.
    queue: Option<usize>,
    has_run: bool,
    /// It has slept since it last ran.
    pub slept: bool,
}

/// Whose turn it is on a CPU.
#[derive(Debug, Clone, Copy, Default)]
struct Turn {
    space: u64,
    began_ns: u64,
    /// When one that is not urgent last ran, or none waited.
    served_ns: u64,
}

/// The queues of a domain.
#[derive(Debug, Clone, Default)]
struct Queues {
    hall: Hall,
    urgent: u32,
}

impl Queues {
    fn waiting(&self) -> u32 {
        self.hall.waiting() + self.urgent
    }
}

/// What the scheduler knows of the machine.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ours {
    places: Vec<Place>,
    queues: Vec<Queues>,
    turns: Vec<Turn>,
    looks: u64,
}

impl Ours {
    pub fn new(machine: &Machine) -> Self {
        let cpus = machine.places.iter().enumerate();
        let words = |cpus: &mut dyn Iterator<Item = usize>| cpus.fold([0; CPU_WORDS], with);
        let place = |(at, cpu): (usize, &crate::machine::Place)| {
            let node = machine.node_of[cpu.domain];
            let nodes =
                (0..machine.domains.len()).filter(|&domain| machine.node_of[domain] == node);
            Place {
                known: 1,
                llc: cpu.domain as u32,
                core: words(&mut cpu.siblings.iter().copied().chain([at])),
                near: words(&mut machine.domains[cpu.domain].iter().copied()),
                node: words(&mut nodes.flat_map(|domain| machine.domains[domain].iter().copied())),
                ..Place::default()
            }
        };
        Self {
            places: cpus.map(place).collect(),
            queues: vec![Queues::default(); machine.domains.len()],
            turns: vec![Turn::default(); machine.places.len()],
            looks: 0,
        }
    }
}

fn with(mut words: CpuWords, cpu: usize) -> CpuWords {
    if let Some(word) = words.get_mut(cpu / 64) {
        *word |= 1 << (cpu % 64);
    }
    words
}

/// Who is to run on a CPU.
enum Chosen {
    /// Who runs there: time that nobody waited for, or a turn that goes on.
    Same {
        alone: bool,
    },
    Other(ThreadId),
    Nobody,
}

/// An address space, as the kernel names it.
fn space_of(program: usize) -> u64 {
    (program as u64 + 1) << 6
}

impl Engine {
    /// The CPU in whose queue those wait that this CPU may take.
    pub(crate) fn line(&self, cpu: usize) -> usize {
        match self.kernel.order {
            Order::Usher => self.machine.domains[self.domain(cpu)][0],
            Order::Eevdf | Order::Cfs => cpu,
        }
    }

    fn domain(&self, cpu: usize) -> usize {
        self.machine.places[cpu].domain
    }

    fn limits(&self) -> Limits {
        Limits {
            slice_ns: self.kernel.slice_ns,
            turn_ns: self.kernel.turn_ns,
            lead_ns: self.kernel.lead_ns,
            aggregate: self.kernel.aggregate,
        }
    }

    // Where.

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
    fn choose(&self, thread: ThreadId, last: usize) -> Option<usize> {
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
    fn way_out(&self, thread: ThreadId, cpu: usize) -> Option<usize> {
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
        let any = mix(self.seed, self.births, program as u64) % self.cpus.len() as u64;
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

    // When.

    /// What a thread that has slept is owed; whether it has.
    fn follow_sleep(&mut self, thread: ThreadId) -> bool {
        let standing = &mut self.threads[thread].standing;
        if !std::mem::take(&mut standing.slept) {
            return false;
        }
        standing.burst_average_ns = when::burst_after(standing.burst_average_ns, standing.burst_ns);
        standing.burst_ns = 0;
        let clock = self.ours.queues[standing.domain].hall.clock();
        standing.vtime = when::wake_at(standing.vtime, clock, self.kernel.slice_ns);
        true
    }

    /// Whether one that has slept is urgent: it may be as far ahead of the others as
    /// anybody gets in a turn.
    fn hurry(&mut self, thread: ThreadId) {
        let limits = self.limits();
        let ahead = when::ahead_at_most(limits.lead_ns, limits.slice_ns, WEIGHT_NORMAL);
        let standing = &mut self.threads[thread].standing;
        let share = self.ours.queues[standing.domain].hall.average();
        standing.urgent = when::is_urgent(
            standing.burst_average_ns,
            standing.vtime,
            share.wrapping_add(ahead),
        );
    }

    /// Its virtual time is by the clock of that domain from now on.
    fn follow_clock(&mut self, thread: ThreadId, domain: usize) {
        let standing = &mut self.threads[thread].standing;
        let clock = |domain: usize| self.ours.queues[domain].hall.clock();
        let apart = clock(domain).wrapping_sub(clock(standing.domain));
        standing.vtime = standing.vtime.wrapping_add(apart);
        standing.domain = domain;
    }

    /// Puts a thread into a queue of the CPU's domain.
    fn join_ours(&mut self, thread: ThreadId, cpu: usize) {
        for other in self.machine.domains[self.domain(cpu)].clone() {
            self.prolong(other);
        }
        let (line, limits) = (self.line(cpu), self.limits());
        self.follow_clock(thread, self.domain(cpu));
        let program = self.threads[thread].program;
        let now_ns = self.now_ns;
        let standing = &mut self.threads[thread].standing;
        let queues = &mut self.ours.queues[standing.domain];
        if standing.urgent {
            queues.urgent += 1;
            standing.queue = Some(URGENT);
        } else {
            let mut comer = Comer {
                mm: if limits.aggregate {
                    space_of(program)
                } else {
                    0
                },
                seat: 0,
                vtime: standing.vtime,
                weight: WEIGHT_NORMAL,
            };
            comer.vtime = queues.hall.place(&comer, now_ns, &limits);
            standing.vtime = comer.vtime;
            standing.queue = Some(queues.hall.join(&comer));
        }
        self.threads[thread].doing = Doing::Queued(line);
        self.cpus[line].queue.push(thread);
        self.queued(program, 1);
    }

    /// A thread waits no more.
    fn leave_queue(&mut self, thread: ThreadId) {
        let Standing { domain, vtime, .. } = self.threads[thread].standing;
        let Some(queue) = self.threads[thread].standing.queue.take() else {
            return;
        };
        if queue == URGENT {
            self.ours.queues[domain].urgent -= 1;
            return;
        }
        let first = self.first_of(domain, queue, |_| true);
        let first = first.map_or(vtime, |(_, first)| self.threads[first].standing.vtime);
        self.ours.queues[domain].hall.leave(queue, first);
    }

    /// The first that waits in a queue, of some, and where in the line.
    fn first_of(
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

    /// Urgent threads come first, but for others after a turn in which only such ran.
    fn take_urgent(&mut self, cpu: usize) -> Option<ThreadId> {
        let domain = self.domain(cpu);
        if self.ours.queues[domain].hall.waiting() == 0 {
            self.ours.turns[cpu].served_ns = self.now_ns;
        } else if when::is_late(
            self.ours.turns[cpu].served_ns,
            self.now_ns,
            self.kernel.lead_ns,
        ) {
            let mut others = Moment {
                own: SPACES as u32,
                ..Moment::default()
            };
            if let Next::Queue(at) = self.ours.queues[domain].hall.ask(&mut others)
                && let Some(thread) = self.take_first(domain, at, cpu)
            {
                return Some(thread);
            }
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
        for _ in 0..SPACES {
            match self.ours.queues[domain].hall.ask(is) {
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

    /// Another domain may have more to do: one is looked at now and then.
    fn take_far(&mut self, cpu: usize) -> Option<ThreadId> {
        self.ours.looks += 1;
        let far = mix(self.seed, self.ours.looks, cpu as u64) % LLCS_MAX;
        let (far, here) = (far as usize, self.domain(cpu));
        let there = self.ours.queues.get(far)?;
        let has_more = when::is_fuller(there.waiting(), self.ours.queues[here].waiting());
        match far != here && has_more {
            true => self.take_hindmost(far, cpu),
            false => None,
        }
    }

    /// Takes from other domains, by number from this one on.
    fn steal(&mut self, cpu: usize) -> Option<ThreadId> {
        let (here, domains) = (self.domain(cpu), self.ours.queues.len());
        let mut others = (1..domains).map(|step| (here + step) % domains);
        others.find_map(|domain| self.take_hindmost(domain, cpu))
    }

    /// Who is to run on a CPU where `prev` runs, or nobody.
    fn next_ours(&mut self, cpu: usize, prev: Option<ThreadId>) -> Chosen {
        let domain = self.domain(cpu);
        if self.ours.queues[domain].urgent > 0
            && let Some(thread) = self.take_urgent(cpu)
        {
            return Chosen::Other(thread);
        }
        if let Some(thread) = self.take_far(cpu) {
            return Chosen::Other(thread);
        }
        let turn = self.ours.turns[cpu];
        let own = match self.kernel.aggregate {
            true => self.ours.queues[domain].hall.queue_of(turn.space),
            false => SPACES,
        };
        let prev_vtime = prev.map_or(0, |prev| {
            let vtime = self.vtime_now(prev);
            let hall = &mut self.ours.queues[domain].hall;
            hall.paced(vtime, self.now_ns)
        });
        let mut is = Moment {
            began_ns: turn.began_ns,
            turn_ns: self.kernel.turn_ns,
            lead_ns: self.kernel.lead_ns,
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
                chosen => return chosen,
            }
        }
        match prev {
            Some(_) => Chosen::Same { alone: true },
            None => self.steal(cpu).map_or(Chosen::Nobody, Chosen::Other),
        }
    }

    /// For a CPU that has nobody.
    pub(crate) fn pick_ours(&mut self, cpu: usize) -> Option<ThreadId> {
        if !self.cpus[cpu].online {
            return None;
        }
        match self.next_ours(cpu, None) {
            Chosen::Other(thread) => Some(thread),
            Chosen::Same { .. } | Chosen::Nobody => None,
        }
    }

    /// A slice is over, or somebody urgent has come: who is to run now.
    pub(crate) fn ask_again(&mut self, cpu: usize) {
        self.account(cpu);
        let Some(prev) = self.cpus[cpu].current else {
            return self.dispatch(cpu);
        };
        match self.next_ours(cpu, Some(prev)) {
            Chosen::Other(next) => self.replace(prev, next, cpu),
            Chosen::Same { alone } => self.go_on(prev, cpu, alone),
            Chosen::Nobody => self.go_on(prev, cpu, true),
        }
    }

    /// Runs on; but not on half a core beside an idle one.
    fn go_on(&mut self, prev: ThreadId, cpu: usize, alone: bool) {
        if alone {
            self.forgive(prev);
        }
        if let Some(to) = self.way_out(prev, cpu) {
            self.move_running(prev, to);
            return;
        }
        self.ours.turns[cpu].served_ns = self.now_ns;
        self.cpus[cpu].slice_end_ns = self.now_ns + self.kernel.slice_ns;
        self.arm(cpu);
    }

    /// The one goes to an idle CPU or waits, the other has its place.
    fn replace(&mut self, prev: ThreadId, next: ThreadId, cpu: usize) {
        self.charge(prev);
        let standing = &mut self.threads[prev].standing;
        standing.urgent = standing.urgent && standing.burst_ns < when::SHORT_BURST_NS;
        let idle = self.choose(prev, cpu);
        self.cpus[cpu].current = None;
        if idle.is_none() {
            self.join_ours(prev, cpu);
        }
        self.queued(self.threads[next].program, -1);
        self.run_on(next, cpu);
        match idle {
            Some(idle) => self.run_on(prev, idle),
            None => self.arm_domain(cpu),
        }
    }

    fn vtime_now(&self, thread: ThreadId) -> u64 {
        let standing = &self.threads[thread].standing;
        let ran_ns = self.now_ns - standing.began_ns;
        let ran = when::virtual_ns(ran_ns, WEIGHT_NORMAL);
        standing.vtime.wrapping_add(ran)
    }

    fn charge(&mut self, thread: ThreadId) {
        self.threads[thread].standing.vtime = self.vtime_now(thread);
        self.forgive(thread);
    }

    /// What it has run until now it is not charged for.
    fn forgive(&mut self, thread: ThreadId) {
        let now_ns = self.now_ns;
        let standing = &mut self.threads[thread].standing;
        standing.burst_ns += now_ns - standing.began_ns;
        standing.began_ns = now_ns;
    }

    /// While nobody waits, each slice begins anew: no more than the last is charged.
    pub(crate) fn prolong(&mut self, cpu: usize) {
        let Some(thread) = self.cpus[cpu].current else {
            return;
        };
        let (slice_ns, ends_ns) = (self.kernel.slice_ns, self.cpus[cpu].slice_end_ns);
        if self.kernel.order != Order::Usher || self.now_ns < ends_ns {
            return;
        }
        if self.ours.queues[self.domain(cpu)].waiting() > 0 {
            return;
        }
        let began_ns = ends_ns + (self.now_ns - ends_ns) / slice_ns * slice_ns;
        let standing = &mut self.threads[thread].standing;
        standing.burst_ns += began_ns - standing.began_ns;
        standing.began_ns = began_ns;
        self.ours.turns[cpu].served_ns = began_ns;
        self.cpus[cpu].slice_end_ns = began_ns + slice_ns;
    }

    /// A thread begins to run.
    pub(crate) fn note_running(&mut self, thread: ThreadId, cpu: usize) {
        if self.kernel.order != Order::Usher {
            return;
        }
        self.leave_queue(thread);
        self.follow_clock(thread, self.domain(cpu));
        let space = space_of(self.threads[thread].program);
        let standing = &mut self.threads[thread].standing;
        let queues = &self.ours.queues[standing.domain];
        if queues.waiting() == 0 {
            standing.vtime = when::alone_at(standing.vtime, queues.hall.clock());
        }
        standing.began_ns = self.now_ns;
        standing.has_run = true;
        let turn = &mut self.ours.turns[cpu];
        if !standing.urgent {
            turn.served_ns = self.now_ns;
            if space != turn.space {
                (turn.space, turn.began_ns) = (space, self.now_ns);
            }
        }
    }

    /// A thread leaves its CPU, or its queue, and does not go on by itself.
    pub(crate) fn leave_ours(&mut self, thread: ThreadId) {
        if let Doing::Running(cpu) = self.threads[thread].doing {
            self.prolong(cpu);
            self.charge(thread);
            self.threads[thread].standing.urgent = false;
        }
        self.leave_queue(thread);
    }

    /// Slices end from now on, as somebody waits: here, and for the first everywhere.
    fn arm_domain(&mut self, cpu: usize) {
        let cpus = match self.waiting {
            1 => (0..self.cpus.len()).collect(),
            _ => self.machine.domains[self.domain(cpu)].clone(),
        };
        for other in cpus {
            self.account(other);
            self.arm(other);
        }
    }
}
