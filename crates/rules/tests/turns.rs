// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads that may run on some CPUs alone: they wait with threads of other CPUs, which
//! theirs cannot serve. Played by the rules alone.

#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use usher_rules::share::{self, Pace};
use usher_rules::when::{Comer, Hall, Limits, Moment, Next, Passed, SPACES, Turn};

const MS: u64 = 1_000_000;
const LIMITS: Limits = Limits {
    slice_ns: 3 * MS,
    turn_ns: 24 * MS,
    lead_ns: 24 * MS,
    aggregate: true,
};

/// A thread that always computes.
#[derive(Debug, Clone)]
struct Loop {
    mm: u64,
    /// CPUs that it may run on, by bit.
    cpus: u32,
    weight: u64,
    /// It yields after so long, or sleeps.
    runs_ns: u64,
    sleeps_ns: u64,
    /// The CPU that it was last on.
    last: Option<usize>,
    vtime: u64,
    ran_last_ns: u64,
    ran_ns: u64,
}

impl Loop {
    fn new(mm: u64, cpus: u32) -> Self {
        Self {
            mm: mm << 12,
            cpus,
            weight: share::WEIGHT_NORMAL,
            runs_ns: LIMITS.slice_ns,
            sleeps_ns: 0,
            last: None,
            vtime: 0,
            ran_last_ns: 0,
            ran_ns: 0,
        }
    }

    fn comer(&self) -> Comer {
        Comer {
            mm: self.mm,
            vtime: self.vtime,
            weight: self.weight,
            only: match self.cpus.count_ones() {
                1 => self.cpus.ilog2() + 1,
                _ => 0,
            },
            ..Comer::default()
        }
    }
}

#[derive(Debug, Default)]
struct Cpu {
    turn: Turn,
    runs: Option<Loop>,
    /// It asks who is next.
    asks_at_ns: u64,
    /// Where it is in virtual time.
    clock: u64,
    pace: Pace,
    passed: Passed,
}

/// The CPUs of an LLC, with its queues.
struct Llc {
    hall: Hall,
    queues: Vec<Vec<Loop>>,
    cpus: Vec<Cpu>,
    /// Until when each sleeps.
    asleep: Vec<(u64, Loop)>,
    now_ns: u64,
    waited_ns: u64,
}

impl Llc {
    fn new(cpus: usize, loops: impl IntoIterator<Item = Loop>) -> Self {
        let mut llc = Self {
            hall: Hall::default(),
            queues: vec![Vec::new(); SPACES],
            cpus: (0..cpus).map(|_| Cpu::default()).collect(),
            asleep: Vec::new(),
            now_ns: 0,
            waited_ns: 0,
        };
        loops.into_iter().for_each(|thread| llc.join(thread));
        llc
    }

    fn join(&mut self, mut thread: Loop) {
        let mut comer = thread.comer();
        if let Some(cpu) = thread.last {
            comer.vtime = self.paced(comer.vtime, cpu);
        }
        let clock = self.clock_for(&thread);
        comer.vtime = self.hall.place(&comer, clock, &LIMITS);
        thread.vtime = comer.vtime;
        let at = self.hall.join(&comer);
        if let Some(cpu) = thread.last {
            self.cpus[cpu].passed.meet(at, thread.vtime);
        }
        let queue = &mut self.queues[at];
        let behind = queue.partition_point(|other| other.vtime <= thread.vtime);
        queue.insert(behind, thread);
    }

    fn paced(&mut self, vtime: u64, cpu: usize) -> u64 {
        let Cpu { clock, pace, .. } = &mut self.cpus[cpu];
        let clock = share::earlier(*clock, self.hall.clock());
        pace.paced(vtime, clock, self.now_ns)
    }

    /// The clock of whichever CPU is furthest on of those that a thread is kept to.
    fn clock_for(&self, thread: &Loop) -> u64 {
        let hall = self.hall.clock();
        let cpus = self.cpus.iter().enumerate();
        let (may, not): (Vec<_>, Vec<_>) = cpus.partition(|(at, _)| thread.cpus >> at & 1 == 1);
        if not.is_empty() {
            return hall;
        }
        let clocks = may.iter().map(|(_, cpu)| match cpu.runs {
            Some(_) => share::earlier(cpu.clock, hall),
            None => hall,
        });
        clocks.reduce(share::later).unwrap_or(hall)
    }

