// SPDX-License-Identifier: GPL-2.0-only
//! Converts the copies that launchers inside a program started to the types of the Varlink
//! interface. Module `crate::copies` formats them as text.
//!
//! The remedy names what the user can do about copies with more threads than CPUs. The cost is
//! proportional to the number of copies.

use usher_host::engine::ProgramStatus;
use usher_policy::copies::{CopyReport, CopyState, GroupReport};

use crate::api::{self, Copy_state};

/// Converts the groups of copies of a program.
pub fn groups(program: &ProgramStatus) -> Vec<api::CopyGroup> {
    program.copies.iter().map(group).collect()
}

fn group(group: &GroupReport) -> api::CopyGroup {
    api::CopyGroup {
        launcher: group.launcher.into(),
        program: group.name.clone(),
        forked: group.forked,
        narrows_launcher: group.narrows_launcher,
        copies: group.copies.iter().map(copy).collect(),
        remedy: remedy(group),
    }
}

fn copy(copy: &CopyReport) -> api::Copy {
    api::Copy {
        pid: copy.process.pid.into(),
        cpus: copy.cpus.to_string(),
        threads: copy.threads.into(),
        state: match copy.state {
            CopyState::Confined => Copy_state::confined,
            CopyState::Waiting => Copy_state::waiting,
            CopyState::Widened => Copy_state::widened,
            CopyState::Serial => Copy_state::serial,
            CopyState::LeftAlone => Copy_state::left_alone,
        },
    }
}

fn has_too_many_threads(copy: &CopyReport) -> bool {
    let is_divided = matches!(copy.state, CopyState::Confined | CopyState::Widened);
    is_divided && copy.threads as usize > copy.cpus.len().max(1)
}

/// Returns what the user can do about copies that have more threads than CPUs.
fn remedy(group: &GroupReport) -> Option<String> {
    let too_many = group.copies.iter().find(|one| has_too_many_threads(one))?;
    let cpus = too_many.cpus.len().max(1);
    Some(match group.forked {
        true => format!(
            "the copies of {} are forks with the thread pool of their parent: start them as new \
             processes (for Python: multiprocessing.set_start_method('spawn')), or set \
             OMP_NUM_THREADS={cpus} before the start",
            group.name
        ),
        false => format!(
            "the copies of {} started their threads before Usher could reduce their CPUs: set \
             OMP_NUM_THREADS={cpus}, or the variable of their thread library, before the start",
            group.name
        ),
    })
}
