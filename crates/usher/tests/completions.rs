// SPDX-License-Identifier: GPL-2.0-only
//! Tests of the completion scripts: bash, zsh and fish themselves run the completion functions.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;

use common::{Sleeper, World, stderr, stdout, wait_for};
use usher_skip::skip;

/// Runs the completion function of bash. `$1` is the script, the other arguments are the words.
const BASH: &str = r#"
    script=$1; shift
    source "$script"
    COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
    function=$(complete -p usher | sed 's/.*-F \([^ ]*\).*/\1/')
    "$function" "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
    printf '%s\n' "${COMPREPLY[@]}"
"#;

/// Runs the completion function of zsh, with a substitute for the builtin that adds the completions
/// to the line.
const ZSH: &str = r#"
    script=$1; shift
    compdef() {}
    compadd() { print -l -- "${values[@]}" }
    _arguments() { print generated }
    source "$script"
    words=("$@"); CURRENT=$#; PREFIX=${@[-1]}
    _usher
"#;

/// Makes fish complete the line of the words.
const FISH: &str = r#"
    source $argv[1]
    set -l line (string escape -- $argv[2..-2])
    complete -C (string join ' ' -- $line $argv[-1]) | string split -f 1 \t
"#;

/// Returns the command that runs a program of a shell.
fn shell(name: &str) -> Command {
    let mut command = Command::new(name);
    match name {
        "bash" => command.args(["--norc", "--noprofile", "-c", BASH, "bash"]),
        "zsh" => command.args(["-f", "-c", ZSH, "zsh"]),
        _ => command.args(["--no-config", "-c", FISH]),
    };
    command
}

/// Returns the completions of the last word.
fn completions(world: &World, shell_name: &str, words: &[&str]) -> Vec<String> {
    let script = world.path(shell_name);
    fs::write(&script, stdout(&world.run(&["completions", shell_name]))).unwrap();
    let mut command = shell(shell_name);
    let environment = world.usher(&[]);
    let variables = environment.get_envs();
    command.envs(variables.filter_map(|(name, value)| Some((name, value?))));
    // The shell finds the command by the name for which the completion is defined.
    let usher = Path::new(env!("CARGO_BIN_EXE_usher"));
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{path}", usher.parent().unwrap().display());
    command.env("PATH", path).env("HOME", world.path(""));
    let output = command.arg(script).arg("usher").args(words).output();
    let output = output.unwrap();
    assert_eq!(stderr(&output), "", "{shell_name} {words:?}");
    stdout(&output).lines().map(str::to_owned).collect()
}

fn is_installed(shell: &str) -> bool {
    let found = Command::new(shell).arg("--version").output();
    let is_installed = found.is_ok();
    if !is_installed {
        skip!("{shell} is not installed");
    }
    is_installed
}

/// Stores a profile of a program with this name.
fn store_profile(world: &World, name: &str) {
    let text = format!(
        r#"{{"format":"usher-profiles","version":1,"profiles":[{{"name":"{name}",
        "executable":"build-id:0a1b","arguments":"-p2","machine":"1 x [other]","runs":2,
        "at_s":5,"points":[{{"source":"repetition","cores":1,"rate":0.5,"relative_error":0.01,
        "at_s":5,"runs":2}}]}}]}}"#
    );
    let file = world.path("profiles.json");
    fs::write(&file, text).unwrap();
    let imported = world.run(&["profile", "import", file.to_str().unwrap()]);
    assert!(imported.status.success(), "{}", stderr(&imported));
}

