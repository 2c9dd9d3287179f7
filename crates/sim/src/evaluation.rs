// SPDX-License-Identifier: MIT OR Apache-2.0
//! Paper 1's evaluation in one setting: every mix under every scheduler, and
//! what comes of it by class of mix.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use usher_model::Topology;

use crate::campaign::{Campaign, Class, MixRow, Player, Scheduler, cast, mixes};
use crate::fault::Fault;
use crate::machine::Machine;
use crate::sample::{self, Sample};
use crate::setup::Setup;

/// How much is simulated.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Extent {
    /// Work of a repetition, in seconds of the sequential program.
    pub repetition_s: f64,
    /// Virtual seconds to look at every mix after it has settled.
    pub steady_s: f64,
    /// Only every so manieth mix.
    pub every: usize,
    /// Seed of everything random.
    pub seed: u64,
    /// Threads of this process that simulate; no answer depends on it.
    pub workers: usize,
}

/// A program of the evaluation.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Program {
    /// Its name.
    pub name: String,
    /// Its class.
    pub class: Class,
    /// The other class that it could be in.
    pub other: Option<Class>,
    /// Speed-up over the sequential program by cores.
    pub speedup: Vec<(f64, f64)>,
    /// Time of a thread a core of the machine on one die, relative to a thread
    /// a core of the die.
    pub crowded: f64,
}

impl Program {
    fn new(player: &Player) -> Self {
        Self {
            name: player.entrant.name.clone(),
            class: player.class,
            other: player.other,
            speedup: player.speedup.clone(),
            crowded: player.crowded,
        }
    }
}

/// Kinds of mixes of which the paper gives a mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// All 210.
    All,
    /// Two medium and two poor scalers.
    Yyrr,
    /// Two good and two medium ones.
    Ggyy,
    /// No good one.
    NoG,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::All, Self::Yyrr, Self::Ggyy, Self::NoG];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Yyrr => "YYRR",
            Self::Ggyy => "GGYY",
            Self::NoG => "no G",
        }
    }

    /// The paper's geometric means: Linux, CaSAS.
    pub fn paper(self) -> (f64, f64) {
        match self {
            Self::All => (1.94, 1.95),
            Self::Yyrr => (1.52, 1.34),
            Self::Ggyy => (1.78, 2.21),
            Self::NoG => (1.74, 1.54),
        }
    }

    fn has(self, mut classes: Vec<Class>) -> bool {
        use Class::{G, R, Y};
        classes.sort();
        match self {
            Self::All => true,
            Self::Yyrr => classes == [Y, Y, R, R],
            Self::Ggyy => classes == [G, G, Y, Y],
            Self::NoG => !classes.contains(&G),
        }
    }
}

/// One setting's evaluation.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Evaluation {
    /// What is not as in the first one.
    pub setting: String,
    /// The programs, alone.
    pub programs: Vec<Program>,
    /// The paper's sample mix.
    pub sample: Vec<Sample>,
    /// The mixes.
    pub mixes: Vec<MixRow>,
}

/// A setting in which the sample mix is further than this from the paper's
/// figures, relative, is not one of the paper's machine and programs.
pub const SAMPLE_OFF_MAX: f64 = 0.20;

impl Evaluation {
    /// Runs it; `done` is told of every mix and how many there are.
    ///
    /// # Errors
    /// A simulation cannot go on.
    pub fn run(
        setting: &str,
        setup: &Setup,
        topology: &Topology,
        schedulers: &[Scheduler],
        extent: &Extent,
        done: &(dyn Fn(usize, &MixRow) + Sync),
    ) -> Result<Self, Fault> {
        let machine = Machine::new(topology.clone(), setup.costs.clone());
        let (models, kernel) = (&setup.models, &setup.kernel);
        let cast = cast(models, &machine, kernel, extent.repetition_s, extent.seed)?;
        let campaign = Campaign {
            machine: &machine,
            kernel,
            cast: &cast,
            schedulers,
            steady_s: extent.steady_s,
            scale: setup.native_s / extent.repetition_s,
            seed: extent.seed,
        };
        let all = mixes(cast.len(), 4).into_iter();
        let all: Vec<_> = all.step_by(extent.every.max(1)).collect();
        Ok(Self {
            setting: setting.to_owned(),
            sample: sample::run(setup, topology, schedulers, extent)?,
            programs: cast.iter().map(Program::new).collect(),
            mixes: campaign.run(&all, extent.workers, &|row| done(all.len(), row))?,
        })
    }

    /// How far the sample mix is from the paper's figures at most, relative.
    pub fn sample_off(&self) -> f64 {
        let off = |sample: &Sample| Some((sample.antt / sample.paper? - 1.0).abs());
        self.sample.iter().filter_map(off).fold(0.0, f64::max)
    }

    /// The programs' classes.
    pub fn classes(&self) -> BTreeMap<String, Class> {
        let class = |program: &Program| (program.name.clone(), program.class);
        self.programs.iter().map(class).collect()
    }

    /// Every way to class the programs that are near a border: as they are,
    /// each one moved, all moved.
    pub fn other_classes(&self) -> Vec<(String, BTreeMap<String, Class>)> {
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
            all.push(("all of these".to_owned(), together));
        }
        all
    }

    /// The mixes of a kind.
    pub fn of<'a>(
        &'a self,
        kind: Kind,
        classes: &'a BTreeMap<String, Class>,
    ) -> impl Iterator<Item = &'a MixRow> {
        self.mixes.iter().filter(move |row| {
            let class = |name: &String| classes.get(name).copied();
            kind.has(row.programs.iter().filter_map(class).collect())
        })
    }

    /// Geometric mean of a scheduler's ANTT over the mixes of a kind; `None`
    /// where there are none.
    pub fn mean(
        &self,
        scheduler: Scheduler,
        kind: Kind,
        classes: &BTreeMap<String, Class>,
    ) -> Option<f64> {
        let logs = self
            .of(kind, classes)
            .map(|row| row.antt.get(&scheduler).map(|antt| antt.ln()));
        let logs: Vec<f64> = logs.collect::<Option<_>>()?;
        let count = logs.len() as f64;
        (count > 0.0).then(|| (logs.iter().sum::<f64>() / count).exp())
    }

    /// One scheduler's mean relative to another's.
    pub fn ratio(
        &self,
        (scheduler, to): (Scheduler, Scheduler),
        kind: Kind,
        classes: &BTreeMap<String, Class>,
    ) -> Option<f64> {
        Some(self.mean(scheduler, kind, classes)? / self.mean(to, kind, classes)?)
    }

    /// The mix in which a scheduler does worst relative to another, and how.
    pub fn worst(&self, scheduler: Scheduler, to: Scheduler) -> Option<(&MixRow, f64)> {
        let ratio = |row: &MixRow| Some(row.antt.get(&scheduler)? / row.antt.get(&to)?);
        let ratios = self.mixes.iter().filter_map(|row| Some((row, ratio(row)?)));
        ratios.max_by(|a, b| a.1.total_cmp(&b.1))
    }
}
