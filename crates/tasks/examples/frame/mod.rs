// SPDX-License-Identifier: MIT OR Apache-2.0
//! A video frame as a wavefront: macroblocks in rows, each in eight stages.

use usher_tasks::{GraphBuilder, Groups};

/// Stages of a macroblock.
pub const STAGES: usize = 8;

/// Declares the tasks of a frame, macroblock by macroblock with the stages innermost. Each task
/// depends on the previous stage of its macroblock, and on the same stage of the macroblocks to the
/// left, above, and above to the right. `groups` computes the groups of a task from column, row and
/// stage.
pub fn wavefront(
    columns: usize,
    rows: usize,
    groups: impl Fn(usize, usize, usize) -> Groups,
) -> GraphBuilder {
    let mut builder = GraphBuilder::new();
    let number = |x: usize, y: usize, stage: usize| (y * columns + x) * STAGES + stage;
    for y in 0..rows {
        for x in 0..columns {
            for stage in 0..STAGES {
                let task = builder.task_in(groups(x, y, stage));
                if stage > 0 {
                    builder.after(task, number(x, y, stage - 1));
                }
                if x > 0 {
                    builder.after(task, number(x - 1, y, stage));
                }
                if y > 0 {
                    builder.after(task, number(x, y - 1, stage));
                }
                if y > 0 && x + 1 < columns {
                    builder.after(task, number(x + 1, y - 1, stage));
                }
            }
        }
    }
    builder
}
