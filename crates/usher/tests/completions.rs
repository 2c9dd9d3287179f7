// SPDX-License-Identifier: GPL-2.0-only
//! Tests of the completion script of bash: bash itself runs the completion function.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;

use common::{World, stderr, stdout};

/// Returns the completions of the last word.
fn completions(script: &Path, words: &[&str]) -> Vec<String> {
    let text = r#"
        script=$1; shift
        source "$script"
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
        function=$(complete -p usher | sed 's/.*-F \([^ ]*\).*/\1/')
        "$function" usher "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf '%s\n' "${COMPREPLY[@]}"
    "#;
    let mut bash = Command::new("bash");
    bash.args(["--norc", "--noprofile", "-c", text, "bash"]);
    let output = bash.arg(script).arg("usher").args(words).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    stdout(&output).lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_options_and_programs() {
    let world = World::new();
    let script = world.path("usher.bash");
    fs::write(&script, stdout(&world.run(&["completions", "bash"]))).unwrap();
    let complete = |words: &[&str]| completions(&script, words);
    assert_eq!(complete(&["expl"]), ["explain"]);
    assert_eq!(complete(&["keep"]), [""]);
    assert!(complete(&["daemon", "--pol"]).contains(&"--policy".to_owned()));
    assert!(complete(&["daemon", "--policy", "us"]).contains(&"usher".to_owned()));
    // Words after `--` are a command line, not options of Usher.
    assert!(complete(&["run", "--", "tru"]).contains(&"true".to_owned()));
    let file = world.path("input");
    fs::write(&file, "").unwrap();
    let file = file.to_str().unwrap();
    let begin = &file[..file.len() - 1];
    assert_eq!(complete(&["run", "--", "cat", begin]), [file]);
}
