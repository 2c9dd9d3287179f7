// SPDX-License-Identifier: MIT OR Apache-2.0
//! The chip against a clock that ticks every cycle and caches that are lists; what
//! holds of every run; and the paper's headline.

#![allow(clippy::unwrap_used)] // a test that cannot go on fails

use std::collections::VecDeque;

use proptest::prelude::*;
use usher_cache::Replacement;
use usher_sim::chip::study::{Extent, HEADLINE, compare, ratios, table_3};
use usher_sim::chip::{
    Access, Caches, Chip, Fitted, Kind, Machine, Mode, Order, Pattern, TaskGraph, TaskSpec, Timing,
    Work,
};
use usher_tasks::dispatch::{Dispatcher, Fcfs, Groups, Lcfs, Paper, Usher};

const TIMING: Timing = Timing {
    l1_miss_cycles: 3,
    l2_miss_cycles: 17,
    first_word_cycles: 13,
    l2_busy_cycles: 2,
    line_busy_cycles: 11,
    row_cycles: 4,
    write_buffer: 2,
};

fn chip(cores: usize, mode: Mode) -> Chip {
    Chip {
        cores,
        caches: Caches {
            l1_bytes: 256,
            l1_ways: 2,
            l1_line_bytes: 16,
            l2_bytes: 1024,
            l2_ways: 4,
            l2_line_bytes: 32,
            replacement: (Replacement::Fifo, Replacement::Lru),
        },
        timing: TIMING,
        mode,
        dispatch_cycles: 9,
        locked_cycles: 4,
    }
}

/// A cache as lists of lines, the next to go in front.
struct Lists {
    sets: Vec<VecDeque<u64>>,
    ways: usize,
    line: u64,
    lru: bool,
}

impl Lists {
    fn new(bytes: usize, ways: usize, line: usize, lru: bool) -> Self {
        Self {
            sets: vec![VecDeque::new(); bytes / ways / line],
            ways,
            line: line as u64,
            lru,
        }
    }

    fn hits(&mut self, address: u64) -> bool {
        let line = address / self.line;
        let count = self.sets.len() as u64;
        let set = &mut self.sets[(line % count) as usize];
        let place = set.iter().position(|&other| other == line);
        if let Some(place) = place.filter(|_| self.lru) {
            set.remove(place);
            set.push_back(line);
        }
        if place.is_none() {
            set.push_back(line);
            if set.len() > self.ways {
                set.pop_front();
            }
        }
        place.is_some()
    }
}

/// What a core of the oracle has left to do before its next word with the others.
#[derive(Clone)]
enum Step {
    Lock(Option<usize>),
    Line { fetch: bool, address: u64 },
    Halted,
}

struct Slow<'a> {
    graph: &'a TaskGraph,
    chip: Chip,
    first: Vec<[Lists; 2]>,
    second: Lists,
    arrives: std::collections::BTreeMap<u64, u64>,
    second_free: u64,
    memory_free: u64,
    open: [Option<u64>; 4],
}

impl Slow<'_> {
    /// The lines of a task with the work before each.
    fn lines(&self, task: usize) -> Vec<(u64, bool, u64)> {
        let mut lines = Vec::new();
        for access in &self.graph.tasks[task].accesses {
            let mut work = u64::from(access.cycles);
            for row in 0..u64::from(access.rows) {
                let from = access.address + row * u64::from(access.stride);
                let line = self.chip.caches.l1_line_bytes as u64;
                for number in from / line..=(from + u64::from(access.bytes) - 1) / line {
                    lines.push((work, access.kind == Kind::Fetch, (number * line).max(from)));
                    work = 0;
                }
            }
        }
        lines
    }

    /// How long a miss at `now` takes.
    fn miss(&mut self, address: u64, now: u64) -> u64 {
        let timing = self.chip.timing;
        let line = address / self.second.line;
        let hit = self.second.hits(address);
        if self.chip.mode == Mode::Uniform {
            return timing.l1_miss_cycles + if hit { 0 } else { timing.l2_miss_cycles };
        }
        let asked = now.max(self.second_free);
        self.second_free = asked + timing.l2_busy_cycles;
        let answered = asked + timing.l1_miss_cycles;
        if hit {
            return answered.max(*self.arrives.get(&line).unwrap_or(&0)) - now;
        }
        let row = address / 2048;
        let bank = (row % 4) as usize;
        let more = if self.open[bank] == Some(row) {
            0
        } else {
            timing.row_cycles
        };
        self.open[bank] = Some(row);
        let moved = answered.max(self.memory_free);
        self.memory_free = moved + timing.line_busy_cycles + more;
        let there = moved + timing.first_word_cycles + more;
        self.arrives.insert(line, there);
        there - now
    }
}

