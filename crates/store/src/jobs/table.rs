// SPDX-License-Identifier: MIT OR Apache-2.0
//! The merged table of jobs. The result does not depend on the order in which records are added,
//! as long as no limit is reached.
//!
//! - A record is added once: the table contains the identities of the merged records.
//! - A profile of a node contains all earlier runs on that node. The table therefore keeps only the
//!   latest profile of each node, and merges the profiles of different nodes when they are read
//!   ([`crate::combine()`]). Only profiles of the same program on the same kind of machine are
//!   merged.
//! - Jobs of the same user, name, script, kind of machine and request are one entry.
//!
//! Beyond a limit, the oldest entries are dropped. Records that are older than a dropped identity
//! are rejected, because they may have been merged before.

mod merge;

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use usher_model::{Curve, CurvePoint, ProgressSource};

pub use self::merge::JobMerge;
use super::record::{JobRecord, RecordError, check_header, invalid_json};
use super::useful::{UsefulCpus, useful_cpus};
use crate::combine::{Estimate, combine};
use crate::exchange::ExchangedProfile;
use crate::profile::{Profile, ProfileEntry, StoredPoint};

/// The value of the field `format`.
const FORMAT: &str = "usher-job-table";
/// The version of the format.
pub const TABLE_VERSION: u32 = 1;
/// Maximum length of a table in bytes.
pub const TABLE_BYTES_MAX: u64 = 256 << 20;

/// Maximum numbers of entries of a table.
#[derive(Debug, Clone, Copy)]
struct Limits {
    /// Identities of merged records.
    seen: usize,
    /// Kinds of jobs.
    jobs: usize,
    /// Profiles of nodes.
    profiles: usize,
}

impl Limits {
    const OF_TABLE: Self = Self {
        seen: 500_000,
        jobs: 50_000,
        profiles: 50_000,
    };

    fn doubled(self) -> Self {
        Self {
            seen: 2 * self.seen,
            jobs: 2 * self.jobs,
            profiles: 2 * self.profiles,
        }
    }
}

/// The merged jobs of a cluster.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JobTable {
    /// Always `usher-job-table`.
    format: String,
    /// The version of the format.
    version: u32,
    /// End of the latest job with a dropped identity, in seconds since 1970; 0: none.
    horizon_s: i64,
    /// Identities of the merged records, with the end of each job.
    seen: BTreeMap<String, i64>,
    /// The kinds of jobs.
    jobs: Vec<JobGroup>,
    /// The latest profile of each program on each node.
    profiles: Vec<NodeProfile>,
}

/// Jobs of the same user, name, script, kind of machine and request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct JobGroup {
    user: String,
    name: String,
    script: Option<String>,
    machine: String,
    cpus_per_core: u32,
    requested_cpus: u32,
    /// Number of merged records.
    runs: u32,
    elapsed_s: f64,
    /// Used CPU time of the records that contain it, and the duration of these records.
    used_cpu_s: f64,
    used_elapsed_s: f64,
    last_at_s: i64,
    /// End of the latest job with programs; `unmeasured` and `programs` are those of this job.
    programs_at_s: i64,
    unmeasured: u32,
    /// Identities of the programs: hashes of executable, arguments and machine.
    programs: BTreeSet<String>,
}

/// What the jobs of an entry have in common.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct JobKey {
    user: String,
    name: String,
    script: Option<String>,
    machine: String,
    requested_cpus: u32,
    cpus_per_core: u32,
}

/// A profile and the node that measured it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct NodeProfile {
    node: String,
    profile: ExchangedProfile,
}

/// The effect of adding a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Added {
    /// The record was merged.
    New,
    /// The record had been merged before.
    Known,
    /// The record is older than the oldest identity that the table still contains.
    TooOld,
}

/// A kind of job with its useful CPUs.
#[derive(Debug, Clone, PartialEq)]
pub struct JobSummary {
    /// Name of the user, escaped.
    pub user: String,
    /// Name of the job, escaped.
    pub name: String,
    /// Hash of the job's script.
    pub script: Option<String>,
    /// The kind of machine.
    pub machine: String,
    /// Number of merged records.
    pub runs: u32,
    /// Number of requested CPUs.
    pub requested_cpus: u32,
    /// Mean number of CPUs that the job kept busy; `None` if unknown.
    pub used_cpus: Option<f64>,
    /// Useful CPUs; `None` if the curve of a program is unknown.
    pub useful: Option<UsefulCpus>,
    /// Sum of the durations in seconds.
    pub elapsed_s: f64,
    /// Names of the programs with a profile.
    pub programs: Vec<String>,
}

impl JobSummary {
    /// Returns the requested CPU time in seconds.
    pub fn requested_cpu_s(&self) -> f64 {
        self.elapsed_s * f64::from(self.requested_cpus)
    }

