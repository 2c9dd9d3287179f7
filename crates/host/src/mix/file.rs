// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parses mix files: TOML descriptions of programs that are measured together. `docs/mix-file.md`
//! describes the format. Unknown keys are rejected. An error names the line, the program and the
//! key; if an unknown key resembles a known key, the error suggests the known key. Paths are
//! relative to the directory of the file.
//!
//! A mix has at least one program, and the programs have different names. Weights, times and counts
//! must be positive and finite. The first error ends the parsing.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use serde::de::Deserializer;
use toml::Spanned;

use crate::launch::{LaunchSpec, Stream};

/// The content of a mix file.
#[derive(Debug, Clone, PartialEq)]
pub struct MixFile {
    /// The file.
    pub path: PathBuf,
    /// Directory of the file: the programs' working directory and the base of relative paths.
    pub dir: PathBuf,
    /// The mix's name.
    pub title: String,
    /// The purpose of the mix.
    pub description: String,
    /// The protocol of its rounds.
    pub protocol: MixProtocol,
    /// The commands that make the inputs, in order.
    pub setup: Vec<SetupCommand>,
    /// The programs, at least one; their names are unique.
    pub programs: Vec<MixProgram>,
}

/// The protocol of a mix, unless the command line overrides it.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MixProtocol {
    /// Minimum number of repetitions of every program in every round.
    pub repeats: u32,
    /// Number of rounds of each policy.
    pub rounds: u32,
    /// Time limit in seconds of the whole measurement, including setup and curves. `mix/mod.rs`
    /// explains how the limit is kept.
    pub max_seconds: Option<f64>,
    /// Time limit of a repetition in seconds; a longer repetition ends the mix with an error.
    pub timeout_seconds: f64,
    /// Whether all programs run in the session of `usher mix`. If false, each program gets a
    /// session of its own.
    pub one_session: bool,
}

impl Default for MixProtocol {
    fn default() -> Self {
        Self {
            repeats: 3,
            rounds: 1,
            max_seconds: None,
            timeout_seconds: 900.0,
            one_session: false,
        }
    }
}

/// A command that makes input files of programs.
#[derive(Debug, Clone, PartialEq)]
pub struct SetupCommand {
    /// The command.
    pub argv: Vec<OsString>,
    /// Output of the command. If the output exists, the command is not run.
    pub unless_exists: Option<PathBuf>,
}

/// A program of a mix.
#[derive(Debug, Clone, PartialEq)]
pub struct MixProgram {
    /// Name of the program in the mix.
    pub name: String,
    /// Command of the program.
    pub argv: Vec<OsString>,
    /// A short description of how the program scales.
    pub class: String,
    /// The Debian packages that contain the program.
    pub package: Option<String>,
    /// Weight of its NTT in the mean, finite and > 0.
    pub weight: f64,
    /// Environment variables that are set for the program.
    pub env: BTreeMap<String, String>,
    /// Standard input; `None` for `/dev/null`.
    pub stdin: Option<PathBuf>,
    /// Standard output; `None` for `/dev/null`.
    pub output: Option<PathBuf>,
    /// Documented duration in seconds on one core and on two cores.
    pub documented_seconds: [Option<f64>; 2],
    /// Exit statuses that mean success.
    pub ok_exit_codes: Vec<u8>,
}

/// The reason why a mix file was rejected.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum MixFileError {
    /// The file could not be read.
    #[error("reading the mix {path}: {reason}")]
    Read {
        /// The file.
        path: String,
        /// The cause.
        reason: String,
    },
    /// A key or value is invalid.
    #[error("{path}:{line}: {position}{reason}")]
    Invalid {
        /// The file.
        path: String,
        /// The line, from 1.
        line: usize,
        /// The program and the key, if known.
        position: MixPosition,
        /// The error.
        reason: String,
    },
}

/// A position in a mix file.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct MixPosition {
    /// The program's name.
    pub program: Option<String>,
    /// The key.
    pub key: Option<String>,
}

