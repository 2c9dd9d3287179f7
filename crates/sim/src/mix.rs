// SPDX-License-Identifier: MIT OR Apache-2.0
//! Several programs together under a policy, each repeated until every one has
//! run often enough: the paper's protocol.

use std::sync::Arc;

use usher_control::ControlLoop;
use usher_model::{Arrival, CpuSet, Curve, CurvePoint, Plan, ProgramId};
use usher_policy::Policy;

use crate::alone::alone;
use crate::engine::Engine;
use crate::kernel::Kernel;
use crate::machine::Machine;
use crate::script::Script;
use crate::world::{Guest, SimWorld, Until};

/// A program of a mix.
#[derive(Debug, Clone)]
pub struct Entrant {
    /// Its name.
    pub name: String,
    /// What it does.
    pub script: Arc<Script>,
    /// Repetitions a second alone, by cores: on the first domain, the first
    /// two and so on. What a profile store would hold, and what NTT is held against.
    pub alone: Curve,
    /// Work of a repetition, in nanoseconds of a core that it has to itself.
    pub work_ns: f64,
    /// Weight of its NTT in the mean that policies minimise.
    pub weight: f64,
    /// Whether the policy is told that curve.
    pub known: bool,
}

impl Entrant {
    /// A program, run alone on 1, 2, … domains of the machine; `None` if one of
    /// these runs does not end.
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

    /// What a policy is told when it comes.
    pub fn arrival(&self, id: ProgramId, name: String) -> Arrival {
        Arrival {
            id,
            name,
            weight: self.weight,
            profile: self.known.then(|| self.alone.clone()),
            spinners: 0,
            active_wait: Some(self.script.settles),
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

    /// Seconds alone on the best number of cores.
    pub fn alone_best_seconds(&self, machine: &Machine) -> f64 {
        let topology = machine.topology();
        1.0 / self.alone.best_rate(topology.cores.len() as f64)
    }
}

/// What came of a mix.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Seconds of each program's repetitions.
    pub seconds: Vec<Vec<f64>>,
    /// Normalised turnaround time of each program.
    pub ntt: Vec<f64>,
    /// Plans, and when they were made.
    pub plans: Vec<(u64, Plan)>,
    /// Events of the simulation.
    pub events: u64,
    /// Virtual seconds.
    pub virtual_seconds: f64,
}

impl Outcome {
    /// The mean of the normalised turnaround times.
    pub fn antt(&self) -> f64 {
        self.ntt.iter().sum::<f64>() / self.ntt.len() as f64
    }
}

/// The programs as guests who come at the start and repeat.
pub(crate) fn guests(entrants: &[Entrant]) -> Vec<Guest> {
    let guest = |(index, entrant): (usize, &Entrant)| Guest {
        arrival: entrant.arrival(ProgramId(index as u64 + 1), entrant.name.clone()),
        script: Arc::clone(&entrant.script),
        at_ns: 0,
        repeats: true,
    };
    entrants.iter().enumerate().map(guest).collect()
}

/// Runs the mix until every program has completed `repetitions`.
pub fn run(
    entrants: &[Entrant],
    machine: &Machine,
    kernel: &Kernel,
    policy: Box<dyn Policy>,
    repetitions: usize,
    seed: u64,
) -> Outcome {
    let guests = guests(entrants);
    let engine = Engine::new(machine.clone(), kernel.clone(), seed);
    let until = Until {
        repetitions,
        at_ns: 3_600_000_000_000,
    };
    let world = SimWorld::new(engine, guests, until);
    let mut control = ControlLoop::new(policy, world);
    control.run();
    let (_, world) = control.into_parts();
    let ntt = |(entrant, seconds): (&Entrant, &Vec<f64>)| {
        let mean = seconds.iter().sum::<f64>() / seconds.len() as f64;
        mean / entrant.alone_best_seconds(machine)
    };
    Outcome {
        ntt: entrants.iter().zip(world.seconds()).map(ntt).collect(),
        seconds: world.seconds().to_vec(),
        plans: world.plans().to_vec(),
        events: world.engine().events(),
        virtual_seconds: world.engine().now_ns() as f64 / 1e9,
    }
}
