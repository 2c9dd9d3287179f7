// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who sat where and when: what timelines are drawn from.

use serde::{Deserialize, Serialize};
use usher_model::{CpuSet, ProgramId, SeatMode};

/// Something that changed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LogEntry {
    /// When, in nanoseconds of `CLOCK_MONOTONIC`.
    pub at_ns: u64,
    /// What.
    pub what: Change,
}

/// What changed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// A program came under management.
    Arrived {
        /// Which.
        program: ProgramId,
        /// Its name.
        name: String,
    },
    /// A program has a new place, from now on.
    Placed {
        /// Which.
        program: ProgramId,
        /// Where.
        place: Place,
    },
    /// A program ended or was let go.
    Departed {
        /// Which.
        program: ProgramId,
    },
    /// The policy said something.
    Said {
        /// About which program; `None`: all.
        program: Option<ProgramId>,
        /// What.
        text: String,
    },
    /// The policy made a plan.
    Planned {
        /// Whether it leaves everything to the kernel on purpose.
        abstains: bool,
    },
}

/// Where a program runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// CPUs of its own, or those that it shares.
    pub own: CpuSet,
    /// CPUs that it borrows, and from whom; `None`: nobody owns them.
    pub borrowed: Vec<(Option<ProgramId>, CpuSet)>,
    /// Seated, shared or in turn.
    pub mode: SeatMode,
    /// Whether it is stopped.
    pub frozen: bool,
}

/// The log, numbered from its first entry on.
#[derive(Debug, Default)]
pub(super) struct Log {
    entries_max: usize,
    entries: std::collections::VecDeque<LogEntry>,
    dropped: usize,
}

impl Log {
    /// A log that keeps so many entries.
    pub fn new(entries_max: usize) -> Self {
        Self {
            entries_max,
            ..Self::default()
        }
    }

    pub fn add(&mut self, at_ns: u64, what: Change) {
        self.entries.push_back(LogEntry { at_ns, what });
        if self.entries.len() > self.entries_max {
            self.entries.pop_front();
            self.dropped += 1;
        }
    }

    /// Entries from number `since` on, and the number after the last.
    pub fn since(&self, since: usize) -> (Vec<LogEntry>, usize) {
        let skip = since.saturating_sub(self.dropped);
        let entries = self.entries.iter().skip(skip).cloned().collect();
        (entries, self.dropped + self.entries.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_read_on_from_where_it_was_left() {
        let mut log = Log::new(100);
        let departed = |n| Change::Departed {
            program: ProgramId(n),
        };
        log.add(1, departed(1));
        let (first, next) = log.since(0);
        assert_eq!((first.len(), next), (1, 1));
        log.add(2, departed(2));
        let (second, next) = log.since(next);
        assert_eq!((second[0].at_ns, next), (2, 2));
        for at in 0..100 {
            log.add(at, departed(3));
        }
        let (kept, last) = log.since(next);
        assert_eq!((kept.len(), last), (100, 102));
    }
}
