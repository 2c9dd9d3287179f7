// SPDX-License-Identifier: MIT OR Apache-2.0
//! The profile store: what earlier runs taught about a program.
//!
//! A profile belongs to a program ([`usher_model::ProgramKey`]) on a kind of
//! machine ([`MachineKey`]) and holds the measured points of its scalability
//! curve, by source of progress, since two sources count in two units. New
//! measurements are merged into old ones by their certainty ([`combine()`]).
//!
//! Arguments are stored without what may be a secret (`redact.rs`), and only the
//! owner may read the file.
//!
//! The store is one SQLite file, shared by any number of processes.
//! [`Store::open_or_memory`] never fails: without a usable file the profiles
//! live in memory and a [`Warning`] says why.

mod aside;
mod combine;
mod error;
mod machine;
mod profile;
mod redact;
mod rows;
mod schema;
mod store;

pub use combine::{Estimate, combine};
pub use error::{StoreError, Warning};
pub use machine::MachineKey;
pub use profile::{Listed, Measured, Measurement, Profile, SOURCE_ERROR_MAX, StoredPoint};
pub use store::Store;
