// SPDX-License-Identifier: MIT OR Apache-2.0
//! The programs of a mix as policies and simulations use them: script, curve alone, work of a
//! repetition, weight. Module `extrapolation` runs a mix and computes NTTs.
//!
//! [`MixEntry::measure`] runs the program once on 1, 2, … domains of the machine, alone, and stores
//! one point of the curve for each run. The number of runs is the number of domains; the duration
//! of a run is limited by module `alone`.

use std::sync::Arc;

use usher_model::{Arrival, CpuSet, Curve, CurvePoint, ProfileMatch, ProgramId};

use crate::alone::alone;
use crate::kernel::Kernel;
use crate::machine::Machine;
use crate::script::Script;
use crate::world::PlannedArrival;

/// A program of a mix.
#[derive(Debug, Clone)]
pub struct MixEntry {
    /// Name of the program.
    pub name: String,
    /// Script with the steps of the program's threads.
    pub script: Arc<Script>,
    /// Repetitions per second of the program alone, by number of cores: on the first domain, on the
    /// first two domains, and so on. This curve is the content of a profile store and the baseline
    /// of NTTs.
    pub alone: Curve,
    /// Work of a repetition, in nanoseconds of an undisturbed core.
    pub work_ns: f64,
    /// Weight of the program's NTT in the mean that policies minimise.
    pub weight: f64,
    /// Number of CPUs that the program requests as a job of Slurm; `None`: all CPUs.
    pub cpus: Option<u32>,
    /// Whether the policy gets the curve `alone` as a profile.
    pub known: bool,
}

impl MixEntry {
    /// Measures a program alone on 1, 2, … domains of the machine. Returns `None` if one of the
    /// runs does not end.
    pub fn measure(
        name: &str,
        script: Arc<Script>,
        machine: &Machine,
        kernel: &Kernel,
        seed: u64,
    ) -> Option<Self> {
        let topology = machine.topology();
        let mut cpus = CpuSet::new();
        let mut work_ns = 0.0;
        let mut points = Vec::new();
        for domain in &topology.domains {
            cpus = cpus.or(&domain.cpus);
            let alone = alone(machine, kernel, Arc::clone(&script), Some(&cpus), seed)?;
            points.push(CurvePoint {
                cores: topology.cores_in(&cpus).len() as f64,
                rate: 1.0 / alone.seconds,
                relative_error: 0.0,
                busy_cpus: Some(alone.busy_cpus),
            });
            work_ns = alone.work_ns;
        }
        Some(Self {
            name: name.to_owned(),
            script,
            alone: Curve::new(points).ok()?,
            work_ns,
            weight: 1.0,
            cpus: None,
            known: false,
        })
    }

    /// Returns the arrival of the program, as it is reported to a policy.
    pub fn arrival(&self, id: ProgramId, name: String) -> Arrival {
        Arrival {
            id,
            name,
            weight: self.weight,
            profile: self.known.then(|| self.alone.clone()),
            profile_match: ProfileMatch::Exact,
            spinners: 0,
            active_wait: Some(self.script.adaptive_spin),
            ran_before: false,
            stops_unseen: true,
            cpu_quota: None,
            cores: None,
            variation: None,
            llc_bytes: None,
            bandwidth_gbps: None,
            background: None,
            bound_to: None,
            pinned_to: None,
        }
    }

    /// Returns the duration of a repetition alone on the best number of cores, in seconds.
    pub fn alone_best_seconds(&self, machine: &Machine) -> f64 {
        let topology = machine.topology();
        1.0 / self.alone.best_rate(topology.cores.len() as f64)
    }
}

/// Returns arrivals of the programs at time 0; all programs repeat.
pub(crate) fn planned_arrivals(entries: &[MixEntry]) -> Vec<PlannedArrival> {
    let planned = |(index, entry): (usize, &MixEntry)| PlannedArrival {
        arrival: entry.arrival(ProgramId(index as u64 + 1), entry.name.clone()),
        script: Arc::clone(&entry.script),
        at_ns: 0,
        repeats: true,
    };
    entries.iter().enumerate().map(planned).collect()
}
