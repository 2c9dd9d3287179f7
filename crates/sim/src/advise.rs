// SPDX-License-Identifier: MIT OR Apache-2.0
//! Evaluates `usher advise` on simulated machines: the code of `usher_policy::advise` chooses copies
//! and cores for many program models, and is compared with an exhaustive sweep.
//!
//! 1. A program is one of the models of PARSEC programs ([`crate::parsec`]) with changed traits:
//!    the serial share, the memory traffic and the synchronisation cost are multiplied by random
//!    factors.
//! 2. The true throughput of each configuration is simulated once: all copies start together, each
//!    on the seat that `usher run --copies` would give it, with one thread per CPU and stage.
//! 3. The selection gets the true throughput with log-normal noise. Some runs are disturbed, and
//!    then are slower by a fixed factor ([`NoiseModel`]).
//! 4. The time of the selection is the time of all its runs, with its warm-up run and with aborted
//!    runs up to their abortion. The sweep runs every candidate [`RUNS_MAX`] times.
//!
//! A configuration in which a copy does not end within a virtual hour counts as failed. The result
//! depends only on the seed, the machine and the number of programs. Bounds: the costs are those of
//! [`crate::alone`], for each configuration of each program.

use std::sync::Arc;

use oorandom::Rand64;
use schemars::JsonSchema;
use serde::Serialize;
use usher_model::Topology;
use usher_policy::advise::candidates::{CopyConfig, MachineSize};
use usher_policy::advise::{INDIFFERENCE, RUNS_MAX, RunOutcome, Selection};

use crate::engine::{Engine, SimEvent};
use crate::kernel::Kernel;
use crate::machine::{Costs, Machine};
use crate::parallel::each;
use crate::parsec::{ParsecModel, ParsecTraits};

/// Upper limit of a run: one virtual hour.
const RUN_NS_MAX: u64 = 3_600_000_000_000;
/// Sequential duration of a program, in virtual seconds. This duration is much longer than a frame
/// of a program, so that a longer duration gives the same ratios.
const SEQUENTIAL_S: f64 = 1.0;

/// The noise of measured throughputs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct NoiseModel {
    /// Relative standard deviation of a run.
    pub deviation: f64,
    /// Share of disturbed runs.
    pub disturbed: f64,
    /// Factor by which a disturbed run is slower.
    pub slower: f64,
}

impl Default for NoiseModel {
    /// Assumed noise of runs on a quiet virtual machine; not measured.
    fn default() -> Self {
        Self {
            deviation: 0.03,
            disturbed: 0.05,
            slower: 1.15,
        }
    }
}

/// The choice for one program.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct AdvisedProgram {
    /// Name of the model, and number of its variant.
    pub name: String,
    /// The chosen configuration; `None` if no configuration ended.
    pub chosen: Option<CopyConfig>,
    /// The best configuration.
    pub best: Option<CopyConfig>,
    /// True throughput of the best configuration divided by that of the chosen one.
    pub best_by_chosen: f64,
    /// Time of the selection divided by the time of the sweep.
    pub time_share: f64,
}

/// The result of an evaluation.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct AdviseEvaluation {
    /// The programs.
    pub programs: Vec<AdvisedProgram>,
    /// Share of programs whose choice is within [`INDIFFERENCE`] of the best.
    pub near_best: f64,
    /// Time of all selections divided by the time of all sweeps.
    pub time_share: f64,
}

/// Evaluates the selection for this number of programs on a machine.
pub fn evaluate(
    topology: &Topology,
    models: &[ParsecModel],
    count: usize,
    noise: NoiseModel,
    seed: u64,
    workers: usize,
) -> AdviseEvaluation {
    let variants: Vec<(String, ParsecTraits, u64)> = (0..count)
        .map(|at| {
            let model = &models[at % models.len()];
            let seed = seed.wrapping_mul(1_000_003).wrapping_add(at as u64);
            let traits = vary(&model.traits, &mut Rand64::new(seed.into()));
            (
                format!("{} {}", model.name, at / models.len()),
                traits,
                seed,
            )
        })
        .collect();
    let machine = Machine::new(topology.clone(), Costs::default());
    let results = each(&variants, workers, &|(name, traits, seed)| {
        advised(&machine, name, traits, noise, *seed)
    });
    let (mut spent, mut sweep) = (0.0, 0.0);
    for (_, times) in &results {
        spent += times.0;
        sweep += times.1;
    }
    let programs: Vec<AdvisedProgram> = results.into_iter().map(|(one, _)| one).collect();
    let is_near = |one: &&AdvisedProgram| one.best_by_chosen <= 1.0 + INDIFFERENCE;
    AdviseEvaluation {
        near_best: programs.iter().filter(is_near).count() as f64 / programs.len().max(1) as f64,
        time_share: spent / sweep,
        programs,
    }
}

