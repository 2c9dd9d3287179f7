// SPDX-License-Identifier: MIT OR Apache-2.0
//! Part `busy`: checks that a measurement beside two busy loops is never stored, and that one line
//! gives the reason.
//!
//! Each round runs the four commands of [`CASES`] beside two busy loops, with a new profile store:
//! `usher profile`, `usher mix`, both with a wait of at most 1 s, `usher profile --force`, and an
//! ordinary `usher run` under a daemon. The program uses 1 s of CPU time on each CPU. The bars count
//! the stored profiles, and the runs whose standard error has another number of lines with a reason
//! than one. `usher run` needs no reason.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::bars::{Bar, Part};
use crate::processes::{end_daemons, usher};

/// Number of busy loops.
const LOOPS: usize = 2;
/// The measured program: two processes, each with 1 s of CPU time.
const PROGRAM: &str = "python3 -c '
import os, time
os.fork()
while time.process_time() < 1: pass'";

/// The commands, with the text of the line that gives the reason; empty without a line.
const CASES: [(&str, &str); 4] = [
    ("profile --max-wait 1", "the machine is too busy to measure"),
    ("mix --max-wait 1", "the machine is too busy to measure"),
    (
        "profile --force --repeats 1",
        "the profile was not stored, because",
    ),
    ("run", ""),
];

/// Processes that use one CPU each until the value is dropped.
struct BusyLoops(Vec<Child>);

impl BusyLoops {
    fn start() -> Result<Self> {
        let mut loops = Self(Vec::new());
        for _ in 0..LOOPS {
            let mut command = Command::new("sh");
            let child = command.args(["-c", "while :; do :; done"]).spawn();
            loops.0.push(child.context("starting a busy loop")?);
        }
        Ok(loops)
    }
}

impl Drop for BusyLoops {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The result of one command.
#[derive(Debug, Serialize)]
struct CaseResult {
    case: &'static str,
    status: Option<i32>,
    errors: String,
    stored: usize,
    has_one_reason: bool,
}

/// Runs the rounds and computes the part.
pub fn run(binary: &Path, rounds: usize) -> Result<Part> {
    let mut results = Vec::new();
    for _ in 0..rounds {
        for (case, reason) in CASES {
            results.push(measure(binary, case, reason)?);
        }
    }
    let mut part = Part::new("busy", "Measurements on a busy machine");
    let stored = results.iter().map(|one| one.stored).sum();
    let unexplained = results.iter().filter(|one| !one.has_one_reason).count();
    part.bars = vec![
        Bar::none(
            "stored profiles of measurements beside two busy loops",
            stored,
        ),
        Bar::none(
            "runs without exactly one line that gives the reason",
            unexplained,
        ),
    ];
    let cases: Vec<_> = CASES
        .iter()
        .map(|(case, _)| format!("`usher {case}`"))
        .collect();
    part.notes = vec![format!(
        "{rounds} rounds of {}, each beside {LOOPS} busy loops, with a new profile store.",
        cases.join(", ")
    )];
    part.raw = serde_json::json!({ "runs": results });
    Ok(part)
}

fn measure(binary: &Path, case: &'static str, reason: &str) -> Result<CaseResult> {
    let dir = tempfile::tempdir()?;
    let mix = dir.path().join("mix.toml");
    let escaped = serde_json::to_string(PROGRAM)?;
    fs::write(
        &mix,
        format!("[[program]]\nname = \"p\"\nrun = {escaped}\n"),
    )?;
    let loops = BusyLoops::start()?;
    let mut command = usher(binary, dir.path());
    command.args(case.split(' '));
    match case.starts_with("mix") {
        true => command
            .arg(&mix)
            .arg("--out")
            .arg(dir.path().join("report")),
        false => command.args(["--", "sh", "-c", PROGRAM]),
    };
    let output = command.stdout(Stdio::null()).output()?;
    drop(loops);
    end_daemons(&fs::canonicalize(binary)?, dir.path())?;
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let reasons = errors
        .lines()
        .filter(|line| !reason.is_empty() && line.contains(reason));
    let has_one_reason = reasons.count() == usize::from(!reason.is_empty());
    Ok(CaseResult {
        case,
        status: output.status.code(),
        stored: stored(binary, dir.path())?,
        has_one_reason,
        errors,
    })
}

/// Returns the number of stored profiles.
fn stored(binary: &Path, runtime: &Path) -> Result<usize> {
    let mut command = usher(binary, runtime);
    let output = command.args(["profile", "list", "--json"]).output()?;
    let listed: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let profiles = listed.get("profiles").and_then(|all| all.as_array());
    Ok(profiles.context("no profiles in the answer")?.len())
}
