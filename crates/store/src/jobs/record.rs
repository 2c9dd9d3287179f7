// SPDX-License-Identifier: MIT OR Apache-2.0
//! The record of a job on one node, as JSON. [`JobRecord::read`] checks the whole record.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::script::is_hash;
use super::text::unescape;
use crate::exchange::ExchangedProfile;
use crate::profile::ProfileEntry;

/// The value of the field `format`.
const FORMAT: &str = "usher-job-record";
/// The version of the format.
pub const RECORD_VERSION: u32 = 1;
/// Maximum length of a record in bytes.
pub const RECORD_BYTES_MAX: u64 = 1 << 20;
/// Maximum number of programs of a record.
const PROGRAMS_MAX: usize = 64;
/// Maximum length of an escaped name in bytes.
const NAME_BYTES_MAX: usize = 1024;
/// Maximum number of CPUs, and of CPUs of a core.
const CPUS_MAX: u32 = 65_536;
/// Maximum duration of a job: ten years.
const SECONDS_MAX: f64 = 3.2e8;
/// Tolerance for clocks that differ, in seconds.
const CLOCK_DIFFERENCE_S: i64 = 24 * 3600;

/// A job that has ended on a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JobRecord {
    /// Always `usher-job-record`.
    pub format: String,
    /// The version of the format.
    pub version: u32,
    /// Name of the cluster, escaped.
    #[serde(default)]
    pub cluster: String,
    /// Name of the node, escaped.
    pub node: String,
    /// Number of the job in its cluster.
    pub job: u64,
    /// Name of the user, escaped.
    pub user: String,
    /// Name of the job, escaped.
    pub name: String,
    /// Hash of the job's script.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<String>,
    /// The kind of machine, as in exported profiles.
    pub machine: String,
    /// Number of CPUs of each core of the node.
    pub cpus_per_core: u32,
    /// Number of CPUs that the job requested on this node.
    pub requested_cpus: u32,
    /// CPU time that the job used on this node, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_cpu_s: Option<f64>,
    /// Duration of the job in seconds.
    pub elapsed_s: f64,
    /// End of the job, in seconds since 1970.
    pub ended_at_s: i64,
    /// Number of programs of the job without a curve.
    #[serde(default)]
    pub unmeasured: u32,
    /// The programs of the job with a profile.
    pub programs: Vec<JobProgram>,
}

/// A program of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JobProgram {
    /// Useful CPUs at the end of the job; `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub useful_cpus: Option<u32>,
    /// The profile, as in exported profiles.
    pub profile: ExchangedProfile,
}

/// The fields by which a record is recognised.
#[derive(Deserialize)]
struct Header {
    format: Option<String>,
    version: Option<u32>,
}

/// The reason for which a record or a table was rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RecordError(pub(super) String);

impl JobProgram {
    /// Returns a program of a record; `cpus_per_core` as in [`JobRecord`].
    pub fn new(entry: &ProfileEntry, cpus_per_core: u32) -> Self {
        let curve = entry.profile.curve();
        let useful = curve.and_then(|(curve, _)| super::useful_cpus(&curve, cpus_per_core));
        Self {
            useful_cpus: useful.map(|cpus| cpus.useful),
            profile: ExchangedProfile::from(entry),
        }
    }
}

impl JobRecord {
    /// Returns the values of the fields `format` and `version`.
    pub fn format() -> (String, u32) {
        (FORMAT.to_owned(), RECORD_VERSION)
    }

    /// Reads a record; `now_s` is the present time in seconds since 1970.
    ///
    /// # Errors
    /// The first rule that the record violates.
    pub fn read(text: &[u8], now_s: i64) -> Result<Self, RecordError> {
        check_header(text, FORMAT, RECORD_VERSION)?;
        let record: Self = serde_json::from_slice(text).map_err(invalid_json)?;
        record.check(now_s).map_err(RecordError)?;
        Ok(record)
    }

