// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the simulated chip: random task graphs must give the same results as in a simple
//! reference model (`slow`), each run must satisfy invariants, and the main result of paper 5 must
//! be reproduced.

#![allow(clippy::unwrap_used)] // a test that cannot go on fails

mod slow;

use proptest::prelude::*;
use usher_cache::Replacement;
use usher_chip::study::{FrameCounts, HEADLINE, compare, ratios, table_3};
use usher_chip::{
    AccessKind, Caches, Chip, ChipMachine, Dependencies, FittedParameters, GroupedGraph, MissModel,
    Pattern, TaskAccess, TaskGraph, TaskSpec, Timing,
};
use usher_tasks::dispatch::{Dispatcher, Fcfs, Groups, Lcfs, Paper, Usher};

use slow::slowly;

const TIMING: Timing = Timing {
    l1_miss_cycles: 3,
    l2_miss_cycles: 17,
    first_word_cycles: 13,
    l2_busy_cycles: 2,
    line_busy_cycles: 11,
    row_cycles: 4,
    write_buffer: 2,
};

fn chip(cores: usize, mode: MissModel) -> Chip {
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

/// Draws accesses from a few addresses, so that cores often access the same lines.
fn access() -> impl Strategy<Value = TaskAccess> {
    let kind = prop_oneof![
        1 => Just(AccessKind::Fetch),
        2 => Just(AccessKind::Load),
        2 => Just(AccessKind::Store),
    ];
    let address = prop_oneof![0..200_u64, 0..3000_u64];
    let rows = (1..4_u32, 0..200_u32);
    let bytes = prop_oneof![1 => Just(0), 9 => 1..80_u32];
    let private = prop::bool::weighted(0.2);
    (kind, address, bytes, rows, private, 0..20_u32).prop_map(
        |(kind, address, bytes, (rows, stride), private, cycles)| TaskAccess {
            rows,
            stride,
            private,
            cycles,
            ..TaskAccess::row(kind, address, bytes)
        },
    )
}

/// Draws task graphs in which tasks depend only on earlier tasks.
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

fn run(graph: &TaskGraph, chip: &Chip, which: usize) -> usher_chip::RunResult {
    let order = Dependencies::of(graph).unwrap();
    let groups: Vec<Groups> = graph
        .tasks
        .iter()
        .map(|task| Groups::new(task.t, task.s))
        .collect();
    let work = GroupedGraph {
        graph,
        order: &order,
        groups: &groups,
    };
    let mut machine = ChipMachine::new(chip, graph.extent().unwrap()).unwrap();
    machine
        .run(work, &mut *dispatcher(which, chip.cores))
        .unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn agrees_with_the_cycle_by_cycle_model(
        graph in graph(20), cores in 1..4_usize, which in 0..4_usize, contended: bool,
    ) {
        let mode = if contended { MissModel::Contended } else { MissModel::Uniform };
        let chip = chip(cores, mode);
        let ran = run(&graph, &chip, which);
        let ticked = slowly(&graph, chip, &mut *dispatcher(which, cores));
        let spans: Vec<u64> = ran.spans.iter().map(|span| span.to).collect();
        prop_assert_eq!(spans, ticked.ended);
        prop_assert_eq!(ran.tally.cycles, ticked.cycles);
        prop_assert_eq!(ran.tally.counts, ticked.counts);
    }

    #[test]
    fn each_task_runs_once_and_after_its_dependencies(
        graph in graph(60), cores in 1..9_usize, which in 0..4_usize,
    ) {
        let chip = chip(cores, MissModel::Contended);
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

/// Tests the cell of the paper's main result and Table 3. `usher-bench chip` compares all cells.
#[test]
fn pattern_b_gains_half_on_the_board_and_pattern_a_a_tenth_in_the_simulator() {
    let extent = FrameCounts {
        warm_up: 1,
        measured: 1,
    };
    let fitted = FittedParameters::default();
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
