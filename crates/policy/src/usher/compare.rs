// SPDX-License-Identifier: MIT OR Apache-2.0
//! Seats against the kernel, tried once instead of only predicted.
//!
//! What time sharing comes to is predicted from programs' curves, which know
//! nothing of barriers that wait for a thread without a CPU, of caches, or of
//! what one program leaves for another while it waits. Where all programs tell
//! their progress while they run, both are tried: so long on the best seats,
//! then, where that looks promising, with two programs on both their seats
//! (module `pair`), then so long shared, and the verdict (module `verdict`) rests on the rates.
//! Nobody is stopped for it; it is done when programs have come or gone, and
//! again at most every [`AGAIN_NS`] when one of them has entered a new phase.
//! Whoever seems to have done so while all shared is measured anew first.

use std::collections::BTreeMap;

use usher_model::{ProgramId, Progress};

use super::Usher;
use super::knowledge::Compared;
use super::member::Member;

/// So long each: some of the programs' own rounds.
const TRY_NS: u64 = 1_000_000_000;
/// Not again before.
const AGAIN_NS: u64 = 30_000_000_000;

/// How far the comparison is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
    /// To be made, from then on.
    Due(u64),
    /// Seats are tried, since then.
    Seats(u64),
    /// Two programs on both their seats are tried, since then.
    Pair(u64),
    /// Time sharing is tried, until then.
    Sharing(u64),
    /// Made, then.
    Made(u64),
}

impl Comparison {
    /// It is time to sit on seats whatever is predicted.
    pub fn tries_seats(self) -> bool {
        matches!(self, Self::Seats(_))
    }

    /// It is time to let two share their seats whatever is predicted.
    pub fn tries_pair(self) -> bool {
        matches!(self, Self::Pair(_))
    }

    /// It is time to share whatever is predicted.
    pub fn tries_sharing(self) -> bool {
        matches!(self, Self::Sharing(_))
    }

    /// What was compared is over: somebody does something else now.
    pub fn new_phase(&mut self) {
        if let Self::Made(at_ns) = *self {
            *self = Self::Due(at_ns + AGAIN_NS);
        }
    }
}

/// What was told when a step of the comparison began, and the rates of the
/// step before.
#[derive(Debug, Default)]
pub(super) struct Account {
    began: BTreeMap<ProgramId, Progress>,
    on_seats: BTreeMap<ProgramId, Rate>,
    paired: BTreeMap<ProgramId, Rate>,
}

/// Progress a second on a seat of so many cores.
#[derive(Debug, Clone, Copy)]
struct Rate {
    cores: f64,
    rate: f64,
    source: usher_model::ProgressSource,
}

impl Usher {
    /// Goes on to the next step when it is time; true when the plan must be
    /// made again for it.
    pub(super) fn compare(&mut self, at_ns: u64) -> bool {
        if matches!(self.comparison, Comparison::Due(from_ns) if at_ns >= from_ns) {
            let drifted = self.members.values_mut().filter(|m| m.drifted);
            let mut forgot = false;
            for member in drifted {
                member.forget_phase();
                forgot = true;
            }
            if forgot {
                return true;
            }
        }
        let next = match self.comparison {
            Comparison::Due(from_ns) if at_ns >= from_ns && self.can_compare() => {
                Comparison::Seats(at_ns)
            }
            Comparison::Seats(since_ns) if at_ns >= since_ns + TRY_NS => {
                self.account.on_seats = self.rates(at_ns - since_ns);
                self.account.paired.clear();
                match self.pair {
                    Some(_) => Comparison::Pair(at_ns),
                    None => Comparison::Sharing(at_ns + TRY_NS),
                }
            }
            Comparison::Pair(since_ns) if at_ns >= since_ns + TRY_NS => {
                self.account.paired = self.rates(at_ns - since_ns);
                Comparison::Sharing(at_ns + TRY_NS)
            }
            Comparison::Sharing(until_ns) if at_ns >= until_ns => {
                self.conclude(at_ns + TRY_NS - until_ns);
                Comparison::Made(at_ns)
            }
            _ => return false,
        };
        let told = |(&id, member): (&ProgramId, &Member)| Some((id, member.told?));
        self.account.began = self.members.iter().filter_map(told).collect();
        self.comparison = next;
        true
    }

    /// Everybody's rate since this step began.
    fn rates(&self, elapsed_ns: u64) -> BTreeMap<ProgramId, Rate> {
        let rate = |(&id, member): (&ProgramId, &Member)| {
            let (began, now) = (self.account.began.get(&id)?, member.told?);
            let done = now.total - began.total;
            let cores = self
                .seats
                .get(&id)
                .map_or(0.0, |seat| self.topology.capacity_of(seat));
            let rate = Rate {
                cores,
                rate: done / (elapsed_ns as f64 / 1e9),
                source: now.source,
            };
            (now.source == began.source && done > 0.0).then_some((id, rate))
        };
        self.members.iter().filter_map(rate).collect()
    }

    /// Files how much faster each was on its seat than shared.
    fn conclude(&mut self, elapsed_ns: u64) {
        let shared = self.rates(elapsed_ns);
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

    /// Whether rates can tell: several programs, all of which tell theirs and
    /// may be moved at any time.
    fn can_compare(&self) -> bool {
        let tells = |member: &Member| {
            member.has_live_source() && !member.explores() && member.is_narrowable()
        };
        !self.survey.is_on()
            && self.members.len() > 1
            && self.members.len() <= self.topology.domains.len()
            && self.members.values().all(tells)
    }
}
