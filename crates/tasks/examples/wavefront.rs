// SPDX-License-Identifier: MIT OR Apache-2.0
//! A frame of macroblocks in eight stages, as a wavefront: what a task costs.
//! `cargo run --release -p usher-tasks --example wavefront [WORKERS] [COLUMNS ROWS
//! BYTES FRAMES]`
#![allow(clippy::unwrap_used)] // an example that cannot go on fails

use std::time::Instant;

use usher_tasks::{GraphBuilder, Groups, Policy, Runtime};

const STAGES: usize = 8;

fn main() {
    let numbers: Vec<usize> = std::env::args()
        .skip(1)
        .map(|word| word.parse().unwrap())
        .collect();
    let number = |at: usize, or: usize| numbers.get(at).copied().unwrap_or(or);
    let (workers, columns, rows) = (number(0, 1), number(1, 80), number(2, 45));
    let (bytes, frames) = (number(3, 0), number(4, 200));
    for policy in [
        Policy::Usher,
        Policy::Paper {
            t_groups: rows as u32 + 2,
            s_groups: 9,
        },
        Policy::Fcfs,
        Policy::Lcfs,
    ] {
        let runtime = Runtime::with_policy(workers, policy).unwrap();
        for hinted in [false, true] {
            let ns = run(&runtime, columns, rows, bytes, frames, hinted, policy);
            println!("{policy:?}, hints {hinted}: {ns:.1} ns a task");
        }
    }
}

fn run(
    runtime: &Runtime,
    columns: usize,
    rows: usize,
    bytes: usize,
    frames: usize,
    hinted: bool,
    policy: Policy,
) -> f64 {
    let mut builder = GraphBuilder::new();
    for y in 0..rows {
        for x in 0..columns {
            for stage in 0..STAGES {
                let s = if policy == Policy::Usher {
                    y * columns + x + 1
                } else {
                    stage + 1
                };
                let groups = if hinted {
                    Groups::new(y as u32 + 1, s as u32)
                } else {
                    Groups::NONE
                };
                let task = builder.task_in(groups);
                let at = |x: usize, y: usize, stage: usize| (y * columns + x) * STAGES + stage;
                if stage > 0 {
                    builder.after(task, at(x, y, stage - 1));
                }
                if x > 0 {
                    builder.after(task, at(x - 1, y, stage));
                }
                if y > 0 {
                    builder.after(task, at(x, y - 1, stage));
                    if x + 1 < columns {
                        builder.after(task, at(x + 1, y - 1, stage));
                    }
                }
            }
        }
    }
    let state: Vec<std::cell::UnsafeCell<u8>> = (0..columns * rows * bytes)
        .map(|_| std::cell::UnsafeCell::new(0))
        .collect();
    struct State(Vec<std::cell::UnsafeCell<u8>>);
    // SAFETY: the graph orders the accesses to each block.
    unsafe impl Sync for State {}
    let state = State(state);
    let state = &state;
    let mut graph = builder
        .build(move |task| {
            let block = task / STAGES;
            for line in (0..bytes).step_by(64) {
                let at = state.0[block * bytes + line].get();
                // SAFETY: as above.
                unsafe { *at = (*at).wrapping_add(1) };
            }
        })
        .unwrap();
    // Until an order has been found, where there is one to find.
    runtime.run(&mut graph).unwrap();
    while policy == Policy::Usher && !graph.explain().hinted && graph.explain().chosen.is_none() {
        runtime.run(&mut graph).unwrap();
    }
    let mut times: Vec<f64> = (0..frames)
        .map(|_| {
            let begun = Instant::now();
            runtime.run(&mut graph).unwrap();
            begun.elapsed().as_nanos() as f64 / graph.len() as f64
        })
        .collect();
    if policy == Policy::Usher {
        print!("{}", graph.explain());
    }
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
