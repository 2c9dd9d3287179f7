// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measures mixes: several programs that run at the same time, under several policies.
//!
//! # The protocol
//! The protocol of paper 1, section 4.1:
//!
//! 1. All programs of a round are launched and held, and then started together.
//! 2. Each program is restarted as soon as it ends, until every program has completed `repeats`
//!    repetitions. At the end of the round, repetitions in progress are killed and do not count.
//!    Consequently, each counted repetition ran at the same time as all other programs of the mix.
//! 3. A program's NTT is the mean time of its repetitions over its best time alone. ANTT is
//!    the weighted mean of the NTTs.
//! 4. Each round runs every policy once. From round to round, the order of the policies rotates by
//!    one position.
//!
//! Every policy runs in the same engine. The policy `linux` never acts; with it, the cost of the
//! engine is the same for all policies. The two arms `linux` and `linux#2` are the same policy, and
//! their difference is the noise of the machine. The arm `linux-bare` runs without an engine.
//!
//! The policy `casas` gets the programs' curves from the profile store, because its own trials
//! would need a source of progress during a run. The policy `usher` also gets these curves, except
//! with the option for a cold start.
//!
//! # Bounds
//! A setup command may take a day, and a repetition `timeout_seconds` (900 s by default). A time
//! limit of the whole measurement is kept by planning: at most 35 % of the limit is used for
//! curves. The rounds and repetitions are then reduced until their estimated duration fits. Each
//! count stays at least 1; a run can therefore exceed the limit. The first failure of a program
//! ends the mix.
//!
//! # Other programs
//! [`crate::quiet`] waits for a quiet machine before each round. A round that other programs
//! disturb is discarded and repeated, unless the measurement is forced.
//!
//! # The file
//! A mix file is a TOML file, described in `docs/mix-file.md`. Unknown keys are rejected. Programs
//! run in the directory of the file, and relative paths are relative to this directory.

mod alone;
mod error;
mod file;
mod options;
mod round;
mod schedule;
mod setup;
mod timeline;

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use usher_model::Topology;
use usher_probe::{Capabilities, Roots};
use usher_report::data::{
    MachineFacts, MixResult, PolicyResult, PolicyRole, ProgramFacts, Protocol, RoundResult,
};
use usher_report::text;

pub use error::MixError;
pub use file::{MixFile, MixFileError, MixPosition, MixProgram, MixProtocol, SetupCommand};
pub use options::{MixEvent, MixOptions};

use self::round::RoundContext;
use self::schedule::{PolicyArm, RoundPlan, arms, fit, order, seconds_a_repetition};
use crate::engine::{EngineConfig, ProfileUse};
use crate::measured::RunError;
use crate::quiet::LoadGuard;

/// Maximum fraction of the time limit that is used to measure curves.
const CURVES_SHARE: f64 = 0.35;

/// Runs a mix. The profile store and the record file of `config` are not used; `options.store` is
/// the profile store.
///
/// # Errors
/// A program does not exist, fails or hangs; a policy is unknown; `cancel` was set. After an error,
/// all actions are undone and no program is left running.
pub fn run_mix(
    mix: &MixFile,
    config: &EngineConfig,
    options: &MixOptions,
    cancel: &AtomicBool,
    on_event: &mut dyn FnMut(MixEvent<'_>),
) -> Result<MixResult, MixError> {
    let began = Instant::now();
    let arms = arms(&options.policies)?;
    setup::check_programs(mix)?;
    setup::make_inputs(mix, cancel, on_event)?;
    setup::check_files(mix)?;
    let max_seconds = options.max_seconds.or(mix.protocol.max_seconds);
    let for_curves = max_seconds.map(|most| CURVES_SHARE * most);
    let alone = alone::curves(mix, config, options, for_curves, cancel, on_event)?;
    let facts = mix.programs.iter().zip(&alone);
    let facts: Vec<_> = facts
        .map(|(program, alone)| alone::facts(program, alone, &config.topology))
        .collect();
    let best: Vec<f64> = facts.iter().filter_map(|f| f.alone_best_seconds).collect();
    let wanted = RoundPlan {
        rounds: options.rounds.unwrap_or(mix.protocol.rounds),
        repeats: options.repeats.unwrap_or(mix.protocol.repeats),
    };
    let a_repetition = seconds_a_repetition(&best);
    let left = max_seconds.map(|most| most - began.elapsed().as_secs_f64());
    let plan = left.map_or(wanted, |left| fit(wanted, arms.len(), a_repetition, left));
    let runs = f64::from(plan.rounds * plan.repeats) * arms.len() as f64;
    on_event(MixEvent::Begins {
        rounds: plan.rounds,
        repeats: plan.repeats,
        seconds: runs * a_repetition,
    });
    let runner = MixRunner {
        mix,
        config,
        options,
        cancel,
        facts: &facts,
        arms: &arms,
        plan,
    };
    let cpus = config.topology.cpus.len();
    let mut guard = LoadGuard::new(options.load, &config.roots, cpus);
    let policies = runner.all_rounds(&mut guard, on_event)?;
    let mut result = runner.result(policies, wanted, guard.disturbance());
    result.compare();
    Ok(result)
}

/// A mix in progress.
struct MixRunner<'a> {
    mix: &'a MixFile,
    config: &'a EngineConfig,
    options: &'a MixOptions,
    cancel: &'a AtomicBool,
    facts: &'a [ProgramFacts],
    arms: &'a [PolicyArm],
    plan: RoundPlan,
}

