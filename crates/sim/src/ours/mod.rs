// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel under Usher's own scheduler: where a thread goes and who is next are
//! decided by the very headers that its BPF program includes (crate `usher-rules`);
//! here are the CPUs and queues for them, as in that program's `where.h`, `when.h`,
//! `charge.h`, `enqueue.h` and `dispatch.h`.
//!
//! All CPUs of a domain share its queues, which lie with its first CPU. Seats are left
//! out, for the loop's are cpusets here; so are weights, beginning anew when CPUs come or
//! go, and whatever only races need.

mod place;
mod who;

use usher_rules::share::{self, Pace, WEIGHT_NORMAL};
use usher_rules::when::{Comer, Hall, Limits, Passed, SPACES, Turn};
use usher_rules::where_to::{CPU_WORDS, CpuWords, Place};

use crate::engine::Engine;
use crate::job::{RunState, ThreadId};
use crate::kernel::QueueOrder;
use crate::machine::Machine;

/// Behind the queues of address spaces: that of urgent threads.
const URGENT: usize = SPACES;

/// What the scheduler knows of a thread.
#[derive(Debug, Clone, Default)]
pub(crate) struct Standing {
    /// By the clock of the hall of that domain.
    vtime: u64,
    domain: usize,
    /// The only CPU that it might run on when it last came to wait, counted from 1.
    only: u32,
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

/// What a CPU has done last.
#[derive(Debug, Clone, Copy, Default)]
struct Service {
    turn: Turn,
    /// When one that is not urgent last ran; `None`: none has waited since.
    served_ns: Option<u64>,
    /// The virtual time of whoever waits for this CPU and is furthest behind, at its latest;
    /// not behind the domain's where nobody waits.
    clock: u64,
    idle: bool,
    pace: Pace,
    /// Of the domain's queues.
    passed: Passed,
}

/// The queues of a domain.
#[derive(Debug, Clone, Default)]
struct Queues {
    hall: Hall,
    urgent: u32,
    /// When it is to look at another domain.
    look_at_ns: u64,
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
    services: Vec<Service>,
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
            services: vec![Service::default(); machine.places.len()],
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
            QueueOrder::Usher => self.machine.domains[self.domain(cpu)][0],
            QueueOrder::Eevdf | QueueOrder::Cfs => cpu,
        }
    }

    fn domain(&self, cpu: usize) -> usize {
        self.machine.places[cpu].domain
    }

    fn limits(&self) -> Limits {
        Limits {
            slice_ns: self.kernel.slice_ns,
            turn_ns: self.kernel.turn_ns,
            lead_ns: self.kernel.max_lag_ns,
            aggregate: self.kernel.aggregate,
        }
    }

    /// What a thread that has slept is owed; whether it has.
    fn follow_sleep(&mut self, thread: ThreadId) -> bool {
        let standing = &mut self.threads[thread].standing;
        if !std::mem::take(&mut standing.slept) {
            return false;
        }
        standing.burst_average_ns =
            share::burst_after(standing.burst_average_ns, standing.burst_ns);
        standing.burst_ns = 0;
        let domain = standing.domain;
        let clock = self.clock_for(thread, domain);
        let standing = &mut self.threads[thread].standing;
        standing.vtime = share::wake_at(standing.vtime, clock, self.kernel.slice_ns);
        true
    }

    /// Where a CPU is in virtual time.
    fn clock_of(&self, cpu: usize) -> u64 {
        let hall = self.ours.queues[self.domain(cpu)].hall.clock();
        match self.ours.services[cpu].idle {
            true => hall,
            false => share::earlier(self.ours.services[cpu].clock, hall),
        }
    }

    /// Nobody waits for this CPU: it is behind the others no more.
    fn catch_up(&mut self, cpu: usize) {
        let hall = self.ours.queues[self.domain(cpu)].hall.clock();
        let service = &mut self.ours.services[cpu];
        service.clock = share::later(service.clock, hall);
        service.pace.rest();
    }

    /// Where a thread at that virtual time counts as being on a CPU.
    fn paced(&mut self, vtime: u64, cpu: usize) -> u64 {
        let clock = self.clock_of(cpu);
        let pace = &mut self.ours.services[cpu].pace;
        pace.paced(vtime, clock, self.now_ns)
    }

    /// By which clock a thread is placed that comes to wait in a domain: that of whichever
    /// CPU is furthest on of those that it is kept to.
    fn clock_for(&self, thread: ThreadId, domain: usize) -> u64 {
        let hall = self.ours.queues[domain].hall.clock();
        if (0..self.cpus.len()).all(|cpu| self.may_run(thread, cpu)) {
            return hall;
        }
        let cpus = self.machine.domains[domain].iter().copied();
        let clocks = cpus.filter(|&cpu| self.may_run(thread, cpu));
        let clocks = clocks.map(|cpu| self.clock_of(cpu));
        clocks.reduce(share::later).unwrap_or(hall)
    }

    /// Whether one that has slept is urgent: it may be as far ahead of the others as
    /// anybody gets in a turn.
    fn hurry(&mut self, thread: ThreadId) {
        let limits = self.limits();
        let ahead = share::ahead_at_most(limits.lead_ns, limits.slice_ns, WEIGHT_NORMAL);
        let clock = self.clock_for(thread, self.threads[thread].standing.domain);
        let standing = &mut self.threads[thread].standing;
        let hall = &self.ours.queues[standing.domain].hall;
        let share = match clock == hall.clock() {
            true => hall.average(),
            false => clock,
        };
        standing.urgent = share::is_urgent(
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

    /// A thread as the queues know it.
    fn comer(&self, thread: ThreadId) -> Comer {
        let only = self.where_allowed(thread).only();
        Comer {
            mm: match self.kernel.aggregate {
                true => space_of(self.threads[thread].program),
                false => 0,
            },
            vtime: self.threads[thread].standing.vtime,
            weight: WEIGHT_NORMAL,
            only: only.map_or(0, |cpu| cpu as u32 + 1),
            ..Comer::default()
        }
    }

    /// Puts a thread into a queue of the CPU's domain.
    fn join_ours(&mut self, thread: ThreadId, cpu: usize) {
        for other in self.machine.domains[self.domain(cpu)].clone() {
            self.prolong(other);
        }
        let (line, limits) = (self.line(cpu), self.limits());
        self.follow_clock(thread, self.domain(cpu));
        let program = self.threads[thread].program;
        let clock = self.clock_for(thread, self.domain(cpu));
        let mut comer = self.comer(thread);
        let standing = &mut self.threads[thread].standing;
        // Nor is it owed more who was kept to another CPU until now.
        if standing.only != comer.only {
            comer.vtime = share::wake_at(comer.vtime, clock, limits.slice_ns);
            standing.vtime = comer.vtime;
            standing.only = comer.only;
        }
        let (domain, urgent) = (standing.domain, standing.urgent);
        if !urgent {
            comer.vtime = self.paced(comer.vtime, cpu);
        }
        let queues = &mut self.ours.queues[domain];
        let standing = &mut self.threads[thread].standing;
        if urgent {
            queues.urgent += 1;
            standing.queue = Some(URGENT);
        } else {
            comer.vtime = queues.hall.place(&comer, clock, &limits);
            standing.vtime = comer.vtime;
            let at = queues.hall.join(&comer);
            standing.queue = Some(at);
            self.ours.services[cpu].passed.meet(at, comer.vtime);
        }
        self.threads[thread].run_state = RunState::Queued(line);
        self.cpus[line].queue.push(thread);
        self.queued(program, 1);
    }

    /// A thread waits no more; in the queue of which address spaces it did, and where the first
    /// is there now.
    fn leave_queue(&mut self, thread: ThreadId) -> Option<(usize, Option<u64>)> {
        let Standing { domain, vtime, .. } = self.threads[thread].standing;
        let queue = self.threads[thread].standing.queue.take()?;
        if queue == URGENT {
            self.ours.queues[domain].urgent -= 1;
            return None;
        }
        let first = self.first_of(domain, queue, |_| true);
        let first = first.map(|(_, first)| self.threads[first].standing.vtime);
        let least = first.unwrap_or(vtime);
        self.ours.queues[domain].hall.leave(queue, least);
        Some((queue, first))
    }

    /// For a CPU that has nobody.
    pub(crate) fn pick_ours(&mut self, cpu: usize) -> Option<ThreadId> {
        if !self.cpus[cpu].online {
            return None;
        }
        match self.next_ours(cpu, None) {
            Chosen::Other(thread) => Some(thread),
            Chosen::Same { .. } | Chosen::Nobody => {
                self.ours.services[cpu].idle = true;
                None
            }
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
        match alone {
            true => self.let_off(prev, cpu),
            false => self.charge(prev),
        }
        if let Some(to) = self.way_out(prev, cpu) {
            self.move_running(prev, to);
            return;
        }
        self.ours.services[cpu].served_ns = Some(self.now_ns);
        self.cpus[cpu].slice_end_ns = self.now_ns + self.kernel.slice_ns;
        self.arm(cpu);
    }

    /// The one goes to an idle CPU or waits, the other has its place.
    fn replace(&mut self, prev: ThreadId, next: ThreadId, cpu: usize) {
        self.charge(prev);
        let standing = &mut self.threads[prev].standing;
        standing.urgent = standing.urgent && standing.burst_ns < share::SHORT_BURST_NS;
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
        let ran = share::virtual_ns(ran_ns, WEIGHT_NORMAL);
        standing.vtime.wrapping_add(ran)
    }

    fn charge(&mut self, thread: ThreadId) {
        self.threads[thread].standing.vtime = self.vtime_now(thread);
        self.forgive(thread);
    }

    /// What it has run alone it is not charged for; nor is it owed anything by whoever
    /// comes later.
    fn let_off(&mut self, thread: ThreadId, cpu: usize) {
        self.forgive(thread);
        self.owe_nothing(thread, cpu);
    }

    fn owe_nothing(&mut self, thread: ThreadId, cpu: usize) {
        self.catch_up(cpu);
        let clock = self.ours.queues[self.domain(cpu)].hall.clock();
        let standing = &mut self.threads[thread].standing;
        standing.vtime = share::wake_at(standing.vtime, clock, self.kernel.slice_ns);
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
        if self.kernel.order != QueueOrder::Usher || self.now_ns < ends_ns {
            return;
        }
        if self.ours.queues[self.domain(cpu)].waiting() > 0 {
            return;
        }
        let began_ns = ends_ns + (self.now_ns - ends_ns) / slice_ns * slice_ns;
        let standing = &mut self.threads[thread].standing;
        standing.burst_ns += began_ns - standing.began_ns;
        standing.began_ns = began_ns;
        self.owe_nothing(thread, cpu);
        self.ours.services[cpu].served_ns = Some(began_ns);
        self.cpus[cpu].slice_end_ns = began_ns + slice_ns;
    }

    /// A thread begins to run.
    pub(crate) fn note_running(&mut self, thread: ThreadId, cpu: usize) {
        if self.kernel.order != QueueOrder::Usher {
            return;
        }
        let Standing {
            queue,
            domain,
            vtime,
            ..
        } = self.threads[thread].standing;
        if let Some((at, first)) = self.leave_queue(thread)
            && domain == self.domain(cpu)
        {
            let mut passed = self.ours.services[cpu].passed;
            passed.note(at, vtime, first, || {
                let next = self.first_of(domain, at, |thread| self.may_run(thread, cpu));
                next.map(|(_, next)| self.threads[next].standing.vtime)
            });
            self.ours.services[cpu].passed = passed;
        }
        if std::mem::take(&mut self.ours.services[cpu].idle) {
            self.catch_up(cpu);
        }
        self.follow_clock(thread, self.domain(cpu));
        let comer = self.comer(thread);
        let standing = &mut self.threads[thread].standing;
        let queues = &self.ours.queues[standing.domain];
        if queues.waiting() == 0 {
            standing.vtime = share::alone_at(standing.vtime, queues.hall.clock());
        }
        standing.began_ns = self.now_ns;
        standing.has_run = true;
        let service = &mut self.ours.services[cpu];
        if !standing.urgent {
            service.served_ns = Some(self.now_ns);
            service.turn.pass_to(&comer, queue, self.now_ns);
        }
    }

    /// A thread leaves its CPU, or its queue, and does not go on by itself.
    pub(crate) fn leave_ours(&mut self, thread: ThreadId) {
        if let RunState::Running(cpu) = self.threads[thread].run_state {
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
