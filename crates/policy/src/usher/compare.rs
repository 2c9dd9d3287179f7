// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measured comparison of seats with time sharing.
//!
//! The NTTs under time sharing are predicted from the programs' curves. The curves do not include
//! barriers that wait for a thread without a CPU, cache effects, or CPU time that a waiting program
//! leaves to another program. If all programs report their progress while they run, the
//! alternatives are therefore measured, each for a step of 1 to 5 s:
//!
//! 1. the best seats;
//! 2. two programs on the union of their seats, if a gain is predicted (module `pair`);
//! 3. all programs left to the kernel.
//!
//! The decision (module `seat_decision`) is then based on the measured rates. No program is stopped
//! for the comparison. A comparison starts after a program has arrived, departed or changed its
//! limits, and after the usable CPUs have changed. After a program has entered a new phase, a
//! comparison starts at most every [`COMPARE_AGAIN_NS`] (30 s). If the phase of a program seems to
//! have changed while it shared CPUs, the program is measured on seats again before the comparison.
//!
//! *Limits.* A comparison has at most three steps of at most 5 s, plus one sampling interval each.
//! There must be two or more programs, and at most as many programs as LLC domains. A step ends
//! after 1 s if the progress figure of every program has changed five times, and otherwise at the
//! latest after 5 s. A program with fewer changes has no measured rate; without the rates of all
//! programs, the NTTs remain predicted. An arrival or a departure aborts the comparison. A sample
//! takes linear time in the number of programs.

use std::collections::BTreeMap;

use usher_model::{ProgramId, Progress, ProgressSource};

use super::Usher;
use super::curve_data::SeatComparison;
use super::intervals::COMPARE_AGAIN_NS;
use super::managed_program::ManagedProgram;

/// Least length of a step, in which the programs complete several work cycles.
const STEP_NS: u64 = 1_000_000_000;
/// Greatest length of a step, used if a program rarely reports progress.
const STEP_NS_MAX: u64 = 5_000_000_000;
/// Least number of changes of a program's progress figure for a valid rate.
const CHANGES_MIN: u32 = 5;

/// A step of the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CompareStep {
    /// All programs have their best seats, even if time sharing is predicted to be better.
    Seats,
    /// Two programs share the union of their seats; the other programs keep their seats.
    Pair,
    /// All programs are left to the kernel.
    Sharing,
}

/// State of the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
    /// The comparison must start at this time.
    Due(u64),
    /// The given step has been running since the given time.
    Trying(CompareStep, u64),
    /// The comparison ended at this time.
    Made(u64),
}

impl Comparison {
    /// Whether this step is running.
    pub fn tries(self, step: CompareStep) -> bool {
        matches!(self, Self::Trying(now, _) if now == step)
    }

    /// Whether any step is running.
    pub fn is_on(self) -> bool {
        matches!(self, Self::Trying(..))
    }

    /// Invalidates a finished or running comparison after a program has entered a new phase.
    pub fn new_phase(&mut self, at_ns: u64) {
        match *self {
            Self::Made(made_ns) => *self = Self::Due(made_ns + COMPARE_AGAIN_NS),
            Self::Trying(..) => *self = Self::Due(at_ns),
            Self::Due(_) => {}
        }
    }
}

/// Progress windows of the present step, and the rates of earlier steps.
#[derive(Debug, Default)]
pub(super) struct ComparisonSamples {
    windows: BTreeMap<ProgramId, SampleWindow>,
    seat_rates: BTreeMap<ProgramId, MeasuredRate>,
    pair_rates: BTreeMap<ProgramId, MeasuredRate>,
}

/// Progress of a program in one step.
#[derive(Debug, Clone, Copy)]
struct SampleWindow {
    first: (u64, Progress),
    last: (u64, Progress),
    changes: u32,
}

/// Progress per second on a seat of `cores` cores.
#[derive(Debug, Clone, Copy)]
struct MeasuredRate {
    cores: f64,
    rate: f64,
    source: ProgressSource,
}

