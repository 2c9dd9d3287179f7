// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads `compare.toml` of an example: the cases, and the configurations of each case.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// An example with its cases.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Example {
    /// Heading of the part.
    pub title: String,
    /// A command that succeeds if the programs of the example are installed.
    pub check: Vec<String>,
    /// The command that installs the programs.
    pub install: String,
    /// Commands that generate the inputs.
    #[serde(default)]
    pub setup: Vec<SetupStep>,
    /// The measured commands.
    pub case: Vec<Case>,
}

/// A command that generates an input.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetupStep {
    /// The command.
    pub run: Vec<String>,
    /// The file that the command creates. The step is skipped if the file exists.
    pub unless_exists: String,
}

/// One piece of work, with the configurations in which it is measured.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// Name of the case.
    pub name: String,
    /// Bar: the largest ratio of the time under `usher run` to the time of the reference.
    pub at_most: Option<f64>,
    /// Bar: the smallest ratio of the time of `default` to the time of the reference.
    pub default_at_least: Option<f64>,
    /// A run that takes longer is ended, and counts with this time.
    pub limit_seconds: f64,
    /// The configurations. The first configuration is the default.
    pub configuration: Vec<Configuration>,
}

/// The part of a configuration in the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConfigurationKind {
    /// The command without any configuration.
    Default,
    /// Thread counts by environment variables or options. The fastest of these is the reference.
    HandSet,
    /// CPUs by `taskset`.
    Taskset,
    /// The command under Usher. Without such a configuration, `usher run -- DEFAULT` is measured.
    Usher,
}

/// A way to run the work.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Configuration {
    /// Label in tables.
    pub name: String,
    /// Part of the configuration in the comparison.
    pub kind: ConfigurationKind,
    /// The command; by default, the command of the default configuration.
    #[serde(default)]
    pub run: Vec<String>,
    /// Environment variables of the command.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
}

impl Example {
    /// Reads and checks a file.
    pub fn read(path: &Path) -> Result<Self> {
        let shown = path.display();
        let text = std::fs::read_to_string(path).with_context(|| {
            format!("reading {shown}; give the directory of the examples with --examples")
        })?;
        Self::parse(&text).with_context(|| format!("{shown}"))
    }

    fn parse(text: &str) -> Result<Self> {
        let mut example: Self = toml::from_str(text)?;
        ensure!(!example.check.is_empty(), "'check' is empty");
        for case in &mut example.case {
            case.complete()?;
        }
        Ok(example)
    }
}

impl Case {
    /// Adds omitted commands and the configuration `usher run`.
    fn complete(&mut self) -> Result<()> {
        let name = &self.name;
        let first = self.configuration.first();
        let default =
            first.filter(|one| one.kind == ConfigurationKind::Default && !one.run.is_empty());
        let default = default.with_context(|| {
            format!("case '{name}': the first configuration must have kind 'default' and a command")
        })?;
        let run = default.run.clone();
        for one in &mut self.configuration {
            if one.run.is_empty() {
                one.run.clone_from(&run);
            }
        }
        if self.all(ConfigurationKind::Usher).is_empty() {
            let words = ["{usher}", "run", "--"].map(str::to_owned);
            self.configuration.push(Configuration {
                name: "usher run".to_owned(),
                kind: ConfigurationKind::Usher,
                run: words.into_iter().chain(run).collect(),
                env: BTreeMap::new(),
            });
        }
        for kind in [ConfigurationKind::Default, ConfigurationKind::Usher] {
            let count = self.all(kind).len();
            ensure!(
                count == 1,
                "case '{name}': {count} configurations have kind {kind:?}; give one"
            );
        }
        Ok(())
    }

    /// Returns the positions of the configurations of a kind.
    pub fn all(&self, kind: ConfigurationKind) -> Vec<usize> {
        let all = self.configuration.iter().enumerate();
        all.filter(|(_, one)| one.kind == kind)
            .map(|(at, _)| at)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CASE: &str = "title = 't'\ncheck = ['true']\ninstall = ''\n\
        [[case]]\nname = 'c'\nlimit_seconds = 1\n";
    const DEFAULT: &str =
        "[[case.configuration]]\nname = 'd'\nkind = 'default'\nrun = ['prog', 'x']\n";

    #[test]
    fn omitted_commands_are_those_of_the_default() {
        let by_hand =
            "[[case.configuration]]\nname = 'h'\nkind = 'hand-set'\nenv = { THREADS = '1' }\n";
        let example = Example::parse(&format!("{CASE}{DEFAULT}{by_hand}")).unwrap();
        let case = &example.case[0];
        assert_eq!(case.configuration[1].run, ["prog", "x"]);
        assert_eq!(case.all(ConfigurationKind::Usher), [2]);
        assert_eq!(
            case.configuration[2].run,
            ["{usher}", "run", "--", "prog", "x"]
        );
        assert!(case.configuration[2].env.is_empty());
    }

    #[test]
    fn a_case_without_a_default_or_with_two_is_rejected() {
        let error = |text: String| format!("{:#}", Example::parse(&text).unwrap_err());
        let only = "[[case.configuration]]\nname = 'h'\nkind = 'taskset'\nrun = ['x']\n";
        assert!(error(format!("{CASE}{only}")).contains("the first configuration"));
        assert!(error(format!("{CASE}{DEFAULT}{DEFAULT}")).contains("2 configurations"));
        assert!(error(format!("{CASE}speed = 1\n{DEFAULT}")).contains("unknown field `speed`"));
    }
}
