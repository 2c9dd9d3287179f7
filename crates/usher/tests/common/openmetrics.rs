// SPDX-License-Identifier: GPL-2.0-only
//! A strict check of a page in the OpenMetrics text format, version 1.0
//! (<https://github.com/prometheus/OpenMetrics>). The check covers the order of metadata and
//! samples, uninterrupted families, the suffixes of types, escaped labels, numbers, repeated
//! series, and the end mark.

use std::collections::BTreeSet;

/// A sample: name, labels and value.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    pub name: String,
    pub labels: Vec<(String, String)>,
    pub value: f64,
}

impl Sample {
    pub fn label(&self, name: &str) -> Option<&str> {
        let found = self.labels.iter().find(|(label, _)| label == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// Parses a page.
///
/// # Errors
/// The first line that violates the format, with the reason.
pub fn parse(page: &str) -> Result<Vec<Sample>, String> {
    let body = page
        .strip_suffix("# EOF\n")
        .ok_or("the page has no end mark")?;
    let mut samples: Vec<Sample> = Vec::new();
    let mut series = BTreeSet::new();
    let mut families: BTreeSet<String> = BTreeSet::new();
    let mut family: Option<(String, String)> = None;
    let mut help: Option<String> = None;
    for line in body.lines() {
        let wrong = |why: &str| Err(format!("{why}: {line}"));
        if let Some(rest) = line.strip_prefix("# ") {
            let mut words = rest.splitn(3, ' ');
            let (kind, name) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
            let text = words.next().unwrap_or("");
            match kind {
                "HELP" if text.is_empty() => return wrong("no help text"),
                "HELP" => help = Some(name.to_owned()),
                "TYPE" => {
                    if help.as_deref() != Some(name) {
                        return wrong("a type without help");
                    }
                    if !families.insert(name.to_owned()) {
                        return wrong("a family that begins twice");
                    }
                    family = Some((name.to_owned(), text.to_owned()));
                }
                "UNIT" if !name.ends_with(&format!("_{text}")) => {
                    return wrong("name without unit");
                }
                "UNIT" => {}
                _ => return wrong("unknown metadata"),
            }
            continue;
        }
        let sample = sample(line).map_err(|why| format!("{why}: {line}"))?;
        let Some((name, kind)) = &family else {
            return wrong("a sample before its type");
        };
        let suffixes: &[&str] = match kind.as_str() {
            "counter" => &["_total"],
            "gauge" => &[""],
            "histogram" => &["_sum", "_count", "_bucket"],
            _ => return wrong("unknown type"),
        };
        if !suffixes.iter().any(|s| sample.name == format!("{name}{s}")) {
            return wrong("a sample of another family");
        }
        if kind == "counter" && sample.value < 0.0 {
            return wrong("a negative counter");
        }
        if !series.insert(format!("{} {:?}", sample.name, sample.labels)) {
            return wrong("a series twice");
        }
        samples.push(sample);
    }
    Ok(samples)
}

fn sample(line: &str) -> Result<Sample, String> {
    let end = line.find(['{', ' ']).ok_or("no value")?;
    let (name, mut rest) = line.split_at(end);
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.is_empty() || !name.chars().all(is_name) || name.starts_with(char::is_numeric) {
        return Err("not a name".to_owned());
    }
    let mut labels: Vec<(String, String)> = Vec::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        while !rest.starts_with('}') {
            let (label, after) = rest.split_once("=\"").ok_or("no label")?;
            if label.is_empty() || !label.chars().all(is_name) {
                return Err("not a label".to_owned());
            }
            let (value, after) = quoted(after)?;
            if labels.iter().any(|(known, _)| known == label) {
                return Err("a label twice".to_owned());
            }
            labels.push((label.to_owned(), value));
            rest = after.strip_prefix(',').unwrap_or(after);
        }
        rest = &rest[1..];
    }
    let value = rest.strip_prefix(' ').ok_or("no blank before the value")?;
    let value = value.parse().map_err(|_| "not a number".to_owned())?;
    let name = name.to_owned();
    Ok(Sample {
        name,
        labels,
        value,
    })
}

/// Reads an escaped text up to its quotation mark; returns the text and the rest.
fn quoted(text: &str) -> Result<(String, &str), String> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Ok((value, &text[at + 1..])),
            '\\' => match chars.next() {
                Some((_, 'n')) => value.push('\n'),
                Some((_, c @ ('"' | '\\'))) => value.push(c),
                _ => return Err("unknown escape".to_owned()),
            },
            _ => value.push(c),
        }
    }
    Err("no end of a label".to_owned())
}
