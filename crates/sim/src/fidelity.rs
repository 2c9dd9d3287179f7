// SPDX-License-Identifier: MIT OR Apache-2.0
//! How far the models are from what was published of the programs alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use usher_model::Topology;

use crate::alone::alone_seconds;
use crate::kernel::Kernel;
use crate::machine::{Costs, Machine};
use crate::parsec::{Model, Traits};

/// The machine that the models were fitted to, described in one line.
pub const XEON: &str = "package:2 numa:1 core:12 pu:2";
/// The one that they are checked on.
pub const PHI: &str = "package:1 core:64 pu:4";

/// Frames of a run: enough for a mean.
const FRAMES: u32 = 12;

/// Speed-ups by threads.
pub type Points = Vec<(f64, f64)>;

/// Published speed-ups by program and machine (`xeon`, `phi`).
///
/// # Errors
/// The file that was built in is broken; a test reads it.
pub fn published() -> Result<BTreeMap<String, BTreeMap<String, Points>>, serde_json::Error> {
    #[derive(Deserialize)]
    struct File {
        speedup: BTreeMap<String, BTreeMap<String, Points>>,
    }
    let text = include_str!("../data/parsec-speedup.json");
    Ok(serde_json::from_str::<File>(text)?.speedup)
}

/// The machine of that name in the published figures, on its topology.
pub fn machine(name: &str, topology: &Topology) -> Option<Machine> {
    let costs = match name {
        "xeon" => Costs::xeon(),
        "phi" => Costs::phi(),
        _ => return None,
    };
    Some(Machine::new(topology.clone(), costs))
}

/// Speed-up over the sequential program with so many threads on the whole
/// machine; `None` if the program does not end.
pub fn speedup(machine: &Machine, name: &str, traits: &Traits, threads: f64) -> Option<f64> {
    let here = traits.on(machine.costs());
    let script = Arc::new(here.script(name, threads as u32, FRAMES));
    let seconds = alone_seconds(machine, &Kernel::default(), script, None, 1)?;
    Some(here.sequential_seconds(FRAMES) / seconds)
}

/// One program's curve on one machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fit {
    /// The program.
    pub program: String,
    /// Threads, published speed-up, simulated one.
    pub points: Vec<(f64, f64, f64)>,
}

impl Fit {
    /// A model against the points published of its program.
    pub fn new(machine: &Machine, model: &Model, points: &Points) -> Option<Self> {
        let point = |&(threads, published): &(f64, f64)| {
            let simulated = speedup(machine, &model.name, &model.traits, threads)?;
            Some((threads, published, simulated))
        };
        Some(Self {
            program: model.name.clone(),
            points: points.iter().map(point).collect::<Option<_>>()?,
        })
    }

    /// Relative errors, rising.
    pub fn errors(&self) -> Vec<f64> {
        let error =
            |(_, published, simulated): &(f64, f64, f64)| (simulated / published - 1.0).abs();
        let mut errors: Vec<f64> = self.points.iter().map(error).collect();
        errors.sort_by(f64::total_cmp);
        errors
    }

    /// The middle one of its errors, and the greatest.
    pub fn median_and_worst(&self) -> Option<(f64, f64)> {
        let errors = self.errors();
        Some((*errors.get(errors.len() / 2)?, *errors.last()?))
    }
}

/// Every model of which a curve is published for a machine.
pub fn fits(
    machine: &Machine,
    name: &str,
    models: &[Model],
) -> Result<Vec<Fit>, serde_json::Error> {
    let published = published()?;
    let fit = |model: &Model| Fit::new(machine, model, published.get(&model.name)?.get(name)?);
    Ok(models.iter().filter_map(fit).collect())
}
