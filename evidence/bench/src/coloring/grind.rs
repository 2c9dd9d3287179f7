// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counts the cache misses of walks over the run queue with valgrind's cachegrind, which simulates
//! the first-level and second-level caches of this machine.
//!
//! 1. The sizes of the caches of CPU 0 are read from sysfs. Cachegrind's last-level cache gets the
//!    size of CPU 0's second-level cache.
//! 2. `usher-bench coloring-run` executes a workload with one thread under cachegrind.
//! 3. The counts of the function [`FUNCTION`] and of the whole program are read from cachegrind's
//!    file.
//!
//! Limits: cachegrind simulates no prefetching. It simulates caches by virtual addresses, which
//! select the same cache sets as physical addresses only within a huge page.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use usher_coloring::machine::{Colors, WorkloadKind};

use super::cpus::RunTotals;
use crate::cachegrind::{self, CacheShape, CachegrindOutput, Counts};

/// Name of the function to count the misses of.
const FUNCTION: &str = "coloring::region::walk_queue";

/// Reads the sizes of the first-level data cache and of the second-level cache of CPU 0 from sysfs.
pub fn shapes(sys: &Path) -> Result<(CacheShape, CacheShape)> {
    let dir = sys.join("devices/system/cpu/cpu0/cache");
    let shape = |level: &str, kind: &[&str]| -> Result<CacheShape> {
        for index in 0..8 {
            let dir = dir.join(format!("index{index}"));
            let text = |name: &str| fs::read_to_string(dir.join(name)).unwrap_or_default();
            let is = text("level").trim() == level && kind.contains(&text("type").trim());
            if is {
                return shape_of(&dir);
            }
        }
        anyhow::bail!("{} has no data cache of level {level}", dir.display())
    };
    Ok((
        shape("1", &["Data", "Unified"])?,
        shape("2", &["Data", "Unified"])?,
    ))
}

fn shape_of(dir: &Path) -> Result<CacheShape> {
    let number = |name: &str| -> Result<u64> {
        let path = dir.join(name);
        let text =
            fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let text = text.trim();
        let (digits, unit) = match text.strip_suffix('K') {
            Some(digits) => (digits, 1024),
            None => (text, 1),
        };
        let value: u64 = digits.parse().with_context(|| {
            format!(
                "the content of {} is not a number: {text:?}",
                path.display()
            )
        })?;
        Ok(value * unit)
    };
    Ok(CacheShape {
        bytes: number("size")?,
        ways: number("ways_of_associativity")?,
        line_bytes: number("coherency_line_size")?,
    })
}

/// Cachegrind's counts of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CachegrindRun {
    /// The workload.
    pub load: String,
    /// Positions of the task structures in their blocks.
    pub colors: String,
    /// Counts of the run itself, such as operations and decisions.
    pub tally: RunTotals,
    /// Counts of the function that walks the run queue.
    pub walk: Misses,
    /// Counts of the whole program, including its start.
    pub all: Misses,
}

/// Reads and writes of data, and their misses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Misses {
    /// Reads and writes.
    pub accesses: u64,
    /// Misses in the first level.
    pub first: u64,
    /// Misses in both levels.
    pub second: u64,
}

impl From<Counts> for Misses {
    fn from(counts: Counts) -> Self {
        Self {
            accesses: counts.accesses,
            first: counts.first,
            second: counts.last,
        }
    }
}

/// Runs `operations` operations of a workload under cachegrind.
pub fn run(
    load: WorkloadKind,
    colors: Colors,
    operations: u64,
    scratch: &Path,
) -> Result<CachegrindRun> {
    let (first, second) = shapes(Path::new("/sys"))?;
    let own = std::env::current_exe().context("finding the path of this program")?;
    let out: PathBuf = scratch.join(format!("cachegrind.{}.{}", load.name(), variant(colors)));
    let [valgrind, words @ ..] = cachegrind::words(first, second, &out);
    let mut command = Command::new(valgrind);
    command
        .args(words)
        .arg(own)
        .args([
            "coloring-run",
            "--load",
            load.name(),
            "--colors",
            variant(colors),
        ])
        .args(["--operations", &operations.to_string()]);
    let output = command
        .output()
        .context("running valgrind (scripts/setup bench installs it)")?;
    ensure!(
        output.status.success(),
        "valgrind failed: {}",
        String::from_utf8_lossy(&output.stderr)
            .lines()
            .next_back()
            .unwrap_or("no message")
    );
    let tally = serde_json::from_slice(&output.stdout).context("the counts of a run")?;
    let text = fs::read_to_string(&out).with_context(|| format!("reading {}", out.display()))?;
    let (walk, all) = misses(&text)?;
    Ok(CachegrindRun {
        load: load.name().to_owned(),
        colors: colors.name(),
        tally,
        walk,
        all,
    })
}

/// Returns the name of `colors` on the command line of a run.
pub fn variant(colors: Colors) -> &'static str {
    match colors {
        Colors::Plain => "plain",
        Colors::Modulo(_) => "modulo",
        Colors::Colored(_) => "ours",
    }
}

/// Reads the counts of [`FUNCTION`] and of the whole program from the text of an output file of
/// cachegrind.
fn misses(text: &str) -> Result<(Misses, Misses)> {
    let counted = CachegrindOutput::read(text)?;
    let walk = counted.of(FUNCTION);
    let walk = walk.with_context(|| {
        format!(
            "the output of cachegrind has no function {FUNCTION}; perhaps the program was stripped"
        )
    })?;
    Ok((walk.into(), counted.all()?.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misses_of_the_walk_stand_beside_all() {
        let text = "\
events: Ir I1mr ILmr Dr D1mr DLmr Dw D1mw DLmw
fn=usher_bench::coloring::region::walk_queue
20 100 1 1 50 40 30 2 1 0
summary: 120 1 1 63 52 41 12 11 10
";
        let (walk, all) = misses(text).unwrap();
        let of = |accesses, first, second| Misses {
            accesses,
            first,
            second,
        };
        assert_eq!((walk, all), (of(52, 41, 30), of(75, 63, 51)));
        let none = text.replace("walk_queue", "gone");
        assert!(misses(&none).unwrap_err().to_string().contains("stripped"));
    }

    #[test]
    fn caches_come_from_sysfs() {
        let sys = tempfile::tempdir().unwrap();
        let cache = sys.path().join("devices/system/cpu/cpu0/cache");
        let files = [
            ("index0", ["1", "Data", "32K", "8", "64"]),
            ("index1", ["1", "Instruction", "64K", "4", "64"]),
            ("index2", ["2", "Unified", "1024K", "8", "64"]),
        ];
        let names = [
            "level",
            "type",
            "size",
            "ways_of_associativity",
            "coherency_line_size",
        ];
        for (index, values) in files {
            fs::create_dir_all(cache.join(index)).unwrap();
            for (name, value) in names.iter().zip(values) {
                fs::write(cache.join(index).join(name), format!("{value}\n")).unwrap();
            }
        }
        let (first, second) = shapes(sys.path()).unwrap();
        assert_eq!(first.option("D1"), "--D1=32768,8,64");
        assert_eq!(second.option("LL"), "--LL=1048576,8,64");
        fs::remove_dir_all(cache.join("index2")).unwrap();
        assert!(
            shapes(sys.path())
                .unwrap_err()
                .to_string()
                .contains("level 2")
        );
    }
}
