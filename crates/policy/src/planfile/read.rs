// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parses the JSON list of programs of `usher plan`, and converts it to requests for the planner.
//! Unknown, duplicate and missing fields, duplicate names and numbers out of range are errors. The
//! first error is returned; an error names the program and the field.
//!
//! Ranges: `weight` and `cpu_quota` are positive, `bandwidth_gbps` (GB/s) is 0 or more. `llc_bytes`
//! is a whole number up to 2^53, the largest that is exact in JSON, and `spinners` a whole number
//! of 32 bits. A curve has two or more points with positive whole numbers of cores and positive
//! rates. Parsing takes linearithmic time in the size of the input.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use usher_model::{Curve, ProgramId, cores_text};

use super::PlanFileError;
use super::json::{FieldValue, ObjectEntries};
use crate::seating::Request;

/// Largest whole number that is exact in JSON.
const WHOLE_MAX: f64 = 9_007_199_254_740_992.0;

const FIELDS: &str = "name, curve, llc_bytes, bandwidth_gbps, weight, spinners, cpu_quota";

/// Parses the programs of a JSON text; ids count from 0 in the order of the text.
///
/// # Errors
/// Returns an error if `input` is not JSON or is invalid.
pub fn read_programs(input: &str) -> Result<Vec<Request>, PlanFileError> {
    let top: ObjectEntries<Vec<ObjectEntries<FieldValue>>> = match serde_json::from_str(input) {
        Ok(top) => top,
        Err(error) => return Err(unreadable(input, &error)),
    };
    let mut programs = None;
    for (key, value) in top.0 {
        if key != "programs" {
            return Err(unknown(&key));
        }
        if programs.replace(value).is_some() {
            return Err(top_error("the field \"programs\" is given twice"));
        }
    }
    let programs = programs.ok_or_else(|| top_error("the field \"programs\" is missing"))?;
    if programs.is_empty() {
        return Err(top_error(
            "the field \"programs\" is empty; give at least one program",
        ));
    }
    let mut names = BTreeSet::new();
    let mut requests = Vec::new();
    for (at, entries) in programs.into_iter().enumerate() {
        let request = Reader::new(at, &entries)?.request(at)?;
        if !names.insert(request.name.clone()) {
            return Err(PlanFileError::Field {
                program: request.name,
                field: "name".to_owned(),
                reason: "another program has the same name: give each program a name of its own"
                    .to_owned(),
            });
        }
        requests.push(request);
    }
    Ok(requests)
}

fn top_error(reason: &str) -> PlanFileError {
    PlanFileError::Top(reason.to_owned())
}

fn unknown(key: &str) -> PlanFileError {
    PlanFileError::Top(format!(
        "the field \"{key}\" is unknown; expected \"programs\""
    ))
}

/// Describes an unknown field of a program, with the known fields and the closest of them.
fn unknown_field(key: &str) -> String {
    let closest = usher_model::closest_name(key, FIELDS.split(", "));
    let hint = closest.map(|field| format!("; a similar field exists: {field}"));
    format!(
        "the field is unknown; expected {FIELDS}{}",
        hint.unwrap_or_default()
    )
}

/// Describes why the input has the wrong structure. The message of serde_json would mention
/// internal types of this module.
fn unreadable(input: &str, error: &serde_json::Error) -> PlanFileError {
    let top = match serde_json::from_str::<Value>(input) {
        Ok(Value::Object(top)) => top,
        Ok(_) => return top_error("the input must be a JSON object with the field \"programs\""),
        Err(_) => return PlanFileError::Syntax(error.to_string()),
    };
    if let Some(key) = top.keys().find(|key| *key != "programs") {
        return unknown(key);
    }
    let Some(Value::Array(entries)) = top.get("programs") else {
        return top_error("the field \"programs\" must be an array");
    };
    let odd = entries.iter().position(|entry| !entry.is_object());
    match odd {
        Some(at) => PlanFileError::Top(format!("program #{} must be an object", at + 1)),
        None => PlanFileError::Syntax(error.to_string()),
    }
}

/// The fields of one program.
struct Reader<'a> {
    name: String,
    fields: BTreeMap<&'a str, &'a FieldValue>,
}

