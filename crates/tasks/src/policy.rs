// SPDX-License-Identifier: MIT OR Apache-2.0
//! Policies: in which order a runtime's ready tasks run.

use crate::dispatch::{Fcfs, Lcfs, Paper};
use crate::error::RuntimeError;
use crate::levels::{Levels, NoMemory, Ordered};

/// Queues that the paper's policy may keep, 32 bytes each while empty.
const QUEUES_MAX: u64 = 1 << 22;

/// In which order ready tasks run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Policy {
    /// Ours: each worker goes through temporal groups in turn, and within one runs
    /// what its cache has seen last; spatial groups stay with a worker.
    #[default]
    Usher,
    /// The dispatcher of paper 5, section 4.2, for groups below these numbers; 0 is as 1.
    /// It keeps a queue for each pair of groups, 2^22 at most, and as many again for
    /// each level at which tasks run graphs.
    Paper {
        /// Temporal groups, 0 included.
        t_groups: u32,
        /// Spatial groups, 0 included.
        s_groups: u32,
    },
    /// First come, first served.
    Fcfs,
    /// Last come, first served.
    Lcfs,
}

impl Policy {
    /// Whether there can be a runtime under it.
    ///
    /// # Errors
    /// Where it would keep too many queues.
    pub fn check(self) -> Result<(), RuntimeError> {
        self.groups_below().map(|_| ())
    }

    /// Numbers below which groups must be, temporal and spatial.
    pub(crate) fn groups_below(self) -> Result<(u32, u32), RuntimeError> {
        let Self::Paper { t_groups, s_groups } = self else {
            return Ok((u32::MAX, u32::MAX));
        };
        let (t_groups, s_groups) = (t_groups.max(1), s_groups.max(1));
        match self.queues() <= QUEUES_MAX {
            true => Ok((t_groups, s_groups)),
            false => Err(RuntimeError::Groups {
                t_groups,
                s_groups,
                most: QUEUES_MAX,
            }),
        }
    }

    /// The order of a policy that has one for all workers.
    pub(crate) fn levels(self, workers: usize) -> Result<Option<Levels>, RuntimeError> {
        let levels = match self {
            Self::Usher => return Ok(None),
            Self::Paper { t_groups, s_groups } => Levels::new(move || {
                let paper = Paper::try_new(workers, t_groups as usize, s_groups as usize).ok()?;
                Some(Box::new(paper) as Ordered)
            }),
            Self::Fcfs => Levels::new(|| Some(Box::new(Fcfs::default()))),
            Self::Lcfs => Levels::new(|| Some(Box::new(Lcfs::default()))),
        };
        levels.map(Some).map_err(|NoMemory| RuntimeError::Memory {
            queues: self.queues(),
        })
    }

    /// Queues that it keeps for all workers.
    fn queues(self) -> u64 {
        match self {
            Self::Paper { t_groups, s_groups } => {
                u64::from(t_groups.max(1)) * u64::from(s_groups.max(1))
            }
            Self::Usher | Self::Fcfs | Self::Lcfs => 1,
        }
    }
}
