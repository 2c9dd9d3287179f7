// SPDX-License-Identifier: MIT OR Apache-2.0
//! Computes the schedules of paper 5's figure 4, which shows the time that last-come-first-served
//! order loses.
//!
//! The figure shows 24 tasks of one unit of time each, of which at most four run at the same time.
//! One task is postponed until its successors run without any other task beside them. Only the text
//! of the paper is available, not the drawing. The tasks in this file are four chains of 3, 7, 7
//! and 7 tasks, which have these properties. [`schedule`] runs them on the simulated chip with zero
//! cost of memory and dispatching.

use usher_tasks::dispatch::{Dispatcher, Groups};

use crate::engine::{Chip, ChipError, ChipMachine, GroupedGraph};
use crate::graph::{Dependencies, TaskGraph, TaskSpec};
use crate::memory::{Caches, MissModel, Timing};
use crate::tally::RunResult;

/// Cycles of a unit of time.
const UNIT: u32 = 1000;

/// Returns the 24 tasks.
pub fn tasks() -> TaskGraph {
    let mut tasks: Vec<TaskSpec> = Vec::new();
    for length in [3, 7, 7, 7] {
        for place in 0..length {
            let before = tasks.len() as u32;
            tasks.push(TaskSpec {
                after: (place > 0).then(|| before - 1).into_iter().collect(),
                cycles: UNIT,
                ..TaskSpec::default()
            });
        }
    }
    TaskGraph { tasks }
}

/// Returns for each core and unit of time the index of the running task, counted from 0; `None`:
/// the core is idle. All rows have the same length. Memory and dispatching cost no time.
///
/// # Errors
/// The number of cores is 0.
pub fn schedule(
    cores: usize,
    dispatcher: &mut dyn Dispatcher<u32>,
) -> Result<Vec<Vec<Option<usize>>>, ChipError> {
    let ran = run(cores, dispatcher)?;
    let unit = |cycles: u64| (cycles / u64::from(UNIT)) as usize;
    let mut schedule = vec![vec![None; unit(ran.tally.cycles)]; cores];
    for (task, span) in ran.spans.iter().enumerate() {
        schedule[span.core][unit(span.from)..unit(span.to)].fill(Some(task));
    }
    Ok(schedule)
}

fn run(cores: usize, dispatcher: &mut dyn Dispatcher<u32>) -> Result<RunResult, ChipError> {
    let graph = tasks();
    let order = Dependencies::of(&graph)?;
    let groups = vec![Groups::NONE; graph.tasks.len()];
    let timing = Timing {
        l1_miss_cycles: 0,
        l2_miss_cycles: 0,
        first_word_cycles: 0,
        l2_busy_cycles: 0,
        line_busy_cycles: 0,
        row_cycles: 0,
        write_buffer: 1,
    };
    let chip = Chip {
        cores,
        caches: Caches::paper(64 << 10),
        timing,
        mode: MissModel::Uniform,
        dispatch_cycles: 0,
        locked_cycles: 0,
    };
    let work = GroupedGraph {
        graph: &graph,
        order: &order,
        groups: &groups,
    };
    ChipMachine::new(&chip, (0, 0))?.run(work, dispatcher)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use usher_tasks::dispatch::{Fcfs, Lcfs};

    use super::*;

    /// On the chip, each core requests a task when its own task has ended. `tests/paper.rs` of
    /// `usher-tasks` tests the orders with all cores in lockstep.
    #[test]
    fn lcfs_takes_two_more_units_on_three_cores_and_none_on_four() {
        let units = |cores, dispatcher: &mut dyn Dispatcher<u32>| {
            let schedule = schedule(cores, dispatcher).unwrap();
            let tasks = schedule.iter().flatten().flatten();
            assert_eq!(tasks.collect::<BTreeSet<_>>().len(), 24, "each once");
            schedule[0].len()
        };
        let fcfs = |cores| units(cores, &mut Fcfs::default());
        let lcfs = |cores| units(cores, &mut Lcfs::default());
        assert_eq!((fcfs(3), lcfs(3)), (8, 10));
        assert_eq!((fcfs(4), lcfs(4)), (7, 7));
    }
}
