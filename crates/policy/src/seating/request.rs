// SPDX-License-Identifier: MIT OR Apache-2.0
//! The planner's input for one program: curve, weight, spinning threads, memory use and the CPUs
//! that the program is bound or pinned to.

use usher_model::{CpuSet, Curve, ProgramId};

/// The planner's input for one program.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// The program's id.
    pub id: ProgramId,
    /// The program's name; ties break by name, then by id.
    pub name: String,
    /// Progress per second as a function of cores.
    pub curve: Curve,
    /// Weight of the program's NTT in the mean, > 0.
    pub weight: f64,
    /// Threads that busy-wait for one another; 0: none.
    pub spinners: u32,
    /// LLC bytes that the program uses, where known.
    pub llc_bytes: Option<u64>,
    /// Memory bandwidth that the program uses in GB/s, where known.
    pub bandwidth_gbps: Option<f64>,
    /// CPUs that the program is bound to, if it is.
    pub bound_to: Option<CpuSet>,
    /// Whether the program's own threads are pinned to these CPUs: it gets no seat, and the others
    /// are seated on the rest.
    pub pinned: bool,
}