    /// Returns the CPU time in seconds of the requested CPUs beyond the useful CPUs.
    pub fn lost_cpu_s(&self) -> f64 {
        let useful = self
            .useful
            .filter(|cpus| cpus.is_less_than(self.requested_cpus));
        let lost = useful.map_or(0, |cpus| self.requested_cpus - cpus.useful);
        self.elapsed_s * f64::from(lost)
    }
}

impl JobTable {
    /// Returns an empty table.
    pub fn new() -> Self {
        Self {
            format: FORMAT.to_owned(),
            version: TABLE_VERSION,
            ..Self::default()
        }
    }

    /// Reads a table.
    ///
    /// # Errors
    /// The text is no table of this version.
    pub fn read(text: &[u8]) -> Result<Self, RecordError> {
        check_header(text, FORMAT, TABLE_VERSION)?;
        serde_json::from_slice(text).map_err(invalid_json)
    }

    /// Returns the table as JSON.
    ///
    /// # Errors
    /// A value cannot be written.
    pub fn write(&self) -> Result<String, RecordError> {
        let text = serde_json::to_string(self).map_err(invalid_json)?;
        Ok(text + "\n")
    }

    /// Merges one record, as [`JobMerge::add`] does for many.
    pub fn add(&mut self, record: &JobRecord) -> Added {
        JobMerge::new(self).add(record)
    }

    /// Drops the oldest entries beyond the limits, and sorts the table. Returns the number of
    /// dropped entries.
    pub fn limit(&mut self) -> usize {
        self.limit_to(Limits::OF_TABLE)
    }

    fn exceeds(&self, limits: Limits) -> bool {
        self.seen.len() > limits.seen
            || self.jobs.len() > limits.jobs
            || self.profiles.len() > limits.profiles
    }

    fn limit_to(&mut self, limits: Limits) -> usize {
        let before = self.jobs.len() + self.profiles.len();
        let mut times: Vec<i64> = self.seen.values().copied().collect();
        if times.len() > limits.seen {
            times.sort_unstable_by(|a, b| b.cmp(a));
            self.horizon_s = self.horizon_s.max(times[limits.seen]);
            let horizon_s = self.horizon_s;
            self.seen.retain(|_, at_s| *at_s > horizon_s);
        }
        self.jobs
            .sort_by_key(|group| std::cmp::Reverse(group.last_at_s));
        self.jobs.truncate(limits.jobs);
        let at_s = |one: &NodeProfile| one.entry().map_or(0, |entry| entry.profile.at_s);
        self.profiles
            .sort_by_cached_key(|one| std::cmp::Reverse(at_s(one)));
        self.profiles.truncate(limits.profiles);
        self.jobs.sort_by_cached_key(JobGroup::key);
        let id = |one: &NodeProfile| (one.entry().as_ref().map(program_id), one.node.clone());
        self.profiles.sort_by_cached_key(id);
        before - self.jobs.len() - self.profiles.len()
    }

    /// Returns all kinds of jobs with their useful CPUs, in the order of the table.
    pub fn summaries(&self) -> Vec<JobSummary> {
        let merged = self.merged_profiles();
        self.jobs
            .iter()
            .map(|group| group.summary(&merged))
            .collect()
    }

    /// Returns the merged profile of each program on each kind of machine, by identity.
    fn merged_profiles(&self) -> BTreeMap<String, Profile> {
        let mut by_program: BTreeMap<String, Vec<Profile>> = BTreeMap::new();
        for entry in self.profiles.iter().filter_map(NodeProfile::entry) {
            by_program
                .entry(program_id(&entry))
                .or_default()
                .push(entry.profile);
        }
        let merged = |(id, profiles)| Some((id, merge(profiles)?));
        by_program.into_iter().filter_map(merged).collect()
    }
}

impl NodeProfile {
    fn entry(&self) -> Option<ProfileEntry> {
        self.profile.clone().checked(i64::MAX).ok()
    }
}

impl JobKey {
    fn of(record: &JobRecord) -> Self {
        Self {
            user: record.user.clone(),
            name: record.name.clone(),
            script: record.script.clone(),
            machine: record.machine.clone(),
            requested_cpus: record.requested_cpus,
            cpus_per_core: record.cpus_per_core,
        }
    }
}

impl JobGroup {
    /// Returns the entry of the kind of this job, without jobs.
    fn new(record: &JobRecord) -> Self {
        Self {
            user: record.user.clone(),
            name: record.name.clone(),
            script: record.script.clone(),
            machine: record.machine.clone(),
            cpus_per_core: record.cpus_per_core,
            requested_cpus: record.requested_cpus,
            runs: 0,
            elapsed_s: 0.0,
            used_cpu_s: 0.0,
            used_elapsed_s: 0.0,
            last_at_s: 0,
            programs_at_s: 0,
            unmeasured: 0,
            programs: BTreeSet::new(),
        }
    }

