// SPDX-License-Identifier: MIT OR Apache-2.0
//! The task orders that the chip simulation compares: FCFS and patterns A and B of paper 5, and the
//! default policy of `usher-tasks` with the groups of pattern A. A pattern determines the groups of
//! each task, the dispatcher with the cost of a dispatch, and the order in which a finished task
//! releases its successors.
//!
//! The stages 0, 1, 2, 4 and 5 of the decoder (`h264`) form the *front half* of the work on a frame,
//! the stages 3, 6 and 7 its *back half*.

use serde::{Deserialize, Serialize};
use usher_tasks::dispatch::{Dispatcher, Fcfs, Groups, Paper, Usher};

use crate::fitted::DISPATCH_CYCLES;
use crate::graph::Dependencies;
use crate::h264::{STAGES, TaskPosition};

/// A dispatcher with its assignment of groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// First come, first served.
    Fcfs,
    /// The paper's dispatcher; S by stage. T: two rows of macroblocks in the front half, together with
    /// the rows that lie higher by one in the back half.
    A,
    /// The paper's dispatcher; S by stage. T: first the tasks of the front half, then those of the
    /// back half.
    B,
    /// The default policy of `usher-tasks` with the groups of pattern A; a dispatch costs the same
    /// as in the paper.
    Usher,
}

impl Pattern {
    /// All patterns.
    pub const ALL: [Self; 4] = [Self::Fcfs, Self::A, Self::B, Self::Usher];
    /// The patterns of the paper.
    pub const PAPER: [Self; 3] = [Self::Fcfs, Self::A, Self::B];

    /// Name in the data and on the report page.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fcfs => "FCFS",
            Self::A => "A",
            Self::B => "B",
            Self::Usher => "usher",
        }
    }

    /// The groups of a task.
    pub fn groups(self, place: TaskPosition) -> Groups {
        let is_back = matches!(place.stage, 3 | 6 | 7);
        let s = 1 + place.stage;
        match self {
            Self::Fcfs => Groups::NONE,
            Self::A | Self::Usher => Groups::new(1 + (place.row + u32::from(is_back)) / 2, s),
            Self::B => Groups::new(1 + u32::from(is_back), s),
        }
    }

    /// The dependencies, with successors in the order in which the dispatcher receives ready tasks.
    pub fn order(self, of: &Dependencies) -> Dependencies {
        match self {
            Self::Fcfs | Self::A | Self::B => of.clone(),
            Self::Usher => of.clone().onward(),
        }
    }

    /// The pattern's dispatcher for a frame with `rows` rows of macroblocks.
    pub fn dispatcher(self, cores: usize, rows: u32) -> Box<dyn Dispatcher<u32>> {
        let (t_count, s_count) = (rows as usize / 2 + 2, STAGES + 1);
        match self {
            Self::Fcfs => Box::new(Fcfs::default()),
            Self::A | Self::B => Box::new(Paper::new(cores, t_count.max(3), s_count)),
            Self::Usher => Box::new(Usher::new(cores)),
        }
    }

    /// Cycles of a dispatch.
    pub fn dispatch_cycles(self) -> u64 {
        match self {
            Self::Fcfs => DISPATCH_CYCLES.0,
            Self::A | Self::B | Self::Usher => DISPATCH_CYCLES.1,
        }
    }
}
