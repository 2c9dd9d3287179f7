// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests that runs add points of the curve to the store, and spend the budget of deliberate
//! variation.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use usher_learn::{
    DemandTrace, ProfileSample, ProfileUpdate, VariedTime, WaitBehaviour, recall, variation_budget,
};
use usher_model::{DemandReading, ProgramKey, VariationBudget};
use usher_store::{MachineKey, Store};
use usher_topology::Source;

const SECOND: u64 = 1_000_000_000;

/// The store of one machine, and consecutive runs of one program.
struct Runs {
    store: Store,
    machine: MachineKey,
    at_s: i64,
}

impl Runs {
    fn new() -> Self {
        let topology = usher_topology::load(Source::Synthetic("core:4 pu:1".to_owned())).unwrap();
        Self {
            store: Store::in_memory().unwrap(),
            machine: MachineKey::of(&topology),
            at_s: 0,
        }
    }

    fn key() -> ProgramKey {
        ProgramKey {
            executable: "build-id:1".to_owned(),
            arguments: String::new(),
        }
    }

    /// Adds a run without waits on `cores` cores, which are all busy, to the store.
    fn add(&mut self, cores: f64, seconds: u64, loss_rate: Option<f64>) {
        self.add_waiting(cores, 0.0, seconds, loss_rate);
    }

    /// Adds a run of `cores` threads on `cores` cores to the store. Each thread waits for a CPU for
    /// the fraction `waiting` of the time, and runs for the rest of the time.
    fn add_waiting(&mut self, cores: f64, waiting: f64, seconds: u64, loss_rate: Option<f64>) {
        let mut demand = DemandTrace::new(0);
        demand.moved(cores);
        demand.set_varied(loss_rate.is_some());
        let mut varied = VariedTime::default();
        varied.set(0, loss_rate);
        demand.add(DemandReading {
            at_ns: seconds * SECOND,
            cpu_ns: (cores * (1.0 - waiting) * (seconds * SECOND) as f64) as u64,
            delay_ns: (cores * waiting * (seconds * SECOND) as f64) as u64,
            is_complete: true,
        });
        varied.set(seconds * SECOND, None);
        self.at_s += 60;
        let run = demand.ended(seconds as f64);
        let update = ProfileUpdate {
            key: Self::key(),
            name: "p".to_owned(),
            sample: run.points.first().copied().map(ProfileSample::corrected),
            waits: WaitBehaviour::default(),
            distrusts_bytes: false,
            run: run.finished(seconds as f64, &varied),
            further: run.points.iter().skip(1).copied().collect(),
        };
        update
            .write(&mut self.store, &self.machine, self.at_s)
            .unwrap();
    }

    /// Returns the number of cores and the rate of each point of the curve.
    fn points(&self) -> Vec<(f64, f64)> {
        let stored = recall(&self.store, &Self::key(), &self.machine).unwrap();
        let points = stored.curve.iter().flat_map(|curve| curve.points());
        points.map(|point| (point.cores, point.rate)).collect()
    }

    fn budget(&self) -> Option<VariationBudget> {
        variation_budget(&self.store, &Self::key(), &self.machine).unwrap()
    }

    fn budget_seconds(&self) -> Option<f64> {
        self.budget().map(|budget| budget.seconds)
    }
}

#[test]
fn runs_on_other_cores_add_points_and_spend_the_budget() {
    let mut runs = Runs::new();
    assert_eq!((runs.points(), runs.budget_seconds()), (vec![], None));
    runs.add(4.0, 10, None);
    assert_eq!(runs.points(), [(4.0, 0.1)]);
    assert_eq!(runs.budget_seconds(), Some(2.5));
    runs.add(2.0, 16, Some(0.1));
    assert_eq!(runs.points(), [(2.0, 0.0625), (4.0, 0.1)]);
    // The measured loss of 6 s against the usual 10 s counts more than the bound of 1.6 s.
    assert_eq!(runs.budget_seconds(), Some(0.0));
}

#[test]
fn the_budget_contains_the_slowdown_by_waits_on_the_most_cores() {
    let mut runs = Runs::new();
    runs.add(4.0, 10, None);
    assert_eq!(runs.budget().unwrap().usual_slowdown, 1.0);
    let mut runs = Runs::new();
    runs.add_waiting(4.0, 0.5, 20, None);
    assert_eq!(runs.points(), [(4.0, 0.1)]);
    assert_eq!(runs.budget().unwrap().usual_slowdown, 2.0);
    // A point on fewer cores does not change the slowdown of an ordinary run.
    runs.add(2.0, 20, Some(0.1));
    let budget = runs.budget().unwrap();
    assert_eq!((budget.usual_seconds, budget.usual_slowdown), (20.0, 2.0));
}
