// SPDX-License-Identifier: MIT OR Apache-2.0
//! The JSON format in which profiles are exported and imported (`docs/profiles.md`).
//!
//! [`write()`] makes a document, and [`read()`] checks one completely before anything is stored:
//!
//! - at most 16 MiB ([`BYTES_MAX`]), 10,000 profiles, and 1,024 points per profile;
//! - the format name, and the version [`VERSION`]; unknown fields are errors;
//! - no two profiles of the same program and machine;
//! - for each source of progress, core counts in ascending order, with the rules of
//!   [`Curve`] for the numbers: positive and finite;
//! - relative errors above 0, and no times later than a day from now;
//! - texts without control characters, with limited lengths.
//!
//! The time is linear in the length of the document, except for the search for duplicates, which
//! takes n log n for n profiles.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use usher_model::{Curve, CurvePoint, ProgramKey, ProgressSource};

use crate::combine::ERROR_MIN;
use crate::machine::MachineKey;
use crate::profile::{Profile, ProfileEntry, StoredPoint};
use crate::store::Store;

/// The value of the field `format`.
const FORMAT: &str = "usher-profiles";
/// The version of the format.
pub const VERSION: u32 = 1;
/// Maximum length of a document in bytes.
pub const BYTES_MAX: usize = 16 << 20;
/// Maximum number of profiles in a document.
const PROFILES_MAX: usize = 10_000;
/// Maximum number of points of a profile.
const POINTS_MAX: usize = 1_024;
/// Maximum length of a name in bytes.
const NAME_BYTES_MAX: usize = 256;
/// Maximum length of the description of a machine, of the identity of an executable, and of
/// arguments, in bytes.
const TEXT_BYTES_MAX: usize = 1 << 20;
/// Maximum number of cores of a point.
const CORES_MAX: f64 = 65_536.0;
/// Maximum rate and minimum rate of a point.
const RATE_RANGE: std::ops::RangeInclusive<f64> = 1e-12..=1e18;

/// A file of exported profiles.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Document {
    /// Always `usher-profiles`.
    format: String,
    /// The version of the format.
    version: u32,
    /// The profiles.
    profiles: Vec<ExchangedProfile>,
}

/// The fields by which a document is recognised before its profiles are read.
#[derive(Deserialize)]
struct Header {
    format: Option<String>,
    version: Option<u32>,
}

/// A profile in an exported file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExchangedProfile {
    /// The name of the program.
    name: String,
    /// The identity of the executable.
    executable: String,
    /// The arguments, or their hash.
    arguments: String,
    /// The kind of machine on which the profile was measured.
    machine: String,
    /// Number of runs.
    runs: u32,
    /// Time of the last run, in seconds since 1970.
    at_s: i64,
    /// Number of threads that busy-wait for one another.
    #[serde(default)]
    spinners: u32,
    /// Whether the threads busy-wait if they have enough cores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    active_wait: Option<bool>,
    /// Working set in the last-level cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    llc_bytes: Option<u64>,
    /// Memory traffic in GB/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bandwidth_gbps: Option<f64>,
    /// The points of the curve.
    points: Vec<ExchangedPoint>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ExchangedPoint {
    /// The source of progress.
    source: ProgressSource,
    /// Number of cores.
    cores: f64,
    /// Progress per second, in the unit of the source.
    rate: f64,
    /// Relative error of the rate.
    relative_error: f64,
    /// Number of CPUs that the program kept busy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    busy_cpus: Option<f64>,
    /// Time of the last run of the point, in seconds since 1970.
    at_s: i64,
    /// Number of runs of the point.
    runs: u32,
}

/// The reason for which a document was rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ExchangeError(String);

/// Returns the document with these profiles.
///
/// # Errors
/// A value cannot be written as JSON.
pub fn write(entries: &[ProfileEntry]) -> Result<String, ExchangeError> {
    let document = Document {
        format: FORMAT.to_owned(),
        version: VERSION,
        profiles: entries.iter().map(ExchangedProfile::from).collect(),
    };
    let text = serde_json::to_string_pretty(&document);
    text.map_err(|error| ExchangeError(error.to_string()))
}

