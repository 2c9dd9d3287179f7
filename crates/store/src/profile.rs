// SPDX-License-Identifier: MIT OR Apache-2.0
//! The contents of a profile: the measured points of a program's scalability curve by source of
//! progress, how its threads wait, and its use of caches and memory.
//!
//! [`Profile::curve`] selects the curve for planning: the source with the most core counts, and
//! among equal sources the most accurate one. [`Profile::misleading_sources`] detects sources of
//! progress with speed-ups that differ by more than 10 % ([`SOURCE_ERROR_MAX`]) from whole
//! repetitions of the program. The cost is n log n for n points. Rates are progress per second,
//! relative errors fractions.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use usher_model::{Curve, CurvePoint, ProgramKey, ProgressSource, SOURCE_ERROR_MAX, StoredCopies};

use crate::machine::MachineKey;

/// One rate, measured in one run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MeasuredPoint {
    /// Cores by capacity, rate, relative error of the rate, and busy CPUs.
    pub point: CurvePoint,
    /// Unit of the rate.
    pub source: ProgressSource,
}

/// Measurements of one program in one run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Measurement {
    /// Name of the program for display.
    pub name: String,
    /// Time in seconds since 1970; the store reads no clock.
    pub at_s: i64,
    /// The measured rates.
    pub points: Vec<MeasuredPoint>,
    /// Number of threads that busy-wait; `None` if this was not measured in this run.
    pub spinners: Option<u32>,
    /// Whether the program busy-waits in a runtime that decides at its start whether to busy-wait
    /// or to sleep; `None` if this was not measured in this run.
    pub active_wait: Option<bool>,
    /// LLC bytes that the program uses when alone; `None` if this was not measured in this run.
    pub llc_bytes: Option<u64>,
    /// Memory bandwidth in GB/s when the program is alone; `None` if this was not measured in this
    /// run.
    pub bandwidth_gbps: Option<f64>,
}

/// The ordinary and the varied runs of a program. The store keeps the values and does not interpret
/// them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct VariationRecord {
    /// Number of runs.
    pub runs: u32,
    /// Mean duration of the ordinary runs, in seconds.
    pub usual_seconds: f64,
    /// Mean number of CPUs that the program would have used alone.
    pub usual_cpus: f64,
    /// Time that varied runs may still lose, in seconds.
    pub credit_seconds: f64,
}

/// A point of a stored curve, merged from all runs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct StoredPoint {
    /// Cores, rate, relative error, busy CPUs.
    pub point: CurvePoint,
    /// Unit of the rate.
    pub source: ProgressSource,
    /// Time of the last measurement, in seconds since 1970.
    pub at_s: i64,
    /// Number of merged measurements.
    pub runs: u32,
}

/// A program's profile on one kind of machine.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Profile {
    /// Name of the program at the last measurement.
    pub name: String,
    /// The points, ordered by source and then by rising number of cores.
    pub points: Vec<StoredPoint>,
    /// Number of threads that busy-wait; 0 if none are known.
    pub spinners: u32,
    /// Whether the program busy-waits in a runtime that decides at its start whether to busy-wait
    /// or to sleep; `None` if unknown.
    pub active_wait: Option<bool>,
    /// LLC bytes that the program uses when alone; `None` if unknown.
    pub llc_bytes: Option<u64>,
    /// Memory bandwidth in GB/s when the program is alone; `None` if unknown.
    pub bandwidth_gbps: Option<f64>,
    /// Time of the last measurement, in seconds since 1970.
    pub at_s: i64,
    /// Number of runs with a measurement; 0 if the profile contains only `copies`.
    pub runs: u32,
    /// The copies that launchers inside the program started in the last run with copies; `None` if
    /// no copies are known.
    pub copies: Option<StoredCopies>,
}

impl Profile {
    /// Returns the curve for planning. Among the sources that are permitted for planning, this
    /// function selects the source with points for the most core counts; among several such
    /// sources, it selects the most accurate source. Returns `None` if no permitted source has a
    /// point.
    pub fn curve(&self) -> Option<(Curve, ProgressSource)> {
        let mut by_source: BTreeMap<ProgressSource, Vec<CurvePoint>> = BTreeMap::new();
        for stored in self.points.iter().filter(|p| p.source.may_plan()) {
            by_source
                .entry(stored.source)
                .or_default()
                .push(stored.point);
        }
        let most = by_source.values().map(Vec::len).max()?;
        let (source, points) = by_source.into_iter().find(|(_, p)| p.len() == most)?;
        Some((Curve::new(points).ok()?, source))
    }

