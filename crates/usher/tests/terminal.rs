// SPDX-License-Identifier: GPL-2.0-only
//! Tests that no command passes control characters or invisible characters of a name to its
//! standard output or standard error, as text or as JSON, with or without colour.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::process::{Child, Command, Output, Stdio};

use common::{World, signal, wait_for};

/// A name with every kind of dangerous character: sequences that clear a terminal and set its
/// title, C1 and DEL, a change to right-to-left text, characters without width, and bytes that are
/// not UTF-8.
const NAME: &[u8] =
    b"a\x1b[2J\x1b]0;t\x07\xc2\x9b31m\x7f\r\xe2\x80\xae\xe2\x81\xa6\xe2\x80\x8b\xff";

fn name() -> &'static OsStr {
    OsStr::from_bytes(NAME)
}

/// A sleeping program with this name, or its launcher; killed when dropped.
struct Sleeper(Child);

impl Drop for Sleeper {
    fn drop(&mut self) {
        // SIGTERM also ends the program of a launcher, because a launcher forwards the signal.
        signal(self.0.id() as i32, libc::SIGTERM);
        let _ = self.0.wait();
    }
}

/// Returns the first character of a text that must not reach a terminal. Usher's own styles are
/// permitted.
fn first_bad(text: &str) -> Option<char> {
    let plain = without_styles(text);
    plain.chars().find(|&c| {
        let invisible = matches!(u32::from(c), 0x200b..=0x200f | 0x202a..=0x202e | 0x2060..=0x206f);
        (c.is_control() && c != '\n' && c != '\t') || invisible
    })
}

fn without_styles(text: &str) -> String {
    let mut parts = text.split("\x1b[");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part
            .trim_start_matches(|c: char| c.is_ascii_digit() || c == ';')
            .strip_prefix('m')
        {
            Some(rest) => plain.push_str(rest),
            None => {
                plain.push_str("\x1b[");
                plain.push_str(part);
            }
        }
    }
    plain
}

fn check(words: &[OsString], output: &Output) {
    for (stream, bytes) in [("stdout", &output.stdout), ("stderr", &output.stderr)] {
        let text = String::from_utf8_lossy(bytes);
        let bad = first_bad(&text);
        assert_eq!(bad, None, "{stream} of {words:?}: {text:?}");
    }
}

/// Returns commands that get the name, a file of that name, or a file with such names.
fn commands(world: &World, path: &OsStr, pid: &OsStr) -> Vec<Vec<OsString>> {
    let mix = world.path("mix.toml");
    fs::write(&mix, "name = \"\u{202e}\u{9b}x\"\n").unwrap();
    let plan = world.path("plan.json");
    let text = r#"{"programs":[{"name":"\u001b[2J\u202e","curve":{"1":1.0,"2":1.5}}]}"#;
    fs::write(&plan, text).unwrap();
    let word = OsStr::new;
    let commands: Vec<Vec<&OsStr>> = vec![
        vec![word("attach"), pid],
        vec![word("attach"), word("--name"), name(), pid],
        vec![word("status")],
        vec![word("explain")],
        vec![word("explain"), word("1")],
        vec![word("explain"), name()],
        vec![word("top")],
        vec![word("detach"), name()],
        vec![word("detach"), word("2")],
        vec![word("run"), word("--"), word("/nonexistent"), path],
        vec![
            word("run"),
            word("--name"),
            name(),
            word("--"),
            word("true"),
        ],
        vec![
            word("bg"),
            word("--policy"),
            name(),
            word("--"),
            word("true"),
        ],
        vec![word("profile"), word("--force"), word("--"), name()],
        vec![word("profile"), word("show"), name()],
        vec![word("profile"), word("rm"), name()],
        vec![word("profile"), word("import"), path],
        vec![word("plan"), word("--programs"), plan.as_os_str()],
        vec![word("plan"), word("--programs"), path],
        vec![word("mix"), mix.as_os_str()],
        vec![word("sim"), word("mix"), mix.as_os_str()],
        vec![word("replay"), path],
        vec![word("topo"), path],
        vec![word("topo"), name()],
        vec![word("sched"), word("status")],
        vec![word("sched"), word("explain"), pid],
        vec![word("completions"), name()],
        vec![name()],
    ];
    let owned = |words: &Vec<&OsStr>| words.iter().map(|word| word.to_os_string()).collect();
    commands.iter().map(owned).collect()
}

#[test]
fn no_command_passes_control_characters_of_names_on() {
    let mut world = World::new();
    let daemon = world.daemon(&[]);
    let program = world.path("programs").join(name());
    fs::create_dir(world.path("programs")).unwrap();
    symlink("/bin/sleep", &program).unwrap();
    let running = Command::new(&program).arg("600").spawn().unwrap();
    let running = Sleeper(running);
    let launched = world
        .usher(&["run", "--"])
        .arg(&program)
        .arg("600")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let _launched = Sleeper(launched.unwrap());
    wait_for("a managed program", || {
        let status = world.json(&["status"])?;
        (status["programs"].as_array()?.len() == 1).then_some(())
    });
    let pid = running.0.id().to_string();
    for words in commands(&world, program.as_os_str(), OsStr::new(&pid)) {
        for style in [
            &["--color", "always"][..],
            &["--color", "never"],
            &["--json"],
        ] {
            let command: Vec<OsString> = style.iter().map(OsString::from).collect();
            let command: Vec<OsString> = command.into_iter().chain(words.clone()).collect();
            let output = world.usher(&[]).args(&command).output().unwrap();
            check(&command, &output);
        }
    }
    world.end(daemon);
}

#[test]
fn the_check_detects_characters_that_a_terminal_interprets() {
    for text in ["\x1b[2J", "\u{9b}", "\r", "a\u{202e}", "\u{200b}", "\x1b"] {
        assert!(first_bad(text).is_some(), "{text:?}");
    }
    assert_eq!(first_bad("\x1b[1mok\x1b[0m\tü\n"), None);
}