impl fmt::Display for MixPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(program) = &self.program {
            write!(f, "program '{program}': ")?;
        }
        if let Some(key) = &self.key {
            write!(f, "{key}: ")?;
        }
        Ok(())
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawMix {
    title: Option<String>,
    #[serde(default)]
    description: String,
    #[serde(default)]
    protocol: Option<Spanned<MixProtocol>>,
    #[serde(default)]
    setup: Vec<RawSetup>,
    #[serde(default)]
    program: Vec<RawProgram>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSetup {
    run: Spanned<CommandWords>,
    unless_exists: Option<PathBuf>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawProgram {
    name: Spanned<String>,
    run: Spanned<CommandWords>,
    #[serde(default)]
    class: String,
    package: Option<String>,
    weight: Option<Spanned<f64>>,
    #[serde(default)]
    env: BTreeMap<Spanned<String>, String>,
    stdin: Option<PathBuf>,
    output: Option<String>,
    one_core_seconds: Option<Spanned<f64>>,
    two_core_seconds: Option<Spanned<f64>>,
    ok_exit_codes: Option<Spanned<Vec<u8>>>,
}

/// A command in a mix file: a list of words, or a line for the shell.
struct CommandWords(Vec<OsString>);

impl<'de> Deserialize<'de> for CommandWords {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "a list of words, or one line for the shell")]
        enum Command {
            Line(String),
            List(Vec<String>),
        }
        Ok(Self(match Command::deserialize(deserializer)? {
            Command::Line(line) if line.trim().is_empty() => Vec::new(),
            Command::Line(line) => vec!["sh".into(), "-c".into(), line.into()],
            Command::List(words) => words.into_iter().map(OsString::from).collect(),
        }))
    }
}

impl MixFile {
    /// Reads a mix.
    ///
    /// # Errors
    /// The file cannot be read; a key is unknown, missing or invalid.
    pub fn read(path: &Path) -> Result<Self, MixFileError> {
        let text = std::fs::read_to_string(path).map_err(|error| MixFileError::Read {
            path: path.display().to_string(),
            reason: error.to_string(),
        })?;
        Self::parse(path, &text)
    }

    /// Parses a mix from text; `path` is the file's path.
    ///
    /// # Errors
    /// A key is unknown, missing or invalid.
    pub fn parse(path: &Path, text: &str) -> Result<Self, MixFileError> {
        let source = MixSource { path, text };
        if let Some(reason) = usher_model::nesting_error(text) {
            return Err(source.parse_error(&serde::de::Error::custom(reason)));
        }
        let raw: RawMix = toml::from_str(text).map_err(|error| source.parse_error(&error))?;
        let protocol = raw.protocol.map_or_else(
            || Ok(MixProtocol::default()),
            |protocol| source.protocol(protocol),
        )?;
        source.check_names(&raw.program)?;
        let setup = raw.setup.into_iter().map(|setup| source.setup(setup));
        let programs = raw.program.into_iter().map(|p| source.program(p));
        let mix = Self {
            path: path.to_owned(),
            dir: path
                .parent()
                .filter(|p| !p.as_os_str().is_empty())
                .map_or_else(|| PathBuf::from("."), Path::to_owned),
            title: raw.title.unwrap_or_else(|| file_stem(path)),
            description: raw.description.trim().to_owned(),
            protocol,
            setup: setup.collect::<Result<_, _>>()?,
            programs: programs.collect::<Result<_, _>>()?,
        };
        match mix.programs.is_empty() {
            true => Err(source.invalid(
                0..0,
                MixPosition::default(),
                "a mix needs at least one [[program]]",
            )),
            false => Ok(mix),
        }
    }
}

impl MixPosition {
    fn of(program: &str, key: &str) -> Self {
        Self {
            program: Some(program.to_owned()),
            key: Some(key.to_owned()),
        }
    }
}

fn file_stem(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or(path.as_os_str());
    stem.to_string_lossy().into_owned()
}

/// A mix file that is being parsed.
struct MixSource<'a> {
    path: &'a Path,
    text: &'a str,
}