    /// Returns the record as JSON.
    ///
    /// # Errors
    /// The record violates a rule, or a value cannot be written.
    pub fn write(&self, now_s: i64) -> Result<String, RecordError> {
        self.check(now_s).map_err(RecordError)?;
        let text = serde_json::to_string_pretty(self).map_err(invalid_json)?;
        match text.len() as u64 > RECORD_BYTES_MAX {
            true => Err(RecordError("the record is too long".to_owned())),
            false => Ok(text + "\n"),
        }
    }

    /// Returns the identity of the record: cluster, node, job and end, hashed.
    pub fn id(&self) -> String {
        let Self {
            cluster,
            node,
            job,
            ended_at_s,
            ..
        } = self;
        let text = format!("{cluster} {node} {job} {ended_at_s}");
        blake3::hash(text.as_bytes()).to_hex().as_str()[..16].to_owned()
    }

    fn check(&self, now_s: i64) -> Result<(), String> {
        let names = [
            ("node", &self.node),
            ("user", &self.user),
            ("name", &self.name),
        ];
        for (field, text) in names {
            check_name(field, text)?;
        }
        if !self.cluster.is_empty() {
            check_name("cluster", &self.cluster)?;
        }
        if self.script.as_ref().is_some_and(|hash| !is_hash(hash)) {
            return Err("script must be LENGTH-NUMBER-NUMBER".to_owned());
        }
        let cpus = 1..=CPUS_MAX;
        if !cpus.contains(&self.cpus_per_core) || !cpus.contains(&self.requested_cpus) {
            return Err(format!(
                "cpus_per_core and requested_cpus must be from 1 to {CPUS_MAX}"
            ));
        }
        let most_s = SECONDS_MAX * f64::from(CPUS_MAX);
        if self
            .used_cpu_s
            .is_some_and(|used| !(0.0..=most_s).contains(&used))
            || !(0.0..=SECONDS_MAX).contains(&self.elapsed_s)
        {
            return Err(
                "used_cpu_s and elapsed_s must not be negative, and elapsed_s at most ten years"
                    .to_owned(),
            );
        }
        let at_max_s = now_s.saturating_add(CLOCK_DIFFERENCE_S);
        if !(0..=at_max_s).contains(&self.ended_at_s) {
            return Err("ended_at_s must be neither negative nor in the future".to_owned());
        }
        if self.programs.len() > PROGRAMS_MAX {
            return Err(format!("a record has at most {PROGRAMS_MAX} programs"));
        }
        for (at, program) in self.programs.iter().enumerate() {
            let named = |why: String| format!("program {}: {why}", at + 1);
            let entry = program.profile.clone().checked(at_max_s).map_err(named)?;
            if entry.machine.as_str() != self.machine {
                return Err(named("the profile is of another machine".to_owned()));
            }
        }
        Ok(())
    }
}

/// Checks the format and the version of a document before the document is read.
pub(super) fn check_header(text: &[u8], format: &str, version: u32) -> Result<(), RecordError> {
    let header: Header = serde_json::from_slice(text).map_err(invalid_json)?;
    match (header.format.as_deref(), header.version) {
        (Some(is), Some(at)) if is == format && at == version => Ok(()),
        (Some(is), Some(at)) if is == format => Err(RecordError(format!(
            "the file has version {at} of the format, but this version of Usher reads only \
             version {version}"
        ))),
        _ => Err(RecordError(format!(
            "the fields \"format\": \"{format}\" and \"version\": {version} are required"
        ))),
    }
}

pub(super) fn invalid_json(error: serde_json::Error) -> RecordError {
    RecordError(format!("invalid JSON: {error}"))
}

pub(super) fn check_name(field: &str, text: &str) -> Result<(), String> {
    let valid = (1..=NAME_BYTES_MAX).contains(&text.len()) && unescape(text).is_some();
    match valid {
        true => Ok(()),
        false => Err(format!(
            "{field} must have 1 to {NAME_BYTES_MAX} bytes, with spaces, control characters and \
             non-ASCII bytes as %XX"
        )),
    }
}
