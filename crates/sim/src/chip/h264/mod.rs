// SPDX-License-Identifier: MIT OR Apache-2.0
//! Frames of an H.264 baseline decoder as graphs of tasks, with made-up addresses.
//!
//! Paper 5 cuts the processing of a macroblock's video signal into eight stages
//! (its figure 8, whose names are not in the text) and says which of them make up
//! the front half (0, 1, 2, 4, 5) and the back half (3, 6, 7). The stages here are
//! those of the standard that fit this cut: motion vectors, residual, inter
//! prediction, *boundary strengths*, luma and chroma reconstruction, *luma and
//! chroma deblocking*. A task does one stage of a few macroblocks side by side.
//!
//! **Who waits for whom.** Within a stage: for the left, upper and upper right
//! neighbours.
//! Between stages of a macroblock: residual, prediction and strengths for the
//! vectors, strengths for the residual, reconstruction for residual and prediction,
//! deblocking for strengths and reconstruction. Between macroblocks: deblocking
//! changes pixels that the reconstruction of the row below reads, and waits for the
//! lower right neighbour's; a row goes on only where the reconstruction of the row
//! above is [`Fitted::lead`] tasks ahead; and a task that fills a buffer waits until
//! [`Fitted::slots`] tasks before it their row's has been used. A frame begins when
//! the one before has ended.
//!
//! **What a stage touches**, for each macroblock: its own code, once from end to
//! end; tables that all share; the core's stack, which it writes several times over;
//! scratch that each core has for each stage, half read and half written; and
//!
//! | stage | reads | writes |
//! |---|---|---|
//! | 0 vectors | a quarter of what the parser hands over; info of the macroblock, left, upper, upper right | info, state |
//! | 1 residual | the rest of it; state | 384 differences of 16 bits |
//! | 2 prediction | state; 21 x 21 luma and 2 x 9 x 9 chroma pixels of the frame before, where the vector points | 384 pixels |
//! | 3 strengths | info of the macroblock, left, upper | strengths |
//! | 4 luma | state, differences, prediction, the row of pixels above | 16 x 16 pixels of the frame |
//! | 5 chroma | the same of chroma | 2 x 8 x 8 pixels |
//! | 6, 7 deblocking | strengths, pixels with four (chroma: two) more to the left and above | the same pixels |
//!
//! and, at its beginning, its descriptor and the dispatcher's code and tables. What
//! the parser hands over, infos (128 bytes: vectors, modes) and strengths (128
//! bytes) are arrays over the whole frame, used anew by each frame. State,
//! differences and predictions are in buffers, `slots` tasks of them in each of ten
//! rows, used in turns. Frames are planes with 32 pixels of margin at each side, two
//! in turns. Vectors are up to 8 pixels long, by chance. All macroblocks are
//! predicted from the frame before, as most are at a quantiser of 40. What the two
//! other cores of the chip do (parse the stream, put frames out) is left out.

mod layout;
mod touches;

use serde::{Deserialize, Serialize};
use usher_tasks::dispatch::Groups;

use super::fitted::Fitted;
use super::graph::{GraphError, Order, TaskGraph, TaskSpec};
use layout::{BUFFER_ROWS, Layout};
use touches::Maker;

/// Stages of a macroblock.
pub const STAGES: usize = 8;

/// Pictures that the paper decodes.
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
    /// All, the smallest first.
    pub const ALL: [Self; 4] = [Self::Qvga, Self::Vga, Self::Wvga, Self::Hd];

    /// As in the paper's Table 2.
    pub fn name(self) -> &'static str {
        match self {
            Self::Qvga => "qvga",
            Self::Vga => "vga",
            Self::Wvga => "wvga",
            Self::Hd => "720p",
        }
    }

    /// Macroblocks side by side, and rows of them.
    pub fn macroblocks(self) -> (u32, u32) {
        match self {
            Self::Qvga => (20, 15),
            Self::Vga => (40, 30),
            Self::Wvga => (50, 30),
            Self::Hd => (80, 45),
        }
    }
}

