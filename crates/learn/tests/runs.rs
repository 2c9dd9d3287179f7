// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests that runs add points of the curve to the store, and spend the budget of deliberate
//! variation.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use usher_learn::{
    DemandTrace, ProfileSample, ProfileUpdate, VariedTime, WaitBehaviour, recall, variation_budget,
};
use usher_model::{DemandReading, ProgramKey};
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
        let mut demand = DemandTrace::new(0);
        demand.moved(cores);
        let mut varied = VariedTime::default();
        varied.set(0, loss_rate);
        demand.add(DemandReading {
            at_ns: seconds * SECOND,
            cpu_ns: (cores * (seconds * SECOND) as f64) as u64,
            delay_ns: 0,
            is_complete: true,
        });
        varied.set(seconds * SECOND, None);
        self.at_s += 60;
        let run = demand.ended(seconds as f64).unwrap();
        let update = ProfileUpdate {
            key: Self::key(),
            name: "p".to_owned(),
            sample: ProfileSample::corrected(run.point),
            waits: WaitBehaviour::default(),
            distrusts_bytes: false,
            run: Some(run.finished(seconds as f64, &varied)),
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

    fn budget_seconds(&self) -> Option<f64> {
        let budget = variation_budget(&self.store, &Self::key(), &self.machine).unwrap();
        budget.map(|budget| budget.seconds)
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
    // The excess of 6 s over the usual 10 s counts more than the bound of 1.6 s.
    assert_eq!(runs.budget_seconds(), None);
}
