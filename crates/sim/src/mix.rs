// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs several programs together under a policy, by the protocol of paper 1: each program is
//! repeated until all programs have completed the required repetitions. Also measures programs
//! alone, for profiles and NTTs. An NTT is the mean time of a repetition in the mix, divided by the
//! best time alone. A run of a mix ends after one virtual hour at the latest.
//!
//! If the hour ends first, a program without a completed repetition has the NTT NaN. If the run
//! ends with a fault (module `fault`), the results up to the fault are returned without an error.
//! The number of events is not limited.

use std::sync::Arc;

use usher_control::ControlLoop;
use usher_model::{Arrival, CpuSet, Curve, CurvePoint, Plan, ProgramId};
use usher_policy::Policy;

use crate::alone::alone;
use crate::engine::Engine;
use crate::kernel::Kernel;
use crate::machine::Machine;
use crate::script::Script;
use crate::world::{PlannedArrival, SimWorld, StopCondition};

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
            spinners: 0,
            active_wait: Some(self.script.adaptive_spin),
            ran_before: false,
            stops_unseen: true,
            cpu_quota: None,
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

/// The result of a mix.
#[derive(Debug, Clone)]
pub struct MixOutcome {
    /// For each program, the duration of each repetition in seconds.
    pub seconds: Vec<Vec<f64>>,
    /// Normalised turnaround time of each program.
    pub ntt: Vec<f64>,
    /// Plans, each with the virtual time of its decision.
    pub plans: Vec<(u64, Plan)>,
    /// Number of simulated events.
    pub events: u64,
    /// Virtual duration in seconds.
    pub virtual_seconds: f64,
}

impl MixOutcome {
    /// Returns the mean of the normalised turnaround times.
    pub fn antt(&self) -> f64 {
        self.ntt.iter().sum::<f64>() / self.ntt.len() as f64
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

/// Runs the mix until every program has completed `repetitions`.
pub fn run(
    entries: &[MixEntry],
    machine: &Machine,
    kernel: &Kernel,
    policy: Box<dyn Policy>,
    repetitions: usize,
    seed: u64,
) -> MixOutcome {
    let planned_arrivals = planned_arrivals(entries);
    let engine = Engine::new(machine.clone(), kernel.clone(), seed);
    let until = StopCondition {
        repetitions,
        at_ns: 3_600_000_000_000,
    };
    let world = SimWorld::new(engine, planned_arrivals, until);
    let mut control = ControlLoop::new(policy, world);
    control.run();
    let (_, world) = control.into_parts();
    let ntt = |(entry, seconds): (&MixEntry, &Vec<f64>)| {
        let mean = seconds.iter().sum::<f64>() / seconds.len() as f64;
        mean / entry.alone_best_seconds(machine)
    };
    MixOutcome {
        ntt: entries.iter().zip(world.seconds()).map(ntt).collect(),
        seconds: world.seconds().to_vec(),
        plans: world.plans().to_vec(),
        events: world.engine().events(),
        virtual_seconds: world.engine().now_ns() as f64 / 1e9,
    }
}
