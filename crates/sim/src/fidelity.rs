// SPDX-License-Identifier: MIT OR Apache-2.0
//! Computes the deviation of the program models from published speed-ups of the programs alone. The
//! models were fitted to the speed-ups on one machine (a Xeon), and are validated by those on
//! another machine (a Xeon Phi). A comparison simulates one run for each published point.
//!
//! A run has 12 frames and is limited to one virtual hour. A program with a run that does not end,
//! or without published points for the machine, has no comparison. An error is the fraction
//! |simulated / published - 1|.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use usher_model::Topology;

use crate::alone::alone_seconds;
use crate::kernel::Kernel;
use crate::machine::{Costs, Machine};
use crate::parsec::{ParsecModel, ParsecTraits};

/// The machine to which the models were fitted, as a one-line description.
pub const XEON: &str = "package:2 numa:1 core:12 pu:2";
/// The machine on which the models are validated, as a one-line description.
pub const PHI: &str = "package:1 core:64 pu:4";

/// Number of frames of a run, which is enough for a mean.
const FRAMES: u32 = 12;

/// Points of a speed-up curve: number of threads, speed-up.
pub type SpeedupPoints = Vec<(f64, f64)>;

/// Returns the published speed-ups by program and machine (`xeon`, `phi`).
///
/// # Errors
/// The built-in file is malformed; a test reads it.
pub fn published() -> Result<BTreeMap<String, BTreeMap<String, SpeedupPoints>>, serde_json::Error> {
    #[derive(Deserialize)]
    struct File {
        speedup: BTreeMap<String, BTreeMap<String, SpeedupPoints>>,
    }
    let text = include_str!("../data/parsec-speedup.json");
    Ok(serde_json::from_str::<File>(text)?.speedup)
}

/// Returns the machine that has this name in the published figures, built from its topology.
pub fn machine(name: &str, topology: &Topology) -> Option<Machine> {
    let costs = match name {
        "xeon" => Costs::xeon(),
        "phi" => Costs::phi(),
        _ => return None,
    };
    Some(Machine::new(topology.clone(), costs))
}

/// Returns the simulated speed-up of the program with `threads` threads over the sequential
/// program, on the whole machine; `None` if the program does not end.
pub fn speedup(machine: &Machine, name: &str, traits: &ParsecTraits, threads: f64) -> Option<f64> {
    let adapted = traits.adapted_to(machine.costs());
    let script = Arc::new(adapted.script(name, threads as u32, FRAMES));
    let seconds = alone_seconds(machine, &Kernel::default(), script, None, 1)?;
    Some(adapted.sequential_seconds(FRAMES) / seconds)
}

/// The speed-up curve of one program on one machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelFit {
    /// Name of the program.
    pub program: String,
    /// Number of threads, published speed-up, simulated speed-up.
    pub points: Vec<(f64, f64, f64)>,
}

impl ModelFit {
    /// Compares a model with the published points of its program.
    pub fn new(machine: &Machine, model: &ParsecModel, points: &SpeedupPoints) -> Option<Self> {
        let point = |&(threads, published): &(f64, f64)| {
            let simulated = speedup(machine, &model.name, &model.traits, threads)?;
            Some((threads, published, simulated))
        };
        Some(Self {
            program: model.name.clone(),
            points: points.iter().map(point).collect::<Option<_>>()?,
        })
    }

    /// Returns the relative errors in ascending order.
    pub fn errors(&self) -> Vec<f64> {
        let error =
            |(_, published, simulated): &(f64, f64, f64)| (simulated / published - 1.0).abs();
        let mut errors: Vec<f64> = self.points.iter().map(error).collect();
        errors.sort_by(f64::total_cmp);
        errors
    }

    /// Returns the median and the maximum of the relative errors.
    pub fn median_and_worst(&self) -> Option<(f64, f64)> {
        let errors = self.errors();
        Some((*errors.get(errors.len() / 2)?, *errors.last()?))
    }
}

/// Compares each model that has a published curve for the machine with that curve. Models with a
/// run that does not end are left out.
///
/// # Errors
/// The built-in file is malformed; a test reads it.
pub fn fits(
    machine: &Machine,
    name: &str,
    models: &[ParsecModel],
) -> Result<Vec<ModelFit>, serde_json::Error> {
    let published = published()?;
    let fit =
        |model: &ParsecModel| ModelFit::new(machine, model, published.get(&model.name)?.get(name)?);
    Ok(models.iter().filter_map(fit).collect())
}
