// SPDX-License-Identifier: MIT OR Apache-2.0
//! The scheduling patterns that the chip simulation compares: first come, first served (FCFS) and
//! the patterns A and B of paper 5, and the default policy of `usher-tasks`.
//!
//! A pattern determines:
//!
//! 1. the temporal group `t` and the spatial group `s` of each task ([`Pattern::groups`]): the
//!    dispatcher runs tasks of the same `t` close in time, and tasks of the same `s` on the same
//!    core;
//! 2. the dispatcher, which selects the next task for a core ([`Pattern::dispatcher`]), and the
//!    cycles that a dispatch costs ([`Pattern::dispatch_cycles`]);
//! 3. the order in which tasks that become ready at the end of a task enter the dispatcher
//!    ([`Pattern::order`]).
//!
//! The decoder ([`crate::h264`]) has eight stages per macroblock. The stages 0, 1, 2, 4 and 5 form
//! the *front half* of the work on a macroblock; the stages 3, 6 and 7 form the *back half*. In the
//! patterns A, B and `usher`, `s` is the stage. The patterns differ in `t`:
//!
//! - A and `usher`: two rows of macroblocks in the front half form a group, together with the back
//!   half of two rows that begin one row higher;
//! - B: the front half of the whole frame is a group, and the back half is another group.

use serde::{Deserialize, Serialize};
use usher_tasks::dispatch::{Dispatcher, Fcfs, Groups, Paper, Usher};

use crate::fitted::DISPATCH_CYCLES;
use crate::graph::Dependencies;
use crate::h264::{STAGES, TaskPosition};

/// A scheduling pattern: a dispatcher, and the groups of the tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// First come, first served.
    Fcfs,
    /// Pattern A: the paper's dispatcher with small temporal groups. A group contains the front
    /// half of two rows of macroblocks, and the back half of two rows that begin one row higher.
    A,
    /// Pattern B: the paper's dispatcher with two temporal groups, first the front half of the
    /// frame, then the back half.
    B,
    /// The default policy of `usher-tasks` with the groups of pattern A. A dispatch has the same
    /// cost as with the paper's dispatcher.
    Usher,
}

impl Pattern {
    /// All patterns.
    pub const ALL: [Self; 4] = [Self::Fcfs, Self::A, Self::B, Self::Usher];
    /// The patterns of the paper.
    pub const PAPER: [Self; 3] = [Self::Fcfs, Self::A, Self::B];

    /// Name of the pattern in the data and on the report page.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fcfs => "FCFS",
            Self::A => "A",
            Self::B => "B",
            Self::Usher => "usher",
        }
    }

    /// Returns the groups of the task at a position.
    pub fn groups(self, place: TaskPosition) -> Groups {
        let is_back = matches!(place.stage, 3 | 6 | 7);
        let s = 1 + place.stage;
        match self {
            Self::Fcfs => Groups::NONE,
            Self::A | Self::Usher => Groups::new(1 + (place.row + u32::from(is_back)) / 2, s),
            Self::B => Groups::new(1 + u32::from(is_back), s),
        }
    }

    /// Returns the dependencies with the successors of each task in the order in which they enter
    /// the dispatcher when they become ready.
    pub fn order(self, of: &Dependencies) -> Dependencies {
        match self {
            Self::Fcfs | Self::A | Self::B => of.clone(),
            Self::Usher => of.clone().onward(),
        }
    }

    /// Returns a new dispatcher for a frame with `rows` rows of macroblocks.
    pub fn dispatcher(self, cores: usize, rows: u32) -> Box<dyn Dispatcher<u32>> {
        let (t_count, s_count) = (rows as usize / 2 + 2, STAGES + 1);
        match self {
            Self::Fcfs => Box::new(Fcfs::default()),
            Self::A | Self::B => Box::new(Paper::new(cores, t_count.max(3), s_count)),
            Self::Usher => Box::new(Usher::new(cores)),
        }
    }

    /// Returns the cycles that a dispatch costs.
    pub fn dispatch_cycles(self) -> u64 {
        match self {
            Self::Fcfs => DISPATCH_CYCLES.0,
            Self::A | Self::B | Self::Usher => DISPATCH_CYCLES.1,
        }
    }
}