/// Runs a graph cycle by cycle: how long it takes, and when each task ended.
fn slowly(graph: &TaskGraph, chip: Chip, dispatcher: &mut dyn Dispatcher<u32>) -> (u64, Vec<u64>) {
    let caches = chip.caches;
    let l1 = || Lists::new(caches.l1_bytes, caches.l1_ways, caches.l1_line_bytes, false);
    let mut slow = Slow {
        graph,
        chip,
        first: (0..chip.cores).map(|_| [l1(), l1()]).collect(),
        second: Lists::new(caches.l2_bytes, caches.l2_ways, caches.l2_line_bytes, true),
        arrives: Default::default(),
        second_free: 0,
        memory_free: 0,
        open: [None; 4],
    };
    let count = graph.tasks.len();
    let mut waits: Vec<usize> = graph.tasks.iter().map(|task| task.after.len()).collect();
    for (number, task) in graph.tasks.iter().enumerate() {
        if task.after.is_empty() {
            dispatcher.ready(number as u32, Groups::new(task.t, task.s));
        }
    }
    let mut ended = vec![0; count];
    // By core: when it acts, since when it wants to, what, and what comes after.
    type Plan = (u64, u64, Step, VecDeque<(u64, bool, u64)>, usize);
    let mut cores: Vec<Plan> = vec![(0, 0, Step::Lock(None), VecDeque::new(), 0); chip.cores];
    let (mut lock_free, mut last) = (0, 0);
    for now in 0..10_000_000 {
        loop {
            let acts = |core: &Plan| core.0 == now && !matches!(core.2, Step::Halted);
            let order = (0..chip.cores).filter(|&core| acts(&cores[core]));
            let Some(core) = order.min_by_key(|&core| (cores[core].1, core)) else {
                break;
            };
            last = now;
            let (_, came, step, mut rest, task) = cores[core].clone();
            // Goes on with the rest of a task at `at`.
            let go_on = |at: u64, mut rest: VecDeque<(u64, bool, u64)>, task: usize| match rest
                .pop_front()
            {
                Some((work, fetch, address)) => {
                    let at = at + work;
                    (at, at, Step::Line { fetch, address }, rest, task)
                }
                None => (at, at, Step::Lock(Some(task)), rest, task),
            };
            cores[core] = match step {
                Step::Halted => break,
                Step::Lock(of) if lock_free > now => (lock_free, came, Step::Lock(of), rest, task),
                Step::Lock(of) => {
                    if let Some(of) = of {
                        ended[of] = came;
                        for (after, spec) in graph.tasks.iter().enumerate() {
                            let times = spec.after.iter().filter(|&&other| other as usize == of);
                            for _ in times {
                                waits[after] -= 1;
                                if waits[after] == 0 {
                                    dispatcher.ready(after as u32, Groups::new(spec.t, spec.s));
                                }
                            }
                        }
                    }
                    let next = dispatcher.next(core);
                    lock_free = now + chip.locked_cycles;
                    let plan = match next {
                        Some(next) => {
                            let task = next.item as usize;
                            let at =
                                now + chip.dispatch_cycles + u64::from(graph.tasks[task].cycles);
                            rest = slow.lines(task).into();
                            go_on(at, rest, task)
                        }
                        None => (lock_free, lock_free, Step::Halted, rest, task),
                    };
                    if of.is_some() {
                        let mut wake = dispatcher.len();
                        for (other, core_plan) in cores.iter_mut().enumerate() {
                            if wake > 0 && other != core && matches!(core_plan.2, Step::Halted) {
                                wake -= 1;
                                core_plan.2 = Step::Lock(None);
                                (core_plan.0, core_plan.1) = (lock_free, lock_free);
                            }
                        }
                    }
                    plan
                }
                Step::Line { fetch, address } => {
                    let stall = match slow.first[core][usize::from(fetch)].hits(address) {
                        true => 0,
                        false => slow.miss(address, now),
                    };
                    go_on(now + stall, rest, task)
                }
            };
        }
        if cores.iter().all(|core| matches!(core.2, Step::Halted)) {
            let halted = cores.iter().map(|core| core.0).max().unwrap();
            return (halted.max(last), ended);
        }
    }
    panic!("it never ends");
}

fn access() -> impl Strategy<Value = Access> {
    (
        0..3000_u64,
        1..80_u32,
        1..4_u32,
        0..200_u32,
        any::<bool>(),
        0..20_u32,
    )
        .prop_map(|(address, bytes, rows, stride, fetch, cycles)| Access {
            rows,
            stride,
            cycles,
            ..Access::row(if fetch { Kind::Fetch } else { Kind::Load }, address, bytes)
        })
}