impl Usher {
    /// Starts the next step of the comparison when the step is due. Returns whether a new plan is
    /// needed.
    pub(super) fn compare(&mut self, at_ns: u64) -> bool {
        if self.comparison.is_on() {
            self.record_progress(at_ns);
        }
        let next = match self.comparison {
            Comparison::Due(from_ns) if at_ns >= from_ns => {
                if self.forget_drifted(at_ns) {
                    return true;
                }
                if !self.can_compare() {
                    return false;
                }
                Comparison::Trying(CompareStep::Seats, at_ns)
            }
            Comparison::Trying(step, since_ns) if self.has_enough_samples(at_ns - since_ns) => {
                let rates = self.rates();
                match step {
                    CompareStep::Seats => {
                        self.samples.seat_rates = rates;
                        self.samples.pair_rates.clear();
                        Comparison::Trying(CompareStep::Pair, at_ns)
                    }
                    CompareStep::Pair => {
                        self.samples.pair_rates = rates;
                        Comparison::Trying(CompareStep::Sharing, at_ns)
                    }
                    CompareStep::Sharing => {
                        self.conclude(&rates);
                        Comparison::Made(at_ns)
                    }
                }
            }
            _ => return false,
        };
        self.samples.windows.clear();
        self.comparison = next;
        true
    }

    /// Discards the measurements of programs that have entered a new phase.
    fn forget_drifted(&mut self, at_ns: u64) -> bool {
        let mut forgot = false;
        for member in self.members.values_mut().filter(|member| member.drifted) {
            member.forget_phase(at_ns);
            forgot = true;
        }
        if forgot && !self.is_comparable() {
            // Because no comparison is possible, this time only sets the least interval until the
            // next check for new phases.
            self.comparison = Comparison::Due(at_ns + COMPARE_AGAIN_NS);
        }
        forgot
    }

    /// Updates the progress windows.
    fn record_progress(&mut self, at_ns: u64) {
        for (&id, member) in &self.members {
            let Some(now) = member.last_progress else {
                continue;
            };
            let first = SampleWindow {
                first: (at_ns, now),
                last: (at_ns, now),
                changes: 0,
            };
            let window = self.samples.windows.entry(id).or_insert(first);
            if window.last.1.source != now.source {
                *window = first;
            } else if window.last.1.total != now.total {
                window.last = (at_ns, now);
                window.changes += 1;
            }
        }
    }

    /// Whether the step has lasted long enough for all programs.
    fn has_enough_samples(&self, elapsed_ns: u64) -> bool {
        let window = |id: &ProgramId| self.samples.windows.get(id);
        let enough = |id| window(id).is_some_and(|window| window.changes >= CHANGES_MIN);
        elapsed_ns >= STEP_NS && (elapsed_ns >= STEP_NS_MAX || self.members.keys().all(enough))
    }

    /// Returns the rates of the programs with enough changes in the present step. Each rate covers
    /// the time from the first figure to the last change, because the sampling interval differs
    /// between steps.
    fn rates(&self) -> BTreeMap<ProgramId, MeasuredRate> {
        let rate = |(&id, window): (&ProgramId, &SampleWindow)| {
            let ((from_ns, from), (to_ns, to)) = (window.first, window.last);
            let done = to.total - from.total;
            let seat = self.seats.get(&id);
            let rate = MeasuredRate {
                cores: seat.map_or(0.0, |seat| self.topology.capacity_of(seat)),
                rate: done / ((to_ns - from_ns) as f64 / 1e9),
                source: to.source,
            };
            (window.changes >= CHANGES_MIN && done > 0.0).then_some((id, rate))
        };
        self.samples.windows.iter().filter_map(rate).collect()
    }

    /// Stores how much faster each program was on its seat than in the other steps.
    fn conclude(&mut self, shared: &BTreeMap<ProgramId, MeasuredRate>) {
        for (id, member) in &mut self.members {
            let both = self.samples.seat_rates.get(id).zip(shared.get(id));
            if let Some((seat, shared)) = both
                && seat.source == shared.source
                && seat.cores > 0.0
            {
                let paired = self.samples.pair_rates.get(id);
                let paired = paired.filter(|paired| paired.source == seat.source);
                member.curve_data.learn_comparison(SeatComparison {
                    cores: seat.cores,
                    over_sharing: seat.rate / shared.rate,
                    over_pair: paired.map(|paired| seat.rate / paired.rate),
                });
            }
        }
    }

    /// Whether a comparison is possible, now or when all programs have been measured. There must be
    /// at least two programs, and no more programs than domains. All programs must report
    /// progress and be movable to fewer cores at any time.
    pub(super) fn is_comparable(&self) -> bool {
        let is_measurable =
            |member: &ManagedProgram| member.has_live_source() && member.is_narrowable();
        self.members.len() > 1
            && self.members.len() <= self.topology.domains.len()
            && self.members.values().all(is_measurable)
    }

    fn can_compare(&self) -> bool {
        let explores = self.survey.is_on() || self.members.values().any(ManagedProgram::explores);
        !explores && self.is_comparable()
    }
}