impl MixRunner<'_> {
    fn all_rounds(
        &self,
        guard: &mut LoadGuard,
        on_event: &mut dyn FnMut(MixEvent<'_>),
    ) -> Result<Vec<PolicyResult>, MixError> {
        let scratch = tempfile::tempdir().map_err(|source| RunError::System {
            doing: "making a temporary directory for the programs' standard error streams",
            source,
        })?;
        let mut policies: Vec<_> = self.arms.iter().map(empty_result).collect();
        for round in 0..self.plan.rounds {
            for at in order(self.arms.len(), round, self.options.seed) {
                let (arm, dir) = (&self.arms[at], scratch.path());
                let result = self.undisturbed_round(arm, round + 1, dir, guard, on_event)?;
                on_event(MixEvent::RoundEnded {
                    policy: &arm.name,
                    result: &result,
                });
                policies[at].rounds.push(result);
            }
        }
        Ok(policies)
    }

    /// Runs a round until it is undisturbed, or is forced to count.
    fn undisturbed_round(
        &self,
        arm: &PolicyArm,
        round: u32,
        scratch: &Path,
        guard: &mut LoadGuard,
        on_event: &mut dyn FnMut(MixEvent<'_>),
    ) -> Result<RoundResult, MixError> {
        loop {
            let mut on_busy = |text: &str| on_event(MixEvent::Warning { text });
            guard.wait_until_quiet(self.cancel, &mut on_busy)?;
            match self.one_round(arm, round, scratch, guard, on_event)? {
                Ok(result) => return Ok(result),
                Err(reason) => {
                    let text = format!("a round was discarded and is repeated, because {reason}");
                    on_event(MixEvent::Warning { text: &text });
                }
            }
        }
    }

    /// Runs a round. The inner error states why the round must be repeated.
    fn one_round(
        &self,
        arm: &PolicyArm,
        round: u32,
        scratch: &Path,
        guard: &mut LoadGuard,
        on_event: &mut dyn FnMut(MixEvent<'_>),
    ) -> Result<Result<RoundResult, String>, MixError> {
        let policy = &arm.name;
        on_event(MixEvent::Round {
            policy,
            round,
            rounds: self.plan.rounds,
        });
        let context = RoundContext {
            mix: self.mix,
            facts: self.facts,
            arm,
            round,
            repeats: self.plan.repeats,
            scratch,
            ompt: self.options.ompt.as_deref(),
            cancel: self.cancel,
            usable: self.config.topology.all_cpus(),
        };
        let config = arm.policy.as_ref().map(|policy| self.config_for(policy));
        context.run(config, guard, on_event)
    }

    /// Rounds add no measurements to the store, so that all rounds of all policies read the same
    /// profiles.
    fn config_for(&self, policy: &str) -> EngineConfig {
        let profiles = ProfileUse {
            store: self.options.store.clone(),
            recall: policy != "usher" || !self.options.cold,
            learn: false,
            ..ProfileUse::default()
        };
        EngineConfig {
            profiles,
            record: None,
            ..self.config.clone()
        }
    }

    fn result(
        &self,
        policies: Vec<PolicyResult>,
        wanted: RoundPlan,
        disturbance: Option<&str>,
    ) -> MixResult {
        let mut notes = Vec::new();
        if let Some(reason) = disturbance {
            notes.push(format!(
                "other programs disturbed the measurement (option --force): {reason}"
            ));
        }
        if self.plan != wanted {
            notes.push(format!(
                "the mix ran {} of {} instead of {} of {}, because more would exceed the time \
                 limit of the mix",
                text::count(self.plan.rounds as usize, "round"),
                text::count(self.plan.repeats as usize, "repetition"),
                wanted.rounds,
                wanted.repeats
            ));
        }
        if self.options.cold {
            notes.push(
                "the policy 'usher' started without stored scalability curves of the programs \
                 (option --cold)"
                    .to_owned(),
            );
        }
        let sessions = match self.mix.protocol.one_session {
            true => "all programs in one session",
            false => "each program in its own session",
        };
        MixResult {
            title: self.mix.title.clone(),
            description: self.mix.description.clone(),
            machine: machine_facts(&self.config.topology, &self.config.roots),
            simulated: false,
            protocol: Protocol {
                repeats_min: self.plan.repeats,
                rounds: self.plan.rounds,
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

fn empty_result(arm: &PolicyArm) -> PolicyResult {
    PolicyResult {
        name: arm.name.clone(),
        label: match (&arm.policy, arm.role) {
            (Some(policy), PolicyRole::BaselineAgain) => format!("{policy} again"),
            (None, _) => "linux without measurements".to_owned(),
            _ => arm.name.clone(),
        },
        role: arm.role,
        rounds: Vec::new(),
        comparison: None,
    }
}

/// Returns the description of a machine for the report.
pub fn machine_facts(topology: &Topology, roots: &Roots) -> MachineFacts {
    let system = rustix::system::uname();
    let text = |word: &std::ffi::CStr| word.to_string_lossy().into_owned();
    let autogroup = std::fs::read_to_string(roots.proc.join("sys/kernel/sched_autogroup_enabled"));
    let autogroup = match autogroup.as_deref().map(str::trim) {
        Ok("1") => "autogroup is on, so sessions share CPU time equally",
        Ok(_) => "autogroup is off, so threads share CPU time equally",
        Err(_) => "the kernel has no autogroup, so threads share CPU time equally",
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
