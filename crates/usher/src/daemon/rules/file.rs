// SPDX-License-Identifier: GPL-2.0-only
//! Reads the configuration file: `/etc/usher/usher.toml` for root's daemon, and
//! `usher/usher.toml` in `$XDG_CONFIG_HOME` or `~/.config` for a user's daemon.
//!
//! 1. The file must be a regular file of root or of the daemon's user, and no other user may write
//!    to it. Root's daemon reads no file of a user, because a rule of a user could then affect
//!    processes of all users.
//! 2. Every error names the file, the line and, where possible, the key. A misspelt key gets the
//!    closest known key as a suggestion.
//! 3. Without a file, there are no rules. A file that the option `--config` names must exist. A
//!    default file in a folder that this user may not search counts as missing, with a message.
//!
//! A symbolic link without a target counts as an error, not as a missing file.
//!
//! Bounds: 256 KiB per file, 256 rules, 1024 bytes per pattern.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use globset::{GlobBuilder, GlobMatcher};
use serde::Deserialize;
use toml::Spanned;
use usher_host::engine::WEIGHTS;
use usher_model::Regulation;

use super::tables::{DaemonSettings, DaemonTable, SchedulerTable};
use super::{Action, Conditions, Executable, Rule, Ruleset};
use crate::cli::options::program_name;
use crate::daemon::scheduler::SchedulerConfig;
use crate::peer::users;

const BYTES_MAX: u64 = 256 * 1024;
const RULES_MAX: usize = 256;
const PATTERN_BYTES_MAX: usize = 1024;

/// The path for root's daemon.
const SYSTEM: &str = "/etc/usher/usher.toml";

/// The contents of the file.
#[derive(Debug, Clone, Default)]
pub struct ConfigFile {
    /// Settings of the daemon, which take effect at its start.
    pub daemon: DaemonSettings,
    /// The scheduler that root's daemon loads.
    pub scheduler: SchedulerConfig,
    /// The rules and defaults.
    pub rules: Ruleset,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Document {
    daemon: DaemonTable,
    scheduler: SchedulerTable,
    defaults: DefaultsTable,
    rule: Vec<Spanned<RuleTable>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct DefaultsTable {
    weight: Option<Spanned<f64>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RuleTable {
    executable: Option<Spanned<String>>,
    command: Option<Spanned<String>>,
    unit: Option<Spanned<String>>,
    cgroup: Option<Spanned<String>>,
    user: Option<Spanned<User>>,
    action: Option<Spanned<String>>,
    background_policy: Option<Spanned<String>>,
    weight: Option<Spanned<f64>>,
    cores: Option<Spanned<i64>>,
    name: Option<Spanned<String>>,
    attach: bool,
}

/// A user by number or name.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected the name or the number of a user")]
enum User {
    Number(u32),
    Name(String),
}

/// Returns the default path; `None` if the user has no home.
pub fn default_path() -> Option<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Some(SYSTEM.into());
    }
    let absolute = |name: &str| {
        let path = std::env::var_os(name).map(PathBuf::from);
        path.filter(|path| path.is_absolute())
    };
    let config = absolute("XDG_CONFIG_HOME");
    let config = config.or_else(|| absolute("HOME").map(|home| home.join(".config")));
    config.map(|config| config.join("usher/usher.toml"))
}

/// Reads the given file, or else the default file if it exists.
///
/// # Errors
/// The file cannot be read, is not safe, or has an error, with its line.
pub fn load(given: Option<&Path>) -> anyhow::Result<ConfigFile> {
    let Some(path) = given.map(Path::to_owned).or_else(default_path) else {
        return Ok(ConfigFile::default());
    };
    let text = match read(&path) {
        Ok(text) => text,
        Err(error) if given.is_none() && is_absent(&error) && !is_link(&path) => {
            return Ok(ConfigFile::default());
        }
        Err(_) if given.is_none() && is_hidden(&path) => {
            log::warn!(
                "the configuration file '{}' is in a folder that this user may not search: using \
                 no rules",
                path.display()
            );
            return Ok(ConfigFile::default());
        }
        Err(error) => {
            return Err(error)
                .with_context(|| format!("reading the configuration file '{}'", path.display()));
        }
    };
    parse(&path, &text)
}

fn is_absent(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.is_some_and(|error| {
        matches!(
            error.kind(),
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
        )
    })
}

/// Whether the path is a symbolic link. A link without a target is an error, because the user meant
/// to have a file.
fn is_link(path: &Path) -> bool {
    let meta = path.symlink_metadata();
    meta.is_ok_and(|meta| meta.file_type().is_symlink())
}

/// Whether the path is in a folder that this user may not search, such as the home of another user
/// (`HOME` after `sudo`).
fn is_hidden(path: &Path) -> bool {
    let error = path.symlink_metadata().err();
    error.is_some_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
}

fn read(path: &Path) -> anyhow::Result<String> {
    // A FIFO in place of the file does not block the daemon.
    let mut options = File::options();
    let file = options
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        bail!("it is not a regular file");
    }
    let own = rustix::process::geteuid().as_raw();
    if ![0, own].contains(&meta.uid()) {
        bail!(
            "it belongs to user {}; its owner must be root or user {own}",
            meta.uid()
        );
    }
    if meta.mode() & 0o022 != 0 {
        bail!("other users may write to it; remove their write permission (chmod go-w)");
    }
    let mut bytes = Vec::new();
    file.take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > BYTES_MAX {
        bail!("it has more than {BYTES_MAX} bytes");
    }
    String::from_utf8(bytes).map_err(|_| anyhow!("it is not UTF-8"))
}

