// SPDX-License-Identifier: MIT OR Apache-2.0
//! Generates the task graphs of H.264 baseline frames, with the dependencies and the memory
//! accesses of each task.
//!
//! Paper 5 divides the processing of a macroblock's video signal into eight stages (its figure 8;
//! their names are not in the text). The stages 0, 1, 2, 4 and 5 form the front half, the stages 3,
//! 6 and 7 the back half. This model uses the steps of the H.264 standard that fit this division: 0
//! motion vectors, 1 residual, 2 inter prediction, *3 boundary strengths*, 4 luma reconstruction, 5
//! chroma reconstruction, *6 luma deblocking, 7 chroma deblocking*. A task is one stage of a few
//! adjacent macroblocks. The words *upper* and *lower* neighbour below mean the macroblock above
//! and below.
//!
//! **Dependencies**
//!
//! - Within a stage, a task depends on the tasks of the left, upper and upper right neighbours.
//! - Between the stages of a macroblock: residual, prediction and strengths depend on the vectors;
//!   strengths on the residual; reconstruction on residual and prediction; deblocking on strengths
//!   and reconstruction.
//! - Deblocking of a macroblock depends on the reconstruction of its lower right neighbour, because
//!   deblocking changes pixels that the reconstruction of the row below reads.
//! - A row continues only if the reconstruction of the row above is [`FittedParameters::lead`]
//!   tasks ahead.
//! - A task that fills a buffer waits until all tasks that read the previous content of the buffer
//!   have ended. The task that wrote the previous content is [`FittedParameters::slots`] tasks
//!   before it in the same row.
//! - A frame starts when the previous frame has ended.
//!
//! **Memory accesses** of a stage per macroblock: the stage's code, read once from start to end;
//! tables that all cores share; the stack of the core, written several times; scratch memory that
//! each core has for each stage, of which one half is read and the other half written; and the data
//! in this table:
//!
//! | stage | reads | writes |
//! |---|---|---|
//! | 0 vectors | a quarter of the parser's output; info of the macroblock, left, upper, upper right | info, state |
//! | 1 residual | the rest of the parser's output; state | 384 differences of 16 bits |
//! | 2 prediction | state; 21 x 21 luma and 2 x 9 x 9 chroma pixels of the previous frame at the vector's target | 384 pixels |
//! | 3 strengths | info of the macroblock, left, upper | strengths |
//! | 4 luma | state, differences, prediction, the row of pixels above | 16 x 16 pixels of the frame |
//! | 5 chroma | the same for chroma | 2 x 8 x 8 pixels |
//! | 6, 7 deblocking | strengths, pixels with four (chroma: two) more to the left and above | the same pixels |
//!
//! At its start, a task also reads its descriptor, and the code and tables of the dispatcher.
//!
//! **Layout.** The parser's output, the info (128 bytes: vectors, modes) and the strengths (128
//! bytes) of each macroblock are in arrays over the whole frame, which each frame uses again.
//! State, differences and predictions are in ring buffers with `slots` entries in each of ten rows;
//! an entry has the data of one task. Frames alternate between two sets of planes with a margin of
//! 32 pixels on each side.
//!
//! **Limits.** Motion vectors are random and at most 8 pixels long in each direction. All
//! macroblocks are predicted from the previous frame; in a real stream with a quantiser of 40, most
//! macroblocks are. The work of the chip's two other cores (parsing of the stream, output of
//! frames) is not modelled.

mod layout;
mod touches;

use serde::{Deserialize, Serialize};
use usher_tasks::dispatch::Groups;

use crate::fitted::FittedParameters;
use crate::graph::{Dependencies, TaskGraph, TaskGraphError, TaskSpec};
use layout::{BUFFER_ROWS, Layout};
use touches::AccessRecorder;

/// Number of stages of a macroblock.
pub const STAGES: usize = 8;

/// Picture sizes of the paper, in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Input {
    /// 320 x 240.
    Qvga,
    /// 640 x 480.
    Vga,
    /// 800 x 480.
    Wvga,
    /// 1280 x 720.
    #[serde(rename = "720p")]
    Hd,
}

impl Input {
    /// All sizes, in ascending order.
    pub const ALL: [Self; 4] = [Self::Qvga, Self::Vga, Self::Wvga, Self::Hd];