impl MixSource<'_> {
    fn invalid(
        &self,
        span: Range<usize>,
        position: MixPosition,
        reason: impl Into<String>,
    ) -> MixFileError {
        MixFileError::Invalid {
            path: self.path.display().to_string(),
            line: self.line(span.start),
            position,
            reason: reason.into(),
        }
    }

    fn line(&self, at: usize) -> usize {
        let before = self.text.as_bytes().iter().take(at);
        1 + before.filter(|&&byte| byte == b'\n').count()
    }

    /// Returns the parser's error, with the program and key at the position of the error.
    fn parse_error(&self, error: &toml::de::Error) -> MixFileError {
        let span = error.span().unwrap_or(0..0);
        let reason =
            usher_model::with_suggestion(error.message().lines().next().unwrap_or_default());
        let position = self.position(self.line(span.start));
        self.invalid(span, position, reason)
    }

    /// Returns the program and key at a line of the file.
    fn position(&self, line: usize) -> MixPosition {
        let lines: Vec<&str> = self.text.lines().take(line).collect();
        let key_of = |line: &&str| {
            let (key, _) = line.split_once('=')?;
            let key = key.trim();
            let bare = |c: char| c.is_alphanumeric() || c == '_' || c == '-' || c == '.';
            (!key.is_empty() && key.chars().all(bare)).then(|| key.to_owned())
        };
        let header = lines
            .iter()
            .rposition(|line| line.trim_start().starts_with('['));
        let in_program = header.is_some_and(|at| lines[at].trim() == "[[program]]");
        let first = header.map_or(0, |at| at + 1);
        let table: Vec<&str> = self.text.lines().skip(first).collect();
        let table = table
            .split(|line| line.starts_with('['))
            .next()
            .unwrap_or(&[]);
        let name = table.iter().find_map(|line| {
            let value = line
                .trim()
                .strip_prefix("name")?
                .trim_start()
                .strip_prefix('=')?;
            Some(value.trim().trim_matches('"').to_owned())
        });
        MixPosition {
            program: name.filter(|_| in_program),
            key: lines.last().and_then(key_of),
        }
    }

    fn protocol(&self, raw: Spanned<MixProtocol>) -> Result<MixProtocol, MixFileError> {
        let (span, protocol) = (raw.span(), raw.into_inner());
        let wrong = |key: &str, reason: &str| {
            let position = MixPosition {
                program: None,
                key: Some(format!("protocol.{key}")),
            };
            Err(self.invalid(span.clone(), position, reason))
        };
        if protocol.repeats == 0 {
            return wrong("repeats", "must be at least 1");
        }
        if protocol.rounds == 0 {
            return wrong("rounds", "must be at least 1");
        }
        let times = [
            ("max_seconds", protocol.max_seconds),
            ("timeout_seconds", Some(protocol.timeout_seconds)),
        ];
        for (key, seconds) in times {
            match seconds {
                Some(s) if !s.is_finite() => {
                    return wrong(key, "must be a finite number of seconds");
                }
                Some(s) if s <= 0.0 => return wrong(key, "must be positive"),
                Some(s) if Duration::try_from_secs_f64(s).is_err() => {
                    return wrong(key, "is longer than the longest supported duration");
                }
                _ => {}
            }
        }
        Ok(protocol)
    }

    fn check_names(&self, programs: &[RawProgram]) -> Result<(), MixFileError> {
        let mut seen = BTreeSet::new();
        let twice = programs.iter().find(|p| !seen.insert(p.name.get_ref()));
        match twice.map(|program| &program.name) {
            Some(name) => {
                let position = MixPosition::of(name.get_ref(), "name");
                Err(self.invalid(
                    name.span(),
                    position,
                    "another program has the same name: give each program a name of its own",
                ))
            }
            None => Ok(()),
        }
    }

    fn setup(&self, raw: RawSetup) -> Result<SetupCommand, MixFileError> {
        let position = MixPosition {
            program: None,
            key: Some("setup.run".to_owned()),
        };
        Ok(SetupCommand {
            argv: self.words(raw.run, position)?,
            unless_exists: raw.unless_exists,
        })
    }

    fn words(
        &self,
        run: Spanned<CommandWords>,
        position: MixPosition,
    ) -> Result<Vec<OsString>, MixFileError> {
        let (span, CommandWords(words)) = (run.span(), run.into_inner());
        match words.first().is_none_or(|word| word.is_empty()) {
            true => Err(self.invalid(span, position, "the command is empty")),
            false => Ok(words),
        }
    }

    fn env(
        &self,
        raw: BTreeMap<Spanned<String>, String>,
        position: MixPosition,
    ) -> Result<BTreeMap<String, String>, MixFileError> {
        let is_wrong = |name: &&Spanned<String>| {
            let name = name.get_ref();
            name.is_empty() || name.contains(['=', '\0'])
        };
        if let Some(name) = raw.keys().find(is_wrong) {
            let reason = format!(
                "'{}' is not a valid name of an environment variable",
                name.get_ref().escape_debug()
            );
            return Err(self.invalid(name.span(), position, reason));
        }
        let variables = raw.into_iter();
        Ok(variables
            .map(|(name, value)| (name.into_inner(), value))
            .collect())
    }

    fn program(&self, raw: RawProgram) -> Result<MixProgram, MixFileError> {
        let (name_span, name) = (raw.name.span(), raw.name.into_inner());
        let position = |key: &str| MixPosition::of(&name, key);
        if name.trim().is_empty() {
            return Err(self.invalid(name_span, position("name"), "is empty"));
        }
        let positive = |key: &str, value: Option<Spanned<f64>>| match value {
            Some(v) if !(v.get_ref().is_finite() && *v.get_ref() > 0.0) => {
                let reason = format!("must be a positive number, not {}", v.get_ref());
                Err(self.invalid(v.span(), position(key), reason))
            }
            value => Ok(value.map(Spanned::into_inner)),
        };
        let documented_seconds = [
            positive("one_core_seconds", raw.one_core_seconds)?,
            positive("two_core_seconds", raw.two_core_seconds)?,
        ];
        let ok_exit_codes = match raw.ok_exit_codes {
            Some(list) if list.get_ref().is_empty() => {
                let reason = "must contain at least one exit status";
                return Err(self.invalid(list.span(), position("ok_exit_codes"), reason));
            }
            list => list.map_or_else(|| vec![0], Spanned::into_inner),
        };
        Ok(MixProgram {
            weight: positive("weight", raw.weight)?.unwrap_or(1.0),
            argv: self.words(raw.run, position("run"))?,
            class: raw.class,
            package: raw.package,
            env: self.env(raw.env, position("env"))?,
            stdin: raw.stdin,
            output: raw.output.filter(|to| to != "discard").map(PathBuf::from),
            documented_seconds,
            ok_exit_codes,
            name,
        })
    }
}

