// SPDX-License-Identifier: MIT OR Apache-2.0
//! One managed program as the policy knows it.

use usher_model::{
    CpuSet, Curve, CurvePoint, Mode, Program, ProgramSample, Progress, ProgressSource, Seat,
    Topology,
};

use super::compare::AGAIN_NS;
use super::knowledge::{Belief, Knowledge, Origin};
use super::meter::{Estimate, Meter};
use crate::seating::Request;
use crate::simple::request;

/// So many repetitions at one place make a measurement.
const REPETITIONS_MIN: u32 = 2;
/// Relative scatter of single repetitions, as seen on busy virtual machines.
const REPETITION_ERROR: f64 = 0.07;

/// A launched program that has used so much CPU time has begun, and found out
/// how many CPUs there are for it.
const BEGUN_CPU_NS: u64 = 1_000_000;

/// One managed program.
#[derive(Debug)]
pub struct Member {
    /// What arrived.
    pub program: Program,
    /// What is believed of its scalability.
    pub knowledge: Knowledge,
    /// Measures its present stay.
    pub meter: Meter,
    /// Where it is measured.
    pub place: Place,
    /// Since when it has that place.
    pub placed_ns: u64,
    /// The best figure of progress it gives, if any.
    pub source: Option<ProgressSource>,
    /// Seconds of the repetitions completed since then, and how many.
    pub repetitions: (f64, u32),
    /// Threads known to busy-wait for one another.
    pub spinners: u32,
    /// Whether they wait in a runtime that settled at its start how to, by the
    /// cores that it found then; `None` while that is not known.
    pub active_wait: Option<bool>,
    /// Cores that it found at its start; `None`: it has not begun.
    born_on: Option<u32>,
    /// Cores that it may run on now.
    pub reach: u32,
    /// Most threads seen of it.
    threads_max: u32,
    /// It has no turn on a wide seat before.
    pub survey_from_ns: u64,
    /// Its rate changed for good where others may be the cause.
    pub drifted: bool,
    /// What it told of its progress last.
    pub told: Option<Progress>,
    /// Actions on it that failed, and when the last one did.
    pub failures: u32,
    pub failed_ns: u64,
}

/// Where a program's rate is being measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Place {
    /// With everybody else, wherever the kernel puts it.
    Shared,
    /// Alone on so many cores, by capacity.
    Seat(f64),
    /// Lending, borrowing or in a pen: how many cores it has is not a fixed
    /// number.
    Mixed,
}

impl Member {
    /// A newcomer that may run on so many cores until it is seated.
    pub fn new(program: Program, at_ns: u64, reach: u32) -> Self {
        let mut meter = Meter::default();
        meter.moved(at_ns);
        let knowledge = Knowledge::new(program.profile.clone());
        let spinners = program.spinners;
        Self {
            active_wait: program.active_wait,
            born_on: program.ran_before.then_some(reach),
            reach,
            threads_max: 0,
            survey_from_ns: 0,
            drifted: false,
            told: None,
            program,
            knowledge,
            meter,
            place: Place::Shared,
            placed_ns: at_ns,
            repetitions: (0.0, 0),
            source: None,
            spinners,
            failures: 0,
            failed_ns: 0,
        }
    }

    /// Takes in what a sample says besides progress; true when it is news.
    pub fn notice(&mut self, sample: &ProgramSample) -> bool {
        // A figure that is not trusted tells no more than CPU time does.
        let told = |progress: Progress| match progress.may_plan() {
            true => progress.source,
            false => ProgressSource::CpuTime,
        };
        let source = sample.progress.map(told);
        self.told = sample.progress.filter(Progress::may_plan);
        let better = source.is_some_and(ProgressSource::may_plan) && !self.has_live_source();
        let spins = sample.spinners > self.spinners;
        let waits = sample
            .active_wait
            .filter(|_| self.active_wait != Some(true));
        let told = waits.is_some() && waits != self.active_wait;
        self.active_wait = waits.or(self.active_wait);
        self.threads_max = self.threads_max.max(sample.threads);
        if self.born_on.is_none() && sample.cpu_ns >= BEGUN_CPU_NS {
            self.born_on = Some(self.reach);
        }
        // The sources are ordered, best first.
        self.source = [source, self.source].into_iter().flatten().min();
        self.spinners = self.spinners.max(sample.spinners);
        better || spins || told
    }

