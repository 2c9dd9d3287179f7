// SPDX-License-Identifier: MIT OR Apache-2.0
//! The log of placements over time, from which timelines are drawn: arrivals, placements,
//! departures, notes and plans.
//!
//! Entries are numbered from the start of the engine. With these numbers, a reader can continue
//! after the last entry that it has read. The log contains at most a configured number of entries;
//! beyond this number, the oldest entry is dropped. Adding an entry takes constant time; reading
//! copies the requested entries. A reader that falls behind misses dropped entries.
//!
//! Each entry is also sent to the channel of the configuration, if there is one. The loop never
//! waits for the receiver: while the channel is full, entries are not sent.

use std::sync::mpsc::SyncSender;

use serde::{Deserialize, Serialize};
use usher_model::{CpuSet, ProgramId, SeatMode};

/// An entry of the log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LogEntry {
    /// The time, in nanoseconds of `CLOCK_MONOTONIC`.
    pub at_ns: u64,
    /// The change.
    pub change: LogChange,
}

/// A change of the placement or the plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogChange {
    /// A program came under management.
    Arrived {
        /// The program.
        program: ProgramId,
        /// Name of the program.
        name: String,
    },
    /// A program has a new placement from now on.
    Placed {
        /// The program.
        program: ProgramId,
        /// The new placement.
        placement: ProgramPlacement,
    },
    /// A program ended or was released.
    Departed {
        /// The program.
        program: ProgramId,
    },
    /// A note of the policy.
    Note {
        /// The program; `None` if the note is about all programs.
        program: Option<ProgramId>,
        /// The sentence of the note.
        text: String,
    },
    /// At the start of the engine, changes of dead instances were undone.
    Undone {
        /// Number of programs that were released.
        programs: usize,
        /// Number of dead instances.
        instances: usize,
    },
    /// A warning about the profile store.
    StoreWarning {
        /// The store, what is wrong with it, and the remedy.
        text: String,
    },
    /// The policy made a plan.
    Planned {
        /// Whether the plan leaves all placement to the kernel on purpose.
        abstains: bool,
    },
}

/// The CPUs that a program runs on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramPlacement {
    /// The program's own CPUs, or the CPUs that it shares.
    pub own: CpuSet,
    /// Borrowed CPUs with their owners. The owner is `None` for CPUs that no program owns.
    pub borrowed: Vec<(Option<ProgramId>, CpuSet)>,
    /// How the program gets its CPUs: for itself, shared, or in turn with other programs.
    pub mode: SeatMode,
    /// Whether the program is frozen.
    pub frozen: bool,
}

/// The log. The entries are numbered from the first entry since the start of the engine, including
/// dropped entries.
#[derive(Debug, Default)]
pub(super) struct ChangeLog {
    entries_max: usize,
    entries: std::collections::VecDeque<LogEntry>,
    dropped: usize,
    receiver: Option<SyncSender<LogEntry>>,
}

impl ChangeLog {
    /// Creates a log of at most `entries_max` entries, which sends its entries to `receiver`.
    pub fn new(entries_max: usize, receiver: Option<SyncSender<LogEntry>>) -> Self {
        Self {
            entries_max,
            receiver,
            ..Self::default()
        }
    }

    pub fn add(&mut self, at_ns: u64, change: LogChange) {
        let entry = LogEntry { at_ns, change };
        if let Some(receiver) = &self.receiver {
            // Fails if the channel is full, or if the receiver has ended.
            let _ = receiver.try_send(entry.clone());
        }
        self.entries.push_back(entry);
        if self.entries.len() > self.entries_max {
            self.entries.pop_front();
            self.dropped += 1;
        }
    }

    /// Returns the entries from number `since` on, and the number that follows the last entry.
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
    fn reading_continues_after_the_last_entry_read() {
        let mut log = ChangeLog::new(100, None);
        let departed = |n| LogChange::Departed {
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

    #[test]
    fn a_full_channel_does_not_delay_the_log() {
        let (sender, receiver) = std::sync::mpsc::sync_channel(2);
        let mut log = ChangeLog::new(0, Some(sender));
        for n in 0..5 {
            log.add(n, LogChange::Planned { abstains: false });
        }
        let received: Vec<u64> = receiver.try_iter().map(|entry| entry.at_ns).collect();
        assert_eq!(received, [0, 1]);
        drop(receiver);
        log.add(9, LogChange::Planned { abstains: false });
        assert_eq!(log.since(0).1, 6);
    }
}
