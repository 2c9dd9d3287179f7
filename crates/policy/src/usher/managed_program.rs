// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state of one managed program in the policy `usher`: the estimate of its scalability curve,
//! the measurement in its present placement, and how its threads wait.
//!
//! A rate or the time of a repetition counts only for the placement (shared CPUs, or a seat) in
//! which it was measured. At least two repetitions in a placement are required, because the first
//! repetition has cold caches. The planner gets three results from this state: the curve for
//! planning, whether more cores would make the program faster, and the least number of cores for a
//! program with spinning threads.
//!
//! Bounds: operations take constant time, except for those that compute a curve (module
//! `curve_data`, which fits one from the measured rates). Rates are in units of progress per
//! second, capacities in cores. Nothing in this state expires by itself;
//! [`ManagedProgram::forget_phase`] discards the measurements.

use usher_model::{
    CpuSet, Curve, CurvePoint, Program, ProgramSample, Progress, ProgressSource, Seat, SeatMode,
    Topology,
};

use super::curve_data::{CurveData, CurveEstimate, CurveOrigin};
use super::intervals::COMPARE_AGAIN_NS;
use super::meter::{RateEstimate, RateMeter};
use crate::seating::Request;
use crate::simple::request;
use crate::variation::ERROR_ENOUGH;

/// Least number of repetitions in one placement for a measurement.
const REPETITIONS_MIN: u32 = 2;
/// Relative standard error of the time of a single repetition, measured on busy virtual machines.
const REPETITION_ERROR: f64 = 0.07;

/// CPU time after which a launched program has started and determined the number of its CPUs.
const STARTED_CPU_NS: u64 = 1_000_000;

/// One managed program.
#[derive(Debug)]
pub struct ManagedProgram {
    /// The program as it arrived.
    pub program: Program,
    /// The estimate of the program's scalability curve.
    pub curve_data: CurveData,
    /// Measures the rate in the present placement.
    pub meter: RateMeter,
    /// Placement in which the rate is measured.
    pub placement: MeasuredPlacement,
    /// Time of the program's arrival.
    pub arrived_ns: u64,
    /// Start of the present placement.
    pub placed_ns: u64,
    /// Best source of progress that the program reports.
    pub source: Option<ProgressSource>,
    /// Total seconds and number of repetitions completed in the present placement.
    pub repetitions: (f64, u32),
    /// Number of threads known to busy-wait for one another.
    pub spinners: u32,
    /// Whether the program's threads wait in a runtime that chose at its start, by the number of
    /// cores at that time, how to wait; `None`: not known.
    pub active_wait: Option<bool>,
    /// Number of cores at the program's start; `None`: the program has not started.
    startup_cores: Option<u32>,
    /// Number of cores that the program may use now.
    pub usable_cores: u32,
    /// Largest number of threads seen.
    threads_max: u32,
    /// Time from which on the program may get a wide seat.
    pub survey_from_ns: u64,
    /// Whether the program's rate has permanently changed on shared CPUs, where other programs may
    /// be the cause.
    pub drifted: bool,
    /// Last reported progress.
    pub last_progress: Option<Progress>,
    /// Number of failed actions on the program since the last 60 s without a failed action;
    /// `failed_ns` is the time of the last failure.
    pub failures: u32,
    pub failed_ns: u64,
    /// Greatest time that the run has lost to deliberate variation, in seconds.
    pub lost_seconds: f64,
}

/// Placement in which a program's rate is measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MeasuredPlacement {
    /// On CPUs shared with all other programs; the kernel places the threads.
    Shared,
    /// Alone on a seat of this capacity in cores.
    Seat(f64),
    /// Without a constant number of cores of its own. The program lends or borrows cores, shares
    /// its seat with another program (a pair or a partition), or takes turns. No rate and no
    /// repetition is learnt, and a new phase is ignored.
    Mixed,
}

impl ManagedProgram {
    /// Creates the state of a program that may use `usable_cores` cores until it gets a seat.
    pub fn new(program: Program, at_ns: u64, usable_cores: u32) -> Self {
        let mut meter = RateMeter::default();
        meter.moved(at_ns);
        let curve_data = CurveData::new(program.profile.clone(), program.profile_match);
        let spinners = program.spinners;
        Self {
            active_wait: program.active_wait,
            startup_cores: program.ran_before.then_some(usable_cores),
            usable_cores,
            threads_max: 0,
            survey_from_ns: 0,
            drifted: false,
            last_progress: None,
            program,
            curve_data,
            meter,
            placement: MeasuredPlacement::Shared,
            arrived_ns: at_ns,
            placed_ns: at_ns,
            repetitions: (0.0, 0),
            source: None,
            spinners,
            failures: 0,
            failed_ns: 0,
            lost_seconds: 0.0,
        }
    }

