// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads and writes profiles and their points as rows of the SQLite tables, and merges measurements
//! into them.
//!
//! - Of a profile, a merge keeps the latest time, adds one to the number of runs, and replaces all
//!   values that were measured in the run.
//! - Of a point, a merge combines the old and the new estimate (`combine.rs`).
//!
//! Each function executes one or two SQL statements. `llc_bytes` beyond SQLite's signed integers is
//! clamped. A point of an unknown source is read as `None`. Errors are those of SQLite; the caller
//! provides the transaction.

use rusqlite::{Connection, OptionalExtension, Transaction, params};
use usher_model::{CurvePoint, ProgramKey, ProgressSource, StoredCopies};

use crate::combine::{Estimate, combine};
use crate::machine::MachineKey;
use crate::profile::{MeasuredPoint, Measurement, Profile, ProfileEntry, StoredPoint};

pub(crate) const SELECT: &str =
    "SELECT id, executable, arguments, machine, name, spinners, llc_bytes,
                      bandwidth_gbps, at_s, runs, active_wait, cpus_per_copy, program_cpus
     FROM profile";

pub(crate) fn profile_of(row: &rusqlite::Row<'_>) -> rusqlite::Result<(i64, ProfileEntry)> {
    let llc_bytes: Option<i64> = row.get(6)?;
    let listed = ProfileEntry {
        key: ProgramKey {
            executable: row.get(1)?,
            arguments: row.get(2)?,
        },
        machine: MachineKey::from_stored(row.get(3)?),
        profile: Profile {
            name: row.get(4)?,
            points: Vec::new(),
            spinners: row.get(5)?,
            llc_bytes: llc_bytes.and_then(|bytes| u64::try_from(bytes).ok()),
            bandwidth_gbps: row.get(7)?,
            at_s: row.get(8)?,
            runs: row.get(9)?,
            active_wait: row.get(10)?,
            copies: copies_of(row.get(11)?, row.get(12)?),
        },
    };
    Ok((row.get(0)?, listed))
}

/// Returns the copies of an earlier run from the columns of a profile.
fn copies_of(cpus_per_copy: Option<u32>, program_cpus: Option<u32>) -> Option<StoredCopies> {
    let (cpus_per_copy, program_cpus) = cpus_per_copy.zip(program_cpus)?;
    Some(StoredCopies {
        cpus_per_copy,
        program_cpus,
    })
}

pub(crate) fn point_of(row: &rusqlite::Row<'_>) -> rusqlite::Result<Option<StoredPoint>> {
    let source: String = row.get(0)?;
    let point = CurvePoint {
        cores: row.get(1)?,
        rate: row.get(2)?,
        relative_error: row.get(3)?,
        busy_cpus: row.get(4)?,
    };
    let (at_s, runs) = (row.get(5)?, row.get(6)?);
    Ok(source_named(&source).map(|source| StoredPoint {
        point,
        source,
        at_s,
        runs,
    }))
}

pub(crate) fn source_named(name: &str) -> Option<ProgressSource> {
    use ProgressSource::{Bytes, CpuTime, Heartbeat, Instructions, Ompt, Repetition};
    [Heartbeat, Repetition, Ompt, Instructions, Bytes, CpuTime]
        .into_iter()
        .find(|source| source.to_string() == name)
}

pub(crate) fn merge_profile(
    transaction: &Transaction<'_>,
    key: &ProgramKey,
    machine: &MachineKey,
    new: &Measurement,
) -> rusqlite::Result<i64> {
    let sql = "INSERT INTO profile (executable, arguments, machine, name, spinners,
                   llc_bytes, bandwidth_gbps, at_s, runs, active_wait)
               VALUES (?1, ?2, ?3, ?4, coalesce(?5, 0), ?6, ?7, ?8, 1, ?9)
               ON CONFLICT (executable, arguments, machine) DO UPDATE SET
                   name = excluded.name,
                   spinners = coalesce(?5, spinners),
                   llc_bytes = coalesce(?6, llc_bytes),
                   bandwidth_gbps = coalesce(?7, bandwidth_gbps),
                   at_s = max(at_s, excluded.at_s),
                   runs = runs + 1,
                   active_wait = coalesce(?9, active_wait)
               RETURNING id";
    let values = params![
        key.executable,
        key.arguments,
        machine.as_str(),
        new.name,
        new.spinners,
        new.llc_bytes.map(saturating),
        new.bandwidth_gbps,
        new.at_s,
        new.active_wait
    ];
    transaction.query_row(sql, values, |row| row.get(0))
}

/// Converts a number to SQLite's signed 64-bit integer, clamped to its maximum.
pub(crate) fn saturating(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

pub(crate) fn merge_point(
    transaction: &Transaction<'_>,
    profile: i64,
    new: &MeasuredPoint,
    at_s: i64,
) -> rusqlite::Result<()> {
    let sql = "SELECT source, cores, rate, relative_error, busy_cpus, at_s, runs FROM point
               WHERE profile = ?1 AND source = ?2 AND cores = ?3";
    let key = params![profile, new.source.to_string(), new.point.cores];
    let old = transaction.query_row(sql, key, point_of).optional()?;
    let merged = match old.flatten() {
        Some(old) => merged(&old, new, at_s),
        None => StoredPoint {
            point: new.point,
            source: new.source,
            at_s,
            runs: 1,
        },
    };
    write_point(transaction, profile, &merged)
}

fn merged(old: &StoredPoint, new: &MeasuredPoint, at_s: i64) -> StoredPoint {
    let estimate = |point: &CurvePoint| Estimate {
        rate: point.rate,
        relative_error: point.relative_error,
    };
    let age_s = at_s.saturating_sub(old.at_s).max(0) as f64;
    let both = combine(estimate(&old.point), age_s, estimate(&new.point));
    StoredPoint {
        point: CurvePoint {
            cores: new.point.cores,
            rate: both.rate,
            relative_error: both.relative_error,
            busy_cpus: new.point.busy_cpus.or(old.point.busy_cpus),
        },
        source: new.source,
        at_s: at_s.max(old.at_s),
        runs: old.runs.saturating_add(1),
    }
}

pub(crate) fn write_point(
    connection: &Connection,
    profile: i64,
    new: &StoredPoint,
) -> rusqlite::Result<()> {
    let sql = "INSERT OR REPLACE INTO point (profile, source, cores, rate, relative_error,
               busy_cpus, at_s, runs) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
    let p = &new.point;
    let source = new.source.to_string();
    connection.execute(
        sql,
        params![
            profile,
            source,
            p.cores,
            p.rate,
            p.relative_error,
            p.busy_cpus,
            new.at_s,
            new.runs
        ],
    )?;
    Ok(())
}
