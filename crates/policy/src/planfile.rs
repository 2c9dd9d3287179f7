// SPDX-License-Identifier: MIT OR Apache-2.0
//! Input and output of the command `usher plan`, which runs the planner alone. The input and the
//! output are JSON.
//!
//! Input: `{"programs":[{"name":"canneal","curve":{"6":1.9,"12":2.4}}, …]}`. A curve maps two or
//! more core counts to progress per second, in any unit; all points of a curve have the same unit.
//! Optional fields: `llc_bytes`, `bandwidth_gbps`, `weight` (default 1), `spinners` (threads that
//! busy-wait), `cpu_quota` (in CPUs: 1.5 permits 1.5 s of CPU time per second). Unknown fields are
//! errors, since a misspelt optional field would otherwise be ignored.
//!
//! Output: `{"antt":1.23,"programs":[{"name":"canneal","cpus":"0-11","cores":12,
//! "domains":[0,1],"ntt":1.1,"mode":"seated"}, …]}`, programs in the order of the input. On
//! machines with unequal domains, and wherever the plan may not have the least ANTT, also `"gap"`,
//! an upper bound of ANTT minus the least possible ANTT. If the search ended by its budget of steps
//! before the gap was 0, also `"ended_by_budget":true`.
//!
//! The number of programs and the size of the input are not limited; module `seating` states the
//! cost of planning. The first error ends the command (type [`PlanFileError`]).

mod json;
mod read;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use usher_model::{Domain, DomainId, ProgramId, Seat, SeatMode, Topology};

use crate::seating::{Request, Seating, SeatingError, seat};

pub use read::read_programs;

/// Output of `usher plan`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlanOutput {
    /// Predicted average normalised turnaround time.
    pub antt: f64,
    /// Upper bound of `antt` minus the least possible ANTT. `None`: all domains are equal and
    /// `antt` is the least possible ANTT.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gap: Option<f64>,
    /// Whether the search for the least ANTT ended by its budget of steps. Present only if `gap` is
    /// above 0; a longer search might then find a better plan, or show that there is none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ended_by_budget: bool,
    /// One entry per program, in the order of the input.
    pub programs: Vec<ProgramOutput>,
}

/// Placement of one program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProgramOutput {
    /// The program's name.
    pub name: String,
    /// The program's logical CPUs as a list: `0-11`.
    pub cpus: String,
    /// Number of physical cores with a CPU in `cpus`.
    pub cores: usize,
    /// LLC domains with a CPU in `cpus`.
    pub domains: Vec<DomainId>,
    /// Predicted normalised turnaround time.
    pub ntt: f64,
    /// Seated, or left to the kernel.
    pub mode: SeatMode,
}

/// Reason why no plan could be made.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlanFileError {
    /// The input is not JSON.
    #[error("invalid description of the programs: {0}")]
    Syntax(String),
    /// The input has the wrong structure.
    #[error("invalid description of the programs: {0}")]
    Top(String),
    /// A field of one program is unknown, missing or invalid.
    #[error("program '{program}', \"{field}\": {reason}")]
    Field {
        /// The program's name, or its position if it has none (`#2`).
        program: String,
        /// The field.
        field: String,
        /// The error and the expected value.
        reason: String,
    },
    /// The planner rejects the programs.
    #[error(transparent)]
    Seating(#[from] SeatingError),
}

/// Plans the programs of a JSON text on a machine.
///
/// # Errors
/// Returns an error if `input` is not JSON or is invalid, or if the planner rejects the programs.
/// The error names the program and the field.
pub fn plan_json(topology: &Topology, input: &str) -> Result<PlanOutput, PlanFileError> {
    let requests = read_programs(input)?;
    let seating = seat(topology, &requests)?;
    Ok(output(topology, &requests, &seating))
}

/// Converts a seating to the output of `usher plan`, with the programs in the order of the
/// requests.
pub fn output(topology: &Topology, requests: &[Request], seating: &Seating) -> PlanOutput {
    let seats = seating.plan.seats.iter();
    let seats: BTreeMap<ProgramId, &Seat> = seats.map(|seat| (seat.program, seat)).collect();
    let programs = requests
        .iter()
        .filter_map(|request| Some(program(topology, request, seats.get(&request.id)?)))
        .collect();
    PlanOutput {
        antt: seating.plan.antt.unwrap_or(1.0),
        gap: (seating.gap > 0.0 || !alike(topology)).then_some(seating.gap),
        ended_by_budget: seating.ended_by_budget,
        programs,
    }
}

fn program(topology: &Topology, request: &Request, seat: &Seat) -> ProgramOutput {
    ProgramOutput {
        name: request.name.clone(),
        cpus: seat.cpus.to_string(),
        cores: topology.cores_in(&seat.cpus).len(),
        domains: seat.domains.clone(),
        ntt: seat.ntt.unwrap_or(1.0),
        mode: seat.mode,
    }
}

/// Whether all domains have the same capacity.
fn alike(topology: &Topology) -> bool {
    let capacity = |domain: &Domain| {
        let cores = domain.cores.iter();
        let sum: f64 = cores.map(|&core| topology.cores[core].capacity).sum();
        (sum * 1e9).round()
    };
    let mut all = topology.domains.iter().map(capacity);
    let first = all.next();
    all.all(|capacity| Some(capacity) == first)
}
