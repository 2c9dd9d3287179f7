// SPDX-License-Identifier: MIT OR Apache-2.0
//! Simulates how much policy `usher` gains from ordinary runs on a machine without PMU: every mix
//! of four PARSEC models, five or more runs of each program (module `reruns`), with an empty
//! profile store at the start of each mix.
//!
//! 1. [`with_equal_durations`] gives each program an amount of work that takes the same time alone
//!    for all programs, and measures each program alone. NTTs refer to this time.
//! 2. [`LearningCampaign::run`] simulates each mix under Linux, under policy `usher`, and under
//!    policy `usher` with the true curves of all programs. The arrivals and pauses are the same.
//! 3. The ANTT of run k is the mean NTT of the k-th runs of all programs. The last ANTT contains
//!    all later runs, too: the NTT of a program is then the mean over these runs.
//! 4. [`gains`] returns the geometric mean over all mixes of the ANTT under `usher`, divided by the
//!    ANTT under Linux, with its 95 % interval.
//!
//! Bounds: a mix ends when each program has completed its runs, and at the latest after
//! [`SECONDS_FACTOR`] times the time of these runs alone. The first error in the order of the mixes
//! is returned, after all mixes have run. Results depend only on the settings and the seed.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use usher_policy::{Linux, Policy, Usher};
use usher_report::stats::{self, Estimate};

use crate::fault::Fault;
use crate::kernel::Kernel;
use crate::machine::Machine;
use crate::mix::MixEntry;
use crate::parallel::each;
use crate::parsec::ParsecModel;
use crate::reruns::{self, CompletedRun, RerunError, RerunSettings, Reruns};

/// Longest simulation of a mix, as a multiple of the time of the runs alone.
pub const SECONDS_FACTOR: f64 = 40.0;
/// Sequential seconds of the run that gives the speed-up of a program.
const PROBE_S: f64 = 8.0;

/// Measures each program alone, with an amount of work that takes about `seconds` on its best number
/// of cores. A program has one thread per core and stage.
///
/// # Errors
/// A program does not end when it runs alone.
pub fn with_equal_durations(
    models: &[ParsecModel],
    machine: &Machine,
    kernel: &Kernel,
    seconds: f64,
    seed: u64,
    workers: usize,
) -> Result<Vec<MixEntry>, Fault> {
    let threads = machine.topology().cores.len() as u32;
    let entry = |model: &ParsecModel| {
        let traits = model.traits.adapted_to(machine.costs());
        let measure = |work_s: f64| {
            let (traits, frames) = traits.with_duration(work_s);
            let script = Arc::new(traits.script(&model.name, threads, frames));
            MixEntry::measure(&model.name, script, machine, kernel, seed)
        };
        let probe_s = measure(PROBE_S)?.alone_best_seconds(machine);
        measure(seconds * PROBE_S / probe_s)
    };
    let entries = each(models, workers, &entry).into_iter().zip(models);
    let named = entries.map(|(entry, model)| {
        let program = model.name.clone();
        entry.ok_or(Fault::Starved { program })
    });
    named.collect()
}

/// Parameters common to all mixes of a campaign.
#[derive(Debug, Clone)]
pub struct LearningCampaign<'a> {
    /// The machine.
    pub machine: &'a Machine,
    /// Kernel of the machine.
    pub kernel: &'a Kernel,
    /// The programs, measured alone.
    pub programs: &'a [MixEntry],
    /// Number of runs that each program completes.
    pub runs: usize,
    /// Whether the seats of some runs are deliberately varied.
    pub variation: bool,
    /// Seed of the kernel, the programs, the first arrivals and the pauses.
    pub seed: u64,
}

/// Results of one mix.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LearningRow {
    /// The programs.
    pub programs: Vec<String>,
    /// Results under the simulated kernel alone.
    pub linux: MixRuns,
    /// Results under policy `usher`, which learns from the runs.
    pub usher: MixRuns,
    /// Results under policy `usher` with the true curves from the first run on.
    pub known: MixRuns,
    /// Time that the runs of each program lost on seats of deliberate variation, as a fraction of the
    /// time of the same runs under Linux.
    pub variation_loss: Vec<f64>,
    /// Number of events of all simulations.
    pub events: u64,
}

/// Results of the runs of a mix.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MixRuns {
    /// ANTT of the first runs, the second runs, and so on. The last value contains all later runs.
    pub antt: Vec<f64>,
    /// For each run, the NTT of each program.
    pub ntt: Vec<Vec<f64>>,
    /// For each run, the mean number of points of the profiles at the start.
    pub points: Vec<f64>,
    /// For each run, the mean share of the time on seats of deliberate variation, 0..=1.
    pub varied_share: Vec<f64>,
}

