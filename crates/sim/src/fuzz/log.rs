// SPDX-License-Identifier: MIT OR Apache-2.0
//! Keeps the last actions of a run, with their virtual times, for the report of a violation. The
//! log has at most [`ENTRIES_MAX`] entries: a new entry replaces the oldest entry.

use std::collections::VecDeque;

use usher_model::Action;

/// Maximum number of entries of the log.
const ENTRIES_MAX: usize = 40;

/// An entry of the log.
#[derive(Debug, Clone)]
pub(super) enum LogEntry {
    Acted(Action, Result<(), String>),
    Note(String),
}

/// The last entries, each with its virtual time.
#[derive(Debug, Default)]
pub(super) struct ActionLog {
    entries: VecDeque<(u64, LogEntry)>,
}

impl ActionLog {
    pub fn add(&mut self, at_ns: u64, entry: LogEntry) {
        if self.entries.len() == ENTRIES_MAX {
            self.entries.pop_front();
        }
        self.entries.push_back((at_ns, entry));
    }

    pub fn lines(&self) -> Vec<String> {
        let line = |(at_ns, entry): &(u64, LogEntry)| {
            let seconds = *at_ns as f64 / 1e9;
            match entry {
                LogEntry::Acted(action, Ok(())) => format!("{seconds:.6} s  {}", describe(action)),
                LogEntry::Acted(action, Err(why)) => {
                    format!("{seconds:.6} s  {}: {why}", describe(action))
                }
                LogEntry::Note(what) => format!("{seconds:.6} s  {what}"),
            }
        };
        self.entries.iter().map(line).collect()
    }
}

fn describe(action: &Action) -> String {
    let program = action.program();
    match action {
        Action::Seat { cpus, .. } => format!("seat program {program} on CPUs {cpus}"),
        Action::Release { .. } => format!("release {program}"),
        Action::Freeze { .. } => format!("freeze {program}"),
        Action::Thaw { .. } => format!("thaw {program}"),
        Action::Demote { .. } => format!("demote {program}"),
    }
}
