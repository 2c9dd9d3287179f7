// SPDX-License-Identifier: MIT OR Apache-2.0
//! Seats against the kernel, tried once instead of only predicted.
//!
//! What time sharing comes to is predicted from programs' curves, which know
//! nothing of barriers that wait for a thread without a CPU, of caches, or of
//! what one program leaves for another while it waits. Where all programs tell
//! their progress while they run, it is tried: so long on the best seats, so long
//! with two programs on both theirs where that looks promising (module `pair`),
//! so long shared by all; and the verdict (module `verdict`) rests on the rates.
//! Nobody is stopped for it; it is done when programs have come or gone, and
//! again at most every [`AGAIN_NS`] when one of them has entered a new phase.
//! Whoever seems to have done so while it shared is measured anew first.

use std::collections::BTreeMap;

use usher_model::{ProgramId, Progress, ProgressSource};

use super::Usher;
use super::knowledge::Compared;
use super::member::Member;

/// So long each: some of the programs' own rounds.
const TRY_NS: u64 = 1_000_000_000;
/// At most so long, where somebody tells its progress rarely.
const TRY_NS_MAX: u64 = 5_000_000_000;
/// Whose figure has changed less often in a step has told too little.
const CHANGES_MIN: u32 = 5;
/// Not again before.
pub(super) const AGAIN_NS: u64 = 30_000_000_000;

/// What is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Seats, whatever is predicted.
    Seats,
    /// Two programs on both their seats.
    Pair,
    /// Everything left to the kernel.
    Sharing,
}

/// How far the comparison is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
    /// To be made, from then on.
    Due(u64),
    /// That is tried, since then.
    Trying(Step, u64),
    /// Made, then.
    Made(u64),
}

impl Comparison {
    /// Whether that is being tried.
    pub fn tries(self, step: Step) -> bool {
        matches!(self, Self::Trying(now, _) if now == step)
    }

    /// Whether anything is.
    pub fn is_on(self) -> bool {
        matches!(self, Self::Trying(..))
    }

    /// Somebody does something else now: what was compared is over, and so is
    /// what is being compared.
    pub fn new_phase(&mut self, at_ns: u64) {
        match *self {
            Self::Made(made_ns) => *self = Self::Due(made_ns + AGAIN_NS),
            Self::Trying(..) => *self = Self::Due(at_ns),
            Self::Due(_) => {}
        }
    }
}

/// What has been told in this step of the comparison, and the rates of those
/// before.
#[derive(Debug, Default)]
pub(super) struct Account {
    told: BTreeMap<ProgramId, Tale>,
    on_seats: BTreeMap<ProgramId, Rate>,
    paired: BTreeMap<ProgramId, Rate>,
}

/// A program's figures in one step.
#[derive(Debug, Clone, Copy)]
struct Tale {
    first: (u64, Progress),
    last: (u64, Progress),
    changes: u32,
}

/// Progress a second on a seat of so many cores.
#[derive(Debug, Clone, Copy)]
struct Rate {
    cores: f64,
    rate: f64,
    source: ProgressSource,
}

impl Usher {
    /// Goes on to the next step when it is time; true when the plan must be
    /// made again for it.
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

    /// Forgets what was measured of those that do something else by now.
    fn forget_drifted(&mut self, at_ns: u64) -> bool {
        let mut forgot = false;
        for member in self.members.values_mut().filter(|member| member.drifted) {
            member.forget_phase(at_ns);
            forgot = true;
        }
        if forgot && !self.is_comparable() {
            // No comparison will set the pace.
            self.comparison = Comparison::Due(at_ns + AGAIN_NS);
        }
        forgot
    }

    /// Takes in what programs tell.
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

    /// Whether a step has lasted long enough for everybody.
    fn is_told(&self, elapsed_ns: u64) -> bool {
        let told = |id: &ProgramId| self.account.told.get(id);
        let enough = |id| told(id).is_some_and(|tale| tale.changes >= CHANGES_MIN);
        elapsed_ns >= TRY_NS && (elapsed_ns >= TRY_NS_MAX || self.members.keys().all(enough))
    }

    /// The rates in this step of those who have told enough, each from the
    /// first figure heard to the last new one: looks are further apart in some steps
    /// than in others.
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

    /// Files how much faster each was on its seat than otherwise.
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

    /// Whether rates can tell, now or when all have been measured: several
    /// programs, all of which tell theirs and may be moved at any time.
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