    fn wake_those_due(&mut self) {
        let now_ns = self.now_ns;
        let due = self
            .asleep
            .extract_if(.., |&mut (at_ns, _)| at_ns <= now_ns);
        for (at_ns, mut thread) in due.collect::<Vec<_>>() {
            thread.vtime = share::wake_at(thread.vtime, self.clock_for(&thread), LIMITS.slice_ns);
            thread.ran_last_ns = at_ns;
            self.join(thread);
        }
    }

    /// Has a CPU run the first of a queue that may run there.
    fn run_first(&mut self, at: usize, cpu: usize) -> bool {
        let may_run = |thread: &Loop| thread.cpus >> cpu & 1 == 1;
        let Some(first) = self.queues[at].iter().position(may_run) else {
            return false;
        };
        let mut thread = self.queues[at].remove(first);
        thread.last = Some(cpu);
        if let Some(prev) = self.cpus[cpu].runs.take() {
            self.join(prev);
        }
        let queue = &self.queues[at];
        let first = queue.first().map(|first| first.vtime);
        self.hall.leave(at, first.unwrap_or(thread.vtime));
        let next = || Some(queue.iter().find(|thread| may_run(thread))?.vtime);
        let passed = &mut self.cpus[cpu].passed;
        passed.note(at, thread.vtime, first, next);
        let comer = thread.comer();
        self.cpus[cpu].turn.pass_to(&comer, Some(at), self.now_ns);
        self.waited_ns = self.waited_ns.max(self.now_ns - thread.ran_last_ns);
        self.cpus[cpu].runs = Some(thread);
        true
    }

    fn next(&mut self, cpu: usize) {
        let prev_vtime = self.cpus[cpu].runs.as_ref().map(|prev| prev.vtime);
        let prev_vtime = prev_vtime.map(|vtime| self.paced(vtime, cpu));
        let turn = &self.cpus[cpu].turn;
        let mut moment = Moment {
            began_ns: turn.began_ns,
            turn_ns: LIMITS.turn_ns,
            lead_ns: LIMITS.lead_ns,
            now_ns: self.now_ns,
            has_prev: u32::from(prev_vtime.is_some()),
            aggregate: 1,
            prev_vtime: prev_vtime.unwrap_or(0),
            own: self.hall.queue_of(turn.of) as u32,
            ..Moment::default()
        };
        loop {
            match self.hall.ask(&mut moment, &self.cpus[cpu].passed) {
                Next::Queue(at) if self.run_first(at, cpu) => break,
                Next::Queue(at) => moment.not |= 1 << at,
                Next::Same if (moment.hindmost as usize) < SPACES => break,
                Next::Same | Next::Nobody => return self.go_on_alone(cpu),
            }
        }
        let clock = &mut self.cpus[cpu].clock;
        *clock = share::later(*clock, moment.least);
    }

    /// Nobody waits for the CPU, and nobody is owed anything there.
    fn go_on_alone(&mut self, cpu: usize) {
        let hall = self.hall.clock();
        let Cpu {
            clock, runs, pace, ..
        } = &mut self.cpus[cpu];
        *clock = share::later(*clock, hall);
        pace.rest();
        if let Some(thread) = runs {
            thread.vtime = share::wake_at(thread.vtime, hall, LIMITS.slice_ns);
        }
    }

    /// The CPU whose slice ends first asks who is next.
    fn step(&mut self) {
        let asks = self.cpus.iter().map(|cpu| cpu.asks_at_ns).enumerate();
        let (cpu, now_ns) = asks.min_by_key(|&(_, at_ns)| at_ns).unwrap();
        self.now_ns = now_ns;
        if let Some(thread) = &mut self.cpus[cpu].runs {
            thread.vtime += share::virtual_ns(thread.runs_ns, thread.weight);
            thread.ran_last_ns = now_ns;
            thread.ran_ns += thread.runs_ns;
        }
        let sleeper = self.cpus[cpu].runs.take_if(|thread| thread.sleeps_ns > 0);
        self.asleep
            .extend(sleeper.map(|thread| (now_ns + thread.sleeps_ns, thread)));
        self.wake_those_due();
        self.next(cpu);
        let runs_ns = self.cpus[cpu].runs.as_ref().map(|thread| thread.runs_ns);
        self.cpus[cpu].asks_at_ns += runs_ns.unwrap_or(LIMITS.slice_ns);
    }

    /// How long anybody has waited at most after so long.
    fn longest_wait_ns(&mut self, until_ns: u64) -> u64 {
        while self.now_ns < until_ns {
            self.step();
        }
        let waits = self.queues.iter().flatten();
        let waited_ns = waits.map(|thread| self.now_ns - thread.ran_last_ns).max();
        self.waited_ns.max(waited_ns.unwrap_or(0))
    }
}