    /// Processes all of a sample except its progress total; returns whether the plan may change.
    pub fn update_from_sample(&mut self, sample: &ProgramSample) -> bool {
        // A progress figure of low confidence counts as CPU time.
        let trusted_source = |progress: Progress| match progress.may_plan() {
            true => progress.source,
            false => ProgressSource::CpuTime,
        };
        let source = sample.progress.map(trusted_source);
        self.last_progress = sample.progress.filter(Progress::may_plan);
        let better = source.is_some_and(ProgressSource::may_plan) && !self.has_live_source();
        let spins = sample.spinners > self.spinners;
        let waits = sample
            .active_wait
            .filter(|_| self.active_wait != Some(true));
        let wait_known = waits.is_some() && waits != self.active_wait;
        self.active_wait = waits.or(self.active_wait);
        self.threads_max = self.threads_max.max(sample.threads);
        if self.startup_cores.is_none() && sample.cpu_ns >= STARTED_CPU_NS {
            self.startup_cores = Some(self.usable_cores);
        }
        // The sources are ordered, best first.
        self.source = [source, self.source].into_iter().flatten().min();
        self.spinners = self.spinners.max(sample.spinners);
        better || spins || wait_known
    }

    /// Least number of cores that the running program must keep: the number of cores at its start
    /// or the number of its threads, whichever is smaller. On fewer cores, its threads would spin
    /// while they wait for threads without a core. 0 if the program is known not to wait actively.
    pub fn narrowest_cores(&self) -> u32 {
        let may_spin = self.active_wait != Some(false);
        let startup_cores = self.startup_cores.filter(|_| may_spin).unwrap_or(0);
        startup_cores.min(self.threads_max)
    }

    /// Number of threads that waste CPU time when they share cores.
    pub fn spinning_threads(&self) -> u32 {
        let waiting = match self.active_wait {
            Some(true) => self.threads_max.max(self.busy_threads()),
            _ => 0,
        };
        self.curve_data
            .cores_needed(self.spinners)
            .max(self.spinners)
            .max(waiting)
    }

    /// Greatest mean number of busy CPUs in the points of the profile.
    fn busy_threads(&self) -> u32 {
        let points = self.program.profile.iter().flat_map(Curve::points);
        let busy = points.filter_map(|point| point.busy_cpus);
        busy.fold(0.0, f64::max).ceil() as u32
    }

    /// Stores a rate for the present placement; returns whether the estimate changes.
    pub fn learn(&mut self, estimate: RateEstimate) -> bool {
        match self.placement {
            MeasuredPlacement::Shared => self.curve_data.learn_shared(estimate),
            MeasuredPlacement::Seat(cores) => self.curve_data.learn_seat(cores, estimate),
            MeasuredPlacement::Mixed => false,
        }
    }

    /// Discards measurements after the program has entered a new phase.
    pub fn forget_phase(&mut self, at_ns: u64) {
        self.curve_data.forget_phase();
        if self.survey_from_ns == u64::MAX {
            // Wide seats have a cost for the other programs.
            self.survey_from_ns = at_ns + COMPARE_AGAIN_NS;
        }
        self.drifted = false;
    }

    /// Records that the program has restarted on the cores that it may use now.
    pub fn restarted(&mut self) {
        self.startup_cores = Some(self.usable_cores);
    }

    /// Starts a new placement.
    pub fn moved(&mut self, at_ns: u64, placement: MeasuredPlacement) {
        self.placement = placement;
        self.placed_ns = at_ns;
        self.repetitions = (0.0, 0);
        self.meter.moved(at_ns);
    }

    /// Starts the measurement again after the program was stopped by its user.
    pub fn interrupted(&mut self, at_ns: u64) {
        self.moved(at_ns, self.placement);
    }

    /// Adds a repetition completed in the present placement; returns whether the mean is new
    /// information. A single repetition does not count, because the first repetition has cold
    /// caches, and the times of repetitions vary.
    pub fn repeated(&mut self, seconds: f64) -> bool {
        let (sum, count) = (self.repetitions.0 + seconds, self.repetitions.1 + 1);
        self.repetitions = (sum, count);
        if count < REPETITIONS_MIN {
            return false;
        }
        let estimate = RateEstimate {
            rate: f64::from(count) / sum,
            relative_error: REPETITION_ERROR / f64::from(count).sqrt(),
            busy_cpus: self.meter.estimate().map_or(0.0, |e| e.busy_cpus),
            waiting: self.meter.estimate().map_or(0.0, |e| e.waiting),
            source: ProgressSource::Repetition,
        };
        self.learn(estimate)
    }

    /// Whether the program reports progress that a plan may be based on.
    pub fn has_live_source(&self) -> bool {
        self.source.is_some_and(ProgressSource::may_plan)
    }

    /// Whether the program's progress can be predicted or measured.
    pub fn can_be_planned(&self, cores_max: f64) -> bool {
        self.has_live_source() || self.curve_data.curve_estimate(cores_max).is_some()
    }

    /// Whether further seats would improve the curve: the program has no profile and was measured
    /// on fewer than two core counts.
    pub fn explores(&self) -> bool {
        !self.program.has_own_profile()
            && !self.is_pinned()
            && self.has_live_source()
            && self.curve_data.seats_measured() < 2
            && self.active_wait != Some(true)
            && self.spinners == 0
            && !self.stuck_at_one_core()
    }

