// SPDX-License-Identifier: MIT OR Apache-2.0
//! Steady-state extrapolation: predicts the result of a mix of long programs from a short
//! simulation.
//!
//! Paper 1 runs programs of several minutes until each has run three times. Such a run has two
//! parts: a transient, in which the policy tries seats and finds its plan, and a long steady state,
//! in which only the programs' own phases change. The simulation covers the two parts in full
//! detail (slices, trials and phases are not scaled), but only the beginning of the steady state.
//! Simulated programs have fewer frames per repetition than real ones. The rates of the steady
//! state yield the time T at which each program would have completed `repetitions` times the work
//! of a real program:
//!
//! ```text
//! T   = max over programs of settle + (repetitions * work - done in settle) / rate
//! NTT = (T / repetitions done until T) / seconds alone
//! ```
//!
//! Limits: the simulation covers `settle_s + steady_s` virtual seconds, however long the programs
//! are; `steady_s` must be positive. A program without progress in the steady state is an error
//! ([`Fault::Starved`]). The model assumes constant rates after the simulated time; the error of
//! this assumption is not estimated.

use usher_control::{ControlLoop, World};
use usher_model::{Action, Decision, FailedAction, Observation};
use usher_policy::Policy;

use crate::engine::Engine;
use crate::fault::Fault;
use crate::kernel::Kernel;
use crate::machine::Machine;
use crate::mix::{MixEntry, planned_arrivals};
use crate::world::{SimWorld, StopCondition};

/// Length of the simulation, and length of the run to which it is extrapolated.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Extrapolation {
    /// Virtual seconds of the transient.
    pub settle_s: f64,
    /// Virtual seconds of the simulated steady state.
    pub steady_s: f64,
    /// Repetitions that every program must complete.
    pub repetitions: f64,
    /// Work of a real repetition, relative to the work of a simulated repetition.
    pub scale: f64,
}

/// The predicted result of a mix.
#[derive(Debug, Clone, PartialEq)]
pub struct Forecast {
    /// Normalised turnaround time of each program.
    pub ntt: Vec<f64>,
    /// Number of simulated events.
    pub events: u64,
}

impl Forecast {
    /// Returns the mean of the normalised turnaround times.
    pub fn antt(&self) -> f64 {
        self.ntt.iter().sum::<f64>() / self.ntt.len() as f64
    }
}

/// Simulates the mix under a policy, and extrapolates the result.
///
/// # Errors
/// The simulation cannot continue, or a program makes no progress in the steady state.
pub fn run(
    entries: &[MixEntry],
    machine: &Machine,
    kernel: &Kernel,
    policy: Box<dyn Policy>,
    extrapolation: &Extrapolation,
    seed: u64,
) -> Result<Forecast, Fault> {
    let snapshot_ns = (extrapolation.settle_s * 1e9) as u64;
    let until = StopCondition {
        repetitions: usize::MAX,
        at_ns: snapshot_ns + (extrapolation.steady_s * 1e9) as u64,
    };
    let engine = Engine::new(machine.clone(), kernel.clone(), seed);
    let world = SnapshotWorld {
        inner: SimWorld::new(engine, planned_arrivals(entries), until),
        snapshot_ns,
        at_snapshot: None,
    };
    let mut control = ControlLoop::new(policy, world);
    control.run();
    let (_, mut world) = control.into_parts();
    if let Some(fault) = world.inner.engine().fault() {
        return Err(fault.clone());
    }
    let after = world.inner.works_ns();
    let before = world
        .at_snapshot
        .unwrap_or_else(|| vec![0.0; entries.len()]);
    let done = |works: &[f64]| -> Vec<f64> {
        let each = entries.iter().zip(works);
        each.map(|(entry, work)| work / entry.work_ns / extrapolation.scale)
            .collect()
    };
    let (before, after) = (done(&before), done(&after));
    let rates: Vec<f64> = before
        .iter()
        .zip(&after)
        .map(|(before, after)| (after - before) / extrapolation.steady_s)
        .collect();
    if let Some(at) = rates.iter().position(|&rate| rate <= 0.0) {
        let program = entries[at].name.clone();
        return Err(Fault::Starved { program });
    }
    let ends = before.iter().zip(&rates).map(|(done, rate)| {
        extrapolation.settle_s + (extrapolation.repetitions - done).max(0.0) / rate
    });
    let end_s = ends.fold(extrapolation.settle_s, f64::max);
    let ntt = entries.iter().enumerate().map(|(i, entry)| {
        let repetitions = before[i] + rates[i] * (end_s - extrapolation.settle_s);
        end_s / repetitions / (entry.alone_best_seconds(machine) * extrapolation.scale)
    });
    Ok(Forecast {
        ntt: ntt.collect(),
        events: world.inner.engine().events(),
    })
}

/// A world that records each program's completed work at one point in time.
struct SnapshotWorld {
    inner: SimWorld,
    snapshot_ns: u64,
    at_snapshot: Option<Vec<f64>>,
}

impl World for SnapshotWorld {
    fn observe(&mut self, failed: Vec<FailedAction>) -> Observation {
        self.inner.observe(failed)
    }

    fn act(&mut self, action: &Action) -> Result<(), String> {
        self.inner.act(action)
    }

    fn decided(&mut self, observation: &Observation, decision: &Decision) {
        self.inner.decided(observation, decision);
    }

    fn wait(&mut self, at_most_ns: Option<u64>) -> bool {
        let now_ns = self.inner.engine().now_ns();
        let at_most_ns = match self.snapshot_ns.checked_sub(now_ns) {
            Some(left) if left > 0 => Some(at_most_ns.map_or(left, |ns| ns.min(left))),
            _ => at_most_ns,
        };
        let continues = self.inner.wait(at_most_ns);
        if self.at_snapshot.is_none() && self.inner.engine().now_ns() >= self.snapshot_ns {
            self.at_snapshot = Some(self.inner.works_ns());
        }
        continues
    }
}
