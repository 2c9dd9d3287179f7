// SPDX-License-Identifier: GPL-2.0-only
//! Predicts the ANTT of alternatives to the present plan, for `usher explain`: time sharing, equal
//! shares, and each program left out.
//!
//! 1. Select the foreground programs; background work has no seat and changes no other seat.
//! 2. Take the ANTT of the present plan from the engine. Compute the ANTT of time sharing and of
//!    equal shares from the scalability curves.
//! 3. For two to eight programs ([`LEFT_OUT_MAX`]), run the planner once without each program.
//!
//! If the curve of a program is unknown, the alternatives that need it have no ANTT. An error of
//! the planner also leaves an alternative without ANTT.

use usher_host::engine::{ProgramStatus, Status};
use usher_model::{Curve, SeatMode, Topology};
use usher_policy::seating::{Request, seat};
use usher_policy::timeshare::time_sharing;

use crate::api;

/// With more foreground programs than this, the effect of leaving out one program is too small to
/// be shown.
const LEFT_OUT_MAX: usize = 8;

/// Returns the present plan and its alternatives; empty without foreground programs.
pub(super) fn alternatives(status: &Status, topology: &Topology) -> Vec<api::Alternative> {
    // Background work has no seat, and therefore does not change the seats of other programs.
    let seated = status.programs.iter().filter(|p| p.background.is_none());
    let programs: Vec<&ProgramStatus> = seated.collect();
    if programs.is_empty() {
        return Vec::new();
    }
    let alternative = |name: &str, antt: Option<f64>, why: String| api::Alternative {
        name: name.to_owned(),
        antt,
        why,
    };
    let (seats, sharing) = modes(status, &programs);
    let in_turn = programs.iter().any(|p| p.mode == Some(SeatMode::InTurn));
    let done = if in_turn { "turns" } else { "seats" };
    let cores = topology.capacity_of(&topology.all_cpus());
    let each = cores / programs.len() as f64;
    let known = requests(&programs);
    let shared = known
        .as_ref()
        .and_then(|all| mean(&programs, &time_sharing(topology, all)));
    let equal = known.as_ref().and_then(|all| {
        let ntts: Vec<f64> = all.iter().map(|r| ntt(&r.curve, each, cores)).collect();
        mean(&programs, &ntts)
    });
    let mut all = vec![
        alternative(done, status.plan.antt, seats.to_owned()),
        alternative(
            "time sharing",
            status.plan.antt_time_sharing.or(shared),
            sharing.to_owned(),
        ),
        alternative(
            "equal",
            equal,
            match programs.len() {
                1 => format!("{each:.1} cores for the program"),
                count => format!("{each:.1} cores for each of the {count} programs"),
            },
        ),
    ];
    if (2..=LEFT_OUT_MAX).contains(&programs.len()) {
        all.extend(programs.iter().map(|gone| {
            let rest: Vec<_> = programs
                .iter()
                .filter(|p| p.id != gone.id)
                .copied()
                .collect();
            let seating = requests(&rest).and_then(|rest| seat(topology, &rest).ok());
            let name = distinct_name(gone, &programs);
            alternative(
                &format!("without {name}"),
                seating.and_then(|s| s.plan.antt),
                format!("the best seats for the other programs if {name} did not run"),
            )
        }));
    }
    all
}

/// Describes the best seats and time sharing, of which one is the present mode. Programs with a fixed
/// number of cores keep their seats while others share the CPUs; then neither mode is in use.
fn modes(status: &Status, programs: &[&ProgramStatus]) -> (&'static str, &'static str) {
    let (not_used, all_share) = (
        "the best seats for all programs; not used",
        "all programs share all CPUs",
    );
    match status.plan.abstains {
        true if has_fixed_seat(status, programs) => (not_used, all_share),
        true => (not_used, "the present state: all programs share all CPUs"),
        false => ("the present state", all_share),
    }
}

/// Returns whether a program has a seat of a fixed size, which it keeps beside programs that share
/// the CPUs.
fn has_fixed_seat(status: &Status, programs: &[&ProgramStatus]) -> bool {
    let is_fixed =
        |program: &&ProgramStatus| program.cores.is_some() && program.pinned_to.is_none();
    status.seating_forbidden.is_none() && programs.iter().any(is_fixed)
}

/// Returns the program's name, with its number if another program has the same name.
fn distinct_name(program: &ProgramStatus, all: &[&ProgramStatus]) -> String {
    let namesakes = all.iter().filter(|other| other.name == program.name);
    match namesakes.count() {
        0 | 1 => program.name.clone(),
        _ => format!("{} (program {})", program.name, program.id),
    }
}

/// Returns the planner's input; `None` if a curve is unknown.
fn requests(programs: &[&ProgramStatus]) -> Option<Vec<Request>> {
    let request = |p: &&ProgramStatus| {
        Some(Request {
            id: p.id,
            name: p.name.clone(),
            curve: p.profile.as_ref()?.limited(p.cpu_quota),
            weight: p.weight,
            spinners: p.spinners,
            llc_bytes: None,
            bandwidth_gbps: None,
            bound_to: p.pinned_to.clone().or_else(|| p.bound_to.clone()),
            pinned: p.pinned_to.is_some(),
        })
    };
    programs.iter().map(request).collect()
}

/// Returns the ANTT as the planner counts it: the mean of the NTTs times their weights.
fn mean(programs: &[&ProgramStatus], ntts: &[f64]) -> Option<f64> {
    let sum: f64 = programs
        .iter()
        .zip(ntts)
        .map(|(p, ntt)| p.weight * ntt)
        .sum();
    (!programs.is_empty()).then(|| sum / programs.len() as f64)
}

/// Returns the NTT of a program on `cores` cores, relative to the best rate on the machine.
pub(super) fn ntt(curve: &Curve, cores: f64, all_cores: f64) -> f64 {
    curve.best_rate(all_cores) / curve.best_rate(cores)
}
