// SPDX-License-Identifier: MIT OR Apache-2.0
//! Turns: programs that busy-wait run one after another, each on all cores.
//!
//! Where threads spin for one another, nobody's seat may be smaller than the
//! program has spinning threads, and time sharing is at its worst: a thread
//! burns its share waiting for a partner that another program keeps off its
//! core. If such programs and their neighbours cannot all be seated, they can
//! still take turns: the others are stopped while one has the whole machine
//! (gang scheduling; Ousterhout, ICDCS 1982). With `n` programs of one weight
//! each is predicted `NTT = n * alone-best / rate on all cores`, and what it
//! costs to change.
//!
//! Stopping is coarse, so it is done only
//!
//! - where somebody is known to busy-wait, and the predicted gain over seats
//!   and time sharing is more than [`GAIN`];
//! - among programs that were launched by Usher, not attached, are not bound
//!   to CPUs, and keep nearly all cores busy when alone: one that does not would
//!   waste the others' turns;
//! - for a few hundred milliseconds at a stretch ([`PROGRAMS_MAX`]).
//!
//! A holder that leaves whole cores unused for `IDLE_LOOKS` looks running (it
//! starts up, it writes its results) has the rest of its turn beside everybody
//! else, so that no core idles that somebody could use.

use usher_model::{Mode, Plan, ProgramId, ProgramSample, Topology};

use super::CALM_NS;
use super::lend::unused_cores;
use crate::seating::Request;
use crate::simple::shared_plan;

/// A turn of a program of mean weight.
pub const TURN_NS: u64 = 100_000_000;
/// Turns by weight are at most so much longer or shorter.
const TURN_RATIO_MAX: f64 = 4.0;
/// With more programs than this each would be stopped for too long.
pub const PROGRAMS_MAX: usize = 4;
/// Turns must be predicted better by this, relative, than seats and time
/// sharing.
pub const GAIN: f64 = 0.20;
/// What changing costs: stopping, continuing, and caches that others used.
const COST: f64 = 0.03;
/// Share of all cores that a program keeps busy alone to be worth a turn.
const FILLS: f64 = 0.6;
/// A turn is opened to all after so many looks at unused cores running.
const IDLE_LOOKS: u32 = 2;

/// The plan by which these programs take turns; `None` where they must not.
/// Whether anybody busy-waits is the caller's to know.
pub fn turns(topology: &Topology, requests: &[Request]) -> Option<Plan> {
    let all = topology.all_cpus();
    let cores_max = topology.capacity_of(&all);
    let fills = |request: &Request| {
        let busy = request.curve.busy_cpus(cores_max);
        busy.is_some_and(|busy| busy >= FILLS * all.len() as f64)
    };
    let fit = |request: &Request| request.bound_to.is_none() && fills(request);
    if !(2..=PROGRAMS_MAX).contains(&requests.len()) || !requests.iter().all(fit) {
        return None;
    }
    let weights: f64 = requests.iter().map(|request| request.weight).sum();
    let mean = weights / requests.len() as f64;
    let share = |request: &Request| turn_ratio(request.weight / mean);
    let shares: f64 = requests.iter().map(share).sum();
    let mut plan = shared_plan(topology, requests.iter().map(|request| &request.id));
    let mut sum = 0.0;
    for (seat, request) in plan.seats.iter_mut().zip(requests) {
        let slowed = request.curve.best_rate(cores_max) / request.curve.rate(cores_max);
        let ntt = slowed * (1.0 + COST) * shares / share(request);
        seat.mode = Mode::InTurn;
        seat.ntt = Some(ntt);
        sum += request.weight * ntt;
    }
    plan.abstains = false;
    plan.antt = Some(sum / requests.len() as f64).filter(|antt| antt.is_finite());
    plan.antt.is_some().then_some(plan)
}

fn turn_ratio(relative_weight: f64) -> f64 {
    relative_weight.clamp(1.0 / TURN_RATIO_MAX, TURN_RATIO_MAX)
}

