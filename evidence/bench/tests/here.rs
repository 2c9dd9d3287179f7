// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of `usher-bench here` on mixes of shell loops: the report contains measured mixes and the
//! reasons for missing ones.

#![allow(clippy::unwrap_used)] // a test that cannot go on fails

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

const SHORT: &str = r#"
[[program]]
name = "one"
run = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done"
[[program]]
name = "two"
run = "i=0; while [ $i -lt 120000 ]; do i=$((i+1)); done"
"#;
const MISSING: &str = r#"
[[program]]
name = "egg"
package = "hen"
run = ["no-such-egg"]
"#;

fn here(folder: &Path, mixes: &str) -> Output {
    let examples = folder.join("examples");
    fs::create_dir_all(examples.join("mixes")).unwrap();
    fs::create_dir_all(examples.join("programs")).unwrap();
    fs::write(examples.join("mixes/short.toml"), SHORT).unwrap();
    fs::write(examples.join("mixes/missing.toml"), MISSING).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_usher-bench"));
    command
        .args(["here", "--rounds", "1", "--repeats", "1", "--mix", mixes])
        .arg("--examples")
        .arg(&examples)
        .arg("--out")
        .arg(folder.join("out"));
    command.output().unwrap()
}

/// Returns whether `usher` exists in the directory of usher-bench. Seats need a keeper, which is a
/// process of `usher`.
fn usher_is_built() -> bool {
    let beside = Path::new(env!("CARGO_BIN_EXE_usher-bench")).with_file_name("usher");
    let is_installed = beside.is_file();
    if !is_installed {
        usher_skip::skip!("there is no {}", beside.display());
    }
    is_installed
}

#[test]
fn one_report_has_the_measured_mixes_and_the_reasons_for_the_others() {
    if !usher_is_built() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let output = here(folder.path(), "short,missing");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
    assert!(text.contains("ANTT: linux "), "{text}");
    let out = fs::read_dir(folder.path().join("out")).unwrap();
    let results = out
        .map(|entry| entry.unwrap().path())
        .find(|path| path.join("report.html").is_file())
        .unwrap();
    assert!(results.join("short.html").is_file());
    let page = fs::read_to_string(results.join("report.html")).unwrap();
    assert!(page.contains("missing: egg (package hen)"));
    assert!(page.contains("NTT, usher"));
}

#[test]
fn rejects_an_unknown_mix_and_lists_the_known_ones() {
    let folder = tempfile::tempdir().unwrap();
    let output = here(folder.path(), "shrot");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{errors}");
    assert!(
        errors.contains("the mix 'shrot' does not exist: choose from any-"),
        "{errors}"
    );
    assert!(errors.contains("missing, short"), "{errors}");
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    let help: &[&str] = &["--help"];
    for words in [help, &["load", "cpu", "--work", "1"]] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full");
        let mut command = Command::new(env!("CARGO_BIN_EXE_usher-bench"));
        let output = command.args(words).stdout(full.unwrap()).output().unwrap();
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(125), "{message}");
        let starts = "usher bench: writing to standard output: No space left on device";
        assert!(message.starts_with(starts), "{message}");
    }
}
