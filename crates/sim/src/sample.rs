// SPDX-License-Identifier: MIT OR Apache-2.0
//! Simulates the sample mix of paper 1 (figures 2 and 4 of the paper): four programs, under Linux
//! and with seats of 12, 12, 18 and 6 cores. The seats are placed in two ways: in the first, no two
//! programs share caches and memory controllers; in the second, some programs do. Each result is
//! the mean over five seeds.
//!
//! Limits: five simulations for each placement and scheduler, each of the transient (2 s for the
//! fixed placements) and `steady_s` virtual seconds. The first fault ends the sample mix without a
//! result.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use usher_model::{CpuSet, Topology};
use usher_policy::Policy;
use usher_policy::baselines::FixedSeats;

use crate::campaign::{Scheduler, measure_programs};
use crate::evaluation::SimulationSize;
use crate::extrapolation::{self, Extrapolation};
use crate::fault::Fault;
use crate::machine::Machine;
use crate::mix::MixEntry;
use crate::setup::EvaluationSetup;

/// The programs of the sample mix.
pub const PROGRAMS: [&str; 4] = ["canneal", "dedup", "ferret", "streamcluster"];
/// CPUs of the programs in the placement in which no two programs share a die (figure 4 (b)).
pub const APART: [&str; 4] = ["0-11", "12-23", "24-41", "42-47"];
/// CPUs of the programs in the placement in which canneal shares dies with dedup, and ferret with
/// streamcluster (figure 4 (a)).
pub const TOGETHER: [&str; 4] = [
    "0-2,6-8,12-14,18-20",
    "3-5,9-11,15-17,21-23",
    "24-27,30-33,36-40,42-46",
    "28-29,34-35,41,47",
];

/// Number of seeds over which results are averaged. The result under Linux depends on where Linux
/// places single threads that block a whole program.
const SEEDS: u64 = 5;

/// Result of the sample mix under one scheduler or placement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SampleMixResult {
    /// Name of the scheduler or placement.
    pub name: String,
    /// Mean NTT of each program.
    pub ntt: Vec<f64>,
    /// Mean of `ntt`.
    pub antt: f64,
    /// The ANTT that the paper reports, if any.
    pub paper: Option<f64>,
}

/// Simulates the mix with the paper's seats and under the schedulers. Returns an empty result if
/// the setup lacks one of the programs.
///
/// # Errors
/// A simulation cannot continue.
pub fn run(
    setup: &EvaluationSetup,
    topology: &Topology,
    schedulers: &[Scheduler],
    size: &SimulationSize,
) -> Result<Vec<SampleMixResult>, Fault> {
    let machine = Machine::new(topology.clone(), setup.costs.clone());
    let (seconds, seed) = (size.repetition_s, size.seed);
    let find = |name| {
        setup
            .models
            .iter()
            .find(|model| model.name == name)
            .cloned()
    };
    let models: Vec<_> = PROGRAMS.into_iter().filter_map(find).collect();
    let programs = measure_programs(&models, &machine, &setup.kernel, seconds, seed)?;
    if programs.len() < PROGRAMS.len() {
        return Ok(Vec::new());
    }
    let mut mix = SampleMix {
        entries: programs.into_iter().map(|program| program.entry).collect(),
        machine: &machine,
        setup,
        size,
    };
    let fixed = |cpus| {
        let seats = seats(cpus);
        move || -> Box<dyn Policy> { Box::new(FixedSeats::new(topology.clone(), seats.clone())) }
    };
    let mut samples = vec![
        mix.simulate("space sharing, programs share dies", &fixed(TOGETHER), 2.0)?,
        mix.simulate(
            "space sharing, each program on its own dies",
            &fixed(APART),
            2.0,
        )?,
    ];
    for &scheduler in schedulers {
        for entry in &mut mix.entries {
            entry.known = scheduler.knows();
        }
        let policy = || scheduler.policy(&machine, &setup.kernel, &mix.entries);
        samples.push(mix.simulate(scheduler.name(), &policy, scheduler.settle_s())?);
    }
    for (sample, paper) in samples.iter_mut().zip([1.39, 1.23]) {
        sample.paper = Some(paper);
    }
    let linux = samples
        .iter_mut()
        .find(|sample| sample.name == Scheduler::Linux.name());
    if let Some(linux) = linux {
        linux.paper = Some(2.07);
    }
    Ok(samples)
}

struct SampleMix<'a> {
    entries: Vec<MixEntry>,
    machine: &'a Machine,
    setup: &'a EvaluationSetup,
    size: &'a SimulationSize,
}

impl SampleMix<'_> {
    fn simulate(
        &self,
        name: &str,
        policy: &dyn Fn() -> Box<dyn Policy>,
        settle_s: f64,
    ) -> Result<SampleMixResult, Fault> {
        let extrapolation = Extrapolation {
            settle_s,
            steady_s: self.size.steady_s,
            repetitions: 3.0,
            scale: self.setup.native_s / self.size.repetition_s,
        };
        let (machine, kernel) = (self.machine, &self.setup.kernel);
        let mut ntt = vec![0.0; self.entries.len()];
        for seed in (0..SEEDS).map(|more| self.size.seed.wrapping_add(more)) {
            let forecast = extrapolation::run(
                &self.entries,
                machine,
                kernel,
                policy(),
                &extrapolation,
                seed,
            )?;
            let sums = ntt.iter_mut().zip(forecast.ntt);
            sums.for_each(|(sum, ntt)| *sum += ntt / SEEDS as f64);
        }
        Ok(SampleMixResult {
            name: name.to_owned(),
            antt: ntt.iter().sum::<f64>() / ntt.len() as f64,
            ntt,
            paper: None,
        })
    }
}

fn seats(cpus: [&str; 4]) -> BTreeMap<String, CpuSet> {
    let pair = |(name, cpus): (&str, &str)| Some((name.to_owned(), cpus.parse().ok()?));
    PROGRAMS.into_iter().zip(cpus).filter_map(pair).collect()
}