impl LearningCampaign<'_> {
    /// Simulates these mixes on `workers` threads. `done` is called after every mix.
    ///
    /// # Errors
    /// A simulation cannot continue, or a program has not completed its runs in time.
    pub fn run(
        &self,
        mixes: &[Vec<usize>],
        workers: usize,
        done: &(dyn Fn(&LearningRow) + Sync),
    ) -> Result<Vec<LearningRow>, RerunError> {
        let rows = each(mixes, workers, &|mix: &Vec<usize>| {
            let row = self.one(mix)?;
            done(&row);
            Ok(row)
        });
        rows.into_iter().collect()
    }

    fn one(&self, mix: &[usize]) -> Result<LearningRow, RerunError> {
        let entries: Vec<MixEntry> = mix.iter().map(|&i| self.programs[i].clone()).collect();
        let alone_s: Vec<f64> = entries
            .iter()
            .map(|entry| entry.alone_best_seconds(self.machine))
            .collect();
        let longest_s = alone_s.iter().copied().fold(0.0, f64::max);
        let settings = RerunSettings {
            runs: self.runs,
            variation: self.variation,
            spread_s: longest_s,
            seconds_max: SECONDS_FACTOR * self.runs as f64 * longest_s,
            seed: self.seed,
        };
        let simulate = |entries: &[MixEntry], policy: Box<dyn Policy>| {
            reruns::run(entries, self.machine, self.kernel, policy, &settings)
        };
        let topology = self.machine.topology();
        let known: Vec<MixEntry> = entries
            .iter()
            .map(|entry| MixEntry {
                known: true,
                ..entry.clone()
            })
            .collect();
        let linux = simulate(&entries, Box::new(Linux::new(topology.clone())))?;
        let usher = simulate(&entries, Box::new(Usher::new(topology.clone())))?;
        let known = simulate(&known, Box::new(Usher::new(topology.clone())))?;
        Ok(LearningRow {
            programs: entries.into_iter().map(|entry| entry.name).collect(),
            events: linux.events + usher.events + known.events,
            variation_loss: variation_losses(&linux.runs, &usher.runs, self.runs),
            linux: MixRuns::new(&linux, &alone_s, self.runs),
            usher: MixRuns::new(&usher, &alone_s, self.runs),
            known: MixRuns::new(&known, &alone_s, self.runs),
        })
    }
}

impl MixRuns {
    fn new(reruns: &Reruns, alone_s: &[f64], runs: usize) -> Self {
        let runs_of = |run: usize| {
            let last = run + 1 == runs;
            let range = move |all: &'_ [CompletedRun]| match last {
                true => run..all.len(),
                false => run..run + 1,
            };
            let programs = reruns.runs.iter();
            programs.map(move |all| &all[range(all)])
        };
        let per_run = |value: &dyn Fn(&CompletedRun) -> f64| -> Vec<Vec<f64>> {
            let program = |all: &[CompletedRun]| mean(all.iter().map(value));
            (0..runs)
                .map(|run| runs_of(run).map(program).collect())
                .collect()
        };
        let means = |values: &[Vec<f64>]| -> Vec<f64> {
            let each = values.iter();
            each.map(|one| mean(one.iter().copied())).collect()
        };
        let mut ntt = per_run(&|run| run.seconds);
        for values in &mut ntt {
            let each = values.iter_mut().zip(alone_s);
            each.for_each(|(seconds, alone_s)| *seconds /= alone_s);
        }
        Self {
            antt: means(&ntt),
            ntt,
            points: means(&per_run(&|run| run.points as f64)),
            varied_share: means(&per_run(&|run| run.varied_seconds / run.seconds)),
        }
    }
}

/// Returns the time that the first `runs` runs of each program lost on seats of deliberate variation,
/// as a fraction of the time of these runs under Linux. The loss of a run is the time on these seats,
/// minus the usual time of the work done in it. The usual time is the mean over the program's runs
/// under Linux. Negative: the program was faster on these seats.
pub fn variation_losses(
    linux: &[Vec<CompletedRun>],
    usher: &[Vec<CompletedRun>],
    runs: usize,
) -> Vec<f64> {
    let loss = |(linux, usher): (&Vec<CompletedRun>, &Vec<CompletedRun>)| {
        let usual_s = mean(linux.iter().map(|run| run.seconds));
        let lost_s = |run: &CompletedRun| run.varied_seconds - run.varied_work * usual_s;
        let usher = &usher[..runs];
        usher.iter().map(lost_s).sum::<f64>() / (runs as f64 * usual_s)
    };
    linux.iter().zip(usher).map(loss).collect()
}

/// Returns for each run the geometric mean over all mixes of the ANTT of `results`, divided by the
/// ANTT under Linux.
pub fn gains(
    rows: &[LearningRow],
    results: impl Fn(&LearningRow) -> &MixRuns,
    seed: u64,
) -> Vec<Option<Estimate>> {
    let runs = rows.first().map_or(0, |row| row.linux.antt.len());
    let ratio = |run: usize| {
        let pair = |row: &LearningRow| (results(row).antt[run], row.linux.antt[run]);
        stats::ratio(&rows.iter().map(pair).collect::<Vec<_>>(), seed)
    };
    (0..runs).map(ratio).collect()
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len() as f64;
    values.sum::<f64>() / count
}