/// Tolerance for clocks that differ, in seconds.
const CLOCK_DIFFERENCE_S: i64 = 24 * 3600;

/// Returns the profiles of a document; `now_s` is the present time in seconds since 1970.
///
/// # Errors
/// The first rule that the document violates, with the profile.
pub fn read(text: &[u8], now_s: i64) -> Result<Vec<ProfileEntry>, ExchangeError> {
    let rejected = |why: String| Err(ExchangeError(why));
    if text.len() > BYTES_MAX {
        return rejected(format!("a file of profiles has at most {BYTES_MAX} bytes"));
    }
    let json = |error: serde_json::Error| ExchangeError(format!("invalid JSON: {error}"));
    let header: Header = serde_json::from_slice(text).map_err(json)?;
    match (header.format.as_deref(), header.version) {
        (Some(FORMAT), Some(VERSION)) => {}
        (Some(FORMAT), Some(other)) => {
            return rejected(format!(
                "the file has version {other} of the format, but this version of Usher reads only \
                 version {VERSION}"
            ));
        }
        _ => {
            return rejected(format!(
                "this is no file of profiles: the fields \"format\": \"{FORMAT}\" and \
                 \"version\": {VERSION} are required"
            ));
        }
    }
    let document: Document = serde_json::from_slice(text).map_err(json)?;
    if document.profiles.is_empty() || document.profiles.len() > PROFILES_MAX {
        return rejected(format!(
            "a file of profiles has 1 to {PROFILES_MAX} profiles, not {}",
            document.profiles.len()
        ));
    }
    let mut entries = Vec::new();
    let mut keys = BTreeSet::new();
    for (at, profile) in document.profiles.into_iter().enumerate() {
        let number = at + 1;
        let entry = profile
            .checked(now_s.saturating_add(CLOCK_DIFFERENCE_S))
            .map_err(|why| ExchangeError(format!("profile {number}: {why}")))?;
        if !keys.insert((Store::stored_key(&entry.key), entry.machine.clone())) {
            return rejected(format!(
                "profile {number}: the file has two profiles of this program and machine"
            ));
        }
        entries.push(entry);
    }
    Ok(entries)
}

impl From<&ProfileEntry> for ExchangedProfile {
    fn from(entry: &ProfileEntry) -> Self {
        let profile = &entry.profile;
        let point = |stored: &StoredPoint| ExchangedPoint {
            source: stored.source,
            cores: stored.point.cores,
            rate: stored.point.rate,
            // Equal times have an error of 0, which other stores would trust completely.
            relative_error: stored.point.relative_error.max(ERROR_MIN),
            busy_cpus: stored.point.busy_cpus,
            at_s: stored.at_s,
            runs: stored.runs,
        };
        Self {
            name: profile.name.clone(),
            executable: entry.key.executable.clone(),
            arguments: entry.key.arguments.clone(),
            machine: entry.machine.as_str().to_owned(),
            runs: profile.runs,
            at_s: profile.at_s,
            spinners: profile.spinners,
            active_wait: profile.active_wait,
            llc_bytes: profile.llc_bytes,
            bandwidth_gbps: profile.bandwidth_gbps,
            points: profile.points.iter().map(point).collect(),
        }
    }
}

