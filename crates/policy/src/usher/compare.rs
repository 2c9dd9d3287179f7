// SPDX-License-Identifier: MIT OR Apache-2.0
//! Seats against the kernel, tried once instead of only predicted.
//!
//! What time sharing comes to is predicted from programs' curves, which know
//! nothing of barriers that wait for a thread without a CPU, of caches, or of
//! what one program leaves for another while it waits. Where all programs tell
//! their progress while they run, both are tried: so long on the best seats,
//! then so long shared, and the verdict (module `verdict`) rests on the rates.
//! Nobody is stopped for it; it is done when programs have come or gone, and
//! again at most every [`AGAIN_NS`] when one of them has entered a new phase.

use super::Usher;
use super::member::Member;

/// So long on seats, and then shared: some of the programs' own rounds.
const TRY_NS: u64 = 1_000_000_000;
/// Who has not told a rate on its seat by then will not.
const PATIENCE_NS: u64 = 3 * TRY_NS;
/// Not again before.
const AGAIN_NS: u64 = 30_000_000_000;

/// How far the comparison is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
    /// To be made, from then on.
    Due(u64),
    /// Seats are tried, since then.
    Seats(u64),
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

impl Usher {
    /// Goes on to the next step when it is time; true when the plan must be
    /// made again for it.
    pub(super) fn compare(&mut self, at_ns: u64) -> bool {
        let next = match self.comparison {
            Comparison::Due(from_ns) if at_ns >= from_ns && self.can_compare() => {
                Comparison::Seats(at_ns)
            }
            Comparison::Seats(since_ns) if at_ns >= since_ns + TRY_NS => {
                let told = self.members.values().all(|m| m.knowledge.has_seat_rate());
                match (told, at_ns >= since_ns + PATIENCE_NS) {
                    (true, _) => Comparison::Sharing(at_ns + TRY_NS),
                    (false, true) => Comparison::Made(at_ns),
                    (false, false) => return false,
                }
            }
            Comparison::Sharing(until_ns) if at_ns >= until_ns => Comparison::Made(at_ns),
            _ => return false,
        };
        self.comparison = next;
        true
    }

    /// Whether rates can tell: several programs, all of which tell theirs and
    /// may be moved at any time.
    fn can_compare(&self) -> bool {
        let tells = |member: &Member| {
            member.has_live_source()
                && !member.explores()
                && member.active_wait == Some(false)
                && member.spinners == 0
        };
        self.members.len() > 1
            && self.members.len() <= self.topology.domains.len()
            && self.members.values().all(tells)
    }
}
