// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mixes: several programs side by side, under several policies.
//!
//! # The protocol
//! That of paper 1 (section 4.1): all programs of a round are launched, held
//! and started together; each is restarted as soon as it ends, until every one
//! has completed `repeats` repetitions. Then the round is over: a repetition
//! that is still under way is killed and does not count, so every one that
//! counts ran while all programs of the mix ran. A program's NTT is the mean
//! time of its repetitions over its best time alone, ANTT the mean of the
//! NTTs by weight.
//!
//! Policies take turns: each round runs every policy once, in an order that is
//! turned by one place each round. Every policy runs through the same path:
//! `linux` is the same engine with a policy that never acts, so that what an
//! engine costs is the same for all. Name `linux` twice (`linux`, `linux#2`)
//! for the noise of the machine (A/A), or `linux-bare` for a run without any
//! engine.
//!
//! `casas` is given the programs' curves from the profile store, since its
//! trials need progress that can be measured while a program runs; `usher` is,
//! unless it is to start cold.
//!
//! # The file
//! TOML. Unknown keys are refused. Programs run in the file's folder, and
//! relative paths start from there.
//! What may stand in it is in `docs/mix-file.md`.

mod alone;
mod file;
mod round;
mod schedule;
mod setup;
mod timeline;

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use usher_model::Topology;
use usher_probe::{Capabilities, Roots};
use usher_report::data::{
    MachineFacts, MixResult, PolicyResult, ProgramFacts, Protocol, Role, RoundResult,
};
use usher_report::text;

pub use file::{MixFile, MixFileError, MixProgram, MixProtocol, Place, Setup};

use self::round::Stage;
use self::schedule::{Arm, Extent, arms, fit, order, seconds_a_repetition};
use crate::engine::{EngineConfig, ProfileUse};
use crate::error::MeasureError;
use crate::profile::ProfileRun;

/// The part of the time that may go into curves.
const CURVES_SHARE: f64 = 0.35;

/// How a mix is run.
#[derive(Debug, Clone)]
pub struct MixOptions {
    /// The policies, in the order in which they are shown.
    pub policies: Vec<String>,
    /// Rounds; `None`: as the file says.
    pub rounds: Option<u32>,
    /// Repetitions; `None`: as the file says.
    pub repeats: Option<u32>,
    /// The time for everything; `None`: as the file says.
    pub max_seconds: Option<f64>,
    /// Which policy begins the first round, and the seed of the bootstrap.
    pub seed: u64,
    /// The profile store: curves are taken from it and put into it.
    pub store: Option<PathBuf>,
    /// Whether curves are measured even where the store has them.
    pub remeasure: bool,
    /// Runs a point of a curve, at most.
    pub alone_repeats: u32,
    /// Whether `usher` is not to know the curves.
    pub cold: bool,
    /// Usher's OMPT tool, where it is there.
    pub ompt: Option<PathBuf>,
    /// The command that runs this again, for the report.
    pub command: String,
    /// The date, ISO 8601, for the report.
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
            ompt: None,
            command: String::new(),
            date: String::new(),
        }
    }
}

/// What happens meanwhile, for people who wait.
#[derive(Debug)]
pub enum MixEvent<'a> {
    /// A command that makes inputs begins.
    Setup {
        /// The command.
        command: &'a str,
    },
    /// A run of a program alone has ended.
    Alone {
        /// Which program.
        program: &'a str,
        /// The run.
        run: &'a ProfileRun,
    },
    /// How much will be measured.
    Begins {
        /// Rounds of each policy.
        rounds: u32,
        /// Repetitions of each program in each.
        repeats: u32,
        /// How long it is expected to take.
        seconds: f64,
    },
    /// A policy's turn begins.
    Round {
        /// The policy.
        policy: &'a str,
        /// Which round, from 1.
        round: u32,
        /// Of how many.
        rounds: u32,
    },
    /// A repetition has ended.
    Repetition {
        /// Under which policy.
        policy: &'a str,
        /// Which program's.
        program: &'a str,
        /// Which one it was, from 1.
        done: u32,
        /// How many are needed.
        of: u32,
        /// How long it took.
        seconds: f64,
    },
    /// A policy's turn is over.
    RoundEnded {
        /// The policy.
        policy: &'a str,
        /// What it gave.
        result: &'a RoundResult,
    },
    /// Something does not work as it should.
    Warning {
        /// What.
        text: &'a str,
    },
}