impl ExchangedProfile {
    /// Returns the profile, or the rule that it violates.
    pub(crate) fn checked(self, at_max_s: i64) -> Result<ProfileEntry, String> {
        check_text("name", &self.name, NAME_BYTES_MAX)?;
        check_text("executable", &self.executable, TEXT_BYTES_MAX)?;
        check_text("machine", &self.machine, TEXT_BYTES_MAX)?;
        // A program may have no arguments.
        if !self.arguments.is_empty() {
            check_text("arguments", &self.arguments, TEXT_BYTES_MAX)?;
        }
        let kinds = ["build-id:", "hash:"];
        let id = kinds
            .iter()
            .find_map(|kind| self.executable.strip_prefix(kind));
        if !id.is_some_and(|id| !id.is_empty() && id.bytes().all(|b| b.is_ascii_hexdigit())) {
            return Err("the executable must be build-id:HEX or hash:HEX".to_owned());
        }
        if self.runs == 0 || !(0..=at_max_s).contains(&self.at_s) {
            return Err(
                "runs must be at least 1, and at_s must be neither negative nor in the future"
                    .to_owned(),
            );
        }
        if self
            .bandwidth_gbps
            .is_some_and(|x| !(x.is_finite() && x >= 0.0))
        {
            return Err("bandwidth_gbps must not be negative".to_owned());
        }
        self.check_points(at_max_s)?;
        let points = self.points.iter().map(|point| StoredPoint {
            point: point.on_curve(),
            source: point.source,
            at_s: point.at_s,
            runs: point.runs,
        });
        Ok(ProfileEntry {
            profile: Profile {
                points: points.collect(),
                name: self.name,
                spinners: self.spinners,
                active_wait: self.active_wait,
                llc_bytes: self.llc_bytes,
                bandwidth_gbps: self.bandwidth_gbps,
                at_s: self.at_s,
                runs: self.runs,
                copies: None,
            },
            key: ProgramKey {
                executable: self.executable,
                arguments: self.arguments,
            },
            machine: MachineKey::from_stored(self.machine),
        })
    }

    fn check_points(&self, at_max_s: i64) -> Result<(), String> {
        let count = self.points.len();
        if count == 0 || count > POINTS_MAX {
            return Err(format!(
                "a profile has 1 to {POINTS_MAX} points, not {count}"
            ));
        }
        let sources: BTreeSet<_> = self.points.iter().map(|p| p.source).collect();
        for source in sources {
            let of = self.points.iter().filter(|p| p.source == source);
            let of: Vec<_> = of.map(ExchangedPoint::on_curve).collect();
            if !of.windows(2).all(|pair| pair[0].cores < pair[1].cores) {
                return Err(format!(
                    "the core counts of the source {source} must ascend"
                ));
            }
            Curve::new(of).map_err(|error| error.to_string())?;
        }
        for point in &self.points {
            if point.cores > CORES_MAX || !RATE_RANGE.contains(&point.rate) {
                return Err(format!(
                    "cores must be at most {CORES_MAX}, and the rate from {:e} to {:e}",
                    RATE_RANGE.start(),
                    RATE_RANGE.end()
                ));
            }
            if !(point.relative_error > 0.0 && point.relative_error <= 10.0)
                || point.busy_cpus.is_some_and(|b| b > CORES_MAX)
            {
                return Err(format!(
                    "relative_error must be above 0 and at most 10, and busy_cpus at most {CORES_MAX}"
                ));
            }
            if point.runs == 0 || !(0..=at_max_s).contains(&point.at_s) {
                return Err(
                    "runs of a point must be at least 1, and at_s neither negative nor in the \
                     future"
                        .to_owned(),
                );
            }
        }
        Ok(())
    }
}

impl ExchangedPoint {
    fn on_curve(&self) -> CurvePoint {
        CurvePoint {
            cores: self.cores,
            rate: self.rate,
            relative_error: self.relative_error,
            busy_cpus: self.busy_cpus,
        }
    }
}

