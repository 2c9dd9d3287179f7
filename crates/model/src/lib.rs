// SPDX-License-Identifier: MIT OR Apache-2.0
//! Usher's values: what is observed, decided and done, and the machine it is
//! done on.
//!
//! Nothing here reads or changes anything: no file, no clock, no thread. Every
//! other crate speaks in these types, and `policy` knows nothing else.

pub mod action;
pub mod cpuset;
pub mod curve;
pub mod home;
pub mod metering;
mod nesting;
pub mod observation;
pub mod plan;
pub mod procstat;
pub mod program;
mod restrict;
pub mod standing;
mod suggest;
pub mod topology;

pub use action::{Action, Demotion, Event, FailedAction};
pub use cpuset::{CpuId, CpuSet, ParseCpuSetError};
pub use curve::{Curve, CurveError, CurvePoint};
pub use home::{Home, ProcessId};
pub use metering::{
    DiskId, DiskUse, HeldUp, LinkId, LinkUse, MeterSource, Metering, Resource, Usage, Vacancy,
};
pub use nesting::too_deep;
pub use observation::{Observation, PLAN_CONFIDENCE_MIN, ProgramSample, Progress, ProgressSource};
pub use plan::{Decision, Loan, Look, Mode, Note, Plan, Seat};
pub use procstat::ProcStat;
pub use program::{Arrival, Program, ProgramId, ProgramKey, Regulation};
pub use standing::{Contention, Standing};
pub use suggest::with_suggestion;
pub use topology::{
    Cache, Core, CoreId, Cpu, Domain, DomainId, NodeId, NumaNode, Package, PackageId, Topology,
    TopologyError,
};