    /// Cores below which it must not be narrowed while it runs: its threads
    /// would go on spinning for ones that have no core. As many as it found at
    /// its start or has threads, unless it is known not to wait that way.
    fn settled_cores(&self) -> u32 {
        let may_spin = self.active_wait != Some(false);
        let born_on = self.born_on.filter(|_| may_spin).unwrap_or(0);
        born_on.min(self.threads_max)
    }

    /// Threads that waste their time when they share cores.
    pub fn spinning_threads(&self) -> u32 {
        let waiting = match self.active_wait {
            Some(true) => self.threads_max.max(self.busy_threads()),
            _ => 0,
        };
        self.knowledge
            .cores_needed(self.spinners)
            .max(self.spinners)
            .max(waiting)
    }

    /// Threads that it kept busy on the most cores that it was measured on.
    fn busy_threads(&self) -> u32 {
        let points = self.program.profile.iter().flat_map(Curve::points);
        let busy = points.filter_map(|point| point.busy_cpus);
        busy.fold(0.0, f64::max).ceil() as u32
    }

    /// Files a rate under the place where it was measured; true when it is
    /// news.
    pub fn learn(&mut self, estimate: Estimate) -> bool {
        match self.place {
            Place::Shared => self.knowledge.learn_shared(estimate),
            Place::Seat(cores) => self.knowledge.learn_seat(cores, estimate),
            Place::Mixed => false,
        }
    }

    /// It does something else now.
    pub fn forget_phase(&mut self, at_ns: u64) {
        self.knowledge.forget_phase();
        if self.survey_from_ns == u64::MAX {
            // Turns cost the others something.
            self.survey_from_ns = at_ns + AGAIN_NS;
        }
        self.drifted = false;
    }

    /// It has begun anew, on the cores that it has.
    pub fn born_again(&mut self) {
        self.born_on = Some(self.reach);
    }

    /// It has another place from now on.
    pub fn moved(&mut self, at_ns: u64, place: Place) {
        self.place = place;
        self.placed_ns = at_ns;
        self.repetitions = (0.0, 0);
        self.meter.moved(at_ns);
    }

    /// Its user stopped it: what was measured in its place begins anew.
    pub fn interrupted(&mut self, at_ns: u64) {
        self.moved(at_ns, self.place);
    }

    /// Takes in a repetition completed where it is now; true when the mean of
    /// those is news. One alone is none: the first has cold caches, and single
    /// times scatter.
    pub fn repeated(&mut self, seconds: f64) -> bool {
        let (sum, count) = (self.repetitions.0 + seconds, self.repetitions.1 + 1);
        self.repetitions = (sum, count);
        if count < REPETITIONS_MIN {
            return false;
        }
        let estimate = Estimate {
            rate: f64::from(count) / sum,
            relative_error: REPETITION_ERROR / f64::from(count).sqrt(),
            busy_cpus: self.meter.estimate().map_or(0.0, |e| e.busy_cpus),
            source: ProgressSource::Repetition,
        };
        self.learn(estimate)
    }

    /// Whether it tells progress that a plan may rest on.
    pub fn has_live_source(&self) -> bool {
        self.source.is_some_and(ProgressSource::may_plan)
    }

    /// Whether there is any ground to predict it from.
    pub fn can_be_planned(&self, cores_max: f64) -> bool {
        self.has_live_source() || self.knowledge.belief(cores_max).is_some()
    }

