// SPDX-License-Identifier: MIT OR Apache-2.0
//! Paper 1's sample mix (its figures 2 and 4): four programs under Linux, and
//! with 12, 12, 18 and 6 cores, placed with and without regard to who shares
//! caches and memory controllers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use usher_model::{CpuSet, Topology};
use usher_policy::Policy;
use usher_policy::baselines::Fixed;

use crate::campaign::{Scheduler, cast};
use crate::evaluation::Extent;
use crate::fault::Fault;
use crate::horizon::{self, Horizon};
use crate::machine::Machine;
use crate::mix::Entrant;
use crate::setup::Setup;

/// Its programs.
pub const PROGRAMS: [&str; 4] = ["canneal", "dedup", "ferret", "streamcluster"];
/// Their cores where dies are not shared: figure 4 (b).
pub const APART: [&str; 4] = ["0-11", "12-23", "24-41", "42-47"];
/// Where canneal shares dies with dedup, and ferret with streamcluster: (a).
pub const TOGETHER: [&str; 4] = [
    "0-2,6-8,12-14,18-20",
    "3-5,9-11,15-17,21-23",
    "24-27,30-33,36-40,42-46",
    "28-29,34-35,41,47",
];

/// What Linux makes of it depends on where it happens to put single threads
/// that a whole program waits for; what is told is the mean over so many seeds.
const SEEDS: u64 = 5;

/// The mix in one way of scheduling.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Which way.
    pub name: String,
    /// Mean NTT of each program.
    pub ntt: Vec<f64>,
    /// Their mean.
    pub antt: f64,
    /// The paper's, where it gives one.
    pub paper: Option<f64>,
}

/// Runs it with the paper's seats and under schedulers; without a result where
/// one of the programs is not among the setup's.
///
/// # Errors
/// A simulation cannot go on.
pub fn run(
    setup: &Setup,
    topology: &Topology,
    schedulers: &[Scheduler],
    extent: &Extent,
) -> Result<Vec<Sample>, Fault> {
    let machine = Machine::new(topology.clone(), setup.costs.clone());
    let (seconds, seed) = (extent.repetition_s, extent.seed);
    let find = |name| {
        setup
            .models
            .iter()
            .find(|model| model.name == name)
            .cloned()
    };
    let models: Vec<_> = PROGRAMS.into_iter().filter_map(find).collect();
    let cast = cast(&models, &machine, &setup.kernel, seconds, seed)?;
    if cast.len() < PROGRAMS.len() {
        return Ok(Vec::new());
    }
    let mut mix = Mix {
        entrants: cast.into_iter().map(|player| player.entrant).collect(),
        machine: &machine,
        setup,
        extent,
    };
    let fixed = |cpus| {
        let seats = seats(cpus);
        move || -> Box<dyn Policy> { Box::new(Fixed::new(topology.clone(), seats.clone())) }
    };
    let mut samples = vec![
        mix.look("space sharing, dies shared", &fixed(TOGETHER), 2.0)?,
        mix.look("space sharing, dies apart", &fixed(APART), 2.0)?,
    ];
    for &scheduler in schedulers {
        for entrant in &mut mix.entrants {
            entrant.known = scheduler.knows();
        }
        let policy = || scheduler.policy(&machine, &setup.kernel, &mix.entrants);
        samples.push(mix.look(scheduler.name(), &policy, scheduler.settle_s())?);
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

struct Mix<'a> {
    entrants: Vec<Entrant>,
    machine: &'a Machine,
    setup: &'a Setup,
    extent: &'a Extent,
}

impl Mix<'_> {
    fn look(
        &self,
        name: &str,
        policy: &dyn Fn() -> Box<dyn Policy>,
        settle_s: f64,
    ) -> Result<Sample, Fault> {
        let horizon = Horizon {
            settle_s,
            steady_s: self.extent.steady_s,
            repetitions: 3.0,
            scale: self.setup.native_s / self.extent.repetition_s,
        };
        let (machine, kernel) = (self.machine, &self.setup.kernel);
        let mut ntt = vec![0.0; self.entrants.len()];
        for seed in (0..SEEDS).map(|more| self.extent.seed.wrapping_add(more)) {
            let seen = horizon::run(&self.entrants, machine, kernel, policy(), &horizon, seed)?;
            let sums = ntt.iter_mut().zip(seen.ntt);
            sums.for_each(|(sum, ntt)| *sum += ntt / SEEDS as f64);
        }
        Ok(Sample {
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