/// Runs a mix. `config` says where to act; its profile store and record are
/// not used, the store is `options.store`.
///
/// # Errors
/// A program is missing, fails or hangs; an unknown policy; `cancel` was set.
/// Everything is put back and nothing is left running.
pub fn run_mix(
    mix: &MixFile,
    config: &EngineConfig,
    options: &MixOptions,
    cancel: &AtomicBool,
    tell: &mut dyn FnMut(MixEvent<'_>),
) -> Result<MixResult, MeasureError> {
    let began = Instant::now();
    let arms = arms(&options.policies)?;
    setup::check_programs(mix)?;
    setup::make_inputs(mix, cancel, tell)?;
    setup::check_files(mix)?;
    let max_seconds = options.max_seconds.or(mix.protocol.max_seconds);
    let for_curves = max_seconds.map(|most| CURVES_SHARE * most);
    let alone = alone::curves(mix, config, options, for_curves, cancel, tell)?;
    let facts = mix.programs.iter().zip(&alone);
    let facts: Vec<_> = facts
        .map(|(program, alone)| alone::facts(program, alone, &config.topology))
        .collect();
    let best: Vec<f64> = facts.iter().filter_map(|f| f.alone_best_seconds).collect();
    let wanted = Extent {
        rounds: options.rounds.unwrap_or(mix.protocol.rounds),
        repeats: options.repeats.unwrap_or(mix.protocol.repeats),
    };
    let a_repetition = seconds_a_repetition(&best);
    let left = max_seconds.map(|most| most - began.elapsed().as_secs_f64());
    let extent = left.map_or(wanted, |left| fit(wanted, arms.len(), a_repetition, left));
    let runs = f64::from(extent.rounds * extent.repeats) * arms.len() as f64;
    tell(MixEvent::Begins {
        rounds: extent.rounds,
        repeats: extent.repeats,
        seconds: runs * a_repetition,
    });
    let runner = Runner {
        mix,
        config,
        options,
        cancel,
        facts: &facts,
        arms: &arms,
        extent,
    };
    let policies = runner.all_rounds(tell)?;
    let mut result = runner.result(policies, wanted);
    result.compare();
    Ok(result)
}

/// A mix under way.
struct Runner<'a> {
    mix: &'a MixFile,
    config: &'a EngineConfig,
    options: &'a MixOptions,
    cancel: &'a AtomicBool,
    facts: &'a [ProgramFacts],
    arms: &'a [Arm],
    extent: Extent,
}