/// Returns changed traits of a program.
fn vary(traits: &ParsecTraits, rng: &mut Rand64) -> ParsecTraits {
    let mut factor = |most: f64| most.powf(2.0 * rng.rand_float() - 1.0);
    let mut varied = traits.clone();
    varied.serial = (varied.serial * factor(4.0)).min(0.9);
    varied.sync_us *= factor(4.0);
    varied.memory.gbps *= factor(3.0);
    varied
}

/// Selects for one program. The second value contains the seconds of the selection and of the
/// sweep.
fn advised(
    machine: &Machine,
    name: &str,
    traits: &ParsecTraits,
    noise: NoiseModel,
    seed: u64,
) -> (AdvisedProgram, (f64, f64)) {
    let candidates = MachineSize::of(machine.topology()).candidates();
    let truth: Vec<(CopyConfig, Option<f64>)> = candidates
        .all()
        .into_iter()
        .map(|config| (config, throughput(machine, name, traits, config)))
        .collect();
    let true_rate = |config: CopyConfig| {
        let found = truth.iter().find(|(own, _)| *own == config);
        found.and_then(|&(_, rate)| rate)
    };
    let mut rng = Rand64::new((seed ^ 0x5eed).into());
    let mut selection = Selection::new(candidates);
    let mut spent = 0.0;
    while let Some(trial) = selection.next_run() {
        let outcome = match true_rate(trial.config) {
            None => RunOutcome::Failed,
            Some(rate) => {
                let rate = rate * noise.factor(&mut rng);
                let is_capped = rate < trial.floor;
                spent += f64::from(trial.config.copies) / rate.max(trial.floor);
                match is_capped {
                    true => RunOutcome::Capped(trial.floor),
                    false => RunOutcome::Completed(rate),
                }
            }
        };
        selection.record(&trial, outcome);
    }
    let rates = truth
        .iter()
        .filter_map(|&(config, rate)| Some((config, rate?)));
    let best = rates.clone().max_by(|a, b| a.1.total_cmp(&b.1));
    let sweep = rates.map(|(config, rate)| f64::from(config.copies) / rate);
    let sweep = RUNS_MAX as f64 * sweep.sum::<f64>();
    let chosen = selection.advice().map(|advice| advice.config);
    let chosen_rate = chosen.and_then(true_rate);
    let ratio = best
        .zip(chosen_rate)
        .map(|((_, best), chosen)| best / chosen);
    let program = AdvisedProgram {
        name: name.to_owned(),
        chosen,
        best: best.map(|(config, _)| config),
        best_by_chosen: ratio.unwrap_or(f64::INFINITY),
        time_share: spent / sweep,
    };
    (program, (spent, sweep))
}

impl NoiseModel {
    /// Returns the factor of a measured throughput.
    fn factor(self, rng: &mut Rand64) -> f64 {
        // The sum of 12 uniform numbers is approximately normal.
        let normal = (0..12).map(|_| rng.rand_float()).sum::<f64>() - 6.0;
        let disturbed = rng.rand_float() < self.disturbed;
        let slower = if disturbed { self.slower } else { 1.0 };
        (self.deviation * normal).exp() / slower
    }
}

/// Returns the true throughput of a configuration in copies per second; `None` if a copy does not
/// end.
fn throughput(
    machine: &Machine,
    name: &str,
    traits: &ParsecTraits,
    config: CopyConfig,
) -> Option<f64> {
    let (traits, frames) = traits
        .adapted_to(machine.costs())
        .with_duration(SEQUENTIAL_S);
    let script = Arc::new(traits.script(name, config.cpus, frames));
    let mut engine = Engine::new(machine.clone(), Kernel::cfs(), 1);
    for seat in config.seats(machine.topology()) {
        let program = engine.arrive(script.clone(), false);
        engine.seat(program, Some(&seat));
    }
    let (mut rate, mut ended) = (0.0, 0);
    while ended < config.copies {
        engine.run(RUN_NS_MAX).ok()?;
        let events = engine.take_sim_events();
        if events.is_empty() {
            return None;
        }
        for event in events {
            if let SimEvent::Repeated { seconds, .. } = event {
                rate += 1.0 / seconds;
                ended += 1;
            }
        }
    }
    Some(rate)
}