/// Where a task of a frame belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Its stage, 0..8.
    pub stage: u32,
    /// Its row of macroblocks.
    pub row: u32,
}

/// A frame's tasks.
#[derive(Debug, Clone)]
pub struct Frame {
    /// With what they touch.
    pub graph: TaskGraph,
    /// Who follows whom.
    pub order: Order,
    /// By task.
    pub places: Vec<Place>,
    /// Rows of macroblocks.
    pub rows: u32,
}

/// Two frames, each predicted from the other, to be run in turns.
///
/// # Errors
/// Never, as long as who waits for whom makes sense.
pub fn frames(input: Input, fitted: &Fitted) -> Result<[Frame; 2], GraphError> {
    Ok([frame(input, 0, fitted)?, frame(input, 1, fitted)?])
}

/// One frame, written into plane `number` modulo 2.
///
/// # Errors
/// Never, as long as who waits for whom makes sense.
pub fn frame(input: Input, number: u64, fitted: &Fitted) -> Result<Frame, GraphError> {
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
    let (mut tasks, mut places) = (Vec::new(), Vec::new());
    for row in 0..rows {
        for group in 0..groups {
            for stage in 0..STAGES as u32 {
                let mut maker = Maker::new(&layout, stage);
                maker.begin(tasks.len() as u64);
                for column in group * grain..((group + 1) * grain).min(columns) {
                    maker.macroblock(column, row);
                }
                tasks.push(TaskSpec {
                    after: grid.waits(stage, group, row),
                    accesses: maker.accesses,
                    ..TaskSpec::default()
                });
                places.push(Place { stage, row });
            }
        }
    }
    let graph = TaskGraph { tasks };
    let order = Order::of(&graph)?;
    Ok(Frame {
        graph,
        order,
        places,
        rows,
    })
}

impl Frame {
    /// The groups of all tasks, each by its place.
    pub fn groups(&self, of: impl Fn(Place) -> Groups) -> Vec<Groups> {
        self.places.iter().map(|&place| of(place)).collect()
    }
}

/// Tasks in rows.
struct Grid {
    groups: u32,
    rows: u32,
    /// Buffers of differences and predictions that a row has, a task each.
    slots: u32,
    /// Tasks by which the reconstruction of the row above is ahead of a row.
    lead: u32,
}

impl Grid {
    /// The task of a stage, if there is such a place.
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
        // Who used the buffer before must be done with it.
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
        // The last macroblock's lower right neighbour is in the next group.
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
    use crate::chip::graph::Kind;

    #[test]
    fn a_wvga_frame_has_2400_tasks_as_table_3_implies() {
        let fitted = Fitted {
            grain: 5,
            ..Fitted::default()
        };
        let [frame, _] = frames(Input::Wvga, &fitted).unwrap();
        assert_eq!(frame.graph.tasks.len(), 2400);
        let fitted = Fitted { grain: 1, ..fitted };
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

    /// Every pixel that the frame has is written, and what is read was written in
    /// this frame or lies in the one before.
    #[test]
    fn planes_do_not_overlap_and_are_covered() {
        let fitted = Fitted::default();
        let [one, two] = [0, 1].map(|number| frame(Input::Qvga, number, &fitted).unwrap());
        let touched = |frame: &Frame, stage: u32, kind: Kind| {
            let mut bytes = std::collections::BTreeSet::new();
            for (spec, place) in frame.graph.tasks.iter().zip(&frame.places) {
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
        let written = touched(&one, 4, Kind::Store);
        let read_next = touched(&two, 2, Kind::Load);
        let pool = POOL_BYTES as usize / 2;
        assert_eq!(
            written.len(),
            320 * 240 + pool,
            "each pixel once, and the pool"
        );
        assert!(written.intersection(&read_next).count() > 320 * 240 * 2 / 3);
        let next = touched(&two, 4, Kind::Store);
        assert_eq!(
            written.intersection(&next).count(),
            pool,
            "two planes in turns"
        );
    }
}
