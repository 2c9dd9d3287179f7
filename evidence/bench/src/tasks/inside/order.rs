// SPDX-License-Identifier: MIT OR Apache-2.0
//! Loops that run the tasks of the wavefront in a fixed order on one thread: by macroblock, by
//! stage, or in the order of a queue or a stack of ready tasks. The time of a loop is the time that
//! a runtime without overhead would take with the same order.

use std::collections::VecDeque;

use anyhow::Result;

use crate::tasks::workload::Workload;

/// Measures frames in which the tasks run in the given order.
pub fn run(work: Workload, order: Vec<u32>) -> Result<()> {
    work.measure(|| {
        for &task in &order {
            work.run(task);
        }
        0
    })
}

/// Order: the first stage of all macroblocks, then the second stage of all macroblocks, and so on.
pub fn by_stage(work: Workload) -> Vec<u32> {
    let stages = work.stages();
    (0..stages)
        .flat_map(|stage| (stage..work.tasks()).step_by(stages as usize))
        .collect()
}

/// Order: of the ready tasks, the task that became ready first.
pub fn queue(work: Workload) -> Vec<u32> {
    ready_order(work, VecDeque::pop_front)
}

/// Order: of the ready tasks, the task that became ready last, as in thread pools.
pub fn stack(work: Workload) -> Vec<u32> {
    ready_order(work, VecDeque::pop_back)
}

fn ready_order(work: Workload, take: impl Fn(&mut VecDeque<u32>) -> Option<u32>) -> Vec<u32> {
    let mut waits = work.waits().to_vec();
    let mut order = Vec::with_capacity(waits.len());
    let sources = (0..work.tasks()).filter(|&task| waits[task as usize] == 0);
    let mut ready: VecDeque<u32> = sources.collect();
    while let Some(task) = take(&mut ready) {
        order.push(task);
        for &next in work.successors(task) {
            waits[next as usize] -= 1;
            if waits[next as usize] == 0 {
                ready.push_back(next);
            }
        }
    }
    order
}
