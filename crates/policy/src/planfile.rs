// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `usher plan` reads and writes: the planner alone, as JSON.
//!
//! In: `{"programs":[{"name":"canneal","curve":{"6":1.9,"12":2.4}}, …]}`. A
//! curve maps a core count to progress a second in any one unit for that
//! program, at two counts or more. Optional: `llc_bytes`, `bandwidth_gbps`,
//! `weight` (1 unless given), `spinners` (threads that busy-wait), `cpu_quota`
//! (CPUs' worth of time that the program may use at most). Unknown fields are errors: a slip in an optional name would otherwise be ignored.
//!
//! Out: `{"antt":1.23,"programs":[{"name":"canneal","cpus":"0-11","cores":12,
//! "domains":[0,1],"ntt":1.1,"mode":"seated"}, …]}`, programs in the order of
//! the input, and `"gap"` (ANTT less the least possible is at most that) on
//! machines whose domains are not all alike.

mod json;
mod read;

use serde::{Deserialize, Serialize};
use usher_model::{DomainId, Mode, ProgramId, Topology};

use crate::seating::{Request, Seating, SeatingError, seat};

pub use read::read_programs;

/// The answer of `usher plan`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanOutput {
    /// Predicted average normalised turnaround time.
    pub antt: f64,
    /// Upper bound of what that is above the least possible; only on machines
    /// whose domains are not all alike.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gap: Option<f64>,
    /// One entry a program, in the order of the input.
    pub programs: Vec<ProgramOutput>,
}

/// One program's place.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProgramOutput {
    /// Its name.
    pub name: String,
    /// Its logical CPUs as a list: `0-11`.
    pub cpus: String,
    /// Physical cores among them.
    pub cores: usize,
    /// LLC domains that they lie in.
    pub domains: Vec<DomainId>,
    /// Predicted normalised turnaround time.
    pub ntt: f64,
    /// Seated, or left to the kernel.
    pub mode: Mode,
}

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlanFileError {
    /// It is no JSON.
    #[error("reading the programs: {0}")]
    Syntax(String),
    /// The whole has the wrong shape.
    #[error("reading the programs: {0}")]
    Top(String),
    /// A field of one program that is not known, missing or wrong.
    #[error("program '{program}', \"{field}\": {reason}")]
    Field {
        /// Its name, or its place where it has none (`#2`).
        program: String,
        /// Which field.
        field: String,
        /// What is wrong and what is expected.
        reason: String,
    },
    /// The planner refuses.
    #[error(transparent)]
    Seating(#[from] SeatingError),
}

/// Plans the programs of a JSON text on a machine.
///
/// # Errors
/// Input that is no JSON or makes no sense; the error names the program and
/// the field.
pub fn plan_json(topology: &Topology, input: &str) -> Result<PlanOutput, PlanFileError> {
    let requests = read_programs(input)?;
    let seating = seat(topology, &requests)?;
    Ok(output(topology, &requests, &seating))
}

/// A seating as `usher plan` writes it, programs in the order of the requests.
pub fn output(topology: &Topology, requests: &[Request], seating: &Seating) -> PlanOutput {
    let programs = requests
        .iter()
        .filter_map(|request| program(topology, request, seating))
        .collect();
    PlanOutput {
        antt: seating.plan.antt.unwrap_or(1.0),
        gap: (seating.gap > 0.0 || !alike(topology)).then_some(seating.gap),
        programs,
    }
}

fn program(topology: &Topology, request: &Request, seating: &Seating) -> Option<ProgramOutput> {
    let mine = |id: ProgramId| id == request.id;
    let seat = seating.plan.seats.iter().find(|seat| mine(seat.program))?;
    Some(ProgramOutput {
        name: request.name.clone(),
        cpus: seat.cpus.to_string(),
        cores: topology.cores_in(&seat.cpus).len(),
        domains: seat.domains.clone(),
        ntt: seat.ntt.unwrap_or(1.0),
        mode: seat.mode,
    })
}

/// Whether all domains have the same capacity.
fn alike(topology: &Topology) -> bool {
    let capacity = |cpus| (topology.capacity_of(cpus) * 1e9).round();
    let mut all = topology.domains.iter().map(|domain| capacity(&domain.cpus));
    let first = all.next();
    all.all(|capacity| Some(capacity) == first)
}
