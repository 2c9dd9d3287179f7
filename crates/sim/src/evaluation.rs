// SPDX-License-Identifier: MIT OR Apache-2.0
//! Simulates the evaluation of paper 1 with one setting of the free parameters (values that the
//! paper does not publish, module `setup`).
//!
//! 1. Measure all programs alone, and classify them (module `campaign`).
//! 2. Simulate the paper's sample mix, and compute its deviation from the published figures.
//! 3. Simulate every mix, or every n-th mix, under every scheduler.
//! 4. Report geometric means by kind of mix. Programs near a class border are also evaluated as
//!    members of the other class.
//!
//! Ten programs have 210 mixes of four. Each mix is simulated once under each scheduler (module
//! `campaign` states the length); with a stride of n, every n-th mix. The first fault ends the
//! evaluation without a result.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use usher_model::Topology;

use crate::campaign::{
    Campaign, CampaignProgram, MixRow, ScalabilityClass, Scheduler, measure_programs, mixes,
};
use crate::fault::Fault;
use crate::machine::Machine;
use crate::sample::{self, SampleMixResult};
use crate::setup::EvaluationSetup;
use crate::slurm_node::SlurmNode;

/// Size of the simulation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SimulationSize {
    /// Work of a repetition, in seconds of the sequential program.
    pub repetition_s: f64,
    /// Virtual seconds simulated for each mix after its transient.
    pub steady_s: f64,
    /// Every n-th mix is simulated; 1: every mix.
    pub stride: usize,
    /// Seed of the random number generators.
    pub seed: u64,
    /// Number of threads that run simulations. The results do not depend on this number.
    pub workers: usize,
}

/// A program of the evaluation.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct EvaluatedProgram {
    /// Name of the program.
    pub name: String,
    /// Class of the program.
    pub class: ScalabilityClass,
    /// Class on the other side of a class border, if the program is near a border.
    pub other: Option<ScalabilityClass>,
    /// Speed-up over the sequential program, by number of cores.
    pub speedup: Vec<(f64, f64)>,
    /// Slowdown by too many threads: the program's time on one die with as many threads as the
    /// machine has cores, divided by its time on that die with as many threads as the die has
    /// cores.
    pub crowded: f64,
}

impl EvaluatedProgram {
    fn new(program: &CampaignProgram) -> Self {
        Self {
            name: program.entry.name.clone(),
            class: program.class,
            other: program.other,
            speedup: program.speedup.clone(),
            crowded: program.crowded,
        }
    }
}

/// Kinds of mixes for which the paper reports a mean, by the scalability classes of their programs.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum MixKind {
    /// All 210 mixes.
    All,
    /// Two medium and two poor scalers.
    Yyrr,
    /// Two good and two medium scalers.
    Ggyy,
    /// No good scaler.
    NoG,
}

impl MixKind {
    /// All kinds of mixes.
    pub const ALL: [Self; 4] = [Self::All, Self::Yyrr, Self::Ggyy, Self::NoG];

    /// Name of the kind in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Yyrr => "YYRR",
            Self::Ggyy => "GGYY",
            Self::NoG => "no G",
        }
    }

    /// Returns the paper's geometric means of ANTT, under Linux and under CaSAS.
    pub fn paper(self) -> (f64, f64) {
        match self {
            Self::All => (1.94, 1.95),
            Self::Yyrr => (1.52, 1.34),
            Self::Ggyy => (1.78, 2.21),
            Self::NoG => (1.74, 1.54),
        }
    }

    fn has(self, mut classes: Vec<ScalabilityClass>) -> bool {
        use ScalabilityClass::{G, R, Y};
        classes.sort();
        match self {
            Self::All => true,
            Self::Yyrr => classes == [Y, Y, R, R],
            Self::Ggyy => classes == [G, G, Y, Y],
            Self::NoG => !classes.contains(&G),
        }
    }
}

/// Results of the evaluation with one setting of the free parameters.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Evaluation {
    /// Description of the difference to the default setting.
    pub setting: String,
    /// The programs, measured alone.
    pub programs: Vec<EvaluatedProgram>,
    /// Results of the paper's sample mix.
    pub sample: Vec<SampleMixResult>,
    /// Results of all simulated mixes.
    pub mixes: Vec<MixRow>,
}

/// If the sample mix deviates from the paper's figures by more than this fraction, a setting does
/// not represent the paper's machine and programs.
pub const SAMPLE_OFF_MAX: f64 = 0.20;