    /// Name of the size in Table 2 of the paper.
    pub fn name(self) -> &'static str {
        match self {
            Self::Qvga => "qvga",
            Self::Vga => "vga",
            Self::Wvga => "wvga",
            Self::Hd => "720p",
        }
    }

    /// Returns the number of macroblocks in a row, and the number of rows.
    pub fn macroblocks(self) -> (u32, u32) {
        match self {
            Self::Qvga => (20, 15),
            Self::Vga => (40, 30),
            Self::Wvga => (50, 30),
            Self::Hd => (80, 45),
        }
    }
}

/// Position of a task in a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskPosition {
    /// Stage, 0 to 7.
    pub stage: u32,
    /// Row of macroblocks.
    pub row: u32,
}

/// The tasks of a frame.
#[derive(Debug, Clone)]
pub struct Frame {
    /// The tasks of the frame with their accesses.
    pub graph: TaskGraph,
    /// The dependencies between the tasks.
    pub order: Dependencies,
    /// Position of each task in the frame.
    pub positions: Vec<TaskPosition>,
    /// Number of rows of macroblocks.
    pub rows: u32,
}

/// Generates two frames to be run alternately. Each frame is predicted from the other frame.
///
/// # Errors
/// The generated dependencies are invalid, which is a bug of the model.
pub fn frames(input: Input, fitted: &FittedParameters) -> Result<[Frame; 2], TaskGraphError> {
    Ok([frame(input, 0, fitted)?, frame(input, 1, fitted)?])
}

/// Generates one frame, which is written into the set of planes `number` modulo 2.
///
/// # Errors
/// The generated dependencies are invalid, which is a bug of the model.
pub fn frame(
    input: Input,
    number: u64,
    fitted: &FittedParameters,
) -> Result<Frame, TaskGraphError> {
    let (columns, rows) = input.macroblocks();
    let grain = fitted.grain.clamp(1, columns);
    let groups = columns.div_ceil(grain);
    let layout = Layout::new(columns, rows, number, fitted);
    let slots = fitted.slots.max(1);
    let grid = Grid {
        groups,
        rows,
        slots,
        lead: fitted.lead,
    };
    let (mut tasks, mut positions) = (Vec::new(), Vec::new());
    for row in 0..rows {
        for group in 0..groups {
            for stage in 0..STAGES as u32 {
                let mut maker = AccessRecorder::new(&layout, stage);
                maker.begin(tasks.len() as u64);
                for column in group * grain..((group + 1) * grain).min(columns) {
                    maker.macroblock(column, row);
                }
                tasks.push(TaskSpec {
                    after: grid.waits(stage, group, row),
                    accesses: maker.accesses,
                    ..TaskSpec::default()
                });
                positions.push(TaskPosition { stage, row });
            }
        }
    }
    let graph = TaskGraph { tasks };
    let order = Dependencies::of(&graph)?;
    Ok(Frame {
        graph,
        order,
        positions,
        rows,
    })
}

impl Frame {
    /// Returns the groups of all tasks. `of` determines the groups of a task from its position.
    pub fn groups(&self, of: impl Fn(TaskPosition) -> Groups) -> Vec<Groups> {
        self.positions.iter().map(|&place| of(place)).collect()
    }
}

/// The grid of the tasks of a frame: stages, rows, and tasks in a row.
struct Grid {
    groups: u32,
    rows: u32,
    /// Number of buffers of differences and predictions per row; a task uses one buffer.
    slots: u32,
    /// Number of tasks by which the reconstruction of the row above must be ahead.
    lead: u32,
}

impl Grid {
    /// Returns the task of a stage at a position of the grid; `None` outside of the frame.
    fn task(&self, stage: u32, group: i64, row: i64) -> Option<u32> {
        let inside = (0..i64::from(self.groups)).contains(&group)
            && (0..i64::from(self.rows)).contains(&row);
        inside.then(|| (row as u32 * self.groups + group as u32) * STAGES as u32 + stage)
    }