/// Who has the machine now, and until when.
#[derive(Debug, Clone, Default)]
pub struct Turns {
    /// Who takes turns, in order, and for how long.
    order: Vec<(ProgramId, u64)>,
    /// Whose turn it is, counted from 0.
    holder: usize,
    until_ns: u64,
    /// The holder does not need all cores: everybody runs.
    open: bool,
    idle_looks: u32,
    /// The holder's CPU time at the last look.
    looked: Option<(u64, u64)>,
}

impl Turns {
    /// Whether turns are being taken.
    pub fn are_taken(&self) -> bool {
        !self.order.is_empty()
    }

    /// Takes turns as the plan says, from now on: none where it has nobody in
    /// turn.
    pub fn follow(&mut self, at_ns: u64, plan: &Plan, weight: &dyn Fn(ProgramId) -> f64) {
        let seats = plan.seats.iter().filter(|seat| seat.mode == Mode::InTurn);
        let ids: Vec<ProgramId> = seats.map(|seat| seat.program).collect();
        let same = |order: &[(ProgramId, u64)]| order.iter().map(|&(id, _)| id).eq(ids.clone());
        if same(&self.order) {
            return;
        }
        let mean = ids.iter().map(|&id| weight(id)).sum::<f64>() / ids.len().max(1) as f64;
        let turn = |&id: &ProgramId| {
            let ns = TURN_NS as f64 * turn_ratio(weight(id) / mean);
            (id, ns as u64)
        };
        // Who comes or goes neither cuts a turn short nor sets anybody back.
        let held = self.order.get(self.holder).map(|&(id, _)| id);
        self.order = ids.iter().map(turn).collect();
        self.holder = ids.iter().position(|&id| Some(id) >= held).unwrap_or(0);
        if ids.get(self.holder).copied() != held {
            self.begin(at_ns);
        }
    }

    fn begin(&mut self, at_ns: u64) {
        let turn_ns = self
            .order
            .get(self.holder)
            .map_or(0, |&(_, turn_ns)| turn_ns);
        self.until_ns = at_ns + turn_ns;
        (self.open, self.idle_looks, self.looked) = (false, 0, None);
    }

    /// Looks at the holder; passes the turn on when it is over, and opens it
    /// when the holder leaves cores of so many unused.
    pub fn look(&mut self, at_ns: u64, samples: &[ProgramSample], cores: usize) {
        if self.are_taken() && at_ns >= self.until_ns {
            self.holder = (self.holder + 1) % self.order.len();
            self.begin(at_ns);
        }
        let holds = |sample: &&ProgramSample| {
            let holder = self.order.get(self.holder);
            holder.is_some_and(|&(id, _)| id == sample.id)
        };
        let Some(sample) = samples.iter().find(holds) else {
            return;
        };
        if let Some((then_ns, cpu_ns)) = self.looked {
            let elapsed_ns = at_ns.saturating_sub(then_ns).max(1);
            let busy_cpus = sample.cpu_ns.saturating_sub(cpu_ns) as f64 / elapsed_ns as f64;
            let idle = unused_cores(cores, busy_cpus) > 0;
            self.idle_looks = if idle { self.idle_looks + 1 } else { 0 };
            self.open |= self.idle_looks >= IDLE_LOOKS;
        }
        self.looked = Some((at_ns, sample.cpu_ns));
    }

    /// Whether the program is to be stopped now.
    pub fn stops(&self, program: ProgramId) -> bool {
        let holds = |index: usize| index == self.holder || self.open;
        let place = self.order.iter().position(|&(id, _)| id == program);
        place.is_some_and(|index| !holds(index))
    }

    /// When to look again.
    pub fn wake_after_ns(&self, at_ns: u64) -> u64 {
        let left_ns = self.until_ns.saturating_sub(at_ns).max(1);
        if self.open {
            left_ns
        } else {
            left_ns.min(CALM_NS)
        }
    }
}
