// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two programs on the union of their seats.
//!
//! Some programs leave cores idle for moments that are too short for lending, such as a serial part
//! between parallel parts. On a seat of its own, such a program wastes these moments. If the
//! program shares CPUs with a program that scales to any number of cores, the other program uses
//! these moments.
//!
//! For each pair of programs, the gain of sharing is predicted by the model of time sharing (module
//! `timeshare`), on the union of the seats. The pair with the largest gain is tried if the gain is
//! large enough. Whether the pair really gains is then measured (module `compare`). The number of
//! pairs is quadratic in the number of programs; each pair takes linear time in the number of
//! seats. At most one pair is tried. Programs that are bound to CPUs, and pairs whose seats are the
//! whole machine, are left out.

use usher_model::{CpuSet, Plan, ProgramId, SeatMode, Topology};

use crate::seating::Request;
use crate::timeshare::time_sharing;

/// Least predicted gain for which a pair is tried, as a fraction of the ANTT on separate seats.
const PROMISING: f64 = 0.02;

/// Two programs that share CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProgramPair(ProgramId, ProgramId);

impl ProgramPair {
    /// Whether the program is part of the pair.
    pub fn has(self, program: ProgramId) -> bool {
        self.0 == program || self.1 == program
    }

    /// The plan with both programs on the union of their seats.
    pub fn in_plan(self, plan: &Plan, topology: &Topology) -> Plan {
        let own = plan.seats.iter().filter(|seat| self.has(seat.program));
        let cpus = own.fold(CpuSet::new(), |cpus, seat| cpus.or(&seat.cpus));
        let mut plan = plan.clone();
        let both = plan.seats.iter_mut().filter(|seat| self.has(seat.program));
        for seat in both {
            seat.domains = topology.domains_in(&cpus);
            seat.cpus = cpus.clone();
            seat.mode = SeatMode::Shared;
            seat.ntt = None;
        }
        plan
    }
}

/// The two programs of a plan that are predicted to gain most from sharing their seats; `None` if
/// the gain is too small.
pub fn most_promising(
    topology: &Topology,
    plan: &Plan,
    requests: &[Request],
) -> Option<ProgramPair> {
    let antt = plan.antt?;
    let all = topology.all_cpus();
    let own = |request: &Request| {
        let mut seats = plan.seats.iter();
        let seat = seats.find(|seat| seat.program == request.id)?;
        let is_own = seat.mode == SeatMode::Seated && request.bound_to.is_none();
        is_own
            .then(|| Some((seat.cpus.clone(), seat.ntt?)))
            .flatten()
    };
    let mut best: Option<(f64, ProgramPair)> = None;
    for (at, a) in requests.iter().enumerate() {
        for b in &requests[at + 1..] {
            let Some(((a_cpus, a_ntt), (b_cpus, b_ntt))) = own(a).zip(own(b)) else {
                continue;
            };
            let both = a_cpus.or(&b_cpus);
            if both == all {
                continue;
            }
            let together = [a, b].map(|request| Request {
                bound_to: Some(both.clone()),
                ..request.clone()
            });
            let ntt = time_sharing(topology, &together);
            // `ntt` is relative to the best rate on the cores of the pair. `more` converts it to an
            // NTT relative to the best rate on the whole machine.
            let (here, whole) = (topology.capacity_of(&both), topology.capacity_of(&all));
            let more = |r: &Request| r.curve.best_rate(whole) / r.curve.best_rate(here);
            let (a_both, b_both) = (ntt[0] * more(a), ntt[1] * more(b));
            let gain = a.weight * (a_ntt - a_both) + b.weight * (b_ntt - b_both);
            let pair = ProgramPair(a.id, b.id);
            if best.is_none_or(|(most, _)| gain > most) {
                best = Some((gain, pair));
            }
        }
    }
    let enough = PROMISING * antt * requests.len() as f64;
    best.filter(|&(gain, _)| gain > enough)
        .map(|(_, pair)| pair)
}
