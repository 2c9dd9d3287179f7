// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parts `pytest`, `transcode` and `inference`: compare `usher run`, with nothing configured, with
//! configurations by hand. The file `compare.toml` of each example in `examples/` lists the cases
//! and configurations.
//!
//! Steps for each case:
//!
//! 1. *Reference.* If there are several hand-set configurations, [`TRIALS`] rounds of these select
//!    the configuration with the least median. Without a hand-set configuration, the default
//!    configuration is the reference.
//! 2. *Rounds.* Each round runs all configurations once, and the reference twice. The order rotates
//!    from round to round. Each run under Usher has a new runtime directory and a new profile store.
//! 3. *Ratios.* Each round gives one ratio of each configuration to the first run of the reference.
//!    The figure is the median of these ratios with its 95 % interval (bootstrap). The two runs of
//!    the reference give the A/A band. Bars apply to the upper end of the interval, and to the lower
//!    end for "at least".
//!
//! A run that exceeds the limit of the case counts with the limit, which is less than its real time.
//! The part is not met if a run under Usher exceeds the limit.

mod file;
mod measure;
mod summary;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use usher_report::stats;

use crate::bars::Part;
use crate::parts::PartInput;
use file::{Case, ConfigurationKind, Example};
use measure::{ExampleRunner, RunResult};

/// Rounds that select the reference.
const TRIALS: usize = 3;

/// How the examples are measured.
#[derive(Debug, Clone, clap::Args)]
pub struct CompareArgs {
    /// Read the examples in this directory
    #[arg(long, default_value = "examples", value_name = "DIR")]
    pub examples: PathBuf,
    /// Measure each configuration of an example in this number of rounds; 95 % intervals need six
    /// or more
    #[arg(long, default_value_t = 10)]
    pub rounds: usize,
    /// Measure only these cases of the examples
    #[arg(long, value_delimiter = ',')]
    pub case: Vec<String>,
    /// Run each configuration of an example once, with little work and without bars
    #[arg(long)]
    pub quick: bool,
}

/// All runs of one case. `runs[ROUND][CONFIGURATION]` is a run, and `again[ROUND]` the second run
/// of the reference.
struct CaseRuns {
    reference: usize,
    runs: Vec<Vec<RunResult>>,
    again: Vec<RunResult>,
}

/// Measures an example.
pub fn run(args: &CompareArgs, name: &str, input: &PartInput) -> Result<Part> {
    let folder = args.examples.join(name);
    let example = Example::read(&folder.join("compare.toml"))?;
    let usher = std::fs::canonicalize(input.usher)?;
    let runner = ExampleRunner {
        usher: &usher,
        folder,
        data: data_folder(&args.examples)?,
        quick: args.quick,
    };
    set_up(&example, name, &runner)?;
    for wanted in &args.case {
        let cases: Vec<_> = example.case.iter().map(|case| case.name.as_str()).collect();
        ensure!(
            cases.contains(&wanted.as_str()),
            "--case {wanted}: the example '{name}' has the cases {}",
            cases.join(", ")
        );
    }
    let mut part = Part::new(name, &example.title);
    let mut raw = Vec::new();
    for case in &example.case {
        if args.case.is_empty() || args.case.contains(&case.name) {
            let runs = measure_case(case, &runner, args)
                .with_context(|| format!("case '{}'", case.name))?;
            raw.push(summary::add(&mut part, case, &runs, input.seed, args.quick));
        }
    }
    part.raw = serde_json::json!({ "cases": raw });
    Ok(part)
}

/// Returns the directory of the inputs: the value of `USHER_EXAMPLE_DATA`, or `data` beside the
/// examples.
fn data_folder(examples: &Path) -> Result<PathBuf> {
    let folder = std::env::var_os("USHER_EXAMPLE_DATA").map(PathBuf::from);
    let folder = folder.unwrap_or_else(|| examples.join("data"));
    std::path::absolute(&folder).with_context(|| folder.display().to_string())
}

/// Checks that the programs are installed, and generates the inputs.
fn set_up(example: &Example, name: &str, runner: &ExampleRunner) -> Result<()> {
    ensure!(
        runner.succeeds(&example.check)?,
        "programs of the example '{name}' are not installed: run '{}'",
        example.install
    );
    for step in &example.setup {
        let file = runner.complete(&step.unless_exists);
        if !Path::new(&file).exists() {
            let words = step.run.join(" ");
            ensure!(
                runner.succeeds(&step.run)?,
                "generating {file}: '{words}' failed"
            );
        }
    }
    Ok(())
}

