// SPDX-License-Identifier: GPL-2.0-only
//! Describes where a program runs, for `usher explain`: its seat, or the reason for which it has none.

use usher_host::engine::{ProgramStatus, Status};
use usher_model::{CpuSet, SeatMode, Topology};
use usher_report::text;

use crate::daemon::alternatives::ntt;
use crate::daemon::fixed_seats::{Overlap, overlap};
use crate::daemon::{regulated, view};

/// Describes the program's seat, and the effect of one core more or less.
pub fn place(program: &ProgramStatus, status: &Status, topology: &Topology) -> String {
    let place = where_it_runs(program, status, topology);
    match program.stopped_by_user {
        true => {
            format!(
                "{place}; its user has stopped the program, and Usher continues to measure \
                     it when it runs again"
            )
        }
        false => place,
    }
}

/// Describes a seat with a fixed number of cores that the program shares with other programs;
/// `None` for other programs.
fn overlapping_fixed_seat(
    program: &ProgramStatus,
    status: &Status,
    topology: &Topology,
) -> Option<String> {
    let fixed = fixed(program, status, topology)?;
    let cpus = planned(program, status)?;
    let Overlap { reason, remedy } = overlap(status, topology);
    Some(format!(
        "the seat of the program is {fixed}, and the program shares {} with other programs, because \
         {reason}: {remedy}",
        named(cpus)
    ))
}

/// Describes the fixed size of the program's seat in the present plan, in cores; `None` if the size
/// is not fixed. The program may have fewer cores than requested.
fn fixed(program: &ProgramStatus, status: &Status, topology: &Topology) -> Option<String> {
    let requested = program
        .cores
        .filter(|_| status.seating_forbidden.is_none() && program.pinned_to.is_none())?;
    let requested = requested as usize;
    let actual = topology.cores_in(planned(program, status)?).len();
    let size = match actual < requested {
        true => format!(
            "{} ({requested} requested, but the program may use no more)",
            text::count(actual, "core")
        ),
        false => text::count(requested, "core"),
    };
    Some(format!("fixed at {size} by --cores or a rule"))
}

/// Returns the CPUs of the program's seat in the present plan.
fn planned<'a>(program: &ProgramStatus, status: &'a Status) -> Option<&'a CpuSet> {
    let mut seats = status.plan.seats.iter();
    Some(&seats.find(|seat| seat.program == program.id)?.cpus)
}

fn where_it_runs(program: &ProgramStatus, status: &Status, topology: &Topology) -> String {
    if let Some(background) = &program.background {
        return regulated::place(program, background);
    }
    if program.mode == Some(SeatMode::InTurn) {
        let now = if program.frozen { "is stopped" } else { "runs" };
        return format!("the program takes turns with the others on all CPUs, and {now} now");
    }
    if program.frozen {
        let fixed = fixed(program, status, topology);
        let fixed = fixed.map_or_else(String::new, |fixed| format!("; its seat is {fixed}"));
        return format!("the program is stopped while another program is measured alone{fixed}");
    }
    let seated = program.mode == Some(SeatMode::Seated);
    match view::seat(program, status).filter(|_| seated) {
        Some(cpus) => seat(program, &cpus, status, topology),
        None => no_seat(program, status, topology),
    }
}

/// Describes a program without a seat.
fn no_seat(program: &ProgramStatus, status: &Status, topology: &Topology) -> String {
    let quota = program
        .cpu_quota
        .map(|quota| format!(", within a quota of {quota:.1} CPUs"));
    let quota = quota.unwrap_or_default();
    if let Some(pinned) = &program.pinned_to {
        return format!(
            "the program has no seat, because it pinned threads to {}{quota}; other programs get \
             seats on the remaining CPUs, if there are any",
            named(pinned)
        );
    }
    overlapping_fixed_seat(program, status, topology).unwrap_or_else(|| {
        format!("the program has no seat, and may use every CPU of its affinity mask{quota}")
    })
}

/// Describes the seat of a program, and the effect of one core more or less. `cpus`: the seat with
/// borrowed CPUs and without lent CPUs.
fn seat(program: &ProgramStatus, cpus: &CpuSet, status: &Status, topology: &Topology) -> String {
    let own = cpus.minus(&program.borrowed).or(&program.lent);
    let cores = topology.capacity_of(&own);
    let size = match program.cpu_quota.filter(|&quota| quota < cores) {
        Some(quota) => format!("{quota:.1} cores by its CPU quota"),
        None => format!("{cores:.1} cores"),
    };
    let kind = if program.soft { "soft seat" } else { "seat" };
    let mut text = format!("the program has a {kind} on {} ({size})", named(&own));
    if let Some(fixed) = fixed(program, status, topology) {
        text.push_str(&format!(", {fixed}"));
    }
    let Some(curve) = &program.profile else {
        return text;
    };
    let curve = &curve.limited(program.cpu_quota);
    let all = topology.capacity_of(&topology.all_cpus());
    text.push_str(&format!(": NTT {:.2}", ntt(curve, cores, all)));
    let others = [(cores + 1.0, "more"), (cores - 1.0, "less")];
    for (cores, change) in others {
        if cores > 0.0 && cores <= all {
            let ntt = ntt(curve, cores, all);
            text.push_str(&format!(", {ntt:.2} with one core {change}"));
        }
    }
    text
}

/// Returns the CPUs as a text.
pub fn named(cpus: &CpuSet) -> String {
    text::cpus(&cpus.to_string())
}
