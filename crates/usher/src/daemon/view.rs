// SPDX-License-Identifier: GPL-2.0-only
//! Converts the engine's state (`Status`) to the types of the Varlink interface. Values of the
//! engine that do not exist in the interface are replaced: for example, a seat of all CPUs without
//! an affinity mask becomes the set of all usable CPUs.
//!
//! Only the latest note about each program, and about all programs, is converted. The cost is
//! proportional to programs times loans and seats, plus the square of the number of notes; the
//! engine keeps at most 400 notes.

use usher_act::ActDescription;
use usher_host::engine::{BackgroundStatus, ProgramStatus, Status, TimedNote};
use usher_model::{CpuSet, Loan, SeatMode, Topology};

use super::abstention;
use super::copies;
use super::fixed_seats;
use super::hints;
use super::refusal::to_int;
use crate::api::{self, Program_mode};

/// Converts the whole state.
pub fn state(status: &Status, topology: &Topology) -> api::State {
    let overlap = fixed_seats::abstention(status, topology);
    let programs = status.programs.iter().map(|p| program(p, status));
    let programs = programs.map(|mut program| {
        let shares = overlap
            .as_ref()
            .filter(|why| why.programs.contains(&program.id));
        program.abstention = shares.cloned().or(program.abstention);
        program
    });
    api::State {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id().into(),
        keeper_pid: status.keeper_pid.map(i64::from),
        policy: status.policy.clone(),
        machine: status.machine.clone(),
        acting: match status.kept_by_scheduler {
            true => "Usher's scheduler".to_owned(),
            false => "affinity masks".to_owned(),
        },
        seating_forbidden: status.seating_forbidden.clone(),
        // The service adds the scheduler and the store, which are no part of the engine's state.
        scheduler: None,
        store: None,
        placing: placing(&status.acting),
        uptime_seconds: status.uptime_seconds,
        usable: status.usable.to_string(),
        decisions: to_int(status.decisions),
        failed_actions: to_int(status.failed_actions),
        loop_cpu_seconds: status.loop_cpu_seconds,
        antt: status.plan.antt,
        antt_time_sharing: status.plan.antt_time_sharing,
        abstains: status.plan.abstains,
        programs: programs.collect(),
        abstention: overlap.or_else(|| abstention::of_all(status)),
        loans: status.plan.loans.iter().map(loan).collect(),
        notes: latest_notes(&status.notes),
        warnings: without_numbers(&status.warnings),
    }
}

/// Returns how programs get cgroups.
fn placing(acting: &ActDescription) -> api::Placing {
    api::Placing {
        placement: acting.placement.to_string(),
        yielding: acting.yielding.to_string(),
        reasons: without_numbers(&acting.reasons),
    }
}

fn without_numbers(texts: &[String]) -> Vec<String> {
    let texts = texts
        .iter()
        .map(|text| usher_model::without_error_number(text));
    texts.collect()
}

/// Returns the CPUs of a program's seat; `None` if the program has no seat and may run on its
/// former CPUs. A seat of all CPUs is returned, too, although it needs no affinity mask.
pub fn seat(program: &ProgramStatus, status: &Status) -> Option<CpuSet> {
    let everything = || {
        let mut seats = status.plan.seats.iter();
        let own = seats.find(|seat| seat.program == program.id && seat.mode == SeatMode::Seated)?;
        let cpus = own.cpus.or(&program.borrowed).minus(&program.lent);
        status.usable.is_subset(&cpus).then_some(cpus)
    };
    let is_pinned = program.pinned_to.is_some();
    let everything = || everything().filter(|_| !is_pinned);
    program.cpus.clone().or_else(everything)
}

