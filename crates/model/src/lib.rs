// SPDX-License-Identifier: MIT OR Apache-2.0
//! Plain values shared by all of Usher: observations, decisions, actions, and the machine's
//! topology.
//!
//! This crate reads no file and no clock, and starts no thread. All other crates exchange the types
//! of this crate. `model` is the only crate of Usher that crate `policy` depends on.

mod abstention;
pub mod action;
pub mod background_state;
pub mod calibration;
pub mod child_list;
pub mod cpuset;
pub mod curve;
mod error_text;
pub mod metering;
mod nesting;
pub mod observation;
pub mod plan;
pub mod process_tree;
pub mod procstat;
pub mod program;
mod restrict;
mod suggest;
pub mod topology;
pub mod tree_process;

pub use abstention::Abstention;
pub use action::{Action, Demotion, Event, FailedAction};
pub use background_state::{BackgroundState, Contention};
pub use calibration::{SOURCE_ERROR_MAX, SourceErrors, confidence_of_error};
pub use child_list::{ChildList, read_children};
pub use cpuset::{CpuId, CpuSet, ParseCpuSetError};
pub use curve::{Curve, CurveError, CurvePoint, cores_text};
pub use error_text::without_error_number;
pub use metering::{
    BlockedProcess, DiskId, DiskUse, IdleCpus, LinkId, LinkUse, MeterSource, Metering, Resource,
    Usage,
};
pub use nesting::nesting_error;
pub use observation::{
    DemandReading, Observation, PLAN_CONFIDENCE_MIN, ProgramSample, Progress, ProgressSource,
};
pub use plan::{Decision, Loan, Note, NoteTopic, Plan, SampleScope, Seat, SeatMode};
pub use process_tree::{ProcessId, ProcessTree};
pub use procstat::ProcStat;
pub use program::{
    Arrival, ProfileMatch, Program, ProgramId, ProgramKey, Regulation, StoredCopies,
    VariationBudget,
};
pub use suggest::{closest_name, with_suggestion};
pub use topology::{
    Cache, Core, CoreId, Cpu, Domain, DomainId, InconsistentTopology, NodeId, NumaNode, Package,
    PackageId, Topology,
};
pub use tree_process::TreeProcess;