/// Parses the text of a file.
///
/// # Errors
/// The first error, with file, line and key.
pub fn parse(path: &Path, text: &str) -> anyhow::Result<ConfigFile> {
    let source = Source { path, text };
    if let Some(reason) = usher_model::nesting_error(text) {
        return Err(source.error(0, reason));
    }
    let document: Document = toml::from_str(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        if let Some(at) = single_brackets(text) {
            return source.error(
                at,
                "write `[[rule]]` instead of `[rule]`: each rule is one table of a list",
            );
        }
        let reason = error.message().lines().next().unwrap_or_default();
        let reason = usher_model::with_suggestion(reason);
        match source
            .key(at)
            .filter(|key| !reason.contains(&format!("`{key}`")))
        {
            Some(key) => source.error(at, format!("`{key}`: {reason}")),
            None => source.error(at, reason),
        }
    })?;
    if document.rule.len() > RULES_MAX {
        let at = document.rule[RULES_MAX].span().start;
        return Err(source.error(at, format!("there are more than {RULES_MAX} rules")));
    }
    let rules = document.rule.into_iter().enumerate();
    let rules = rules.map(|(at, table)| source.rule(at + 1, table));
    Ok(ConfigFile {
        daemon: document.daemon.settings(source)?,
        scheduler: document.scheduler.config(source)?,
        rules: Ruleset {
            file: Some(path.to_owned()),
            weight: source.weight(document.defaults.weight)?,
            rules: rules.collect::<anyhow::Result<_>>()?,
        },
    })
}

/// Returns the position of a line `[rule]`, which has a pair of brackets too few.
fn single_brackets(text: &str) -> Option<usize> {
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let header = line.split('#').next().unwrap_or_default();
        if header.split_whitespace().collect::<String>() == "[rule]" {
            return Some(at);
        }
        at += line.len();
    }
    None
}

/// The text of a file, for messages.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    path: &'a Path,
    text: &'a str,
}

impl Source<'_> {
    fn line(self, at: usize) -> usize {
        let before = self.text.bytes().take(at);
        1 + before.filter(|&byte| byte == b'\n').count()
    }

    /// Returns the key in the line of a position.
    fn key(self, at: usize) -> Option<&'static str> {
        const KEYS: [&str; 23] = [
            "policy",
            "metrics",
            "thresholds",
            "ignore",
            "log_level",
            "variation",
            "enable",
            "smt",
            "aggregate",
            "seats",
            "turn_ms",
            "max_lag_ms",
            "weight",
            "cores",
            "executable",
            "command",
            "unit",
            "cgroup",
            "user",
            "action",
            "background_policy",
            "name",
            "attach",
        ];
        let line = self.text.lines().nth(self.line(at) - 1)?;
        let (key, _) = line.split_once('=')?;
        let key = key.trim().trim_matches(['"', '\'']);
        KEYS.into_iter().find(|known| *known == key)
    }

    fn error(self, at: usize, reason: impl std::fmt::Display) -> anyhow::Error {
        anyhow!("{}:{}: {reason}", self.path.display(), self.line(at))
    }

    /// Converts a value; an error names the line and the key.
    pub(super) fn convert<T, U, E: std::fmt::Display>(
        self,
        key: &str,
        value: Option<Spanned<T>>,
        convert: impl FnOnce(T) -> Result<U, E>,
    ) -> anyhow::Result<Option<U>> {
        let Some(value) = value else {
            return Ok(None);
        };
        let at = value.span().start;
        let converted = convert(value.into_inner());
        converted
            .map(Some)
            .map_err(|reason| self.error(at, format!("`{key}`: {reason}")))
    }

    fn weight(self, weight: Option<Spanned<f64>>) -> anyhow::Result<Option<f64>> {
        self.convert("weight", weight, |weight| match WEIGHTS.contains(&weight) {
            true => Ok(weight),
            false => Err("the weight of a program must be a number from 0.001 to 1000"),
        })
    }

    fn rule(self, number: usize, table: Spanned<RuleTable>) -> anyhow::Result<Rule> {
        let at = table.span().start;
        let mut table = table.into_inner();
        let action = self.action(&mut table)?;
        let rule = Rule {
            number,
            line: self.line(at),
            action,
            weight: self.weight(table.weight)?,
            cores: self.convert("cores", table.cores, cores)?,
            name: self.convert("name", table.name, |name| program_name(&name))?,
            attach: table.attach,
            conditions: Conditions {
                executable: self.convert("executable", table.executable, executable)?,
                command: self.convert("command", table.command, |text| glob(&text, false))?,
                unit: self.convert("unit", table.unit, |text| glob(&text, true))?,
                cgroup: self.convert("cgroup", table.cgroup, |text| glob(&text, true))?,
                user: self.convert("user", table.user, user)?,
            },
        };
        let reason = contradiction(&rule);
        reason.map_or(Ok(rule), |reason| {
            Err(self.error(at, format!("rule {number}: {reason}")))
        })
    }

    fn action(self, table: &mut RuleTable) -> anyhow::Result<Action> {
        let named = |name: String| one_of(name, &["seat", "background", "ignore"]);
        let action = self.convert("action", table.action.take(), named)?;
        let given = table.background_policy.take();
        let at = given.as_ref().map(|policy| policy.span().start);
        let policy = self.convert("background_policy", given, |name: String| {
            let name = one_of(name, &Regulation::ALL.map(Regulation::name))?;
            let found = Regulation::ALL.into_iter().find(|one| one.name() == name);
            found.ok_or_else(|| "unknown policy".to_owned())
        })?;
        let action = action.unwrap_or_else(|| "seat".to_owned());
        match (action.as_str(), at) {
            ("background", _) => Ok(Action::Background(policy.unwrap_or(Regulation::Usher))),
            (_, Some(at)) => Err(self.error(
                at,
                "`background_policy` has no effect without action = \"background\"",
            )),
            ("ignore", None) => Ok(Action::Ignore),
            (_, None) => Ok(Action::Seat),
        }
    }
}

