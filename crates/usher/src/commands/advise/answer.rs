// SPDX-License-Identifier: GPL-2.0-only
//! The answer of `usher advise --json`.

use schemars::JsonSchema;
use serde::Serialize;

use super::lines::CommandLines;

/// The result of `usher advise`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct AdviseAnswer<'a> {
    /// The name of the program.
    pub name: &'a str,
    /// The chosen configuration.
    pub advice: AdviceAnswer,
    /// The configurations that were run, in the order of their numbers of copies.
    pub configurations: Vec<ConfigurationAnswer<'a>>,
    /// Command lines that run the chosen configuration.
    pub commands: &'a CommandLines,
    /// Seconds of the measurement.
    pub seconds: f64,
    /// Sentences about the program and the measurement.
    pub notes: &'a [String],
    /// How other programs disturbed the measurement; `None` if they did not.
    pub disturbance: Option<&'a str>,
}

/// The chosen configuration.
#[derive(Debug, Serialize, JsonSchema)]
pub struct AdviceAnswer {
    /// Number of copies that run at a time.
    pub copies: u32,
    /// Number of cores of each copy.
    pub cores: u32,
    /// Number of CPUs of each copy.
    pub cpus: u32,
    /// Copies per second.
    pub throughput: f64,
    /// Half-width of the 90 % confidence interval of the throughput, relative to the throughput.
    pub relative_error: f64,
    /// The throughput relative to one copy on all CPUs; `None` if that run failed.
    pub ratio: Option<f64>,
    /// How much longer the slowest copy runs than the fastest, relative to the fastest.
    pub last_copy_later: f64,
    /// Whether the confidence intervals of undisturbed runs sufficed to choose.
    pub certain: bool,
    /// The advice as a sentence.
    pub text: String,
}

/// A configuration that was run.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ConfigurationAnswer<'a> {
    /// Number of copies.
    pub copies: u32,
    /// Number of CPUs of each copy.
    pub cpus: u32,
    /// Number of cores of each copy.
    pub cores: Option<u32>,
    /// Copies per second in each counted run.
    pub throughputs: Option<&'a [f64]>,
    /// The geometric mean of `throughputs`; `None` without a counted run.
    pub throughput: Option<f64>,
    /// The throughput relative to one copy on all CPUs.
    pub ratio: Option<f64>,
    /// The upper limit of the throughput of an aborted run; `None` if no run was aborted.
    pub throughput_below: Option<f64>,
    /// Whether a copy failed.
    pub failed: bool,
}
