// SPDX-License-Identifier: MIT OR Apache-2.0
//! From an engine's log to the spans that a timeline is drawn from.

use std::collections::BTreeMap;

use usher_model::{CpuSet, ProgramId, SeatMode};
use usher_report::data::{Lender, SeatSpan, SpanMode};

use crate::engine::{Change, LogEntry, Place};

/// A round's window in nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Window {
    pub start_ns: u64,
    pub end_ns: u64,
}

impl Window {
    /// Seconds since the start; what was before counts as at the start.
    pub fn seconds(&self, at_ns: u64) -> f64 {
        at_ns
            .clamp(self.start_ns, self.end_ns)
            .saturating_sub(self.start_ns) as f64
            * 1e-9
    }
}

/// Who sat where. Nothing is made up: a program has spans from its first
/// logged place on, and a span that ended before the window is left out.
pub(super) fn spans(
    log: &[LogEntry],
    names: &BTreeMap<ProgramId, String>,
    window: Window,
) -> Vec<SeatSpan> {
    let mut open: BTreeMap<ProgramId, (u64, &Place)> = BTreeMap::new();
    let mut spans = Vec::new();
    let mut close = |program: ProgramId, since_ns: u64, until_ns: u64, place: &Place| {
        let times = (window.seconds(since_ns), window.seconds(until_ns));
        if let Some(name) = names.get(&program)
            && times.1 > times.0
        {
            spans.extend(spans_of(name, times, place, names));
        }
    };
    for entry in log {
        match &entry.what {
            Change::Placed { program, place } => {
                if let Some((since_ns, before)) = open.insert(*program, (entry.at_ns, place)) {
                    close(*program, since_ns, entry.at_ns, before);
                }
            }
            Change::Departed { program } => {
                if let Some((since_ns, before)) = open.remove(program) {
                    close(*program, since_ns, entry.at_ns, before);
                }
            }
            _ => {}
        }
    }
    for (program, (since_ns, place)) in open {
        close(program, since_ns, window.end_ns, place);
    }
    spans
}

fn spans_of(
    name: &str,
    (start_s, end_s): (f64, f64),
    place: &Place,
    names: &BTreeMap<ProgramId, String>,
) -> Vec<SeatSpan> {
    let mode = match (place.frozen, place.mode) {
        (true, _) => SpanMode::Frozen,
        (false, mode) => SpanMode::from(mode),
    };
    let span = |cpus: &CpuSet, borrowed_from: Option<Lender>| SeatSpan {
        program: name.to_owned(),
        start_s,
        end_s,
        cpus: cpus.clone(),
        mode,
        borrowed_from,
    };
    let lender = |owner: &Option<ProgramId>| {
        let name = owner.and_then(|owner| names.get(&owner).cloned());
        name.map_or(Lender::Nobody, Lender::Program)
    };
    let own = (!place.own.is_empty()).then(|| span(&place.own, None));
    let borrowed = place.borrowed.iter();
    let borrowed = borrowed.map(|(owner, cpus)| span(cpus, Some(lender(owner))));
    own.into_iter().chain(borrowed).collect()
}

/// What the policy said, by seconds since the start.
pub(super) fn notes(
    log: &[LogEntry],
    names: &BTreeMap<ProgramId, String>,
    window: Window,
) -> Vec<(f64, String)> {
    let said = |entry: &LogEntry| match &entry.what {
        Change::Said { program, text } => {
            let name = program.and_then(|id| names.get(&id));
            let text = name.map_or_else(|| text.clone(), |name| format!("{name}: {text}"));
            Some((window.seconds(entry.at_ns), text))
        }
        _ => None,
    };
    let inside = |entry: &&LogEntry| entry.at_ns <= window.end_ns;
    log.iter().filter(inside).filter_map(said).collect()
}

/// Whether nobody was ever seated or stopped.
pub(super) fn left_to_the_kernel(log: &[LogEntry], window: Window) -> bool {
    let acted = |entry: &LogEntry| match &entry.what {
        Change::Placed { place, .. } => place.frozen || place.mode == SeatMode::Seated,
        _ => false,
    };
    !log.iter()
        .any(|entry| entry.at_ns <= window.end_ns && acted(entry))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(own: &str, mode: SeatMode) -> Place {
        Place {
            own: own.parse().unwrap(),
            borrowed: Vec::new(),
            mode,
            frozen: false,
        }
    }

    fn placed(at_ns: u64, program: u64, place: Place) -> LogEntry {
        let program = ProgramId(program);
        LogEntry {
            at_ns,
            what: Change::Placed { program, place },
        }
    }

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn spans_reach_from_place_to_place_within_the_window() {
        let names = [
            (ProgramId(1), "a".to_owned()),
            (ProgramId(2), "b".to_owned()),
        ]
        .into();
        let window = Window {
            start_ns: 10 * SECOND,
            end_ns: 20 * SECOND,
        };
        let mut lending = place("0", SeatMode::Seated);
        lending.borrowed = vec![(Some(ProgramId(2)), "1".parse().unwrap())];
        let log = [
            placed(9 * SECOND, 1, place("0-1", SeatMode::Shared)),
            placed(9 * SECOND, 2, place("0-1", SeatMode::Shared)),
            placed(12 * SECOND, 2, place("1", SeatMode::Seated)),
            placed(15 * SECOND, 1, lending),
            LogEntry {
                at_ns: 18 * SECOND,
                what: Change::Departed {
                    program: ProgramId(2),
                },
            },
        ];
        let found: Vec<_> = spans(&log, &names, window)
            .into_iter()
            .map(|s| {
                (
                    s.program,
                    s.start_s,
                    s.end_s,
                    s.cpus.to_string(),
                    s.borrowed_from,
                )
            })
            .collect();
        let span =
            |who: &str, from, to, cpus: &str| (who.to_owned(), from, to, cpus.to_owned(), None);
        let borrowed = Some(Lender::Program("b".to_owned()));
        assert_eq!(
            found,
            [
                span("b", 0.0, 2.0, "0-1"),
                span("a", 0.0, 5.0, "0-1"),
                span("b", 2.0, 8.0, "1"),
                span("a", 5.0, 10.0, "0"),
                ("a".to_owned(), 5.0, 10.0, "1".to_owned(), borrowed),
            ]
        );
        assert!(!left_to_the_kernel(&log, window));
        assert!(left_to_the_kernel(&log[..2], window));
    }
}