/// Converts one program.
pub fn program(program: &ProgramStatus, status: &Status) -> api::Program {
    api::Program {
        id: to_int(program.id.0),
        name: program.name.clone(),
        pid: program.pid.into(),
        uid: program.uid.into(),
        job: program.job.clone(),
        command: program.command.clone(),
        weight: program.weight,
        cores: program.cores.map(i64::from),
        mode: match program.mode {
            _ if program.background.is_some() => Program_mode::background,
            None => Program_mode::arriving,
            Some(SeatMode::Seated) => Program_mode::seated,
            Some(SeatMode::Shared) => Program_mode::shared,
            Some(SeatMode::InTurn) => Program_mode::turns,
        },
        stopped: program.frozen,
        stopped_by_user: program.stopped_by_user,
        cpus: seat(program, status).unwrap_or_default().to_string(),
        borrowed: program.borrowed.to_string(),
        lent: program.lent.to_string(),
        cpu_quota: program.cpu_quota,
        pinned_to: program.pinned_to.as_ref().map(CpuSet::to_string),
        domains: program
            .domains
            .iter()
            .map(|&domain| to_int(domain))
            .collect(),
        ntt: program.ntt,
        threads: program.threads.into(),
        spinners: program.spinners.into(),
        active_wait: program.active_wait,
        busy_cpus: program.busy_cpus,
        cpu_seconds: program.cpu_seconds,
        seconds: program.seconds,
        progress: program.progress.map(|progress| api::Progress {
            total: progress.total,
            per_second: program.progress_per_second.unwrap_or(0.0),
            source: progress.source.to_string(),
            confidence: progress.confidence,
        }),
        background: program.background.as_ref().map(background),
        abstention: abstention::of_program(program, status),
        copies: copies::groups(program),
        unrecognised_workers: to_int(program.unrecognised_workers),
        hints: program.hints.as_ref().map(hints::to_api),
    }
}

fn background(status: &BackgroundStatus) -> api::Background {
    let state = status.state.as_ref();
    api::Background {
        policy: status.regulation.name().to_owned(),
        resource: status.resource.clone(),
        user: status.user.clone(),
        reason: state.and_then(|one| one.reason_text.clone()),
        since_seconds: status.since_seconds,
        share: state.map_or(1.0, |one| one.share),
        stops: to_int(state.map_or(0, |one| one.stops)),
        lacking: status.lacking.clone(),
    }
}

fn loan(loan: &Loan) -> api::Loan {
    api::Loan {
        owner: loan.owner.map(|owner| to_int(owner.0)),
        borrower: to_int(loan.borrower.0),
        cpus: loan.cpus.to_string(),
    }
}

/// Returns the latest note about each program, and about all, in the order of their times.
fn latest_notes(notes: &[TimedNote]) -> Vec<api::Note> {
    let said_later = |at: usize| {
        let about = notes[at].note.program;
        notes[at + 1..]
            .iter()
            .any(|later| later.note.program == about)
    };
    let latest = (0..notes.len()).filter(|&at| !said_later(at));
    let own_notes = latest.map(|at| api::Note {
        at_seconds: notes[at].at_seconds,
        program: notes[at].note.program.map(|id| to_int(id.0)),
        text: notes[at].note.text.clone(),
    });
    own_notes.collect()
}

#[cfg(test)]
mod tests {
    use usher_model::{Plan, ProgramId, Seat};
    use usher_topology::Source;

    use super::super::explain::samples::{program, status};
    use super::*;

    #[test]
    fn a_seat_of_every_cpu_is_a_seat() {
        let machine = usher_topology::load(Source::parse("core:4 pu:1").unwrap()).unwrap();
        let shown = |planned: &str, mode: SeatMode, kept_to: Option<&str>| {
            let mut one = program(1, "a", &[]);
            one.cpus = kept_to.map(|cpus| cpus.parse().unwrap());
            one.mode = Some(mode);
            let mut all = status(vec![one.clone()], &machine);
            all.plan = Plan {
                seats: vec![Seat {
                    program: ProgramId(1),
                    cpus: planned.parse().unwrap(),
                    domains: Vec::new(),
                    mode,
                    ntt: None,
                }],
                ..Plan::default()
            };
            super::program(&one, &all).cpus
        };
        assert_eq!(shown("0-3", SeatMode::Seated, None), "0-3");
        assert_eq!(shown("0-1", SeatMode::Seated, Some("0-1")), "0-1");
        assert_eq!(shown("0-3", SeatMode::Shared, None), "");
        // The seat is planned, but not applied yet.
        assert_eq!(shown("0-1", SeatMode::Seated, None), "");
    }
}