/// Graphs whose tasks wait for earlier ones.
fn graph(tasks: usize) -> impl Strategy<Value = TaskGraph> {
    let task = (
        prop::collection::vec(any::<prop::sample::Index>(), 0..4),
        prop::collection::vec(access(), 0..6),
        (0..3_u32, 0..4_u32, 0..50_u32),
    );
    prop::collection::vec(task, 1..tasks).prop_map(|tasks| TaskGraph {
        tasks: (tasks.into_iter().enumerate())
            .map(|(number, (after, accesses, (t, s, cycles)))| TaskSpec {
                t,
                s,
                cycles,
                after: match number {
                    0 => vec![],
                    _ => after
                        .iter()
                        .map(|after| after.index(number) as u32)
                        .collect(),
                },
                accesses,
            })
            .collect(),
    })
}

fn dispatcher(which: usize, cores: usize) -> Box<dyn Dispatcher<u32>> {
    match which {
        0 => Box::new(Fcfs::default()),
        1 => Box::new(Lcfs::default()),
        2 => Box::new(Paper::new(cores, 3, 4)),
        _ => Box::new(Usher::new(cores)),
    }
}

fn run(graph: &TaskGraph, chip: &Chip, which: usize) -> usher_sim::chip::Ran {
    let order = Order::of(graph).unwrap();
    let groups: Vec<Groups> = graph
        .tasks
        .iter()
        .map(|task| Groups::new(task.t, task.s))
        .collect();
    let work = Work {
        graph,
        order: &order,
        groups: &groups,
    };
    let mut machine = Machine::new(chip, graph.extent().unwrap()).unwrap();
    machine
        .run(work, &mut *dispatcher(which, chip.cores))
        .unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn as_a_clock_that_ticks_every_cycle(
        graph in graph(20), cores in 1..4_usize, which in 0..4_usize, contended: bool,
    ) {
        let mode = if contended { Mode::Contended } else { Mode::Uniform };
        let chip = chip(cores, mode);
        let ran = run(&graph, &chip, which);
        let (cycles, ended) = slowly(&graph, chip, &mut *dispatcher(which, cores));
        let spans: Vec<u64> = ran.spans.iter().map(|span| span.to).collect();
        prop_assert_eq!(spans, ended);
        prop_assert_eq!(ran.tally.cycles, cycles);
    }

    #[test]
    fn each_task_runs_once_and_after_what_it_waits_for(
        graph in graph(60), cores in 1..9_usize, which in 0..4_usize, stores: u64,
    ) {
        let mut graph = graph;
        for (number, task) in graph.tasks.iter_mut().enumerate() {
            if let Some(access) = task.accesses.first_mut().filter(|_| stores >> (number % 64) & 1 == 1) {
                (access.kind, access.private) = (Kind::Store, number % 3 == 0);
            }
        }
        let chip = chip(cores, Mode::Contended);
        let ran = run(&graph, &chip, which);
        for (task, span) in ran.spans.iter().enumerate() {
            prop_assert_eq!(span.times, 1);
            for &before in &graph.tasks[task].after {
                prop_assert!(ran.spans[before as usize].to <= span.from);
            }
        }
        let mut by_core = vec![Vec::new(); cores];
        for span in &ran.spans {
            by_core[span.core].push((span.from, span.to));
        }
        for spans in &mut by_core {
            spans.sort_unstable();
            prop_assert!(spans.windows(2).all(|two| two[0].1 <= two[1].0), "one at a time");
        }
        let sums = ran.tally;
        prop_assert_eq!(
            sums.compute + sums.stalled + sums.scheduling + sums.lock_wait + sums.idle,
            sums.cycles * cores as u64
        );
        let work: u64 = graph.tasks.iter().map(|task| {
            let accesses: u64 = task.accesses.iter().map(|access| u64::from(access.cycles)).sum();
            u64::from(task.cycles) + accesses
        }).sum();
        prop_assert_eq!(sums.compute, work);
        prop_assert!(sums.counts.l2_misses <= sums.counts.l1_misses());
        prop_assert_eq!(run(&graph, &chip, which), ran, "again the same");
    }
}

/// The paper's headline and its Table 3; the whole is `usher-bench chip`.
#[test]
fn pattern_b_gains_half_on_the_board_and_pattern_a_a_tenth_in_the_simulator() {
    let extent = Extent {
        warm_up: 1,
        measured: 1,
    };
    let fitted = Fitted::default();
    let rows = compare(&[HEADLINE], &Pattern::ALL, &fitted, extent, 2).unwrap();
    let ratios = ratios(&rows, |figures| Some(figures.fps));
    let b = ratios
        .iter()
        .find(|ratio| ratio.pattern == Pattern::B)
        .unwrap();
    assert!((1.4..=1.6).contains(&b.simulated), "{b:?}");
    let [fcfs, a] = table_3(&fitted, extent).unwrap();
    let gain = fcfs.cycles as f64 / a.cycles as f64;
    assert!((gain - 1.11).abs() <= 0.03, "{gain}");
}