fn check_text(field: &str, text: &str, bytes_max: usize) -> Result<(), String> {
    let is_invalid = text.is_empty() || text.len() > bytes_max || text.contains(char::is_control);
    match is_invalid {
        true => Err(format!(
            "{field} must have 1 to {bytes_max} bytes and no control characters"
        )),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::redact::redact;

    const NOW_S: i64 = 1_800_000_000;

    const POINTS: &str = r#"[{"source":"repetition","cores":1,"rate":0.5,"relative_error":0.01,
        "at_s":5,"runs":2},{"source":"repetition","cores":2,"rate":0.9,"relative_error":0.02,
        "busy_cpus":1.9,"at_s":5,"runs":2}]"#;

    fn document(points: &str, more: &str) -> String {
        format!(
            r#"{{"format":"usher-profiles","version":1,"profiles":[{{"name":"zip",
            "executable":"build-id:0a1b","arguments":"-p2","machine":"1 x [unknown]","runs":2,
            "at_s":5,"points":{points}{more}}}]}}"#
        )
    }

    #[test]
    fn a_document_is_read_as_it_was_written() {
        let entries = read(
            document(POINTS, r#","spinners":4,"active_wait":true"#).as_bytes(),
            NOW_S,
        );
        let entries = entries.unwrap();
        let entry = &entries[0];
        assert_eq!((entry.profile.spinners, entry.profile.points.len()), (4, 2));
        assert_eq!(
            read(write(&entries).unwrap().as_bytes(), NOW_S).unwrap(),
            entries
        );
    }

    #[test]
    fn rejects_documents_that_violate_a_rule() {
        let error = |text: &str| read(text.as_bytes(), NOW_S).unwrap_err().to_string();
        let points = |old: &str, new: &str| error(&document(&POINTS.replacen(old, new, 1), ""));
        assert!(points(r#""cores":1"#, r#""cores":3"#).contains("must ascend"));
        assert!(points(r#""cores":1"#, r#""cores":2"#).contains("must ascend"));
        assert!(points(r#""cores":1"#, r#""cores":0"#).contains("must be positive"));
        assert!(points(r#""cores":2"#, r#""cores":1e9"#).contains("cores must be at most"));
        assert!(points(r#""rate":0.5"#, r#""rate":-1"#).contains("positive number"));
        assert!(points(r#""rate":0.5"#, r#""rate":1e300"#).contains("the rate from"));
        assert!(points(r#""rate":0.5"#, r#""rate":1e999"#).contains("invalid JSON"));
        assert!(points(r#""rate":0.5"#, r#""rate":NaN"#).contains("invalid JSON"));
        assert!(points(r#""runs":2"#, r#""runs":0"#).contains("at least 1"));
        assert!(points(r#""busy_cpus":1.9"#, r#""busy_cpus":-1"#).contains("not be negative"));
        let precise = points(r#""relative_error":0.01"#, r#""relative_error":0"#);
        assert!(
            precise.contains("relative_error must be above 0"),
            "{precise}"
        );
        let future = points(r#""at_s":5"#, r#""at_s":9000000000000"#);
        assert!(future.contains("in the future"), "{future}");
        assert!(points("repetition", "guess").contains("unknown variant"));
        assert!(error(&document("[]", "")).contains("1 to 1024 points"));
        assert!(error(&document(POINTS, r#","extra":1"#)).contains("unknown field `extra`"));
        let whole = document(POINTS, "");
        assert!(error(&whole.replace("build-id:0a1b", "zip")).contains("build-id:HEX"));
        assert!(error(&whole.replace("\"zip\"", "\"\\u001b[2J\"")).contains("control characters"));
        let newer = error(&whole.replace("\"version\":1", "\"version\":2"));
        assert!(newer.contains("version 2"), "{newer}");
        assert!(error("{}").contains("no file of profiles"));
        assert!(error("[]").contains("invalid JSON"));
        let none = r#"{"format":"usher-profiles","version":1,"profiles":[]}"#;
        assert!(error(none).contains("1 to 10000 profiles"));
        let start = whole.find("{\"name\"").unwrap();
        let one = &whole[start..whole.len() - 2];
        let twice = whole.replace(one, &format!("{one},{one}"));
        assert!(error(&twice).contains("two profiles of this program"));
        // The arguments become equal by redaction.
        let (secret, redacted) = ("--password=hunter2", redact("--password=hunter2"));
        let of = |arguments: &str| one.replace("\"-p2\"", &format!("\"{arguments}\""));
        let equal = whole.replace(one, &format!("{},{}", of(secret), of(&redacted)));
        assert!(error(&equal).contains("two profiles of this program"));
        let long = " ".repeat(BYTES_MAX + 1);
        assert!(error(&long).contains("at most"));
    }

    proptest! {
        #[test]
        fn changed_documents_are_rejected_or_written_alike(at in 0usize..500, byte: u8) {
            let mut text = document(POINTS, "").into_bytes();
            let at = at % text.len();
            text[at] = byte;
            if let Ok(entries) = read(&text, NOW_S) {
                prop_assert_eq!(read(write(&entries).unwrap().as_bytes(), NOW_S).unwrap(), entries);
            }
        }
    }
}
