// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measures the cost of a task, with and without tracing, for a frame of macroblocks in eight
//! stages. The tasks form a wavefront: each depends on the previous stage of its macroblock and on
//! neighbouring macroblocks.
//! `cargo run --release -p usher-tasks --example wavefront [WORKERS] [COLUMNS ROWS BYTES FRAMES]`
#![allow(clippy::unwrap_used)] // an example fails by panicking

mod frame;

use std::cell::UnsafeCell;
use std::process::ExitCode;
use std::time::Instant;

use usher_tasks::{GraphBuilder, Groups, Policy, Runtime};

use frame::{STAGES, wavefront};

/// The size of a frame in macroblocks, and the bytes of state of each macroblock.
#[derive(Clone, Copy)]
struct Frame {
    columns: usize,
    rows: usize,
    bytes: usize,
}

/// The state of all macroblocks.
struct State(Vec<UnsafeCell<u8>>);

// SAFETY: threads access only bytes of different blocks at the same time, because the graph orders
// all tasks of a block.
unsafe impl Sync for State {}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let numbers: Result<Vec<usize>, _> = words.iter().map(|word| word.parse()).collect();
    match numbers {
        Ok(numbers) if numbers.len() <= 5 => {
            measure(&numbers);
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!(
                "usage: wavefront [WORKERS] [COLUMNS ROWS BYTES FRAMES]; all arguments must be \
                 numbers, not {}",
                words.join(" ")
            );
            ExitCode::from(2)
        }
    }
}

/// Measures each policy in three ways: without groups, without groups but with tracing, and with
/// groups.
fn measure(numbers: &[usize]) {
    let number = |at: usize, or: usize| numbers.get(at).copied().unwrap_or(or);
    let (workers, frames) = (number(0, 1), number(4, 200));
    let frame = Frame {
        columns: number(1, 80),
        rows: number(2, 45),
        bytes: number(3, 0),
    };
    for policy in [
        Policy::Usher,
        Policy::Paper {
            t_groups: frame.rows as u32 + 2,
            s_groups: 9,
        },
        Policy::Fcfs,
        Policy::Lcfs,
    ] {
        let runtime = Runtime::with_policy(workers, policy).unwrap();
        for (hinted, traced) in [(false, false), (false, true), (true, false)] {
            let groups = |x: usize, y: usize, stage: usize| match (hinted, policy) {
                (false, _) => Groups::NONE,
                (true, Policy::Usher) => block_groups(frame, x, y),
                (true, _) => Groups::new(y as u32 + 1, stage as u32 + 1),
            };
            let graph = wavefront(frame.columns, frame.rows, groups);
            if traced {
                let tasks = frame.columns * frame.rows * STAGES;
                runtime.start_trace(tasks).unwrap();
            }
            let ns = run(&runtime, frame, frames, graph);
            runtime.stop_trace();
            println!("policy {policy:?}, hints {hinted}, traced {traced}: {ns:.1} ns per task");
        }
    }
}

/// Returns the groups of a task: the row is the temporal group, the macroblock the spatial group.
fn block_groups(frame: Frame, x: usize, y: usize) -> Groups {
    Groups::new(y as u32 + 1, (y * frame.columns + x + 1) as u32)
}

/// Returns the median time per task in ns.
fn run(runtime: &Runtime, frame: Frame, frames: usize, builder: GraphBuilder) -> f64 {
    let bytes = frame.bytes;
    let blocks = frame.columns * frame.rows;
    let state = State((0..blocks * bytes).map(|_| UnsafeCell::new(0)).collect());
    let state = &state;
    let mut graph = builder
        .build(move |task| {
            let block = task / STAGES;
            for line in (0..bytes).step_by(64) {
                let at = state.0[block * bytes + line].get();
                // SAFETY: threads access only bytes of different blocks at the same time, because
                // the graph orders all tasks of a block.
                unsafe { *at = (*at).wrapping_add(1) };
            }
        })
        .unwrap();
    runtime.run(&mut graph).unwrap();
    // If the runtime searches for a fast order of the tasks, repeats the run until the search has
    // ended.
    let finds = runtime.current_grouping().is_some() && !graph.explain().hinted;
    while finds && graph.explain().chosen.is_none() {
        runtime.run(&mut graph).unwrap();
    }
    let mut times: Vec<f64> = (0..frames)
        .map(|_| {
            let begun = Instant::now();
            runtime.run(&mut graph).unwrap();
            begun.elapsed().as_nanos() as f64 / graph.len() as f64
        })
        .collect();
    if finds {
        print!("{}", graph.explain());
    }
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
