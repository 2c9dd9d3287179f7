// SPDX-License-Identifier: MIT OR Apache-2.0
//! The profile store: measurements of programs from earlier runs.
//!
//! A profile belongs to a program ([`usher_model::ProgramKey`]) on a kind of machine
//! ([`MachineKey`]). A profile contains the measured points of the scalability curve, separately
//! for each source of progress, because each source counts in a unit of its own. New measurements
//! are merged into old ones, weighted by their errors ([`combine()`]).
//!
//! Arguments are stored without possible secrets (`redact.rs`), and only the owner may read the
//! file.
//!
//! Module [`jobs`] merges the profiles of the jobs of many nodes.
//!
//! The store also contains the calibration of the sources of progress on each kind of machine
//! ([`Calibration`]).
//!
//! The store is one SQLite file, which any number of processes may share. If the file cannot be
//! used, [`Store::open_or_memory`] keeps the profiles in memory, and returns a [`Warning`] with the
//! reason.

mod calibration;
mod combine;
mod copies;
mod damaged;
mod error;
pub mod exchange;
pub mod jobs;
mod machine;
mod profile;
mod reading;
mod redact;
mod rows;
mod schema;
mod similar;
mod space;
mod store;

pub use calibration::Calibration;
pub use combine::{Estimate, combine};
pub use error::{StoreError, Warning};
pub use machine::MachineKey;
pub use profile::{
    MeasuredPoint, Measurement, Profile, ProfileEntry, StoredPoint, VariationRecord,
};
pub use reading::ReadableStore;
pub use store::Store;
