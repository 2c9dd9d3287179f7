// SPDX-License-Identifier: MIT OR Apache-2.0
//! The file of advice that `job_submit.lua` reads: one line per key, with fields separated by tabs.
//!
//! ```text
//! usher-advice  1
//! job           USER    NAME     USEFUL  MEASURED_TO  RUNS
//! script        HASH    USER     USEFUL  MEASURED_TO  RUNS
//! exe           NAME    USER     USEFUL  MEASURED_TO  RUNS
//! ```
//!
//! Names are escaped, so that no field contains a tab or a line end. The reader needs no parser of
//! a language, and executes nothing.
//!
//! Each key contains a user, because the runs of a user must not change the messages and jobs of
//! another user. `NAME` of `exe` is the name of the executable without its directory.
//!
//! The advice for a key is the largest one of all kinds of machines, because the submission does
//! not know the machine of the job. A key gets no line if the useful CPUs of one of its kinds of
//! jobs are unknown.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::table::JobTable;
use super::text::escape;
use super::useful::UsefulCpus;

/// The version of the format.
pub const ADVICE_VERSION: u32 = 1;

/// Returns the content of the file of advice.
pub fn advice(table: &JobTable) -> String {
    let mut keys: BTreeMap<String, (Option<UsefulCpus>, u32)> = BTreeMap::new();
    let mut add = |key: String, useful: Option<UsefulCpus>, runs: u32| {
        let both = |old: Option<UsefulCpus>| Some(old?.and(useful?));
        keys.entry(key)
            .and_modify(|old| *old = (both(old.0), old.1.saturating_add(runs)))
            .or_insert((useful, runs));
    };
    for job in table.summaries() {
        add(
            format!("job\t{}\t{}", job.user, job.name),
            job.useful,
            job.runs,
        );
        if let Some(script) = &job.script {
            add(
                format!("script\t{script}\t{}", job.user),
                job.useful,
                job.runs,
            );
        }
        // With several programs, the job's useful CPUs are not those of each program.
        if let [program] = &job.programs[..] {
            let name = escape(program.as_bytes());
            add(format!("exe\t{name}\t{}", job.user), job.useful, job.runs);
        }
    }
    let mut text = format!("usher-advice\t{ADVICE_VERSION}\n");
    for (key, (useful, runs)) in keys {
        let Some(cpus) = useful else { continue };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{key}\t{}\t{}\t{runs}", cpus.useful, cpus.measured_to);
    }
    text
}