/// Checks the completion of values that exist only at run time. On a loaded machine, a completion
/// may exceed its time limit and is empty, so each one is repeated until it has the expected
/// values.
fn check_values(shell: &str) {
    let mut world = World::new();
    let complete = |world: &World, words: &[&str]| completions(world, shell, words);
    let expect = |world: &World, words: &[&str], expected: &[&str]| {
        wait_for(&format!("{expected:?} for {words:?}"), || {
            (complete(world, words) == expected).then_some(())
        });
    };
    let (sleeper, other) = (Sleeper::start(), Sleeper::start());
    let (pid, other) = (sleeper.pid().to_string(), other.pid().to_string());
    // Without a daemon, no program is managed.
    assert!(!complete(&world, &["detach", ""]).contains(&pid));
    for words in [["sched", "explain", &pid], ["bg", "--attach", &pid]] {
        wait_for("the pid of a process", || {
            complete(&world, &words).contains(&pid).then_some(())
        });
    }
    world.daemon(&[]);
    for (name, pid) in [("encoder", &pid), ("$(id)", &other)] {
        let output = world.run(&["attach", "--name", name, pid]);
        assert!(output.status.success(), "{}", stderr(&output));
    }
    for command in ["detach", "wait", "explain", "status"] {
        expect(&world, &[command, "enc"], &["encoder"]);
        // A name with characters of the shell is left out.
        expect(&world, &[command, ""], &["encoder", &pid, &other]);
    }
    // Names of stored profiles, not of managed programs.
    store_profile(&world, "zip");
    for command in ["show", "rm"] {
        expect(&world, &["profile", command, ""], &["zip"]);
    }
    expect(&world, &["schema", "sched", "expl"], &["explain"]);
}

#[test]
fn bash_completes_names_and_pids() {
    check_values("bash");
}

#[test]
fn zsh_completes_names_and_pids() {
    if !is_installed("zsh") {
        return;
    }
    check_values("zsh");
    let world = World::new();
    assert_eq!(completions(&world, "zsh", &["det"]), ["generated"]);
}

#[test]
fn fish_completes_names_pids_policies_and_programs() {
    if !is_installed("fish") {
        return;
    }
    check_values("fish");
    let world = World::new();
    let complete = |words: &[&str]| completions(&world, "fish", words);
    assert_eq!(complete(&["expl"]), ["explain"]);
    assert!(complete(&["keep"]).is_empty());
    assert_eq!(complete(&["bg", "--policy", ""]), ["eii", "ipd", "usher"]);
    assert!(complete(&["run", "--", "tru"]).contains(&"true".to_owned()));
}

#[test]
fn errors_are_not_printed() {
    let world = World::new();
    fs::write(world.path("store"), "no database").unwrap();
    let store = world.path("store");
    let store = store.to_str().unwrap();
    for words in [
        &["detach", ""][..],
        &["--runtime-dir", "/dev/null", "detach", ""],
        &["profile", "--store", store, "show", ""],
        &["--bogus", ""],
        &[],
    ] {
        let output = world.run(&[&["complete", "--"], words].concat());
        let texts = (stdout(&output), stderr(&output));
        assert_eq!(texts, (String::new(), String::new()), "{words:?}");
        assert!(output.status.success());
    }
    // The completion creates no files.
    assert!(!world.path("profiles.db").exists() && !world.runtime_dir().exists());
}

#[test]
fn bash_completes_commands_options_and_programs() {
    let world = World::new();
    let complete = |words: &[&str]| completions(&world, "bash", words);
    assert_eq!(complete(&["expl"]), ["explain"]);
    assert_eq!(complete(&["keep"]), [""]);
    assert!(complete(&["daemon", "--pol"]).contains(&"--policy".to_owned()));
    assert!(complete(&["daemon", "--policy", "us"]).contains(&"usher".to_owned()));
    assert_eq!(complete(&["bg", "--policy", ""]), ["usher", "eii", "ipd"]);
    // Words after `--` are a command line, not options of Usher.
    assert!(complete(&["run", "--", "tru"]).contains(&"true".to_owned()));
    let file = world.path("input");
    fs::write(&file, "").unwrap();
    let file = file.to_str().unwrap();
    let begin = &file[..file.len() - 1];
    assert_eq!(complete(&["run", "--", "cat", begin]), [file]);
}