/// Returns why the parts of a rule contradict each other.
fn contradiction(rule: &Rule) -> Option<&'static str> {
    let conditions = &rule.conditions;
    let has_condition = conditions.executable.is_some()
        || conditions.command.is_some()
        || conditions.unit.is_some()
        || conditions.cgroup.is_some()
        || conditions.user.is_some();
    if !has_condition {
        return Some(
            "it has no condition; give at least one of executable, command, unit, cgroup and user",
        );
    }
    match rule.action {
        Action::Ignore if rule.attach => Some("attach = true contradicts action = \"ignore\""),
        Action::Ignore if rule.weight.is_some() || rule.name.is_some() => {
            Some("`weight` and `name` have no effect with action = \"ignore\"")
        }
        Action::Ignore | Action::Background(_) if rule.cores.is_some() => {
            Some("`cores` has an effect only with action = \"seat\"")
        }
        Action::Background(_) if rule.weight.is_some() => {
            Some("`weight` has no effect on background work")
        }
        _ => None,
    }
}

/// Checks that a word is one of the known words.
pub(super) fn one_of(word: String, known: &[&str]) -> Result<String, String> {
    if known.contains(&word.as_str()) {
        return Ok(word);
    }
    // The command of the same purpose has a shorter name.
    let named = known
        .iter()
        .copied()
        .find(|name| (word.as_str(), *name) == ("bg", "background"));
    let close = named.or_else(|| usher_model::closest_name(&word, known.iter().copied()));
    let tip = close.map_or_else(String::new, |name| {
        format!("; a similar name exists: '{name}'")
    });
    Err(format!("'{word}' is not one of {}{tip}", known.join(", ")))
}

fn cores(cores: i64) -> Result<u32, &'static str> {
    let number = u32::try_from(cores).ok().filter(|&cores| cores > 0);
    number.ok_or("the number of cores must be a positive whole number")
}

fn executable(pattern: String) -> Result<Executable, String> {
    match pattern.contains('/') {
        true if !pattern.starts_with(['/', '*']) => {
            Err("the path of an executable must begin with '/' or '**'".to_owned())
        }
        true => glob(&pattern, true).map(Executable::Path),
        false => glob(&pattern, true).map(Executable::Name),
    }
}

/// Compiles a glob. If `separates`, `*` and `?` do not match slashes, but `**` does.
pub fn glob(pattern: &str, separates: bool) -> Result<GlobMatcher, String> {
    if pattern.is_empty() || pattern.len() > PATTERN_BYTES_MAX {
        return Err(format!(
            "a pattern must have 1 to {PATTERN_BYTES_MAX} bytes"
        ));
    }
    let built = GlobBuilder::new(pattern)
        .literal_separator(separates)
        .build();
    built
        .map(|glob| glob.compile_matcher())
        .map_err(|error| format!("invalid pattern '{pattern}': {}", error.kind()))
}

fn user(user: User) -> Result<u32, String> {
    match user {
        User::Number(uid) => Ok(uid),
        User::Name(name) => users::uid_of(&name)
            // A number in quotes, if no user has it as a name.
            .or_else(|| name.parse().ok())
            .ok_or_else(|| format!("no user has the name '{name}'")),
    }
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
