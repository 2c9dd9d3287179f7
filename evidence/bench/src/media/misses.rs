// SPDX-License-Identifier: MIT OR Apache-2.0
//! Part `misses`: counts the instructions and the last-level misses of the decoder with valgrind's
//! cachegrind, with two threads and last-level caches of two sizes.
//!
//! Limits: valgrind runs one thread at a time and simulates no prefetcher. The order in which it
//! runs the threads depends on the time, so repeated runs differ slightly.

use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::json;
use usher_report::text;

use super::{Case, Pool, output};
use crate::bars::{Bar, Part, Table};
use crate::cachegrind::{self, CacheShape, CachegrindOutput};

const THREADS: u32 = 2;
const FIRST: CacheShape = CacheShape {
    bytes: 32 << 10,
    ways: 8,
    line_bytes: 64,
};
/// Sizes of the last-level cache in KiB.
const LAST_KIB: [u64; 2] = [512, 2048];
/// Bars: largest permitted ratios to the own pool of instructions and of last-level misses, and to
/// the policy FCFS of last-level misses.
const LIMITS: [f64; 3] = [1.01, 1.0, 0.9];

/// Counts of a run.
#[derive(Debug, Clone, Serialize)]
struct Row {
    case: &'static str,
    last_kib: u64,
    pool: Pool,
    instructions: u64,
    last: u64,
}

/// Runs the decoder under valgrind with each pool, and computes the part.
///
/// # Errors
/// Valgrind is not installed, or a run fails.
pub fn run(cases: &[Case], frames: u32, scratch: &Path) -> Result<Part> {
    let mut rows = Vec::new();
    for case in cases.iter().filter(|case| case.is_decoder) {
        for last_kib in LAST_KIB {
            for pool in Pool::ALL {
                eprintln!("media: {}, {last_kib} KiB, {}", case.label, pool.label());
                rows.push(count(case, last_kib, pool, frames, scratch)?);
            }
        }
    }
    Ok(format(&rows, frames))
}

fn count(case: &Case, last_kib: u64, pool: Pool, frames: u32, scratch: &Path) -> Result<Row> {
    let file = scratch.join("cachegrind.out");
    let last = CacheShape {
        bytes: last_kib << 10,
        ways: 16,
        line_bytes: 64,
    };
    let mut words = cachegrind::words(FIRST, last, &file).to_vec();
    words.insert(1, "--fair-sched=yes".to_owned());
    let mut command = case.command(&words, pool, THREADS, Some(frames), None);
    let doing = format!("{}, {}, under valgrind", case.label, pool.label());
    output(&mut command, &doing)?;
    let written = std::fs::read_to_string(&file).context("reading the counts of cachegrind")?;
    let counts = CachegrindOutput::read(&written)?.all()?;
    Ok(Row {
        case: case.label,
        last_kib,
        pool,
        instructions: counts.instructions,
        last: counts.last,
    })
}

/// Returns the ratios for the bars, in the order of [`LIMITS`], of a case and a size.
fn ratios(rows: &[Row], case: &str, last_kib: u64) -> Option<[f64; 3]> {
    let of = |pool| {
        let mut rows = rows.iter();
        rows.find(|row| row.case == case && row.last_kib == last_kib && row.pool == pool)
    };
    let (own, fcfs, ours) = (of(Pool::Own)?, of(Pool::Fcfs)?, of(Pool::Usher)?);
    let last = ours.last as f64;
    Some([
        ours.instructions as f64 / own.instructions as f64,
        last / own.last as f64,
        last / fcfs.last as f64,
    ])
}

fn format(rows: &[Row], frames: u32) -> Part {
    let mut part = Part::new("misses", "Instructions and last-level misses");
    for row in rows.iter().filter(|row| row.pool == Pool::Own) {
        let ratios = ratios(rows, row.case, row.last_kib);
        let labels = [
            "instructions of usher-tasks / own pool",
            "LL misses of usher-tasks / own pool",
            "LL misses of usher-tasks / FCFS",
        ];
        for (index, (label, limit)) in labels.into_iter().zip(LIMITS).enumerate() {
            let what = format!("{}, {} KiB: {label}", row.case, row.last_kib);
            let ratio = ratios.map(|ratios| ratios[index]);
            part.bars.push(Bar::at_most(what, ratio, limit, "times"));
        }
    }
    let line = |row: &Row| {
        vec![
            row.case.to_owned(),
            row.last_kib.to_string(),
            row.pool.label().to_owned(),
            text::number(row.instructions as f64 / 1e6, 0),
            text::number(row.last as f64 / 1e6, 2),
        ]
    };
    let head = [
        "",
        "LL cache, KiB",
        "pool",
        "instructions, millions",
        "LL misses, millions",
    ];
    part.tables = vec![Table {
        head: head.map(str::to_owned).to_vec(),
        rows: rows.iter().map(line).collect(),
    }];
    part.notes = vec![format!(
        "Counted by valgrind's cachegrind for the first {frames} frames with {THREADS} threads, \
         {}, and last-level caches with 16 ways. Data misses of reads and writes.",
        FIRST.option("D1"),
    )];
    part.raw = json!(rows);
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(pool: Pool, instructions: u64, last: u64) -> Row {
        Row {
            case: "a",
            last_kib: 512,
            pool,
            instructions,
            last,
        }
    }

    #[test]
    fn each_ratio_has_a_bar() {
        let rows = [
            row(Pool::Own, 1000, 100),
            row(Pool::Fcfs, 1000, 105),
            row(Pool::Usher, 1005, 99),
        ];
        let part = format(&rows, 20);
        let met: Vec<bool> = part.bars.iter().map(Bar::is_met).collect();
        assert_eq!(met, [true, true, false]);
        let unmeasured = format(&rows[..2], 20);
        assert!(unmeasured.bars.iter().all(|bar| !bar.is_met()));
    }
}
