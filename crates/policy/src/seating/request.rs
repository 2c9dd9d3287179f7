// SPDX-License-Identifier: MIT OR Apache-2.0
//! The planner's input for one program: curve, weight, spinning threads, memory use and the CPUs
//! that the program is bound or pinned to.

use usher_model::{CpuSet, Curve, ProgramId};

/// The planner's input for one program.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// The program's id.
    pub id: ProgramId,
    /// The program's name. Ties between programs are broken by name, then by id.
    pub name: String,
    /// Progress per second as a function of cores.
    pub curve: Curve,
    /// Weight of the program's NTT in the mean, > 0.
    pub weight: f64,
    /// Threads that busy-wait for one another; 0: none.
    pub spinners: u32,
    /// LLC bytes that the program uses; `None`: unknown.
    pub llc_bytes: Option<u64>,
    /// Memory bandwidth in GB/s that the program uses; `None`: unknown.
    pub bandwidth_gbps: Option<f64>,
    /// CPUs that the program is bound to; `None`: not bound.
    pub bound_to: Option<CpuSet>,
    /// Whether threads of the program pinned themselves to the CPUs in `bound_to`. A pinned program
    /// gets no seat; the other programs get seats on the other CPUs.
    pub pinned: bool,
}
