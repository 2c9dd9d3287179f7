// SPDX-License-Identifier: MIT OR Apache-2.0
//! Turns: programs that busy-wait run one after another, each on all cores.
//!
//! *Problem.* If threads busy-wait for one another, a seat must have a core for each spinning
//! thread. Time sharing is especially slow for such programs: a thread spends its time slice
//! waiting for a partner that another program has preempted.
//!
//! *Idea.* All programs take turns. During the turn of a program, which is called the *holder*, the
//! holder has the whole machine and the other programs are stopped (gang scheduling; Ousterhout,
//! ICDCS 1982). With `n` programs of equal weight, each program has the predicted `NTT = n *
//! alone-best / rate on all cores`, plus the cost of switching. Turn lengths in proportion to the
//! square roots of the weights minimise the weighted mean.
//!
//! *Conditions.* Because a stop lasts much longer than a time slice, turns are taken only if
//!
//! - a program is known to busy-wait, and the predicted gain over seats and time sharing is more
//!   than [`GAIN`];
//! - all programs were launched by Usher (not attached), can be stopped without their parents
//!   noticing, are not bound to CPUs, and keep the share [`FILL_MIN`] of all cores busy when alone,
//!   because other programs would waste their turns;
//! - there are at most [`PROGRAMS_MAX`] programs, because with more programs each program would be
//!   stopped for longer than a few hundred milliseconds.
//!
//! A holder may be idle for some time when it starts, writes results, or sleeps. If the holder is
//! much less busy than alone for `IDLE_SAMPLES` successive samples, the next program in order runs
//! beside the holder until the holder is busy again.
//!
//! *Bounds.* The mean length of a turn is [`TURN_NS`]: a round takes at most 400 ms, and a program
//! is stopped for less than a round. A late sample makes the present turn longer. While all
//! programs are at rest, no program is stopped. A sample takes linear time in the number of
//! programs.

use std::collections::VecDeque;

use usher_model::{Plan, ProgramId, ProgramSample, SeatMode, Topology};

use super::intervals::{CALM_NS, MEASURE_NS};
use super::lend::RECALL_WAIT;
use crate::seating::Request;
use crate::simple::shared_plan;

/// Length of a turn if all weights are equal.
pub const TURN_NS: u64 = 100_000_000;
/// Largest number of programs that take turns. With more programs, each program would be stopped
/// for too long.
pub const PROGRAMS_MAX: usize = 4;
/// Relative advantage that turns must be predicted to have over seats and time sharing.
pub const GAIN: f64 = 0.20;
/// Least share of all cores that a program must keep busy when alone.
pub const FILL_MIN: f64 = 0.7;
/// Relative cost of switching between turns: stops, continuations, and cache contents that other
/// programs have replaced.
const SWITCH_COST: f64 = 0.03;
/// A holder counts as idle if it uses less than this share of the CPUs that it keeps busy when
/// alone.
const IDLE_SHARE: f64 = 0.5;
/// Number of successive idle samples after which the next program runs beside the holder.
const IDLE_SAMPLES: u32 = 2;
/// Shortest sampling interval that is evaluated, since CPU time may be reported in steps of 10 ms.
const SAMPLE_NS_MIN: u64 = 10_000_000;

/// One program's turn.
#[derive(Debug, Clone, PartialEq)]
pub struct ProgramTurn {
    program: ProgramId,
    length_ns: u64,
    /// CPUs that the program keeps busy when alone.
    alone_cpus: f64,
    /// Number of successive samples at which the program was idle.
    idle_samples: u32,
}

/// Returns the plan in which the given programs take turns, and the turns. The caller must check
/// that a program busy-waits.
///
/// # Errors
/// Returns the reason against turns.
pub fn plan_turns(
    topology: &Topology,
    requests: &[Request],
) -> Result<(Plan, Vec<ProgramTurn>), &'static str> {
    let cores_max = topology.capacity_of(&topology.all_cpus());
    let alone_cpus = |request: &Request| {
        let busy = request.curve.busy_cpus(cores_max);
        let fills = FILL_MIN * topology.cores.len() as f64;
        busy.filter(|&busy| busy >= fills)
    };
    if !(2..=PROGRAMS_MAX).contains(&requests.len()) {
        return Err("only two to four programs can take turns");
    }
    if requests.iter().any(|request| request.bound_to.is_some()) {
        return Err("some programs are bound to CPUs");
    }
    let alone: Option<Vec<f64>> = requests.iter().map(alone_cpus).collect();
    let alone = alone.ok_or("some programs would leave cores idle in their turns")?;
    let roots: Vec<f64> = requests
        .iter()
        .map(|request| request.weight.sqrt())
        .collect();
    let sum: f64 = roots.iter().sum();
    let mean = sum / requests.len() as f64;
    let mut plan = shared_plan(topology, requests.iter().map(|request| &request.id));
    plan.abstains = false;
    let mut weighted = 0.0;
    let mut turns = Vec::new();
    for (index, request) in requests.iter().enumerate() {
        let slowed = request.curve.best_rate(cores_max) / request.curve.rate(cores_max);
        let ntt = slowed * (1.0 + SWITCH_COST) * sum / roots[index];
        plan.seats[index].mode = SeatMode::InTurn;
        plan.seats[index].ntt = Some(ntt);
        weighted += request.weight * ntt;
        turns.push(ProgramTurn {
            program: request.id,
            length_ns: (TURN_NS as f64 * roots[index] / mean) as u64,
            alone_cpus: alone[index].min(topology.all_cpus().len() as f64),
            idle_samples: 0,
        });
    }
    plan.antt = Some(weighted / requests.len() as f64).filter(|antt| antt.is_finite());
    Ok((plan, turns))
}

