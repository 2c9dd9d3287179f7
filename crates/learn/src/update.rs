// SPDX-License-Identifier: MIT OR Apache-2.0
//! Merges the result of a run into the store: the points of the curve, and the history of
//! deliberate variation.

use usher_model::{CurvePoint, ProgramKey, ProgressSource};
use usher_policy::variation::{FinishedRun, VariationHistory};
use usher_store::{MachineKey, MeasuredPoint, Measurement, Store, StoreError, VariationRecord};

use crate::sample::{ProfileSample, WaitBehaviour};

/// The profile update from one repetition.
#[derive(Debug, Clone, PartialEq)]
pub struct ProfileUpdate {
    /// The program.
    pub key: ProgramKey,
    /// Name of the program for display.
    pub name: String,
    /// The point of the curve; `None` if the run gives no point.
    pub sample: Option<ProfileSample>,
    /// Repetitions per second on other numbers of cores, from parts of the run.
    pub further: Vec<CurvePoint>,
    /// How the threads waited.
    pub waits: WaitBehaviour,
    /// Whether bytes did not measure the progress of the run.
    pub distrusts_bytes: bool,
    /// The run, for the budget of deliberate variation.
    pub run: Option<FinishedRun>,
}

impl ProfileUpdate {
    /// Merges the update into the store. `at_s` is the time in seconds since 1970.
    ///
    /// # Errors
    /// The point is invalid, or the store cannot be written. If the merge of the point has failed,
    /// the history of variation is unchanged.
    pub fn write(
        &self,
        store: &mut Store,
        machine: &MachineKey,
        at_s: i64,
    ) -> Result<(), StoreError> {
        if self.distrusts_bytes {
            store.forget_source(&self.key, machine, ProgressSource::Bytes)?;
        }
        let points = self.points();
        if !points.is_empty() {
            let measurement = Measurement {
                name: self.name.clone(),
                at_s,
                points,
                // Zero is stored as unknown, because the threads may have had no reason to wait in
                // this run.
                spinners: Some(self.waits.spinners).filter(|&n| n > 0),
                active_wait: self.waits.active_wait,
                ..Measurement::default()
            };
            store.merge(&self.key, machine, &measurement)?;
        }
        match self.run {
            Some(run) => add_run(store, &self.key, machine, &run),
            None => Ok(()),
        }
    }

    fn points(&self) -> Vec<MeasuredPoint> {
        let whole = self.sample.iter().map(|sample| sample.repetition);
        let repetitions = whole.chain(self.further.iter().copied());
        let repetitions = repetitions.map(|point| (ProgressSource::Repetition, point));
        let by_source = self.sample.iter().filter_map(|sample| sample.by_source);
        let points = repetitions.chain(by_source);
        points
            .map(|(source, point)| MeasuredPoint { point, source })
            .collect()
    }
}

/// Adds a run to the history of deliberate variation.
fn add_run(
    store: &mut Store,
    key: &ProgramKey,
    machine: &MachineKey,
    run: &FinishedRun,
) -> Result<(), StoreError> {
    let old = store.variation(key, machine)?.map(history);
    let Some(next) = VariationHistory::after(old, run) else {
        return Ok(());
    };
    let record = VariationRecord {
        runs: next.runs,
        usual_seconds: next.usual_seconds,
        usual_cpus: next.usual_cpus,
        credit_seconds: next.credit_seconds,
    };
    store.set_variation(key, machine, &record)
}

pub(crate) fn history(record: VariationRecord) -> VariationHistory {
    VariationHistory {
        runs: record.runs,
        usual_seconds: record.usual_seconds,
        usual_cpus: record.usual_cpus,
        credit_seconds: record.credit_seconds,
    }
}