    /// Whether the program was measured on a single core, which cannot be halved.
    fn stuck_at_one_core(&self) -> bool {
        self.curve_data.seats_measured() == 1
            && matches!(self.placement, MeasuredPlacement::Seat(cores) if cores <= 1.0)
    }

    /// The curve for planning. Without data, the curve is that of the fair start.
    pub fn curve_estimate(&self, topology: &Topology, programs: usize) -> CurveEstimate {
        let cores_max = topology.capacity_of(&topology.all_cpus());
        self.curve_data
            .curve_estimate(cores_max)
            .unwrap_or_else(|| self.fair_start(topology, programs))
    }

    /// The curve of the *fair start*: the program is assumed to scale up to an equal share of the
    /// machine and no further.
    pub fn fair_start(&self, topology: &Topology, programs: usize) -> CurveEstimate {
        let cores_max = topology.capacity_of(&topology.all_cpus());
        CurveEstimate {
            curve: scales_to((cores_max / programs as f64).max(1.0)),
            confidence: 0.0,
            origin: CurveOrigin::Measured,
        }
    }

    /// Time that the run may still lose to deliberate variation, in seconds.
    pub fn budget_left(&self) -> f64 {
        let budget = self.program.variation;
        budget.map_or(0.0, |budget| budget.seconds - self.lost_seconds)
    }

    /// Whether the program may be moved to a narrower seat for deliberate variation.
    pub fn permits_variation(&self) -> bool {
        let program = &self.program;
        self.budget_left() > 0.0
            && program.confined_to().is_none()
            && program.cpu_quota.is_none()
            && program.cores.is_none()
            && !program.ran_before
            && self.failures == 0
            && self.active_wait != Some(true)
            && self.spinning_threads() == 0
    }

    /// Whether a run on a seat of this capacity, in cores, would improve the stored curve. The
    /// curve then has a point on more cores, and no point on this number of cores with an error of
    /// at most [`ERROR_ENOUGH`].
    pub fn needs_point(&self, cores: f64) -> bool {
        let profile = self.program.profile.as_ref();
        let Some(profile) = profile.filter(|_| self.program.has_own_profile()) else {
            return false;
        };
        let is_here = |point: &CurvePoint| (point.cores - cores).abs() < 0.5 * cores.min(1.0);
        let is_known = |point: &CurvePoint| is_here(point) && point.relative_error <= ERROR_ENOUGH;
        let is_wider = |point: &CurvePoint| point.cores > cores && !is_here(point);
        profile.points().iter().any(is_wider) && !profile.points().iter().any(is_known)
    }

    /// The planner's input for this program.
    pub fn request(&self, topology: &Topology, curve: &Curve) -> Request {
        Request {
            spinners: self
                .curve_data
                .cores_needed(self.spinners)
                .max(self.narrowest_cores()),
            ..request(&self.program, topology, curve.clone())
        }
    }

    /// Returns half of the program's seat, on which the second point of the curve is measured.
    /// `None` unless the whole seat, and no other number of cores, has been measured.
    pub fn trial_seat(&self, seat: &Seat, topology: &Topology) -> Option<CpuSet> {
        if seat.mode == SeatMode::Shared
            || !self.explores()
            || self.curve_data.seats_measured() != 1
            || self.active_wait.is_none()
        {
            return None;
        }
        half_of(&seat.cpus, topology)
    }

    /// Whether the program has pinned threads of its own to CPUs.
    pub fn is_pinned(&self) -> bool {
        self.program.pinned_to.is_some()
    }

    /// Whether the program may be moved to fewer cores at any time.
    pub fn is_narrowable(&self) -> bool {
        !self.is_pinned() && self.active_wait == Some(false) && self.spinners == 0
    }

    /// Whether a wide seat would improve the curve.
    pub fn wants_survey(&self, at_ns: u64) -> bool {
        !self.program.has_own_profile()
            && self.has_live_source()
            && self.is_narrowable()
            && at_ns >= self.survey_from_ns
            && self.curve_data.seats_measured() > 1
    }

    /// Whether the program is expected to run faster on more cores. Two kinds of programs do not
    /// borrow: a program that is being measured on its seat, and a program with a runtime that may
    /// restart on borrowed cores and then rely on them.
    pub fn gains(&self, from: f64, to: f64, cores_max: f64) -> bool {
        if self.explores() || self.active_wait != Some(false) {
            return false;
        }
        self.curve_data
            .curve_estimate(cores_max)
            .is_none_or(|estimate| estimate.curve.rate(to) >= estimate.curve.rate(from))
    }
}

/// Returns the curve of a program that is assumed to scale up to `cores` cores and no further.
#[allow(clippy::expect_used)]
pub(super) fn scales_to(cores: f64) -> Curve {
    let point = CurvePoint {
        cores,
        rate: cores,
        relative_error: 0.5,
        busy_cpus: None,
    };
    // The curve has one point with a positive count and rate.
    Curve::new(vec![point]).expect("a curve of one positive point is valid")
}

/// Half of a seat: half of its domains, or half of the cores of a single domain.
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