impl Evaluation {
    /// Runs the evaluation. `done` is called after every mix, with the total number of mixes.
    ///
    /// # Errors
    /// A simulation cannot continue.
    pub fn run(
        setting: &str,
        setup: &EvaluationSetup,
        topology: &Topology,
        schedulers: &[Scheduler],
        size: &SimulationSize,
        done: &(dyn Fn(usize, &MixRow) + Sync),
    ) -> Result<Self, Fault> {
        let machine = Machine::new(topology.clone(), setup.costs.clone());
        let (models, kernel) = (&setup.models, &setup.kernel);
        let programs = measure_programs(models, &machine, kernel, size.repetition_s, size.seed)?;
        let campaign = Campaign {
            machine: &machine,
            kernel,
            programs: &programs,
            schedulers,
            steady_s: size.steady_s,
            node: SlurmNode::default(),
            scale: setup.native_s / size.repetition_s,
            seed: size.seed,
        };
        let all = mixes(programs.len(), 4).into_iter();
        let all: Vec<_> = all.step_by(size.stride.max(1)).collect();
        Ok(Self {
            setting: setting.to_owned(),
            sample: sample::run(setup, topology, schedulers, size)?,
            programs: programs.iter().map(EvaluatedProgram::new).collect(),
            mixes: campaign.run(&all, size.workers, &|row| done(all.len(), row))?,
        })
    }

    /// Returns the maximum relative deviation of the sample mix from the paper's figures.
    pub fn sample_off(&self) -> f64 {
        let off = |sample: &SampleMixResult| Some((sample.antt / sample.paper? - 1.0).abs());
        self.sample.iter().filter_map(off).fold(0.0, f64::max)
    }

    /// Returns the class of each program.
    pub fn classes(&self) -> BTreeMap<String, ScalabilityClass> {
        let class = |program: &EvaluatedProgram| (program.name.clone(), program.class);
        self.programs.iter().map(class).collect()
    }

    /// Returns alternative classifications: for each program near a class border, the
    /// classification with only this program in the other class; at the end, the classification
    /// with all these programs in their other class.
    pub fn other_classes(&self) -> Vec<(String, BTreeMap<String, ScalabilityClass>)> {
        let mut all = Vec::new();
        let mut together = self.classes();
        for program in &self.programs {
            let Some(other) = program.other else {
                continue;
            };
            let mut classes = self.classes();
            classes.insert(program.name.clone(), other);
            together.insert(program.name.clone(), other);
            all.push((format!("{} {other:?}", program.name), classes));
        }
        if all.len() > 1 {
            all.push(("all changes of classes together".to_owned(), together));
        }
        all
    }

    /// Returns the mixes of a kind.
    pub fn of<'a>(
        &'a self,
        kind: MixKind,
        classes: &'a BTreeMap<String, ScalabilityClass>,
    ) -> impl Iterator<Item = &'a MixRow> {
        self.mixes.iter().filter(move |row| {
            let class = |name: &String| classes.get(name).copied();
            kind.has(row.programs.iter().filter_map(class).collect())
        })
    }

    /// Returns the geometric mean of a scheduler's ANTT over the mixes of a kind; `None` if there
    /// is no such mix.
    pub fn mean(
        &self,
        scheduler: Scheduler,
        kind: MixKind,
        classes: &BTreeMap<String, ScalabilityClass>,
    ) -> Option<f64> {
        let logs = self
            .of(kind, classes)
            .map(|row| row.antt.get(&scheduler).map(|antt| antt.ln()));
        let logs: Vec<f64> = logs.collect::<Option<_>>()?;
        let count = logs.len() as f64;
        (count > 0.0).then(|| (logs.iter().sum::<f64>() / count).exp())
    }

    /// Returns the mean ANTT of a scheduler, divided by that of another scheduler.
    pub fn ratio(
        &self,
        (scheduler, to): (Scheduler, Scheduler),
        kind: MixKind,
        classes: &BTreeMap<String, ScalabilityClass>,
    ) -> Option<f64> {
        Some(self.mean(scheduler, kind, classes)? / self.mean(to, kind, classes)?)
    }

    /// Returns the mix with the highest ratio of the ANTT of `scheduler` to the ANTT of the
    /// scheduler `to`, and that ratio.
    pub fn worst(&self, scheduler: Scheduler, to: Scheduler) -> Option<(&MixRow, f64)> {
        let ratio = |row: &MixRow| Some(row.antt.get(&scheduler)? / row.antt.get(&to)?);
        let ratios = self.mixes.iter().filter_map(|row| Some((row, ratio(row)?)));
        ratios.max_by(|a, b| a.1.total_cmp(&b.1))
    }
}