    /// Returns whether earlier runs have points of this source, which agree with whole repetitions.
    pub fn trusts(&self, source: ProgressSource) -> bool {
        let has_points = self.points.iter().any(|p| p.source == source);
        has_points && !self.misleading_sources().contains(&source)
    }

    /// Returns the sources that must not be used for planning this program, because their speed-ups
    /// are wrong. For such a source, the speed-up between two core counts differs from the speed-up
    /// of whole repetitions by more than [`SOURCE_ERROR_MAX`].
    pub fn misleading_sources(&self) -> Vec<ProgressSource> {
        let rates = |source| {
            let points = self.points.iter().filter(move |p| p.source == source);
            points.map(|p| (p.point.cores.to_bits(), p.point.rate))
        };
        let truth: BTreeMap<u64, f64> = rates(ProgressSource::Repetition).collect();
        let misses = |source: &ProgressSource| {
            let against =
                rates(*source).filter_map(|(cores, rate)| Some(rate / truth.get(&cores)?));
            let (least, most) = against.fold((f64::INFINITY, 0.0_f64), |(lo, hi), r| {
                (lo.min(r), hi.max(r))
            });
            most > least * (1.0 + SOURCE_ERROR_MAX)
        };
        let sources: BTreeSet<_> = self.points.iter().map(|p| p.source).collect();
        sources.into_iter().filter(misses).collect()
    }
}

/// A profile with its key.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProfileEntry {
    /// The program.
    pub key: ProgramKey,
    /// The kind of machine.
    pub machine: MachineKey,
    /// The profile.
    pub profile: Profile,
}

impl ProfileEntry {
    /// Returns the identifier of the profile: eight hexadecimal digits, derived from the key and
    /// the kind of machine. The identifiers of two profiles differ with high probability.
    pub fn id(&self) -> String {
        let ProgramKey {
            executable,
            arguments,
        } = &self.key;
        let machine = self.machine.as_str();
        let text = format!("{executable}\0{arguments}\0{machine}");
        let hash = blake3::hash(text.as_bytes());
        hash.to_hex().as_str()[..8].to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(points: &[(ProgressSource, f64, f64)]) -> Profile {
        let point = |&(source, cores, rate)| StoredPoint {
            point: CurvePoint {
                cores,
                rate,
                relative_error: 0.01,
                busy_cpus: None,
            },
            source,
            at_s: 0,
            runs: 1,
        };
        Profile {
            name: "p".to_owned(),
            points: points.iter().map(point).collect(),
            spinners: 0,
            active_wait: None,
            llc_bytes: None,
            bandwidth_gbps: None,
            at_s: 0,
            runs: 1,
            copies: None,
        }
    }

    #[test]
    fn rejects_a_source_that_implies_another_speed_up() {
        use ProgressSource::{Heartbeat, Instructions, Repetition};
        let known = profile(&[
            (Repetition, 1.0, 0.1),
            (Repetition, 2.0, 0.15),
            // Heartbeats have another unit than repetitions, but their speed-up differs only by 4
            // %.
            (Heartbeat, 1.0, 700.0),
            (Heartbeat, 2.0, 1_090.0),
            // The instruction count also rises while threads busy-wait. The apparent speed-up is
            // 1.9 instead of 1.5.
            (Instructions, 1.0, 1e9),
            (Instructions, 2.0, 1.9e9),
        ]);
        assert_eq!(known.misleading_sources(), [Instructions]);
    }

    #[test]
    fn a_single_common_point_proves_no_error() {
        use ProgressSource::{Heartbeat, Repetition};
        let known = profile(&[
            (Repetition, 1.0, 0.1),
            (Heartbeat, 1.0, 7.0),
            (Heartbeat, 2.0, 9.0),
        ]);
        assert_eq!(known.misleading_sources(), []);
    }
}