/// Two of them that share a queue would begin a turn one after the other, for ever.
#[test]
fn address_spaces_that_share_a_queue_share_a_turn() {
    for (cpus, loops) in [(2, 60), (2, 120), (4, 120), (4, 400), (3, 33)] {
        let threads = (0..loops).map(|number| Loop::new(number + 1, 1 << (number % cpus)));
        let waited_ns = Llc::new(cpus as usize, threads).longest_wait_ns(60_000 * MS);
        let each = loops / cpus * (LIMITS.turn_ns + LIMITS.slice_ns);
        assert!(waited_ns < 2 * each, "{loops} on {cpus}: {waited_ns}");
    }
}

/// Of threads that are kept to one CPU each, each has its share there, however crowded the
/// other one is; also one of a program whose others wait there.
#[test]
fn who_is_kept_to_a_cpu_has_its_share_of_that() {
    // How many on CPU 0 and on CPU 1.
    for (few, many) in [(3, 4), (4, 10), (6, 21), (1, 30)] {
        for with_one_there in [false, true] {
            let mut loops: Vec<Loop> = (0..few + many)
                .map(|number| Loop::new(number + 1, if number < few { 1 } else { 2 }))
                .collect();
            // One of the first program's waits on the crowded CPU.
            loops.extend(with_one_there.then(|| Loop::new(1, 2)));
            let mut llc = Llc::new(2, loops);
            llc.longest_wait_ns(20_000 * MS);
            let threads = llc.cpus.iter().filter_map(|cpu| cpu.runs.as_ref());
            let threads = threads.chain(llc.queues.iter().flatten());
            for thread in threads.filter(|thread| thread.cpus == 1) {
                let share = thread.ran_ns as f64 / 20e9;
                let off = (share * few as f64 - 1.0).abs();
                assert!(off < 0.05, "{share} of {few} beside {many}: {thread:?}");
            }
        }
    }
}

/// Threads that now and then sleep, in bursts too long to be urgent, beside a crowd on the CPUs
/// that they are kept to: others of the LLC, with fewer threads, are far ahead of those.
#[test]
fn who_sleeps_beside_a_crowd_waits_no_longer_than_the_others() {
    // On the first half of so many CPUs, and on the second.
    for (cpus, few, many) in [(2, 3, 30), (2, 2, 10), (4, 6, 60), (4, 5, 20)] {
        let crowded = ((1 << cpus) - 1) & !((1 << (cpus / 2)) - 1);
        let uncrowded = (1 << (cpus / 2)) - 1;
        let loops = (0..few + many).map(|number| {
            let kept = if number < few { uncrowded } else { crowded };
            Loop::new(number + 1, kept)
        });
        let sleepers = (0..3).map(|number| Loop {
            sleeps_ns: 5 * MS,
            ..Loop::new(few + many + 1 + number, crowded)
        });
        let waited_ns = Llc::new(cpus, loops.chain(sleepers)).longest_wait_ns(60_000 * MS);
        let each = many / (cpus as u64 / 2) * (LIMITS.lead_ns + 2 * LIMITS.slice_ns);
        assert!(
            waited_ns * 4 < each * 5,
            "{few}, {many} on {cpus}: {waited_ns} to {each}"
        );
    }
}

/// A CPU goes by the first of a queue that it can run, as long as that is not the very first.
#[test]
fn whoever_cannot_run_there_is_passed_by() {
    // Also where virtual times overflow.
    for begun in [0, 1 << 40, (1 << 63) - 60, u64::MAX - 60] {
        let at = |vtime: u64| begun.wrapping_add(vtime);
        let comer = |mm: u64, vtime| Comer {
            mm: mm << 12,
            vtime: at(vtime),
            ..Comer::default()
        };
        let mut hall = Hall::default();
        let mixed = hall.join(&comer(1, 10));
        let other = hall.join(&comer(2, 50));
        let mut passed = Passed::default();
        assert_eq!(hall.hindmost(&passed), Some(mixed));
        // It took one at 40, and the next that it can run is at 100.
        passed.note(mixed, at(40), Some(at(10)), || Some(at(100)));
        assert_eq!(hall.hindmost(&passed), Some(other));
        assert_eq!(hall.hindmost(&Passed::default()), Some(mixed), "elsewhere");
        passed.meet(mixed, at(60));
        assert_eq!(hall.hindmost(&passed), Some(other));
        passed.meet(mixed, at(30));
        assert_eq!(hall.hindmost(&passed), Some(mixed));
        // Nobody else there can run: it goes by whom it took.
        passed.note(mixed, at(70), Some(at(10)), || None);
        assert_eq!(hall.hindmost(&passed), Some(other));
        // The first is one that can; and nobody is left.
        for first in [Some(at(80)), Some(at(70)), None] {
            passed.note(mixed, at(70), Some(at(10)), || None);
            passed.note(mixed, at(70), first, || panic!("nobody was passed by"));
            assert_eq!(hall.hindmost(&passed), Some(mixed));
        }
        passed.meet(mixed, at(90));
        assert_eq!(hall.hindmost(&passed), Some(mixed));
    }
}