impl Runner<'_> {
    fn all_rounds(
        &self,
        tell: &mut dyn FnMut(MixEvent<'_>),
    ) -> Result<Vec<PolicyResult>, MeasureError> {
        let scratch = tempfile::tempdir().map_err(|source| MeasureError::System {
            doing: "making a folder for what programs say",
            source,
        })?;
        let mut policies: Vec<_> = self.arms.iter().map(empty_result).collect();
        for round in 0..self.extent.rounds {
            for at in order(self.arms.len(), round, self.options.seed) {
                let result = self.one_round(&self.arms[at], round + 1, scratch.path(), tell)?;
                policies[at].rounds.push(result);
            }
        }
        Ok(policies)
    }

    fn one_round(
        &self,
        arm: &Arm,
        round: u32,
        scratch: &Path,
        tell: &mut dyn FnMut(MixEvent<'_>),
    ) -> Result<RoundResult, MeasureError> {
        let policy = &arm.name;
        tell(MixEvent::Round {
            policy,
            round,
            rounds: self.extent.rounds,
        });
        let stage = Stage {
            mix: self.mix,
            facts: self.facts,
            arm,
            round,
            repeats: self.extent.repeats,
            scratch,
            ompt: self.options.ompt.as_deref(),
            cancel: self.cancel,
            usable: self.config.topology.all_cpus(),
        };
        let config = arm.policy.as_ref().map(|policy| self.config_for(policy));
        let result = stage.run(config, tell)?;
        tell(MixEvent::RoundEnded {
            policy,
            result: &result,
        });
        Ok(result)
    }

    /// Rounds teach nothing: each policy is to find the same store each time.
    fn config_for(&self, policy: &str) -> EngineConfig {
        let profiles = ProfileUse {
            store: self.options.store.clone(),
            recall: policy != "usher" || !self.options.cold,
            learn: false,
        };
        EngineConfig {
            profiles,
            record: None,
            ..self.config.clone()
        }
    }

    fn result(&self, policies: Vec<PolicyResult>, wanted: Extent) -> MixResult {
        let mut notes = Vec::new();
        if self.extent != wanted {
            notes.push(format!(
                "{} of {} instead of {} of {}: more would not fit into the time",
                text::count(self.extent.rounds as usize, "round"),
                text::count(self.extent.repeats as usize, "repetition"),
                wanted.rounds,
                wanted.repeats
            ));
        }
        if self.options.cold {
            notes.push("'usher' did not know the programs' curves".to_owned());
        }
        let sessions = match self.mix.protocol.one_session {
            true => "all in one session",
            false => "each in a session of its own",
        };
        MixResult {
            title: self.mix.title.clone(),
            description: self.mix.description.clone(),
            machine: machine_facts(&self.config.topology, &self.config.roots),
            simulated: false,
            protocol: Protocol {
                repeats_min: self.extent.repeats,
                rounds: self.extent.rounds,
                interleaved: true,
                sessions: sessions.to_owned(),
                seed: self.options.seed,
                command: self.options.command.clone(),
                date: self.options.date.clone(),
                notes,
            },
            programs: self.facts.to_vec(),
            policies,
        }
    }
}

fn empty_result(arm: &Arm) -> PolicyResult {
    PolicyResult {
        name: arm.name.clone(),
        label: match (&arm.policy, arm.role) {
            (Some(policy), Role::BaselineAgain) => format!("{policy} again"),
            (None, _) => "linux without an engine".to_owned(),
            _ => arm.name.clone(),
        },
        role: arm.role,
        rounds: Vec::new(),
        comparison: None,
    }
}

/// What a report says of a machine.
pub fn machine_facts(topology: &Topology, roots: &Roots) -> MachineFacts {
    let system = rustix::system::uname();
    let text = |word: &std::ffi::CStr| word.to_string_lossy().into_owned();
    let autogroup = std::fs::read_to_string(roots.proc.join("sys/kernel/sched_autogroup_enabled"));
    let autogroup = match autogroup.as_deref().map(str::trim) {
        Ok("1") => "autogroup is on: sessions share the CPU time evenly",
        Ok(_) => "autogroup is off: threads share the CPU time evenly",
        Err(_) => "no autogroup: threads share the CPU time evenly",
    };
    let model = topology.packages.first().and_then(|p| p.model.clone());
    let pmu = Capabilities::read(roots);
    MachineFacts {
        host: text(system.nodename()),
        kernel: format!("{} {}", text(system.sysname()), text(system.release())),
        topology: topology.clone(),
        cpu_model: model.unwrap_or_else(|| "unknown".to_owned()),
        pmu: pmu.get("pmu").is_some_and(|pmu| pmu.available),
        notes: vec![autogroup.to_owned()],
    }
}