fn measure_case(case: &Case, runner: &ExampleRunner, args: &CompareArgs) -> Result<CaseRuns> {
    // With little work, a run exceeds the limit only if the program hangs.
    let factor = if args.quick { 10.0 } else { 1.0 };
    let limit = Duration::from_secs_f64(case.limit_seconds * factor);
    let measure = |at: usize| {
        let configuration = &case.configuration[at];
        let result = runner.measure(configuration, limit)?;
        let name = &configuration.name;
        eprintln!("{}: {name}: {:.2} s", case.name, result.seconds);
        Ok::<_, anyhow::Error>(result)
    };
    let rounds = if args.quick { 1 } else { args.rounds };
    let reference = reference(case, if args.quick { 0 } else { TRIALS }, measure)?;
    let count = case.configuration.len();
    let mut measured = CaseRuns {
        reference,
        runs: Vec::new(),
        again: Vec::new(),
    };
    for round in 0..rounds {
        // The last position is the second run of the reference, which quick runs omit.
        let positions = if args.quick { count } else { count + 1 };
        let mut results: Vec<Option<RunResult>> = vec![None; positions];
        for step in 0..positions {
            let at = (round + step) % positions;
            results[at] = Some(measure(if at == count { reference } else { at })?);
        }
        let mut results: Vec<RunResult> = results.into_iter().flatten().collect();
        measured.again.extend(results.drain(count..));
        measured.runs.push(results);
    }
    Ok(measured)
}

/// Returns the position of the fastest hand-set configuration, or of the default if there is none.
/// Without trials, the first hand-set configuration counts as the fastest.
fn reference(
    case: &Case,
    trials: usize,
    mut measure: impl FnMut(usize) -> Result<RunResult>,
) -> Result<usize> {
    let candidates = case.all(ConfigurationKind::HandSet);
    match candidates[..] {
        [] => return Ok(0),
        [only] => return Ok(only),
        _ => {}
    }
    let mut times = vec![Vec::new(); candidates.len()];
    for _ in 0..trials {
        for (at, &candidate) in candidates.iter().enumerate() {
            times[at].push(measure(candidate)?.seconds);
        }
    }
    let median = |at: usize| stats::median(&times[at]).unwrap_or(f64::INFINITY);
    let fastest = (0..candidates.len()).min_by(|&a, &b| median(a).total_cmp(&median(b)));
    Ok(fastest.map_or(0, |at| candidates[at]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::first::compare::file::Configuration;

    fn case(kinds: &[ConfigurationKind]) -> Case {
        let configuration = kinds.iter().map(|&kind| Configuration {
            name: String::new(),
            kind,
            run: Vec::new(),
            env: std::collections::BTreeMap::new(),
        });
        Case {
            name: String::new(),
            at_most: None,
            default_at_least: None,
            limit_seconds: 1.0,
            configuration: configuration.collect(),
        }
    }

    #[test]
    fn the_reference_is_the_hand_set_configuration_with_the_least_median() {
        let case = case(&[
            ConfigurationKind::Default,
            ConfigurationKind::HandSet,
            ConfigurationKind::Taskset,
            ConfigurationKind::HandSet,
        ]);
        // Medians 2 and 1.5: the fastest single run is of the slower configuration.
        let mut times = [0.1, 1.5, 2.0, 1.4, 3.0, 9.0].into_iter();
        let found = reference(&case, 3, |_| Ok(summary::run_of(times.next().unwrap())));
        assert_eq!(found.unwrap(), 3);
        assert_eq!(times.next(), None);
    }

    #[test]
    fn without_a_choice_nothing_is_measured() {
        let measured = |_| panic!("nothing to select");
        assert_eq!(
            reference(&case(&[ConfigurationKind::Default]), 3, measured).unwrap(),
            0
        );
        let one = case(&[ConfigurationKind::Default, ConfigurationKind::HandSet]);
        assert_eq!(reference(&one, 3, measured).unwrap(), 1);
        let two = case(&[
            ConfigurationKind::Default,
            ConfigurationKind::HandSet,
            ConfigurationKind::HandSet,
        ]);
        assert_eq!(reference(&two, 0, measured).unwrap(), 1);
    }
}
