// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a mix of long programs comes to, from a short look at it.
//!
//! Paper 1 runs programs of minutes, each until every one has run three times.
//! What happens in that time is of two kinds: a beginning in which a policy
//! tries and settles, once, and the long rest in which nothing changes but the
//! programs' own phases. Both are simulated in full, at their real pace
//! (slices, trials and phases are not scaled); only of the rest there is less.
//! Programs have fewer frames a repetition, and from the rates of the rest
//! follows when each would have run `repetitions` times the work of a real one:
//!
//! ```text
//! T   = max over programs of settle + (repetitions * work - done in settle) / rate
//! NTT = (T / repetitions done until T) / seconds alone
//! ```

use usher_control::{ControlLoop, World};
use usher_model::{Action, Decision, FailedAction, Observation};
use usher_policy::Policy;

use crate::engine::Engine;
use crate::fault::Fault;
use crate::kernel::Kernel;
use crate::machine::Machine;
use crate::mix::{Entrant, guests};
use crate::world::{SimWorld, Until};

/// How long to look, and at what.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Horizon {
    /// Virtual seconds of the beginning.
    pub settle_s: f64,
    /// Virtual seconds of the rest that are simulated.
    pub steady_s: f64,
    /// Repetitions that every program is to complete.
    pub repetitions: f64,
    /// Work of a real repetition relative to that of the entrants.
    pub scale: f64,
}

/// What was seen.
#[derive(Debug, Clone, PartialEq)]
pub struct Forecast {
    /// Normalised turnaround time of each program.
    pub ntt: Vec<f64>,
    /// Events of the simulation.
    pub events: u64,
}

impl Forecast {
    /// The mean of the normalised turnaround times.
    pub fn antt(&self) -> f64 {
        self.ntt.iter().sum::<f64>() / self.ntt.len() as f64
    }
}

/// Runs the mix under a policy so long.
///
/// # Errors
/// The simulation cannot go on.
pub fn run(
    entrants: &[Entrant],
    machine: &Machine,
    kernel: &Kernel,
    policy: Box<dyn Policy>,
    horizon: &Horizon,
    seed: u64,
) -> Result<Forecast, Fault> {
    let mark_ns = (horizon.settle_s * 1e9) as u64;
    let until = Until {
        repetitions: usize::MAX,
        at_ns: mark_ns + (horizon.steady_s * 1e9) as u64,
    };
    let engine = Engine::new(machine.clone(), kernel.clone(), seed);
    let world = Marked {
        inner: SimWorld::new(engine, guests(entrants), until),
        mark_ns,
        at_mark: None,
    };
    let mut control = ControlLoop::new(policy, world);
    control.run();
    let (_, mut world) = control.into_parts();
    if let Some(fault) = world.inner.engine().fault() {
        return Err(fault.clone());
    }
    let after = world.inner.works_ns();
    let before = world.at_mark.unwrap_or_else(|| vec![0.0; entrants.len()]);
    let done = |works: &[f64]| -> Vec<f64> {
        let each = entrants.iter().zip(works);
        each.map(|(entrant, work)| work / entrant.work_ns / horizon.scale)
            .collect()
    };
    let (before, after) = (done(&before), done(&after));
    let rates: Vec<f64> = before
        .iter()
        .zip(&after)
        .map(|(before, after)| (after - before) / horizon.steady_s)
        .collect();
    if let Some(at) = rates.iter().position(|&rate| rate <= 0.0) {
        let program = entrants[at].name.clone();
        return Err(Fault::Starved { program });
    }
    let ends = before
        .iter()
        .zip(&rates)
        .map(|(done, rate)| horizon.settle_s + (horizon.repetitions - done).max(0.0) / rate);
    let end_s = ends.fold(horizon.settle_s, f64::max);
    let ntt = entrants.iter().enumerate().map(|(i, entrant)| {
        let repetitions = before[i] + rates[i] * (end_s - horizon.settle_s);
        end_s / repetitions / (entrant.alone_best_seconds(machine) * horizon.scale)
    });
    Ok(Forecast {
        ntt: ntt.collect(),
        events: world.inner.engine().events(),
    })
}

/// A world that remembers what had been done at one time.
struct Marked {
    inner: SimWorld,
    mark_ns: u64,
    at_mark: Option<Vec<f64>>,
}

impl World for Marked {
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
        let at_most_ns = match self.mark_ns.checked_sub(now_ns) {
            Some(left) if left > 0 => Some(at_most_ns.map_or(left, |ns| ns.min(left))),
            _ => at_most_ns,
        };
        let goes_on = self.inner.wait(at_most_ns);
        if self.at_mark.is_none() && self.inner.engine().now_ns() >= self.mark_ns {
            self.at_mark = Some(self.inner.works_ns());
        }
        goes_on
    }
}