    /// Whether seats would teach more about it: it has no profile and was
    /// measured on fewer than two core counts.
    pub fn explores(&self) -> bool {
        self.program.profile.is_none()
            && !self.is_pinned()
            && self.has_live_source()
            && self.knowledge.seats_measured() < 2
            && self.active_wait != Some(true)
            && self.spinners == 0
            && !self.stuck_at_one_core()
    }

    /// Measured on a single core, which cannot be halved.
    fn stuck_at_one_core(&self) -> bool {
        self.knowledge.seats_measured() == 1
            && matches!(self.place, Place::Seat(cores) if cores <= 1.0)
    }

    /// The curve to plan with; before anything is known, a fair start: as if
    /// it scaled up to an equal share of the machine and no further.
    #[allow(clippy::expect_used)]
    pub fn belief(&self, topology: &Topology, programs: usize) -> Belief {
        let cores_max = topology.capacity_of(&topology.all_cpus());
        self.knowledge.belief(cores_max).unwrap_or_else(|| {
            let cores = (cores_max / programs as f64).max(1.0);
            let point = CurvePoint {
                cores,
                rate: cores,
                relative_error: 0.5,
                busy_cpus: None,
            };
            // One point with a positive count and rate.
            let curve = Curve::new(vec![point]).expect("a positive point is a curve");
            Belief {
                curve,
                confidence: 0.0,
                origin: Origin::Measured,
            }
        })
    }

    /// What it asks of the planner.
    pub fn request(&self, topology: &Topology, curve: &Curve) -> Request {
        Request {
            spinners: self
                .knowledge
                .cores_needed(self.spinners)
                .max(self.settled_cores()),
            ..request(&self.program, topology, curve.clone())
        }
    }

    /// Half of its seat, once the whole of it has been measured and nothing
    /// else is known: the second point of its curve.
    pub fn trial_seat(&self, seat: &Seat, topology: &Topology) -> Option<CpuSet> {
        if seat.mode == Mode::Shared
            || !self.explores()
            || self.knowledge.seats_measured() != 1
            || self.active_wait.is_none()
        {
            return None;
        }
        half_of(&seat.cpus, topology)
    }

    /// Whether threads of it chose their CPUs themselves.
    pub fn is_pinned(&self) -> bool {
        self.program.pinned_to.is_some()
    }

    /// Whether it may be moved to fewer cores at any time.
    pub fn is_narrowable(&self) -> bool {
        !self.is_pinned() && self.active_wait == Some(false) && self.spinners == 0
    }

    /// Whether a wide seat would teach more about it.
    pub fn wants_survey(&self, at_ns: u64) -> bool {
        self.program.profile.is_none()
            && self.has_live_source()
            && self.is_narrowable()
            && at_ns >= self.survey_from_ns
            && self.knowledge.seats_measured() > 1
    }

    /// Whether it would run faster on more cores, as far as is known. While it
    /// is being measured on its seat it borrows nothing; nor where it may be
    /// born again on what it borrows, and count on it.
    pub fn gains(&self, from: f64, to: f64, cores_max: f64) -> bool {
        if self.explores() || self.active_wait != Some(false) {
            return false;
        }
        self.knowledge
            .belief(cores_max)
            .is_none_or(|belief| belief.curve.rate(to) >= belief.curve.rate(from))
    }
}

/// Half of a seat: of its domains, or of the cores of a single one.
pub(super) fn half_of(seat: &CpuSet, topology: &Topology) -> Option<CpuSet> {
    let domains = topology.domains_in(seat);
    let half = match domains.len() {
        0 => return None,
        1 => {
            let cores = topology.cores_in(seat);
            topology.cpus_of_cores(cores[..cores.len() / 2].iter().copied())
        }
        n => {
            let kept = domains[..n / 2].iter().map(|&d| &topology.domains[d].cpus);
            kept.fold(CpuSet::new(), |set, cpus| set.or(&cpus.and(seat)))
        }
    };
    (!half.is_empty()).then_some(half)
}
