// SPDX-License-Identifier: MIT OR Apache-2.0
//! The options of a run of a mix, and the events by which it reports its progress. This file
//! contains only data and defaults.

use std::path::PathBuf;

use usher_report::data::RoundResult;

use crate::profile::ProfileRun;
use crate::quiet::LoadRule;

/// The options of a run.
#[derive(Debug, Clone)]
pub struct MixOptions {
    /// The policies, in display order.
    pub policies: Vec<String>,
    /// Number of rounds; `None` to use the number in the mix file.
    pub rounds: Option<u32>,
    /// Number of repetitions; `None` to use the number in the mix file.
    pub repeats: Option<u32>,
    /// Time limit of the whole run; `None` to use the limit in the mix file.
    pub max_seconds: Option<f64>,
    /// Selects the first policy of the first round, and seeds the bootstrap.
    pub seed: u64,
    /// The profile store, from which curves are read and to which curves are added.
    pub store: Option<PathBuf>,
    /// Whether curves are measured even if the store has them.
    pub remeasure: bool,
    /// Maximum number of runs per point of a curve.
    pub alone_repeats: u32,
    /// Whether the policy `usher` starts without the programs' curves.
    pub cold: bool,
    /// The rule by which other programs on the machine are detected.
    pub load: LoadRule,
    /// Usher's OMPT tool, if it is installed.
    pub ompt: Option<PathBuf>,
    /// The command line that repeats this run, for the report.
    pub command: String,
    /// The date in ISO 8601, for the report.
    pub date: String,
}

impl Default for MixOptions {
    fn default() -> Self {
        Self {
            policies: usher_policy::NAMES.map(str::to_owned).to_vec(),
            rounds: None,
            repeats: None,
            max_seconds: None,
            seed: 1,
            store: None,
            remeasure: false,
            alone_repeats: 3,
            cold: false,
            load: LoadRule::default(),
            ompt: None,
            command: String::new(),
            date: String::new(),
        }
    }
}

/// Progress of a run, for display.
#[derive(Debug)]
pub enum MixEvent<'a> {
    /// A setup command starts.
    Setup {
        /// The command.
        command: &'a str,
    },
    /// A run of a program alone has ended.
    Alone {
        /// The program.
        program: &'a str,
        /// The run.
        run: &'a ProfileRun,
    },
    /// The measurement starts.
    Begins {
        /// Number of rounds of each policy.
        rounds: u32,
        /// Number of repetitions of each program in each round.
        repeats: u32,
        /// The expected duration.
        seconds: f64,
    },
    /// A round of a policy starts.
    Round {
        /// The policy.
        policy: &'a str,
        /// The round, from 1.
        round: u32,
        /// The number of rounds.
        rounds: u32,
    },
    /// A repetition has ended.
    Repetition {
        /// The policy.
        policy: &'a str,
        /// The program.
        program: &'a str,
        /// The number of completed repetitions.
        done: u32,
        /// The required number of repetitions.
        of: u32,
        /// The duration.
        seconds: f64,
    },
    /// A round of a policy has ended.
    RoundEnded {
        /// The policy.
        policy: &'a str,
        /// Result of the round.
        result: &'a RoundResult,
    },
    /// A problem that does not stop the run.
    Warning {
        /// Description of the problem.
        text: &'a str,
    },
}
