// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scheduling policies: the orders in which ready tasks run. This file checks the limits of a
//! policy (at most 2^22 queues for `paper`), and creates the global queues of the policies `paper`,
//! `fcfs` and `lcfs`. The policy `usher` has no global queue. Too many queues and lack of memory
//! for the queues are errors.

use crate::dispatch::{Fcfs, Lcfs, Paper};
use crate::error::RuntimeError;
use crate::levels::{BoxedDispatcher, LevelQueues, NoMemory};

/// Upper limit of the number of queues of policy `paper`. An empty queue takes 32 bytes.
const QUEUES_MAX: u64 = 1 << 22;

/// The order in which ready tasks run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Policy {
    /// The default policy. Each worker serves temporal groups cyclically. Within a group, a worker
    /// runs the task first that became ready last, because the task's data are probably in the
    /// cache. The tasks of a spatial group run on one worker, until another worker steals them.
    #[default]
    Usher,
    /// The dispatcher of paper 5, section 4.2, for group numbers below `t_groups` and `s_groups`,
    /// where 0 counts as 1. The dispatcher has one queue for each pair of groups, at most 2^22
    /// queues. For each level at which tasks run graphs, the dispatcher has as many queues again.
    Paper {
        /// Number of temporal groups, including 0.
        t_groups: u32,
        /// Number of spatial groups, including 0.
        s_groups: u32,
    },
    /// First come, first served.
    Fcfs,
    /// Last come, first served.
    Lcfs,
}

impl Policy {
    /// Checks that a runtime can use this policy.
    ///
    /// # Errors
    /// If the policy would keep too many queues.
    pub fn check(self) -> Result<(), RuntimeError> {
        self.groups_below().map(|_| ())
    }

    /// Returns the exclusive upper limits of temporal and spatial group numbers.
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
                max: QUEUES_MAX,
            }),
        }
    }

    /// Creates the queues of a policy with a global queue; `None` for the policy `usher`.
    pub(crate) fn levels(self, workers: usize) -> Result<Option<LevelQueues>, RuntimeError> {
        let levels = match self {
            Self::Usher => return Ok(None),
            Self::Paper { t_groups, s_groups } => LevelQueues::new(move || {
                let paper = Paper::try_new(workers, t_groups as usize, s_groups as usize).ok()?;
                Some(Box::new(paper) as BoxedDispatcher)
            }),
            Self::Fcfs => LevelQueues::new(|| Some(Box::new(Fcfs::default()))),
            Self::Lcfs => LevelQueues::new(|| Some(Box::new(Lcfs::default()))),
        };
        levels.map(Some).map_err(|NoMemory| RuntimeError::Memory {
            queues: self.queues(),
        })
    }

    /// Returns the number of queues shared by all workers.
    fn queues(self) -> u64 {
        match self {
            Self::Paper { t_groups, s_groups } => {
                u64::from(t_groups.max(1)) * u64::from(s_groups.max(1))
            }
            Self::Usher | Self::Fcfs | Self::Lcfs => 1,
        }
    }
}
