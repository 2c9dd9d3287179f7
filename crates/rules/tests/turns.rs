// SPDX-License-Identifier: MIT OR Apache-2.0
//! More address spaces than queues, whose threads may run on one CPU each: they wait with
//! threads of another CPU, which it cannot serve. Played by the rules alone.

#![allow(clippy::unwrap_used)]

use usher_rules::when::{self, Comer, Hall, Limits, Moment, Next, SPACES, Turn};

const MS: u64 = 1_000_000;
const LIMITS: Limits = Limits {
    slice_ns: 3 * MS,
    turn_ns: 24 * MS,
    lead_ns: 24 * MS,
    aggregate: true,
};

/// A thread that always computes, the only one of its address space.
#[derive(Debug, Clone)]
struct Loop {
    mm: u64,
    cpu: usize,
    vtime: u64,
    ran_last_ns: u64,
}

#[derive(Debug, Default)]
struct Cpu {
    turn: Turn,
    runs: Option<Loop>,
}

/// The CPUs of an LLC, with its queues.
struct Llc {
    hall: Hall,
    queues: Vec<Vec<Loop>>,
    cpus: Vec<Cpu>,
    now_ns: u64,
    waited_ns: u64,
}

impl Llc {
    fn new(cpus: usize, loops: usize) -> Self {
        let mut llc = Self {
            hall: Hall::default(),
            queues: vec![Vec::new(); SPACES],
            cpus: (0..cpus).map(|_| Cpu::default()).collect(),
            now_ns: 0,
            waited_ns: 0,
        };
        for number in 0..loops {
            llc.join(Loop {
                mm: (number as u64 + 1) << 12,
                cpu: number % cpus,
                vtime: 0,
                ran_last_ns: 0,
            });
        }
        llc
    }

    fn join(&mut self, mut thread: Loop) {
        let mut comer = Comer {
            mm: thread.mm,
            vtime: thread.vtime,
            weight: when::WEIGHT_NORMAL,
            ..Comer::default()
        };
        comer.vtime = self.hall.place(&comer, self.now_ns, &LIMITS);
        thread.vtime = comer.vtime;
        let queue = &mut self.queues[self.hall.join(&comer)];
        let behind = queue.partition_point(|other| other.vtime <= thread.vtime);
        queue.insert(behind, thread);
    }

    /// Has a CPU run the first of a queue that may run there.
    fn run_first(&mut self, at: usize, cpu: usize) -> bool {
        let Some(first) = self.queues[at].iter().position(|other| other.cpu == cpu) else {
            return false;
        };
        let thread = self.queues[at].remove(first);
        if let Some(prev) = self.cpus[cpu].runs.take() {
            self.join(prev);
        }
        let least = self.queues[at].first().unwrap_or(&thread).vtime;
        self.hall.leave(at, least);
        self.cpus[cpu]
            .turn
            .pass_to(thread.mm, Some(at), self.now_ns);
        self.waited_ns = self.waited_ns.max(self.now_ns - thread.ran_last_ns);
        self.cpus[cpu].runs = Some(thread);
        true
    }

    fn next(&mut self, cpu: usize) {
        let Cpu { turn, runs } = &self.cpus[cpu];
        let prev_vtime = runs.as_ref().map(|prev| prev.vtime);
        let mut moment = Moment {
            began_ns: turn.began_ns,
            turn_ns: LIMITS.turn_ns,
            lead_ns: LIMITS.lead_ns,
            now_ns: self.now_ns,
            has_prev: u32::from(prev_vtime.is_some()),
            aggregate: 1,
            prev_vtime: prev_vtime.unwrap_or(0),
            own: self.hall.queue_of(turn.mm) as u32,
            ..Moment::default()
        };
        while let Next::Queue(at) = self.hall.ask(&mut moment) {
            if self.run_first(at, cpu) {
                return;
            }
            moment.not |= 1 << at;
        }
    }

    /// A slice of each CPU, one after the other.
    fn step(&mut self) {
        for cpu in 0..self.cpus.len() {
            self.now_ns += LIMITS.slice_ns / self.cpus.len() as u64;
            if let Some(thread) = &mut self.cpus[cpu].runs {
                thread.vtime += when::virtual_ns(LIMITS.slice_ns, when::WEIGHT_NORMAL);
                thread.ran_last_ns = self.now_ns;
            }
            self.next(cpu);
        }
    }
}

/// Two of them that share a queue would begin a turn one after the other, for ever.
#[test]
fn address_spaces_that_share_a_queue_share_a_turn() {
    for (cpus, loops) in [(2, 60), (2, 120), (4, 120), (4, 400), (3, 33)] {
        let mut llc = Llc::new(cpus, loops);
        for _ in 0..40_000 {
            llc.step();
        }
        let waits = llc.queues.iter().flatten();
        let waited_ns = waits.map(|thread| llc.now_ns - thread.ran_last_ns).max();
        let waited_ns = waited_ns.unwrap().max(llc.waited_ns);
        let each = (loops / cpus) as u64 * (LIMITS.turn_ns + LIMITS.slice_ns);
        assert!(waited_ns < 2 * each, "{loops} on {cpus}: {waited_ns}");
    }
}