    fn waits(&self, stage: u32, group: u32, row: u32) -> Vec<u32> {
        let (group, row) = (i64::from(group), i64::from(row));
        let within = [(-1, 0), (0, -1), (1, -1)];
        let between: &[u32] = match stage {
            0 => &[],
            1 | 2 => &[0],
            3 => &[0, 1],
            4 | 5 => &[1, 2],
            6 => &[3, 4],
            _ => &[3, 5],
        };
        // All tasks that use the previous content of the buffer must have ended.
        let slots = i64::from(self.slots);
        let last = i64::from(self.groups) - 1;
        let user = |stage| {
            self.task(stage, group - slots, row)
                .or_else(|| self.task(stage, last, row - i64::from(BUFFER_ROWS)))
        };
        let users = [4, 5].into_iter().filter_map(|before| match stage {
            0 => user(before),
            _ => None,
        });
        let ahead = (group + i64::from(self.lead)).min(last);
        let above = [4, 5]
            .into_iter()
            .filter_map(|before| match (stage, self.lead) {
                (0, 1..) => self.task(before, ahead, row - 1),
                _ => None,
            });
        // The lower right neighbour of the last macroblock of a task is part of the next task in
        // the row below.
        let right = (group + 1).min(last);
        let below = match stage {
            6 => self.task(4, right, row + 1),
            7 => self.task(5, right, row + 1),
            _ => None,
        };
        let within = within
            .iter()
            .filter_map(|(x, y)| self.task(stage, group + x, row + y));
        let between = between
            .iter()
            .filter_map(|&before| self.task(before, group, row));
        within
            .chain(between)
            .chain(below)
            .chain(users)
            .chain(above)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::layout::POOL_BYTES;
    use super::*;
    use crate::graph::AccessKind;

    #[test]
    fn wvga_frame_has_2400_tasks_as_in_table_3() {
        let fitted = FittedParameters {
            grain: 5,
            ..FittedParameters::default()
        };
        let [frame, _] = frames(Input::Wvga, &fitted).unwrap();
        assert_eq!(frame.graph.tasks.len(), 2400);
        let fitted = FittedParameters { grain: 1, ..fitted };
        let [frame, _] = frames(Input::Hd, &fitted).unwrap();
        assert_eq!(frame.graph.tasks.len(), 28_800, "section 6");
    }

    #[test]
    fn deblocking_waits_for_the_row_below() {
        let grid = Grid {
            groups: 4,
            rows: 3,
            slots: 2,
            lead: 0,
        };
        let task = |stage, group, row| grid.task(stage, group, row).unwrap();
        let waits = grid.waits(6, 1, 0);
        assert_eq!(
            waits,
            [task(6, 0, 0), task(3, 1, 0), task(4, 1, 0), task(4, 2, 1)]
        );
        assert_eq!(
            grid.waits(1, 3, 1),
            [task(1, 2, 1), task(1, 3, 0), task(0, 3, 1)]
        );
        let of_buffer = [task(4, 1, 1), task(5, 1, 1)];
        let waits = [&[task(0, 2, 1), task(0, 3, 0)][..], &of_buffer].concat();
        assert_eq!(grid.waits(0, 3, 1), waits);
        assert_eq!(
            grid.waits(7, 3, 2),
            [task(7, 2, 2), task(7, 3, 1), task(3, 3, 2), task(5, 3, 2)]
        );
    }

    /// Every pixel of the frame is written. Every pixel that a task reads was written in this frame
    /// or belongs to the previous frame.
    #[test]
    fn planes_do_not_overlap_and_are_covered() {
        let fitted = FittedParameters::default();
        let [one, two] = [0, 1].map(|number| frame(Input::Qvga, number, &fitted).unwrap());
        let touched = |frame: &Frame, stage: u32, kind: AccessKind| {
            let mut bytes = std::collections::BTreeSet::new();
            for (spec, place) in frame.graph.tasks.iter().zip(&frame.positions) {
                for access in &spec.accesses {
                    if place.stage == stage && access.kind == kind && !access.private {
                        for row in 0..u64::from(access.rows) {
                            let from = access.address + row * u64::from(access.stride);
                            bytes.extend(from..from + u64::from(access.bytes));
                        }
                    }
                }
            }
            bytes
        };
        let written = touched(&one, 4, AccessKind::Store);
        let read_next = touched(&two, 2, AccessKind::Load);
        let pool = POOL_BYTES as usize / 2;
        assert_eq!(
            written.len(),
            320 * 240 + pool,
            "each pixel once, and the pool"
        );
        assert!(written.intersection(&read_next).count() > 320 * 240 * 2 / 3);
        let next = touched(&two, 4, AccessKind::Store);
        assert_eq!(
            written.intersection(&next).count(),
            pool,
            "two alternating planes"
        );
    }
}