    fn key(&self) -> JobKey {
        JobKey {
            user: self.user.clone(),
            name: self.name.clone(),
            script: self.script.clone(),
            machine: self.machine.clone(),
            requested_cpus: self.requested_cpus,
            cpus_per_core: self.cpus_per_core,
        }
    }

    /// Adds a job with these programs.
    fn add(&mut self, record: &JobRecord, programs: BTreeSet<String>) {
        self.runs = self.runs.saturating_add(1);
        self.elapsed_s += record.elapsed_s;
        if let Some(used) = record.used_cpu_s {
            self.used_cpu_s += used;
            self.used_elapsed_s += record.elapsed_s;
        }
        self.last_at_s = self.last_at_s.max(record.ended_at_s);
        self.set_programs(record, programs);
    }

    /// Sets the programs to those of the latest job, because a program may have been replaced or
    /// measured since. A record without programs changes nothing.
    fn set_programs(&mut self, record: &JobRecord, programs: BTreeSet<String>) {
        let at_s = record.ended_at_s;
        let has_no_programs = programs.is_empty() && record.unmeasured == 0;
        if has_no_programs || at_s < self.programs_at_s {
            return;
        }
        if at_s > self.programs_at_s {
            self.programs_at_s = at_s;
            self.unmeasured = 0;
            self.programs.clear();
        }
        // Records of several nodes end at the same time.
        self.unmeasured = self.unmeasured.max(record.unmeasured);
        self.programs.extend(programs);
    }

    fn summary(&self, merged: &BTreeMap<String, Profile>) -> JobSummary {
        let profiles: Vec<Option<&Profile>> =
            self.programs.iter().map(|id| merged.get(id)).collect();
        let useful = |profile: &Option<&Profile>| {
            let (curve, _) = (*profile)?.curve()?;
            useful_cpus(&curve, self.cpus_per_core)
        };
        let all: Option<Vec<UsefulCpus>> = profiles.iter().map(useful).collect();
        let all = all.filter(|_| self.unmeasured == 0);
        let names = profiles
            .iter()
            .flatten()
            .map(|profile| profile.name.clone());
        JobSummary {
            user: self.user.clone(),
            name: self.name.clone(),
            script: self.script.clone(),
            machine: self.machine.clone(),
            runs: self.runs,
            requested_cpus: self.requested_cpus,
            used_cpus: (self.used_elapsed_s > 0.0).then(|| self.used_cpu_s / self.used_elapsed_s),
            useful: all.and_then(|all| all.into_iter().reduce(UsefulCpus::and)),
            elapsed_s: self.elapsed_s,
            programs: names.collect(),
        }
    }
}

/// Returns the identity of a program on a kind of machine.
fn program_id(entry: &ProfileEntry) -> String {
    let key = &entry.key;
    let machine = entry.machine.as_str();
    let text = format!("{}\0{}\0{machine}", key.executable, key.arguments);
    blake3::hash(text.as_bytes()).to_hex().as_str()[..16].to_owned()
}

/// Merges profiles of one program from several nodes: the points of the same source and number of
/// cores, in the order of their times.
fn merge(mut profiles: Vec<Profile>) -> Option<Profile> {
    profiles.sort_by_key(|profile| profile.at_s);
    let mut points: BTreeMap<(ProgressSource, u64), Vec<StoredPoint>> = BTreeMap::new();
    for stored in profiles.iter().flat_map(|profile| &profile.points) {
        let key = (stored.source, stored.point.cores.to_bits());
        points.entry(key).or_default().push(*stored);
    }
    let mut merged = profiles.pop()?;
    let estimate = |stored: &StoredPoint| Estimate {
        rate: stored.point.rate,
        relative_error: stored.point.relative_error,
    };
    let one = |mut of: Vec<StoredPoint>| {
        of.sort_by(|a, b| {
            (a.at_s, a.point.rate)
                .partial_cmp(&(b.at_s, b.point.rate))
                .unwrap_or(std::cmp::Ordering::Equal)
        });
        of.into_iter().reduce(|old, new| {
            let age_s = (new.at_s - old.at_s) as f64;
            let mean = combine(estimate(&old), age_s, estimate(&new));
            StoredPoint {
                point: CurvePoint {
                    rate: mean.rate,
                    relative_error: mean.relative_error,
                    ..new.point
                },
                runs: old.runs.saturating_add(new.runs),
                ..new
            }
        })
    };
    merged.points = points.into_values().filter_map(one).collect();
    let valid = Curve::new(merged.points.iter().take(1).map(|p| p.point).collect()).is_ok();
    valid.then_some(merged)
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
