// SPDX-License-Identifier: GPL-2.0-only
//! Checks that the README lists every command, that every `usher` command in the code blocks of
//! the documents exists, with the options that the document shows, and that the table of options in
//! `docs/seats.md` names the right commands. The commands are parsed, not run.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Documents with `usher` commands in their code blocks.
const DOCUMENTS: [&str; 11] = [
    "README.md",
    "examples/README.md",
    "docs/background.md",
    "docs/copies.md",
    "docs/mix-file.md",
    "docs/policies.md",
    "docs/profiles.md",
    "docs/sched.md",
    "docs/seats.md",
    "docs/sim-mix-file.md",
    "docs/slurm.md",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the commands in the code blocks of a Markdown text, without comments.
fn commands(text: &str) -> Vec<String> {
    let mut inside = false;
    let mut found = Vec::new();
    for line in text.lines() {
        if line.starts_with("```") {
            inside = !inside;
        } else if inside {
            let line = line.split("  #").next().unwrap_or(line);
            let words = line.split_whitespace().skip_while(|word| {
                *word == "$" || *word == "sudo" || word.split_once('=').is_some()
            });
            let command: Vec<&str> = words.collect();
            if command.first() == Some(&"usher") && command.len() > 1 {
                found.push(command.join(" "));
            }
        }
    }
    found
}

/// Returns the error of a command with an unknown subcommand or option; `None` for a valid
/// command.
fn wrong(command: &str) -> Option<String> {
    let mut words = command
        .split_whitespace()
        .skip(1)
        .take_while(|word| *word != "--" && *word != "|" && *word != ">" && *word != "&");
    let subcommand = words.next()?;
    if subcommand == "bench" {
        return None; // a program of its own
    }
    let mut help = Command::new(env!("CARGO_BIN_EXE_usher"));
    match subcommand.starts_with('-') {
        true => help.arg("--help"),
        false => help.args([subcommand, "--help"]),
    };
    let help = help.output().unwrap();
    if !help.status.success() {
        return Some(format!("`{command}`: no such command"));
    }
    let text = String::from_utf8_lossy(&help.stdout).into_owned();
    // The options of `usher slurm merge` are in its own help.
    let below = words.clone().next().filter(|_| subcommand == "slurm");
    let below = below.map_or_else(String::new, |word| {
        let mut help = Command::new(env!("CARGO_BIN_EXE_usher"));
        let output = help.args([subcommand, word, "--help"]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    });
    let known = |option: &str| has_option(&text, option) || has_option(&below, option);
    let unknown = std::iter::once(subcommand)
        .chain(words)
        .filter(|word| word.starts_with("--"))
        .map(|word| word.split('=').next().unwrap_or(word))
        .find(|option| !known(option))?;
    Some(format!("`{command}`: no option {unknown}"))
}

/// Returns whether a help text contains an option.
fn has_option(help: &str, option: &str) -> bool {
    help.split(|c: char| c.is_whitespace() || ",[]=<".contains(c))
        .any(|word| word == option)
}

/// Returns the parts of a Markdown cell in backquotes, up to the first blank of each.
fn quoted_words(cell: &str) -> Vec<&str> {
    let parts = cell.split('`').skip(1).step_by(2);
    parts
        .filter_map(|part| part.split_whitespace().next())
        .collect()
}

#[test]
fn the_table_of_options_names_the_commands_that_have_them() {
    let text = fs::read_to_string(root().join("docs/seats.md")).unwrap();
    let helps = ["run", "bg", "attach", "daemon"].map(|command| {
        let mut usher = Command::new(env!("CARGO_BIN_EXE_usher"));
        let help = usher.args([command, "--help"]).output().unwrap();
        (command, String::from_utf8(help.stdout).unwrap())
    });
    let rows = text.lines().filter(|line| line.starts_with("| `--"));
    let mut checked = 0;
    for row in rows {
        let cells: Vec<&str> = row.split(" | ").collect();
        for option in quoted_words(cells[0]) {
            // `--policy` of `usher bg` has another meaning.
            let commands = helps.iter().map(|(command, help)| (*command, help));
            let having = commands.filter(|&(command, help)| {
                has_option(help, option) && (command, option) != ("bg", "--policy")
            });
            let having: Vec<&str> = having.map(|(command, _)| command).collect();
            let named = match cells[1] {
                "all commands" => helps.each_ref().map(|(command, _)| *command).to_vec(),
                cell => quoted_words(cell),
            };
            assert_eq!(named, having, "{option}");
            checked += 1;
        }
    }
    assert!(checked >= 8, "only {checked} options found");
}

#[test]
fn documents_show_commands_that_exist() {
    let mut shown = 0;
    let mut mistakes = Vec::new();
    for document in DOCUMENTS {
        let text = fs::read_to_string(root().join(document)).unwrap();
        let commands = commands(&text);
        shown += commands.len();
        mistakes.extend(
            commands
                .iter()
                .filter_map(|command| wrong(command))
                .map(|what| format!("{document}: {what}")),
        );
    }
    assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
    assert!(shown >= 10, "only {shown} commands found");
}

#[test]
fn detects_an_invalid_command() {
    let text = "usher gone\n```sh\n$ usher gone --x\nOMP_NUM_THREADS=2 usher run --nope -- true --help\n\
                usher run -- true --other   # fine\n```\n";
    let commands = commands(text);
    assert_eq!(commands.len(), 3);
    let found: Vec<bool> = commands.iter().map(|c| wrong(c).is_some()).collect();
    assert_eq!(found, [true, true, false], "{commands:?}");
}

/// Returns the subcommands that `usher --help` lists.
fn listed_commands() -> Vec<String> {
    let mut help = Command::new(env!("CARGO_BIN_EXE_usher"));
    let output = help.arg("--help").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().skip_while(|line| *line != "Commands:").skip(1);
    let lines = lines.take_while(|line| !line.is_empty());
    // The lines that continue a description have a greater indent.
    let names = lines.filter_map(|line| line.strip_prefix("  ")?.split_once(' '));
    let names = names.map(|(name, _)| name.to_owned());
    names
        .filter(|name| !name.is_empty() && name != "help")
        .collect()
}

/// Returns the words in backticks of a table's rows.
fn words_of_table(text: &str) -> Vec<&str> {
    let rows = text.lines().filter(|line| line.starts_with('|'));
    let quoted = rows.flat_map(|row| row.split('`').skip(1).step_by(2));
    quoted.flat_map(str::split_whitespace).collect()
}

#[test]
fn the_readme_lists_every_command() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let section = readme.split_once("## Commands").unwrap().1;
    let section = section.split("\n## ").next().unwrap();
    let words = words_of_table(section);
    let commands = listed_commands();
    assert!(commands.len() > 10, "{commands:?}");
    let missing: Vec<_> = commands
        .iter()
        .filter(|name| !words.contains(&name.as_str()))
        .collect();
    assert!(missing.is_empty(), "README.md lacks {missing:?}");
}
