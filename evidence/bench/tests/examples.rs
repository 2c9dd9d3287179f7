// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of `examples/compare --quick`: each example runs in every configuration, also under
//! `usher run`.

#![allow(clippy::unwrap_used)] // a test that cannot go on fails

use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// Status of usher-bench if an example could not run.
const FAILED: i32 = 125;

/// Runs an example and returns its cases. `None` if its programs are not installed.
fn cases(example: &str, data: Option<&Path>) -> Option<Vec<Value>> {
    let bench = Path::new(env!("CARGO_BIN_EXE_usher-bench"));
    let usher = bench.with_file_name("usher");
    if !usher.is_file() {
        usher_skip::skip!("there is no {}", usher.display());
        return None;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let out = tempfile::tempdir().unwrap();
    let mut command = Command::new(root.join("examples/compare"));
    command
        .args([example, "--quick", "--json", "--out"])
        .arg(out.path())
        .env("USHER_BENCH", bench);
    if let Some(data) = data {
        command.env("USHER_EXAMPLE_DATA", data);
    }
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(FAILED) && errors.contains("are not installed") {
        usher_skip::skip!("programs of the example are not installed");
        return None;
    }
    assert!(output.status.success(), "{errors}");
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    let parts = result["parts"].as_array().unwrap();
    assert_eq!(parts.len(), 1);
    assert_eq!(parts[0]["bars"], Value::Array(vec![]));
    Some(parts[0]["raw"]["cases"].as_array().unwrap().clone())
}

/// Checks that each configuration of a case has run, `usher run` among them. Returns the runs.
fn checked(case: &Value) -> Vec<Value> {
    let names = case["configurations"].as_array().unwrap();
    let runs = case["rounds"][0].as_array().unwrap();
    assert_eq!(names.len(), runs.len());
    let by_usher = |name: &Value| name.as_str().unwrap().starts_with("usher run");
    assert_eq!(names.iter().filter(|name| by_usher(name)).count(), 1);
    for run in runs {
        assert_eq!(run["ended"], true, "{case}");
    }
    runs.clone()
}

#[test]
fn the_workers_run_in_every_configuration() {
    let data = tempfile::tempdir().unwrap();
    let Some(cases) = cases("pytest", Some(data.path())) else {
        return;
    };
    let names: Vec<_> = cases.iter().map(|case| &case["case"]).collect();
    assert_eq!(names, ["pytest", "joblib", "xargs-openmp", "no-blas"]);
    for case in &cases {
        checked(case);
    }
}

#[test]
fn the_queue_runs_in_every_configuration() {
    let data = tempfile::tempdir().unwrap();
    let Some(cases) = cases("transcode", Some(data.path())) else {
        return;
    };
    assert_eq!(cases.len(), 1);
    checked(&cases[0]);
    assert!(data.path().join("video.y4m").is_file());
}

#[test]
fn the_inference_servers_run_in_every_configuration() {
    // The Python packages are in the default directory of the data.
    let Some(cases) = cases("inference", None) else {
        return;
    };
    assert_eq!(cases.len(), 1);
    for run in checked(&cases[0]) {
        assert!(run["figures"]["p95_ms"].as_f64().unwrap() > 0.0);
    }
}