impl<'a> Reader<'a> {
    /// Collects the fields of a program. The name is read first, because errors contain the name.
    fn new(at: usize, entries: &'a ObjectEntries<FieldValue>) -> Result<Self, PlanFileError> {
        let mut reader = Self {
            name: format!("#{}", at + 1),
            fields: BTreeMap::new(),
        };
        let mut names = entries.0.iter().filter(|(key, _)| key == "name");
        match names.next() {
            Some((_, FieldValue::Text(name))) if !name.is_empty() => reader.name.clone_from(name),
            Some((_, other)) => {
                let reason = format!("must be a text of at least one character, not {other}");
                return Err(reader.error("name", reason));
            }
            None => return Err(reader.error("name", "is missing")),
        }
        for (key, value) in &entries.0 {
            if !FIELDS.split(", ").any(|field| field == key) {
                return Err(reader.error(key, unknown_field(key)));
            }
            if reader.fields.insert(key, value).is_some() {
                return Err(reader.error(key, "is given twice"));
            }
        }
        Ok(reader)
    }

    fn error(&self, field: &str, reason: impl Into<String>) -> PlanFileError {
        PlanFileError::Field {
            program: self.name.clone(),
            field: field.to_owned(),
            reason: reason.into(),
        }
    }

    fn request(&self, at: usize) -> Result<Request, PlanFileError> {
        let weight = self.number("weight", |x| x > 0.0, "a positive number")?;
        let bandwidth = self.number("bandwidth_gbps", |x| x >= 0.0, "zero or more")?;
        let llc_bytes = self.whole("llc_bytes", WHOLE_MAX)?;
        let cpu_quota = self.number("cpu_quota", |x| x > 0.0, "a positive number")?;
        let spinners = self.whole("spinners", f64::from(u32::MAX))?;
        Ok(Request {
            id: ProgramId(at as u64),
            name: self.name.clone(),
            curve: self.curve()?.limited(cpu_quota),
            weight: weight.unwrap_or(1.0),
            spinners: spinners.map_or(0, |x| x as u32),
            llc_bytes: llc_bytes.map(|x| x as u64),
            bandwidth_gbps: bandwidth,
            bound_to: None,
            pinned: false,
        })
    }

    fn number(
        &self,
        field: &str,
        sane: impl Fn(f64) -> bool,
        wanted: &str,
    ) -> Result<Option<f64>, PlanFileError> {
        match self.fields.get(field) {
            None => Ok(None),
            Some(FieldValue::Number(x)) if x.is_finite() && sane(*x) => Ok(Some(*x)),
            Some(other) => Err(self.error(field, format!("must be {wanted}, not {other}"))),
        }
    }

    fn whole(&self, field: &str, most: f64) -> Result<Option<f64>, PlanFileError> {
        let sane = |x: f64| (0.0..=most).contains(&x) && x.fract() == 0.0;
        self.number(field, sane, "a whole number of zero or more")
    }

    fn curve(&self) -> Result<Curve, PlanFileError> {
        let error = |reason: String| self.error("curve", reason);
        let points = match self.fields.get("curve") {
            None => return Err(error("is missing".to_owned())),
            Some(FieldValue::Table(points)) => &points.0,
            Some(other) => {
                let reason = format!(
                    "must be an object that maps numbers of cores to progress per second, not \
                     {other}"
                );
                return Err(error(reason));
            }
        };
        let mut rates = BTreeMap::new();
        for (key, value) in points {
            let cores = core_count(key)
                .ok_or_else(|| error(format!("\"{key}\" is not a number of cores (1, 2, …)")))?;
            let rate = value
                .as_f64()
                .filter(|rate| rate.is_finite() && *rate > 0.0);
            let rate = rate.ok_or_else(|| {
                error(format!(
                    "progress at {} must be a positive number, not {value}",
                    cores_text(cores.into())
                ))
            })?;
            if rates.insert(cores, rate).is_some() {
                let cores = cores_text(cores.into());
                return Err(error(format!("the curve has two points at {cores}")));
            }
        }
        if rates.len() < 2 {
            let given = rates.len();
            return Err(error(format!(
                "the curve needs points at two or more numbers of cores, but has {given}"
            )));
        }
        Curve::from_rates(&rates).map_err(|wrong| error(wrong.to_string()))
    }
}

/// Parses a positive whole number that consists of digits only.
fn core_count(key: &str) -> Option<u32> {
    let digits = !key.is_empty() && key.bytes().all(|b| b.is_ascii_digit());
    let count = key.parse().ok().filter(|_| digits);
    count.filter(|&count| count > 0)
}
