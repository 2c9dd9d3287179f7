// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measured comparison of seats with time sharing.
//!
//! Time sharing is predicted from the programs' curves. The curves do not include barriers that
//! wait for a thread without a CPU, cache effects, or CPU time that one program leaves to another
//! while it waits. Where all programs report their progress while they run, the alternatives are
//! therefore tried, one after another:
//!
//! 1. the best seats;
//! 2. two programs on the union of their seats, where that is promising (module `pair`);
//! 3. all programs shared.
//!
//! The decision (module `seat_decision`) is then based on the measured rates. No program is stopped
//! for the comparison. It is made when programs have come or gone, and at most every
//! [`COMPARE_AGAIN_NS`] when a program has entered a new phase. A program whose phase seems to have
//! changed while it shared CPUs is measured again first.

use std::collections::BTreeMap;

use usher_model::{ProgramId, Progress, ProgressSource};

use super::Usher;
use super::knowledge::Compared;
use super::member::Member;

/// Length of a step: several work cycles of the programs.
const TRY_NS: u64 = 1_000_000_000;
/// Longest step, where a program rarely reports progress.
const TRY_NS_MAX: u64 = 5_000_000_000;
/// Least number of changes of a program's progress figure for a valid rate.
const CHANGES_MIN: u32 = 5;
/// Least interval between comparisons.
pub(super) const AGAIN_NS: u64 = 30_000_000_000;

/// A step of the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Seats, whatever is predicted.
    Seats,
    /// Two programs on the union of their seats.
    Pair,
    /// All programs shared: left to the kernel.
    Sharing,
}

/// State of the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
    /// The comparison must start at this time.
    Due(u64),
    /// This step has been running since this time.
    Trying(Step, u64),
    /// The comparison ended at this time.
    Made(u64),
}

impl Comparison {
    /// Whether this step is running.
    pub fn tries(self, step: Step) -> bool {
        matches!(self, Self::Trying(now, _) if now == step)
    }

    /// Whether any step is running.
    pub fn is_on(self) -> bool {
        matches!(self, Self::Trying(..))
    }

    /// Invalidates a finished or running comparison after a program has entered a new phase.
    pub fn new_phase(&mut self, at_ns: u64) {
        match *self {
            Self::Made(made_ns) => *self = Self::Due(made_ns + AGAIN_NS),
            Self::Trying(..) => *self = Self::Due(at_ns),
            Self::Due(_) => {}
        }
    }
}

/// Progress windows of the present step, and the rates of earlier steps.
#[derive(Debug, Default)]
pub(super) struct Account {
    told: BTreeMap<ProgramId, Tale>,
    on_seats: BTreeMap<ProgramId, Rate>,
    paired: BTreeMap<ProgramId, Rate>,
}

/// Progress of a program in one step.
#[derive(Debug, Clone, Copy)]
struct Tale {
    first: (u64, Progress),
    last: (u64, Progress),
    changes: u32,
}

/// Progress per second on a seat of `cores` cores.
#[derive(Debug, Clone, Copy)]
struct Rate {
    cores: f64,
    rate: f64,
    source: ProgressSource,
}

impl Usher {
    /// Moves on to the next step when it is due; returns whether the plan must be made again for
    /// it.
    pub(super) fn compare(&mut self, at_ns: u64) -> bool {
        if self.comparison.is_on() {
            self.listen(at_ns);
        }
        let next = match self.comparison {
            Comparison::Due(from_ns) if at_ns >= from_ns => {
                if self.forget_drifted(at_ns) {
                    return true;
                }
                if !self.can_compare() {
                    return false;
                }
                Comparison::Trying(Step::Seats, at_ns)
            }
            Comparison::Trying(step, since_ns) if self.is_told(at_ns - since_ns) => {
                let rates = self.rates();
                match step {
                    Step::Seats => {
                        self.account.on_seats = rates;
                        self.account.paired.clear();
                        Comparison::Trying(Step::Pair, at_ns)
                    }
                    Step::Pair => {
                        self.account.paired = rates;
                        Comparison::Trying(Step::Sharing, at_ns)
                    }
                    Step::Sharing => {
                        self.conclude(&rates);
                        Comparison::Made(at_ns)
                    }
                }
            }
            _ => return false,
        };
        self.account.told.clear();
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
            // Without a comparison, this sets the least interval until the next check.
            self.comparison = Comparison::Due(at_ns + AGAIN_NS);
        }
        forgot
    }

    /// Updates the progress windows.
    fn listen(&mut self, at_ns: u64) {
        for (&id, member) in &self.members {
            let Some(now) = member.told else {
                continue;
            };
            let first = Tale {
                first: (at_ns, now),
                last: (at_ns, now),
                changes: 0,
            };
            let tale = self.account.told.entry(id).or_insert(first);
            if tale.last.1.source != now.source {
                *tale = first;
            } else if tale.last.1.total != now.total {
                tale.last = (at_ns, now);
                tale.changes += 1;
            }
        }
    }

    /// Whether the step has lasted long enough for all programs.
    fn is_told(&self, elapsed_ns: u64) -> bool {
        let told = |id: &ProgramId| self.account.told.get(id);
        let enough = |id| told(id).is_some_and(|tale| tale.changes >= CHANGES_MIN);
        elapsed_ns >= TRY_NS && (elapsed_ns >= TRY_NS_MAX || self.members.keys().all(enough))
    }

    /// Rates of the programs with enough changes in this step, each from the first figure to the
    /// last change: the sampling interval differs between steps.
    fn rates(&self) -> BTreeMap<ProgramId, Rate> {
        let rate = |(&id, tale): (&ProgramId, &Tale)| {
            let ((from_ns, from), (to_ns, to)) = (tale.first, tale.last);
            let done = to.total - from.total;
            let seat = self.seats.get(&id);
            let rate = Rate {
                cores: seat.map_or(0.0, |seat| self.topology.capacity_of(seat)),
                rate: done / ((to_ns - from_ns) as f64 / 1e9),
                source: to.source,
            };
            (tale.changes >= CHANGES_MIN && done > 0.0).then_some((id, rate))
        };
        self.account.told.iter().filter_map(rate).collect()
    }

    /// Stores how much faster each program was on its seat than in the other steps.
    fn conclude(&mut self, shared: &BTreeMap<ProgramId, Rate>) {
        for (id, member) in &mut self.members {
            let both = self.account.on_seats.get(id).zip(shared.get(id));
            if let Some((seat, shared)) = both
                && seat.source == shared.source
                && seat.cores > 0.0
            {
                let paired = self.account.paired.get(id);
                let paired = paired.filter(|paired| paired.source == seat.source);
                member.knowledge.learn_comparison(Compared {
                    cores: seat.cores,
                    over_sharing: seat.rate / shared.rate,
                    over_pair: paired.map(|paired| seat.rate / paired.rate),
                });
            }
        }
    }

    /// Whether a comparison is possible, now or when all programs have been measured: there are
    /// several programs, and all report progress and may be moved at any time.
    pub(super) fn is_comparable(&self) -> bool {
        let tells = |member: &Member| member.has_live_source() && member.is_narrowable();
        self.members.len() > 1
            && self.members.len() <= self.topology.domains.len()
            && self.members.values().all(tells)
    }

    fn can_compare(&self) -> bool {
        let explores = self.survey.is_on() || self.members.values().any(Member::explores);
        !explores && self.is_comparable()
    }
}
