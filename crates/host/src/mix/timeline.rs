// SPDX-License-Identifier: MIT OR Apache-2.0
//! Converts an engine's log to the spans of a timeline: for each program, the periods in which its
//! placement did not change, clipped to the window of the round. Borrowed CPUs become spans of
//! their own, with the name of their owner. The time is in proportion to the length of the log. If
//! the engine has dropped old entries of the log, the spans of these entries are missing.

use std::collections::BTreeMap;

use usher_model::{CpuSet, ProgramId, SeatMode};
use usher_report::data::{Lender, SeatSpan, SpanMode};

use crate::engine::{LogChange, LogEntry, ProgramPlacement};

/// The start and end of a round, in nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Debug, Clone, Copy)]
pub(super) struct RoundWindow {
    pub start_ns: u64,
    pub end_ns: u64,
}

impl RoundWindow {
    /// Returns the seconds from the start of the round to `at_ns`; 0 for times before the start.
    pub fn seconds(&self, at_ns: u64) -> f64 {
        at_ns
            .clamp(self.start_ns, self.end_ns)
            .saturating_sub(self.start_ns) as f64
            * 1e-9
    }
}

/// Returns the spans of all programs. The first span of a program begins at its first logged
/// placement. Spans that ended before the window are left out.
pub(super) fn spans(
    log: &[LogEntry],
    names: &BTreeMap<ProgramId, String>,
    window: RoundWindow,
) -> Vec<SeatSpan> {
    let mut open: BTreeMap<ProgramId, (u64, &ProgramPlacement)> = BTreeMap::new();
    let mut spans = Vec::new();
    let mut close =
        |program: ProgramId, since_ns: u64, until_ns: u64, placement: &ProgramPlacement| {
            let times = (window.seconds(since_ns), window.seconds(until_ns));
            if let Some(name) = names.get(&program)
                && times.1 > times.0
            {
                spans.extend(spans_of(name, times, placement, names));
            }
        };
    for entry in log {
        match &entry.change {
            LogChange::Placed { program, placement } => {
                if let Some((since_ns, before)) = open.insert(*program, (entry.at_ns, placement)) {
                    close(*program, since_ns, entry.at_ns, before);
                }
            }
            LogChange::Departed { program } => {
                if let Some((since_ns, before)) = open.remove(program) {
                    close(*program, since_ns, entry.at_ns, before);
                }
            }
            _ => {}
        }
    }
    for (program, (since_ns, placement)) in open {
        close(program, since_ns, window.end_ns, placement);
    }
    spans
}

fn spans_of(
    name: &str,
    (start_s, end_s): (f64, f64),
    placement: &ProgramPlacement,
    names: &BTreeMap<ProgramId, String>,
) -> Vec<SeatSpan> {
    let mode = match (placement.frozen, placement.mode) {
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
        name.map_or(Lender::Unowned, Lender::Program)
    };
    let own = (!placement.own.is_empty()).then(|| span(&placement.own, None));
    let borrowed = placement.borrowed.iter();
    let borrowed = borrowed.map(|(owner, cpus)| span(cpus, Some(lender(owner))));
    own.into_iter().chain(borrowed).collect()
}

/// Returns the notes of the policy, with their times in seconds since the start of the round.
pub(super) fn notes(
    log: &[LogEntry],
    names: &BTreeMap<ProgramId, String>,
    window: RoundWindow,
) -> Vec<(f64, String)> {
    let note = |entry: &LogEntry| match &entry.change {
        LogChange::Note { program, text } => {
            let name = program.and_then(|id| names.get(&id));
            let text = name.map_or_else(|| text.clone(), |name| format!("{name}: {text}"));
            Some((window.seconds(entry.at_ns), text))
        }
        _ => None,
    };
    let inside = |entry: &&LogEntry| entry.at_ns <= window.end_ns;
    log.iter().filter(inside).filter_map(note).collect()
}

/// Returns whether the policy acted on no program until the end of the window: no program was seated
/// or frozen, and no plan with seats restricted programs to a shared part of the CPUs.
pub(super) fn left_to_the_kernel(log: &[LogEntry], window: RoundWindow) -> bool {
    let inside = |entry: &&LogEntry| entry.at_ns <= window.end_ns;
    let placements = || {
        log.iter()
            .filter(inside)
            .filter_map(|entry| match &entry.change {
                LogChange::Placed { placement, .. } => Some(placement),
                _ => None,
            })
    };
    let all = placements().fold(CpuSet::default(), |all, placement| all.or(&placement.own));
    let mut abstains = true;
    !log.iter().filter(inside).any(|entry| match &entry.change {
        LogChange::Planned { abstains: new } => {
            abstains = *new;
            false
        }
        LogChange::Placed { placement, .. } => {
            let is_part = !abstains && placement.own != all;
            placement.frozen || placement.mode == SeatMode::Seated || is_part
        }
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placement(own: &str, mode: SeatMode) -> ProgramPlacement {
        ProgramPlacement {
            own: own.parse().unwrap(),
            borrowed: Vec::new(),
            mode,
            frozen: false,
        }
    }

    fn placed(at_ns: u64, program: u64, placement: ProgramPlacement) -> LogEntry {
        let program = ProgramId(program);
        LogEntry {
            at_ns,
            change: LogChange::Placed { program, placement },
        }
    }

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn spans_reach_from_placement_to_placement_within_the_window() {
        let names = [
            (ProgramId(1), "a".to_owned()),
            (ProgramId(2), "b".to_owned()),
        ]
        .into();
        let window = RoundWindow {
            start_ns: 10 * SECOND,
            end_ns: 20 * SECOND,
        };
        let mut lending = placement("0", SeatMode::Seated);
        lending.borrowed = vec![(Some(ProgramId(2)), "1".parse().unwrap())];
        let log = [
            placed(9 * SECOND, 1, placement("0-1", SeatMode::Shared)),
            placed(9 * SECOND, 2, placement("0-1", SeatMode::Shared)),
            placed(12 * SECOND, 2, placement("1", SeatMode::Seated)),
            placed(15 * SECOND, 1, lending),
            LogEntry {
                at_ns: 18 * SECOND,
                change: LogChange::Departed {
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
        let span = |program: &str, from, to, cpus: &str| {
            (program.to_owned(), from, to, cpus.to_owned(), None)
        };
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

    #[test]
    fn a_plan_that_shares_parts_of_the_cpus_acts() {
        let window = RoundWindow {
            start_ns: 0,
            end_ns: 20 * SECOND,
        };
        let log = |abstains| {
            let change = LogChange::Planned { abstains };
            [
                placed(SECOND, 1, placement("0-1", SeatMode::Shared)),
                LogEntry {
                    at_ns: 2 * SECOND,
                    change,
                },
                placed(2 * SECOND, 1, placement("0", SeatMode::Shared)),
                placed(2 * SECOND, 2, placement("1", SeatMode::Shared)),
            ]
        };
        assert!(!left_to_the_kernel(&log(false), window));
        // The programs are bound to these CPUs by their users.
        assert!(left_to_the_kernel(&log(true), window));
    }
}
