// SPDX-License-Identifier: GPL-2.0-only
//! Programs with a fixed number of cores that share CPUs with other programs: the reason, for
//! `usher status` and `usher explain`.
//!
//! The reason is computed at each request from the present programs and CPUs, so that it never
//! outlives its cause.

use usher_host::engine::{ProgramStatus, Status};
use usher_model::{SeatMode, Topology};
use usher_report::text;

use super::refusal::to_int;
use crate::api::{self, Abstention_cause};

/// Why fixed seats overlap with other seats, and what to do.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Overlap {
    pub reason: String,
    pub remedy: &'static str,
}

/// Returns why programs with a fixed number of cores share CPUs.
pub(super) fn overlap(status: &Status, topology: &Topology) -> Overlap {
    let needed: usize = seatable(status).map(|(_, cores)| cores).sum();
    let present = topology.cores_in(&status.usable).len();
    let count = |cores: usize| text::count(cores, "core");
    if needed > present {
        return Overlap {
            reason: format!(
                "the fixed seats together need {}, and programs may use {}",
                count(needed),
                count(present)
            ),
            remedy: "give the programs fewer cores, or run fewer programs at a time",
        };
    }
    match needed == present {
        true => Overlap {
            reason: "the fixed seats leave no core for the other programs".to_owned(),
            remedy: "give the programs with fixed seats fewer cores",
        },
        false => Overlap {
            reason: "programs with fixed seats are restricted to the same CPUs (affinity mask or \
                     cpuset)"
                .to_owned(),
            remedy: "start them without that restriction, or with other CPUs",
        },
    }
}

/// Returns the reason if a program with a fixed number of cores shares its CPUs. A daemon that
/// assigns no CPUs gives another reason.
pub(super) fn abstention(status: &Status, topology: &Topology) -> Option<api::Abstention> {
    if status.seating_forbidden.is_some() {
        return None;
    }
    let sharing = seatable(status).filter(|(program, _)| program.mode == Some(SeatMode::Shared));
    let programs: Vec<i64> = sharing.map(|(one, _)| to_int(one.id.0)).collect();
    let Overlap { reason, remedy } = overlap(status, topology);
    (!programs.is_empty()).then(|| api::Abstention {
        cause: Abstention_cause::planner,
        reason,
        remedy: Some(remedy.to_owned()),
        programs,
    })
}

/// Returns the programs that get a seat of a fixed number of cores, with this number. Pinned
/// threads prevent a seat.
fn seatable(status: &Status) -> impl Iterator<Item = (&ProgramStatus, usize)> {
    let unpinned = status.programs.iter().filter(|one| one.pinned_to.is_none());
    unpinned.filter_map(|one| Some((one, one.cores? as usize)))
}

#[cfg(test)]
mod tests {
    use usher_topology::Source;

    use super::super::explain::samples::{program, status};
    use super::*;

    fn reason(cores: &[(Option<u32>, SeatMode)]) -> Option<String> {
        let machine = usher_topology::load(Source::parse("core:2 pu:1").unwrap()).unwrap();
        let one = |(id, &(cores, mode))| ProgramStatus {
            mode: Some(mode),
            cores,
            ..program(id, "a", &[])
        };
        let programs = (1..).zip(cores).map(one).collect();
        Some(abstention(&status(programs, &machine), &machine)?.reason)
    }

    #[test]
    fn only_fixed_seats_that_share_cpus_have_a_reason() {
        let (shared, seated) = (SeatMode::Shared, SeatMode::Seated);
        assert_eq!(
            reason(&[(Some(2), shared), (Some(1), shared)]).unwrap(),
            "the fixed seats together need 3 cores, and programs may use 2 cores"
        );
        let no_core_left = reason(&[(Some(2), shared), (None, shared)]).unwrap();
        assert!(no_core_left.contains("leave no core"), "{no_core_left}");
        let restricted = reason(&[(Some(1), shared)]).unwrap();
        assert!(restricted.contains("to the same CPUs"), "{restricted}");
        assert_eq!(reason(&[(Some(1), seated), (Some(1), seated)]), None);
        assert_eq!(reason(&[(Some(1), seated), (None, shared)]), None);
        assert_eq!(reason(&[(None, shared), (None, shared)]), None);
    }
}
