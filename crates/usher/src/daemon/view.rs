// SPDX-License-Identifier: GPL-2.0-only
//! The engine's state as the interface tells it.

use usher_host::engine::{ProgramStatus, Status, TimedNote};
use usher_model::{Loan, Mode};

use super::refusal::to_int;
use crate::api::{self, Program_mode};

/// Everything.
pub fn state(status: &Status) -> api::State {
    let seated = status.programs.iter().map(program).collect();
    api::State {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id().into(),
        keeper_pid: status.keeper_pid.map(i64::from),
        policy: status.policy.clone(),
        machine: status.machine.clone(),
        acting: status.acting.backend.to_string(),
        uptime_seconds: status.uptime_seconds,
        usable: status.usable.to_string(),
        decisions: to_int(status.decisions),
        failed_actions: to_int(status.failed_actions),
        loop_cpu_seconds: status.loop_cpu_seconds,
        antt: status.plan.antt,
        antt_time_sharing: status.plan.antt_time_sharing,
        abstains: status.plan.abstains,
        programs: seated,
        loans: status.plan.loans.iter().map(loan).collect(),
        notes: latest_notes(&status.notes),
        warnings: status.warnings.clone(),
    }
}

/// One program.
pub fn program(status: &ProgramStatus) -> api::Program {
    api::Program {
        id: to_int(status.id.0),
        name: status.name.clone(),
        pid: status.pid.into(),
        uid: status.uid.into(),
        weight: status.weight,
        mode: match status.mode {
            None => Program_mode::arriving,
            Some(Mode::Seated) => Program_mode::seated,
            Some(Mode::Shared) => Program_mode::shared,
        },
        stopped: status.frozen,
        cpus: status
            .cpus
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default(),
        borrowed: status.borrowed.to_string(),
        lent: status.lent.to_string(),
        domains: status
            .domains
            .iter()
            .map(|&domain| to_int(domain))
            .collect(),
        ntt: status.ntt,
        threads: status.threads.into(),
        spinners: status.spinners.into(),
        active_wait: status.active_wait,
        busy_cpus: status.busy_cpus,
        cpu_seconds: status.cpu_seconds,
        seconds: status.seconds,
        progress: status.progress.map(|progress| api::Progress {
            total: progress.total,
            per_second: status.progress_per_second.unwrap_or(0.0),
            source: progress.source.to_string(),
            confidence: progress.confidence,
        }),
    }
}

fn loan(loan: &Loan) -> api::Loan {
    api::Loan {
        owner: loan.owner.map(|owner| to_int(owner.0)),
        borrower: to_int(loan.borrower.0),
        cpus: loan.cpus.to_string(),
    }
}

/// The last thing said about each program, and about all, in the order said.
fn latest_notes(notes: &[TimedNote]) -> Vec<api::Note> {
    let said_later = |at: usize| {
        let about = notes[at].note.program;
        notes[at + 1..]
            .iter()
            .any(|later| later.note.program == about)
    };
    let latest = (0..notes.len()).filter(|&at| !said_later(at));
    let said = latest.map(|at| api::Note {
        at_seconds: notes[at].at_seconds,
        program: notes[at].note.program.map(|id| to_int(id.0)),
        text: notes[at].note.text.clone(),
    });
    said.collect()
}
