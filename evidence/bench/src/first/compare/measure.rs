// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs one configuration of a case once. Each run under Usher has a runtime directory and a profile
//! store of its own, and therefore is the first run on the machine.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Serialize;

use super::file::Configuration;
use crate::processes;

/// Variables that force OpenBLAS to use code for another processor.
const UNSET: [&str; 2] = ["OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"];
/// Time that a program has to end after SIGTERM.
const TERM_WAIT: Duration = Duration::from_secs(5);

/// The result of one run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunResult {
    /// Duration in seconds; the limit if the run did not end before.
    pub seconds: f64,
    /// Whether the run ended before the limit.
    pub ended: bool,
    /// Numbers that the program printed as JSON in its last line.
    pub figures: BTreeMap<String, f64>,
    /// What the program printed on standard error.
    pub errors: String,
}

/// Runs the commands of one example.
pub struct ExampleRunner<'a> {
    /// The `usher` to measure.
    pub usher: &'a Path,
    /// The directory of the example, in which commands run.
    pub folder: PathBuf,
    /// The directory of the generated inputs.
    pub data: PathBuf,
    /// Whether programs do less work.
    pub quick: bool,
}

impl ExampleRunner<'_> {
    /// Runs a configuration once.
    pub fn measure(&self, configuration: &Configuration, limit: Duration) -> Result<RunResult> {
        let scratch = tempfile::tempdir()?;
        let mut command = self.command(&configuration.run, Some(scratch.path()))?;
        command.envs(&configuration.env);
        let result = run(&mut command, scratch.path(), limit);
        processes::end_daemons(&fs::canonicalize(self.usher)?, scratch.path())?;
        let result = result.with_context(|| configuration.run.join(" "))?;
        ensure!(
            !result.errors.contains("runs unmanaged"),
            "Usher did not manage the program: {}",
            result.errors
        );
        Ok(result)
    }

    /// Runs a command of a setup step, or the check of the installed programs. Returns whether the
    /// command succeeded.
    pub fn succeeds(&self, words: &[String]) -> Result<bool> {
        fs::create_dir_all(&self.data)
            .with_context(|| format!("making {}", self.data.display()))?;
        let mut command = self.command(words, None)?;
        let status = command.stdout(Stdio::null()).status();
        Ok(status.is_ok_and(|status| status.success()))
    }

    /// Returns a word of a command with the path of the data in place of `{data}`, and the path of
    /// `usher` in place of `{usher}`.
    pub fn complete(&self, word: &str) -> String {
        word.replace("{data}", &self.data.to_string_lossy())
            .replace("{usher}", &self.usher.to_string_lossy())
    }

    fn command(&self, words: &[String], runtime: Option<&Path>) -> Result<Command> {
        let words: Vec<String> = words.iter().map(|word| self.complete(word)).collect();
        let (program, arguments) = words.split_first().context("an empty command")?;
        let mut command = match runtime {
            Some(runtime) => processes::usher(Path::new(program), runtime),
            None => Command::new(program),
        };
        command
            .args(arguments)
            .current_dir(&self.folder)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("USHER_EXAMPLE_DATA", &self.data)
            .stdin(Stdio::null());
        for name in UNSET {
            command.env_remove(name);
        }
        if self.quick {
            command.env("USHER_EXAMPLE_QUICK", "1");
        }
        Ok(command)
    }
}

/// Runs a command with a limit of time. At the limit, the process group of the command is ended.
fn run(command: &mut Command, scratch: &Path, limit: Duration) -> Result<RunResult> {
    let (out, err) = (scratch.join("stdout"), scratch.join("stderr"));
    let begun = Instant::now();
    let mut child = command
        .process_group(0)
        .stdout(fs::File::create(&out)?)
        .stderr(fs::File::create(&err)?)
        .spawn()
        .context("starting the program")?;
    let status = processes::end_within(&mut child, limit)?;
    let seconds = begun.elapsed().as_secs_f64();
    if status.is_none() {
        let group = Pid::from_child(&child);
        let _ = kill_process_group(group, Signal::TERM);
        if processes::end_within(&mut child, TERM_WAIT)?.is_none() {
            let _ = kill_process_group(group, Signal::KILL);
            child.wait()?;
        }
    }
    let printed = String::from_utf8_lossy(&fs::read(&out)?).into_owned();
    let errors = String::from_utf8_lossy(&fs::read(&err)?).into_owned();
    if let Some(status) = status.filter(|status| !status.success()) {
        bail!("ended with {status}: {printed}{errors}");
    }
    Ok(RunResult {
        seconds: seconds.min(limit.as_secs_f64()),
        ended: status.is_some(),
        figures: figures(&printed),
        errors,
    })
}

/// Returns the numbers of a JSON object in the last line of a text.
fn figures(printed: &str) -> BTreeMap<String, f64> {
    let last = printed.lines().last().unwrap_or_default();
    serde_json::from_str(last).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_shell(script: &str, limit: Duration) -> Result<RunResult> {
        let scratch = tempfile::tempdir()?;
        run(
            Command::new("sh").args(["-c", script]),
            scratch.path(),
            limit,
        )
    }

    #[test]
    fn figures_are_the_json_of_the_last_line() {
        let result = run_shell(
            "echo start; echo '{\"p95_ms\": 2.5}'; echo warning >&2",
            Duration::from_secs(600),
        );
        let result = result.unwrap();
        assert_eq!(result.figures, BTreeMap::from([("p95_ms".to_owned(), 2.5)]));
        assert_eq!((result.ended, result.errors.as_str()), (true, "warning\n"));
        assert!(figures("24 passed in 4.6s\n").is_empty());
    }

    #[test]
    fn a_run_that_exceeds_the_limit_is_ended_and_counts_with_the_limit() {
        let result = run_shell("sleep 600 & wait", Duration::from_millis(50)).unwrap();
        assert!(!result.ended);
        assert!((result.seconds - 0.05).abs() < 1e-9, "{result:?}");
    }

    #[test]
    fn a_failed_run_is_an_error_with_its_output() {
        let error = run_shell("echo cause; exit 3", Duration::from_secs(600)).unwrap_err();
        assert!(error.to_string().contains("cause"), "{error}");
    }
}
