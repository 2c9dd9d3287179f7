// SPDX-License-Identifier: MIT OR Apache-2.0
//! Profiles of the jobs of a batch system, collected from many nodes (`docs/slurm.md`).
//!
//! 1. A node writes one [`JobRecord`] for each job that has ended: user, name, hash of the script,
//!    requested CPUs, used CPU time, and the profiles of the job's programs.
//! 2. [`JobMerge`] merges records into a [`JobTable`]. A record that was merged before is ignored.
//! 3. [`JobTable::summaries`] computes the useful CPUs of each kind of job ([`useful_cpus`]).
//! 4. [`fn@advice`] writes what a submission script needs, one line per key.
//!
//! Names of users, jobs and nodes are foreign bytes. Records and tables contain them escaped
//! ([`escape`]): they have only printable ASCII characters, without spaces.
//!
//! Records and tables have a limited size. A document is checked as a whole before it is used.

mod advice;
mod record;
mod script;
mod table;
mod text;
mod useful;

pub use advice::{ADVICE_VERSION, advice};
pub use record::{JobProgram, JobRecord, RECORD_BYTES_MAX, RECORD_VERSION, RecordError};
pub use script::{SCRIPT_BYTES_MAX, script_hash};
pub use table::{Added, JobMerge, JobSummary, JobTable, TABLE_BYTES_MAX, TABLE_VERSION};
pub use text::{escape, unescape};
pub use useful::{USEFUL_SHARE, UsefulCpus, useful_cpus};