/// The schedule of turns.
#[derive(Debug, Clone, Default)]
pub struct TurnSchedule {
    /// Turns in order; the first turn is that of the present holder.
    order: VecDeque<ProgramTurn>,
    until_ns: u64,
    last_sample: Option<HolderSample>,
    /// Whether all programs are at rest. If true, no program is stopped.
    at_rest: bool,
}

/// Last sample of the holder.
#[derive(Debug, Clone, Copy)]
struct HolderSample {
    at_ns: u64,
    cpu_ns: u64,
    wait_ns: Option<u64>,
}

impl TurnSchedule {
    /// Whether turns are being taken.
    pub fn are_taken(&self) -> bool {
        !self.order.is_empty()
    }

    /// Changes the turns. Programs that remain keep their position, so that an arrival or a
    /// departure does not delay other programs.
    pub fn set_turns(&mut self, at_ns: u64, turns: &[ProgramTurn]) {
        let held = self.order.front().map(|turn| turn.program);
        let find = |program: ProgramId| turns.iter().find(move |turn| turn.program == program);
        self.order.retain(|turn| find(turn.program).is_some());
        for turn in &mut self.order {
            if let Some(new) = find(turn.program) {
                turn.length_ns = new.length_ns;
                turn.alone_cpus = new.alone_cpus;
            }
        }
        let known: Vec<ProgramId> = self.order.iter().map(|turn| turn.program).collect();
        let newcomers = turns.iter().filter(|turn| !known.contains(&turn.program));
        self.order.extend(newcomers.cloned());
        if self.order.front().map(|turn| turn.program) != held {
            self.start_turn(at_ns);
        }
    }

    fn start_turn(&mut self, at_ns: u64) {
        self.until_ns = at_ns + self.order.front().map_or(0, |turn| turn.length_ns);
        self.last_sample = None;
    }

    /// Starts the next turn when the present turn is over, and measures how busy the holder is.
    pub fn update(&mut self, at_ns: u64, samples: &[ProgramSample], at_rest: bool) {
        self.at_rest = at_rest;
        if self.are_taken() && at_ns >= self.until_ns {
            self.order.rotate_left(1);
            self.start_turn(at_ns);
        }
        let Some(holder) = self.order.front_mut() else {
            return;
        };
        let Some(sample) = samples.iter().find(|sample| sample.id == holder.program) else {
            return;
        };
        let now = HolderSample {
            at_ns,
            cpu_ns: sample.cpu_ns,
            wait_ns: sample.wait_ns,
        };
        let Some(then) = self.last_sample else {
            self.last_sample = Some(now);
            return;
        };
        if at_ns.saturating_sub(then.at_ns) < SAMPLE_NS_MIN {
            return;
        }
        self.last_sample = Some(now);
        let idle = now.busy_cpus_since(then) < IDLE_SHARE * holder.alone_cpus;
        holder.idle_samples = match idle && !now.waited_since(then) {
            true => holder.idle_samples + 1,
            false => 0,
        };
    }

    /// Whether the program must be stopped now.
    pub fn stops(&self, program: ProgramId) -> bool {
        let position = self.order.iter().position(|turn| turn.program == program);
        let open = self
            .order
            .front()
            .is_some_and(|turn| turn.idle_samples >= IDLE_SAMPLES);
        let runs = if open { 2 } else { 1 };
        !self.at_rest && position.is_some_and(|index| index >= runs)
    }

    /// Time until the next sample.
    pub fn wake_after_ns(&self, at_ns: u64) -> u64 {
        if self.at_rest {
            return MEASURE_NS;
        }
        self.until_ns.saturating_sub(at_ns).clamp(1, CALM_NS)
    }
}

impl HolderSample {
    fn busy_cpus_since(self, then: Self) -> f64 {
        let elapsed_ns = self.at_ns.saturating_sub(then.at_ns).max(1);
        self.cpu_ns.saturating_sub(then.cpu_ns) as f64 / elapsed_ns as f64
    }

    /// Returns whether threads of the holder waited for CPUs. If true, other programs are the cause
    /// of the holder's low use of CPU time. A program without a wait figure counts as waiting.
    fn waited_since(self, then: Self) -> bool {
        let (Some(now_ns), Some(then_ns)) = (self.wait_ns, then.wait_ns) else {
            return true;
        };
        let elapsed_ns = self.at_ns.saturating_sub(then.at_ns).max(1);
        now_ns.saturating_sub(then_ns) as f64 > RECALL_WAIT * elapsed_ns as f64
    }
}
