// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writers and readers of the record files of a load generator: the counter of units, the units
//! begun in each millisecond (bins), and the active phases. The bins cover at most one hour. The
//! counter is written at most once a millisecond. Units after the hour are counted, but have no
//! bin. Numbers are in little-endian order: 8 bytes for the counter, 4 bytes per bin.
//!
//! A counter file that is missing or too short reads as 0. Missing files of bins or phases are
//! errors.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::limits::LoadLimits;

const NS_PER_BIN: u64 = 1_000_000;
/// Maximum number of bins in a file, one per millisecond: one hour.
const BINS_MAX: u64 = 3_600_000;

/// Time of the monotonic clock in nanoseconds, the same in all processes and namespaces.
pub fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// A period in which a load generator was active.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActivePhase {
    /// Time of the first request in the period, in ns of the monotonic clock.
    pub start_ns: u64,
    /// Time of the last request in the period, in ns of the monotonic clock.
    pub end_ns: u64,
}

/// Counts units of work, and writes the count to a file at most once a millisecond.
#[derive(Debug)]
pub struct WorkRecorder {
    counter: Option<File>,
    bins: Option<File>,
    phases: Option<File>,
    epoch_ns: u64,
    total: u64,
    bin: u64,
    in_bin: u32,
    on_since: Option<u64>,
}

fn made(path: Option<&Path>) -> Result<Option<File>> {
    let make =
        |path: &Path| File::create(path).with_context(|| format!("making {}", path.display()));
    path.map(make).transpose()
}

impl WorkRecorder {
    /// Returns a recorder that writes to the files named in `limits`.
    pub fn new(limits: &LoadLimits) -> Result<Self> {
        Ok(Self {
            counter: made(limits.counter.as_deref())?,
            bins: made(limits.bins.as_deref())?,
            phases: made(limits.phases.as_deref())?,
            epoch_ns: limits.epoch_ns,
            total: 0,
            bin: 0,
            in_bin: 0,
            on_since: None,
        })
    }

    /// Number of units counted since the start of the load generator.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Counts `units` units of work that were begun at the time `at_ns`.
    pub fn add(&mut self, at_ns: u64, units: u64) -> Result<()> {
        let bin = at_ns.saturating_sub(self.epoch_ns) / NS_PER_BIN;
        if bin != self.bin {
            self.flush()?;
            self.bin = bin;
            self.in_bin = 0;
        }
        self.total += units;
        self.in_bin = self
            .in_bin
            .saturating_add(units.min(u64::from(u32::MAX)) as u32);
        Ok(())
    }

    /// Writes the counted units to the files.
    pub fn flush(&mut self) -> Result<()> {
        if let Some(file) = &self.counter {
            file.write_all_at(&self.total.to_le_bytes(), 0)?;
        }
        if let Some(file) = self
            .bins
            .as_ref()
            .filter(|_| self.bin < BINS_MAX && self.in_bin > 0)
        {
            file.write_all_at(&self.in_bin.to_le_bytes(), self.bin * 4)?;
        }
        Ok(())
    }

    /// Records the start of an active phase, unless a phase has already started.
    pub fn on(&mut self, at_ns: u64) -> Result<()> {
        if self.on_since.is_none() {
            self.on_since = Some(at_ns);
            self.note(&format!("on {at_ns}\n"))?;
        }
        Ok(())
    }

    /// Records the end of the present active phase.
    pub fn off(&mut self, at_ns: u64) -> Result<()> {
        if self.on_since.take().is_some() {
            self.note(&format!("off {at_ns}\n"))?;
        }
        self.flush()
    }

    fn note(&mut self, line: &str) -> Result<()> {
        if let Some(file) = &mut self.phases {
            file.write_all(line.as_bytes())?;
        }
        Ok(())
    }
}

/// Returns the count in a counter file; 0 if the file does not exist yet.
pub fn read_counter(path: &Path) -> u64 {
    let bytes = std::fs::read(path).unwrap_or_default();
    bytes
        .first_chunk()
        .map_or(0, |eight| u64::from_le_bytes(*eight))
}

/// Returns the number of units begun in each millisecond since the start of the records.
pub fn read_bins(path: &Path) -> Result<Vec<u32>> {
    let bytes = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    let (fours, _) = bytes.as_chunks::<4>();
    Ok(fours.iter().map(|four| u32::from_le_bytes(*four)).collect())
}

/// Returns the phases in a file of phases that have a start and an end.
pub fn read_phases(path: &Path) -> Result<Vec<ActivePhase>> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    let mut phases = Vec::new();
    let mut start = None;
    for line in text.lines() {
        match line.split_once(' ') {
            Some(("on", at)) => start = at.parse().ok(),
            Some(("off", at)) => {
                let ends = start.take().zip(at.parse().ok());
                phases.extend(ends.map(|(start_ns, end_ns)| ActivePhase { start_ns, end_ns }));
            }
            _ => {}
        }
    }
    Ok(phases)
}
