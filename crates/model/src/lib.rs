// SPDX-License-Identifier: MIT OR Apache-2.0
//! Plain values shared by all of Usher: observations, decisions, actions, and the machine's
//! topology.
//!
//! This crate reads no file and no clock, and starts no thread. All other crates exchange the types
//! of this crate. `model` is the only crate of Usher that crate `policy` depends on.
//!
//! The feature `full`, which is on by default, selects all modules. Without it, the crate contains
//! only [`CpuSet`] and [`Topology`], without serialisation, and has a single dependency. The library
//! `tasks` uses the crate in this form.

#[cfg(feature = "full")]
mod abstention;
#[cfg(feature = "full")]
pub mod action;
#[cfg(feature = "full")]
pub mod background_state;
#[cfg(feature = "full")]
pub mod calibration;
#[cfg(feature = "full")]
pub mod child_list;
pub mod cpuset;
#[cfg(feature = "full")]
pub mod curve;
#[cfg(feature = "full")]
mod error_text;
#[cfg(feature = "full")]
pub mod metering;
#[cfg(feature = "full")]
mod nesting;
#[cfg(feature = "full")]
pub mod observation;
#[cfg(feature = "full")]
pub mod plan;
#[cfg(feature = "full")]
pub mod process_tree;
#[cfg(feature = "full")]
pub mod procstat;
#[cfg(feature = "full")]
pub mod program;
mod restrict;
#[cfg(feature = "full")]
mod suggest;
pub mod topology;
#[cfg(feature = "full")]
pub mod tree_process;

#[cfg(feature = "full")]
pub use abstention::Abstention;
#[cfg(feature = "full")]
pub use action::{Action, Demotion, Event, FailedAction};
#[cfg(feature = "full")]
pub use background_state::{BackgroundState, Contention};
#[cfg(feature = "full")]
pub use calibration::{SOURCE_ERROR_MAX, SourceErrors, confidence_of_error};
#[cfg(feature = "full")]
pub use child_list::{ChildList, read_children};
pub use cpuset::{CpuId, CpuSet, ParseCpuSetError};
#[cfg(feature = "full")]
pub use curve::{Curve, CurveError, CurvePoint, cores_text};
#[cfg(feature = "full")]
pub use error_text::without_error_number;
#[cfg(feature = "full")]
pub use metering::{
    BlockedProcess, DiskId, DiskUse, IdleCpus, LinkId, LinkUse, MeterSource, Metering, Resource,
    Usage,
};
#[cfg(feature = "full")]
pub use nesting::nesting_error;
#[cfg(feature = "full")]
pub use observation::{
    DemandReading, Observation, PLAN_CONFIDENCE_MIN, ProgramSample, Progress, ProgressSource,
};
#[cfg(feature = "full")]
pub use plan::{Decision, Loan, Note, NoteTopic, Plan, SampleScope, Seat, SeatMode};
#[cfg(feature = "full")]
pub use process_tree::{ProcessId, ProcessTree};
#[cfg(feature = "full")]
pub use procstat::ProcStat;
#[cfg(feature = "full")]
pub use program::{
    Arrival, ProfileMatch, Program, ProgramId, ProgramKey, Regulation, StoredCopies,
    VariationBudget,
};
#[cfg(feature = "full")]
pub use suggest::{closest_name, with_suggestion};
pub use topology::{
    Cache, Core, CoreId, Cpu, Domain, DomainId, InconsistentTopology, NodeId, NumaNode, Package,
    PackageId, Topology,
};
#[cfg(feature = "full")]
pub use tree_process::TreeProcess;
