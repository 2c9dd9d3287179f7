// SPDX-License-Identifier: MIT OR Apache-2.0
//! The last things that were done, for whoever looks into a failure.

use std::collections::VecDeque;

use usher_model::Action;

/// So many are kept.
const KEPT: usize = 40;

/// Something that was done.
#[derive(Debug, Clone)]
pub(super) enum Deed {
    Acted(Action, Result<(), String>),
    Said(String),
}

/// The last ones, each with when.
#[derive(Debug, Default)]
pub(super) struct Log {
    deeds: VecDeque<(u64, Deed)>,
}

impl Log {
    pub fn add(&mut self, at_ns: u64, deed: Deed) {
        if self.deeds.len() == KEPT {
            self.deeds.pop_front();
        }
        self.deeds.push_back((at_ns, deed));
    }

    pub fn lines(&self) -> Vec<String> {
        let line = |(at_ns, deed): &(u64, Deed)| {
            let seconds = *at_ns as f64 / 1e9;
            match deed {
                Deed::Acted(action, Ok(())) => format!("{seconds:.6} s  {}", named(action)),
                Deed::Acted(action, Err(why)) => {
                    format!("{seconds:.6} s  {}: {why}", named(action))
                }
                Deed::Said(what) => format!("{seconds:.6} s  {what}"),
            }
        };
        self.deeds.iter().map(line).collect()
    }
}

fn named(action: &Action) -> String {
    let program = action.program();
    match action {
        Action::Seat { cpus, .. } => format!("seat {program} on {cpus}"),
        Action::Release { .. } => format!("release {program}"),
        Action::Freeze { .. } => format!("freeze {program}"),
        Action::Thaw { .. } => format!("thaw {program}"),
        Action::Demote { .. } => format!("demote {program}"),
    }
}