impl MixProgram {
    /// Returns the launch options of the program in this directory; `stderr` is the target of its
    /// standard error.
    pub fn spec(&self, dir: &Path, stderr: Stream, new_session: bool) -> LaunchSpec {
        let file = |path: &PathBuf| Stream::File(dir.join(path));
        let env = self.env.iter();
        LaunchSpec {
            argv: self.argv.clone(),
            cwd: Some(dir.to_owned()),
            env: env
                .map(|(name, value)| (name.into(), Some(value.into())))
                .collect(),
            stdin: self.stdin.as_ref().map_or(Stream::Null, file),
            stdout: self.output.as_ref().map_or(Stream::Null, file),
            stderr,
            thread_variables: Vec::new(),
            new_session,
        }
    }

    /// Returns the command line of the program for display.
    pub fn command(&self) -> String {
        let words: Vec<_> = self
            .argv
            .iter()
            .map(|word| word.to_string_lossy())
            .collect();
        match &words[..] {
            [shell, flag, line] if shell == "sh" && flag == "-c" => line.to_string(),
            words => words.join(" "),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
title = "Two"
[protocol]
repeats = 2
max_seconds = 280
[[setup]]
run = "echo > in"
unless_exists = "in"
[[program]]
name = "a"
run = ["cat", "in"]
env = { LC_ALL = "C" }
stdin = "in"
output = "out"
ok_exit_codes = [0, 1]
weight = 2
one_core_seconds = 1.5
[[program]]
name = "b"
run = "cat in | wc"
"#;

    fn parse(text: &str) -> Result<MixFile, MixFileError> {
        MixFile::parse(Path::new("dir/two.toml"), text)
    }

    #[test]
    fn parses_every_documented_key() {
        let mix = parse(GOOD).unwrap();
        assert_eq!(
            (mix.title.as_str(), mix.dir.as_path()),
            ("Two", Path::new("dir"))
        );
        assert_eq!((mix.protocol.repeats, mix.protocol.rounds), (2, 1));
        assert_eq!(mix.protocol.max_seconds, Some(280.0));
        assert_eq!(mix.setup[0].unless_exists.as_deref(), Some(Path::new("in")));
        let [a, b] = &mix.programs[..] else { panic!() };
        assert_eq!((a.weight, &a.ok_exit_codes[..]), (2.0, &[0, 1][..]));
        assert_eq!(a.documented_seconds, [Some(1.5), None]);
        assert_eq!(
            (a.command(), b.command()),
            ("cat in".to_owned(), "cat in | wc".to_owned())
        );
        assert_eq!((b.weight, &b.ok_exit_codes[..]), (1.0, &[0][..]));
        let spec = a.spec(&mix.dir, Stream::Null, true);
        assert_eq!(spec.stdin, Stream::File("dir/in".into()));
        assert_eq!(spec.stdout, Stream::File("dir/out".into()));
    }

    /// Parses the valid mix after one replacement, and checks the error.
    fn check_error(from: &str, to: &str, expected: &str) {
        let error = parse(&GOOD.replace(from, to)).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}\nlacks {expected}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }

    #[test]
    fn errors_name_line_program_and_key() {
        for (from, to, expected) in [
            (
                "weight = 2",
                "weight = -2",
                "dir/two.toml:16: program 'a': weight: must be a positive number, not -2",
            ),
            (
                "weight = 2",
                "wieght = 2",
                "dir/two.toml:16: program 'a': wieght: unknown field `wieght`, expected one of",
            ),
            (
                "name = \"b\"",
                "name = \"a\"",
                "dir/two.toml:19: program 'a': name: another program has the same name: give each \
                 program a name of its own",
            ),
            (
                "run = \"cat in | wc\"",
                "",
                "dir/two.toml:18: program 'b': missing field `run`",
            ),
            (
                "run = \"cat in | wc\"",
                "run = []",
                "dir/two.toml:20: program 'b': run: the command is empty",
            ),
            (
                "run = \"cat in | wc\"",
                "run = 3",
                "dir/two.toml:20: program 'b': run: a list of words, or one line for the shell",
            ),
            (
                "repeats = 2",
                "repeats = 0",
                "dir/two.toml:3: protocol.repeats: must be at least 1",
            ),
            (
                "ok_exit_codes = [0, 1]",
                "ok_exit_codes = [256]",
                "dir/two.toml:15: program 'a': ok_exit_codes: ",
            ),
            (
                "ok_exit_codes = [0, 1]",
                "ok_exit_codes = [",
                "dir/two.toml:",
            ),
            (
                "title = \"Two\"",
                "titel = \"Two\"",
                "dir/two.toml:2: titel: unknown field `titel`",
            ),
        ] {
            check_error(from, to, expected);
        }
        let error = parse("title = \"none\"").unwrap_err().to_string();
        assert_eq!(
            error,
            "dir/two.toml:1: a mix needs at least one [[program]]"
        );
    }

    #[test]
    fn unknown_keys_are_rejected_with_a_close_suggestion() {
        for (from, to, expected) in [
            (
                "weight = 2",
                "wieght = 2",
                "; a similar name exists: `weight`",
            ),
            (
                "ok_exit_codes = [0, 1]",
                "ok_status = [0, 1]",
                "dir/two.toml:15: program 'a': ok_status: unknown field `ok_status`, expected one of",
            ),
            (
                "max_seconds = 280",
                "patience_seconds = 280",
                "patience_seconds: unknown field `patience_seconds`, expected one of",
            ),
            (
                "unless_exists = \"in\"",
                "creates = \"in\"",
                "creates: unknown field `creates`, expected `run` or `unless_exists`",
            ),
        ] {
            check_error(from, to, expected);
        }
    }

    #[test]
    fn rejects_empty_commands_invalid_variables_and_durations() {
        for (from, to, expected) in [
            (
                "run = \"cat in | wc\"",
                "run = \" \"",
                "dir/two.toml:20: program 'b': run: the command is empty",
            ),
            (
                "run = \"echo > in\"",
                "run = \"\"",
                "dir/two.toml:7: setup.run: the command is empty",
            ),
            (
                "LC_ALL =",
                "\"A=B\" =",
                "dir/two.toml:12: program 'a': env: 'A=B' is not a valid name of an environment variable",
            ),
            (
                "LC_ALL =",
                "\"\" =",
                "dir/two.toml:12: program 'a': env: '' is not a valid name of an environment variable",
            ),
            (
                "max_seconds = 280",
                "timeout_seconds = inf",
                "dir/two.toml:3: protocol.timeout_seconds: must be a finite number of seconds",
            ),
            (
                "max_seconds = 280",
                "timeout_seconds = 1e300",
                "dir/two.toml:3: protocol.timeout_seconds: is longer than the longest supported duration",
            ),
            (
                "max_seconds = 280",
                "max_seconds = -1",
                "dir/two.toml:3: protocol.max_seconds: must be positive",
            ),
        ] {
            check_error(from, to, expected);
        }
    }
}
