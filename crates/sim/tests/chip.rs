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

/// A core of the oracle.
#[derive(Clone)]
struct SlowCore {
    /// When it acts.
    at: u64,
    /// Since when it wants to.
    came: u64,
    step: Step,
    /// What its task has left.
    rest: VecDeque<(u64, bool, u64)>,
    task: usize,
}

impl SlowCore {
    /// Goes on with the rest of its task at `at`.
    fn go_on(&mut self, at: u64) {
        let (at, step) = match self.rest.pop_front() {
            Some((work, fetch, address)) => (at + work, Step::Line { fetch, address }),
            None => (at, Step::Lock(Some(self.task))),
        };
        (self.at, self.came, self.step) = (at, at, step);
    }
}

/// All tasks and cores of the oracle.
struct Slowly<'a> {
    slow: Slow<'a>,
    dispatcher: &'a mut dyn Dispatcher<u32>,
    cores: Vec<SlowCore>,
    waits: Vec<usize>,
    ended: Vec<u64>,
    lock_free: u64,
}

impl Slowly<'_> {
    fn ready(&mut self, task: usize) {
        let spec = &self.slow.graph.tasks[task];
        let groups = Groups::new(spec.t, spec.s);
        self.dispatcher.ready(task as u32, groups);
    }

    fn resolve(&mut self, of: usize) {
        let graph = self.slow.graph;
        for (after, spec) in graph.tasks.iter().enumerate() {
            for _ in spec.after.iter().filter(|&&other| other as usize == of) {
                self.waits[after] -= 1;
                if self.waits[after] == 0 {
                    self.ready(after);
                }
            }
        }
    }

    /// Has the lock, and may have ended a task.
    fn dispatch(&mut self, core: usize, now: u64, of: Option<usize>) {
        if let Some(of) = of {
            self.ended[of] = self.cores[core].came;
            self.resolve(of);
        }
        let chip = self.slow.chip;
        self.lock_free = now + chip.locked_cycles;
        let next = self.dispatcher.next(core);
        let own = &mut self.cores[core];
        match next {
            Some(next) => {
                own.task = next.item as usize;
                own.rest = self.slow.lines(own.task).into();
                let work = u64::from(self.slow.graph.tasks[own.task].cycles);
                own.go_on(now + chip.dispatch_cycles + work);
            }
            None => (own.at, own.step) = (self.lock_free, Step::Halted),
        }
        let mut wake = match of {
            Some(_) => self.dispatcher.len(),
            None => 0,
        };
        for (other, plan) in self.cores.iter_mut().enumerate() {
            if wake > 0 && other != core && matches!(plan.step, Step::Halted) {
                wake -= 1;
                plan.step = Step::Lock(None);
                (plan.at, plan.came) = (self.lock_free, self.lock_free);
            }
        }
    }

    fn act(&mut self, core: usize, now: u64) {
        match self.cores[core].step.clone() {
            Step::Halted => {}
            Step::Lock(_) if self.lock_free > now => self.cores[core].at = self.lock_free,
            Step::Lock(of) => self.dispatch(core, now, of),
            Step::Line { fetch, address } => {
                let stall = match self.slow.first[core][usize::from(fetch)].hits(address) {
                    true => 0,
                    false => self.slow.miss(address, now),
                };
                self.cores[core].go_on(now + stall);
            }
        }
    }

    /// Who acts next at that time.
    fn first(&self, now: u64) -> Option<usize> {
        let acts = |core: &SlowCore| core.at == now && !matches!(core.step, Step::Halted);
        let order = (0..self.cores.len()).filter(|&core| acts(&self.cores[core]));
        order.min_by_key(|&core| (self.cores[core].came, core))
    }
}

/// Runs a graph cycle by cycle: how long it takes, and when each task ended.
fn slowly(graph: &TaskGraph, chip: Chip, dispatcher: &mut dyn Dispatcher<u32>) -> (u64, Vec<u64>) {
    let caches = chip.caches;
    let (bytes, ways, line) = (caches.l1_bytes, caches.l1_ways, caches.l1_line_bytes);
    let l1 = || Lists::new(bytes, ways, line, false);
    let slow = Slow {
        graph,
        chip,
        first: (0..chip.cores).map(|_| [l1(), l1()]).collect(),
        second: Lists::new(caches.l2_bytes, caches.l2_ways, caches.l2_line_bytes, true),
        arrives: Default::default(),
        second_free: 0,
        memory_free: 0,
        open: [None; 4],
    };
    let core = SlowCore {
        at: 0,
        came: 0,
        step: Step::Lock(None),
        rest: VecDeque::new(),
        task: 0,
    };
    let mut all = Slowly {
        slow,
        dispatcher,
        cores: vec![core; chip.cores],
        waits: graph.tasks.iter().map(|task| task.after.len()).collect(),
        ended: vec![0; graph.tasks.len()],
        lock_free: 0,
    };
    for task in 0..graph.tasks.len() {
        if graph.tasks[task].after.is_empty() {
            all.ready(task);
        }
    }
    for now in 0..10_000_000 {
        while let Some(core) = all.first(now) {
            all.act(core, now);
        }
        if all
            .cores
            .iter()
            .all(|core| matches!(core.step, Step::Halted))
        {
            let halted = all.cores.iter().map(|core| core.at).max();
            return (halted.unwrap_or(0), all.ended);
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