/// Two of them that are kept to a CPU weigh four to one, and wait in the queue of a crowd that
/// is kept to others.
#[test]
fn weights_count_also_behind_a_crowd_that_waits_for_other_cpus() {
    let crowd = (0..30).map(|_| Loop::new(1, 0b1100));
    let pair = [100, 400].map(|weight| Loop {
        weight,
        ..Loop::new(1, 0b11)
    });
    let others = (2..6).map(|mm| Loop::new(mm, 0b11));
    let mut llc = Llc::new(4, crowd.chain(pair).chain(others));
    llc.longest_wait_ns(20_000 * MS);
    let threads = llc.cpus.iter().filter_map(|cpu| cpu.runs.as_ref());
    let threads = threads.chain(llc.queues.iter().flatten());
    for thread in threads.filter(|thread| thread.cpus == 0b11) {
        let due = 2.0 * thread.weight as f64 / 900.0;
        let share = thread.ran_ns as f64 / 20e9;
        assert!(
            (share / due - 1.0).abs() < 0.05,
            "{share} for {due}: {thread:?}"
        );
    }
}

/// A program whose threads are kept to two halves of an LLC, and crowd on one of them. They
/// share a queue, the first of which is far behind whoever waits for the other half, and
/// cannot run there.
#[test]
fn nobody_gives_way_to_a_crowd_that_waits_for_other_cpus() {
    for programs in [1, 2, 5] {
        let kept = |mm, count, cpus| (0..count).map(move |_| Loop::new(mm, cpus));
        let loops = (1..=programs).flat_map(|mm| kept(mm, 30, 0b1100).chain(kept(mm, 3, 0b11)));
        let others = kept(programs + 1, 1, 0b11);
        let mut llc = Llc::new(4, loops.chain(others));
        llc.longest_wait_ns(20_000 * MS);
        let threads = llc.cpus.iter().filter_map(|cpu| cpu.runs.as_ref());
        let threads = threads.chain(llc.queues.iter().flatten());
        let each = 2.0 / (3 * programs + 1) as f64;
        for thread in threads.filter(|thread| thread.cpus == 0b11) {
            let share = thread.ran_ns as f64 / 20e9;
            assert!(
                (share / each - 1.0).abs() < 0.05,
                "{share} for {each}: {thread:?}"
            );
        }
    }
}

/// Up to four CPUs, and loops of these weights that may run on any of them.
fn crowd(weights: &'static [u64]) -> impl Strategy<Value = (u32, Vec<Loop>)> {
    let any_loop = move |cpus: u32| {
        let runs_ns = prop_oneof![Just(LIMITS.slice_ns), Just(MS / 20)];
        let weight = proptest::sample::select(weights);
        (1..60_u64, 1..1_u32 << cpus, runs_ns, weight).prop_map(|(mm, cpus, runs_ns, weight)| {
            Loop {
                runs_ns,
                weight,
                ..Loop::new(mm, cpus)
            }
        })
    };
    (1..5_u32).prop_flat_map(move |cpus| {
        let loops = proptest::collection::vec(any_loop(cpus), 1..100);
        (Just(cpus), loops)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// The kernel takes all threads back when one has waited for 30 s. In 1,500 cases nobody
    /// waited for longer than 2.4 s.
    #[test]
    fn nobody_starves_wherever_all_may_run((cpus, loops) in crowd(&[share::WEIGHT_NORMAL])) {
        let waited_ns = Llc::new(cpus as usize, loops).longest_wait_ns(15_000 * MS);
        prop_assert!(waited_ns < 5_000 * MS, "{}", waited_ns);
    }

    /// The same with 15.3 s.
    #[test]
    fn nor_whatever_they_weigh((cpus, loops) in crowd(&[1, 3, 33, 100, 400, 8668])) {
        let waited_ns = Llc::new(cpus as usize, loops).longest_wait_ns(35_000 * MS);
        prop_assert!(waited_ns < 25_000 * MS, "{}", waited_ns);
    }
}
