// SPDX-License-Identifier: MIT OR Apache-2.0
//! Learns the curve of a program from its ordinary runs. The daemon and the simulator use the same
//! code.
//!
//! 1. [`recall()`] reads the profile of an arriving program from the store, and
//!    [`variation_budget`] the time that the run may lose to deliberate variation.
//! 2. During the run, [`DemandTrace`] adds up the CPU time and the waits of the program,
//!    [`ByteTrace`] its bytes, and [`VariedTime`] the time on narrowed seats.
//! 3. At the end of the run, these values give a [`ProfileSample`] and a
//!    [`FinishedRun`](usher_policy::variation::FinishedRun), which [`ProfileUpdate::write`] merges
//!    into the store.
//!
//! The crate reads no clock and no file other than the store. A [`ByteTrace`] keeps at most 256
//! points, and a [`DemandTrace`] one sum per number of cores. An update takes a few statements of
//! SQL.

mod byte_trace;
mod demand_trace;
mod recall;
mod sample;
mod update;
mod varied_time;

pub use byte_trace::{BYTES_MIN, ByteRate, ByteTrace};
pub use demand_trace::{DemandTrace, RunDemand};
pub use recall::{StoredProfile, recall, variation_budget};
pub use sample::{ProfileSample, WaitBehaviour};
pub use update::ProfileUpdate;
pub use varied_time::VariedTime;
