// SPDX-License-Identifier: MIT OR Apache-2.0
//! Estimate of a program's scalability curve from its profile and the measurements of this run.
//!
//! Rates are stored by source of progress, because each source has its own unit, and by core count.
//!
//! 1. A rate on a seat replaces the earlier rate at the same core count. Exception: a rate is
//!    ignored if its relative error exceeds 3 % and the error of the earlier rate. If the two rates
//!    differ by more than 10 % and their relative errors are below 3 %, the rates at all other core
//!    counts are scaled by the same ratio.
//! 2. Without a profile, the curve is fitted to the measured rates (module `fit`).
//! 3. With a profile, the curve is the profile, with lower rates where whole repetitions on seats
//!    were slower. The measurements at two or more core counts may have another shape: their ratios
//!    to the profile differ by more than 25 %. In this case, the curve is fitted to the
//!    measurements alone.
//! 4. A profile of other arguments is less certain: the relative errors of its points are at least
//!    25 %, so that the required gain of seats is higher (module `seat_decision`). Its rates have
//!    another unit, so that no rate of this run corrects it. Measurements at two or more core
//!    counts replace it.
//! 5. Rates under time sharing give a measured NTT instead of a predicted NTT. Rates under time
//!    sharing are discarded when another program arrives or departs.
//!
//! When the program enters a new phase, all measurements are discarded and the profile is kept.
//!
//! Bounds: one rate is stored for each source of progress and each capacity of a seat, in
//! thousandths of a core. A fitted curve is computed at each request, in the time that module `fit`
//! states. Relative errors and confidences are fractions. Without a profile and without a valid
//! rate, there is no curve.

use std::collections::BTreeMap;

use usher_model::{Curve, CurvePoint, ProfileMatch, ProgressSource};

use super::fewer_cores::with_fewer_cores;
use super::meter::RateEstimate;
use crate::fit::{collapses, fit};

/// Relative difference from which on two rates count as different.
const SURPRISE: f64 = 0.10;

/// Relative error of two rates below which a difference between them counts as significant.
const SURE: f64 = 0.03;

/// Least relative error of the points of a profile of other arguments.
const OTHER_ARGUMENTS_ERROR: f64 = 0.25;

/// Origin of a curve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CurveOrigin {
    /// An earlier run of the program; the curve is from the profile store.
    Profile,
    /// This run of the program.
    Measured,
}

/// A curve for planning.
#[derive(Debug, Clone, PartialEq)]
pub struct CurveEstimate {
    /// Progress per second as a function of cores.
    pub curve: Curve,
    /// Confidence in the curve, 0..1.
    pub confidence: f64,
    /// Origin of the curve.
    pub origin: CurveOrigin,
}

/// A program's profile and the rates measured in this run.
#[derive(Debug, Clone, Default)]
pub struct CurveData {
    profile: Option<Curve>,
    profile_match: ProfileMatch,
    /// Rates on seats in this run, by source of progress and by the capacity of the seat in
    /// thousandths of a core.
    seats: BTreeMap<ProgressSource, BTreeMap<u64, RateEstimate>>,
    /// Rates in this run while the program shared all CPUs with the present other programs, by
    /// source of progress.
    shared: BTreeMap<ProgressSource, RateEstimate>,
    /// Result of the comparison of seats with time sharing, beside the present other programs.
    compared: Option<SeatComparison>,
}

/// The measured rate on a seat, relative to the measured rates in the other steps of a comparison
/// (module `compare`).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SeatComparison {
    /// Cores of the seat.
    pub cores: f64,
    /// Rate on the seat divided by the rate with all programs left to the kernel.
    pub over_sharing: f64,
    /// Rate on the seat divided by the rate with two programs on the union of their seats; `None`:
    /// not measured.
    pub over_pair: Option<f64>,
}

impl CurveData {
    /// Starts with a profile, or with no data.
    pub fn new(profile: Option<Curve>, profile_match: ProfileMatch) -> Self {
        let profile = match profile_match {
            ProfileMatch::Exact => profile,
            ProfileMatch::OtherArguments => profile.map(|curve| uncertain(&curve)),
        };
        Self {
            profile,
            profile_match,
            ..Self::default()
        }
    }

    /// Adds a rate measured on a seat of `cores` cores. Returns whether the curve changes.
    pub fn learn_seat(&mut self, cores: f64, estimate: RateEstimate) -> bool {
        let seats = self.seats.entry(estimate.source).or_default();
        let before = seats.get(&milli(cores)).copied();
        if before.is_some_and(|known| estimate.relative_error > known.relative_error.max(SURE)) {
            // The new measurement on this seat is not yet as exact as the earlier measurement.
            return false;
        }
        let differs = |known: RateEstimate| (known.rate / estimate.rate - 1.0).abs() > SURPRISE;
        if let Some(known) = before.filter(|&known| differs(known))
            && estimate.relative_error.max(known.relative_error) < SURE
        {
            // The cause of the difference (such as the location of the program's memory, or the
            // cache use of other programs) is assumed to affect all core counts equally.
            let ratio = estimate.rate / known.rate;
            seats.values_mut().for_each(|other| other.rate *= ratio);
        }
        seats.insert(milli(cores), estimate);
        before.is_none_or(differs)
    }

    /// Adds a rate that was measured while all programs were left to the kernel. Returns whether
    /// the rate is the first or differs from the earlier rate.
    pub fn learn_shared(&mut self, estimate: RateEstimate) -> bool {
        let before = self.shared.insert(estimate.source, estimate);
        before.is_none_or(|known| (known.rate / estimate.rate - 1.0).abs() > SURPRISE)
    }

    /// Discards the rates on shared CPUs, because other programs have arrived or departed.
    pub fn forget_shared(&mut self) {
        self.shared.clear();
        self.compared = None;
    }

    /// Discards all measurements, since the program has entered a new phase. The profile covers the
    /// whole run and is kept.
    pub fn forget_phase(&mut self) {
        self.seats.clear();
        self.shared.clear();
        self.compared = None;
    }

    /// Returns the least number of cores for the program, given that `spinners` of its threads were
    /// seen to busy-wait. If points of the curve show a collapse, returns the least number of cores
    /// without a collapse. If points at fewer cores than `spinners` show no collapse, returns 0.
    /// Otherwise returns `spinners`.
    pub fn cores_needed(&self, spinners: u32) -> u32 {
        let profile = self
            .profile
            .iter()
            .flat_map(|curve| curve.points().to_vec());
        let points: Vec<_> = profile.collect();
        let points = if points.is_empty() {
            self.points()
        } else {
            points
        };
        if let Some(collapse) = collapses(&points) {
            return collapse.cores;
        }
        let seen_on_fewer = points.iter().any(|point| point.cores < f64::from(spinners));
        if seen_on_fewer { 0 } else { spinners }
    }

    /// Stores the result of a comparison.
    pub fn learn_comparison(&mut self, compared: SeatComparison) {
        self.compared = Some(compared);
    }

    /// Whether seats were compared with time sharing beside the present other programs.
    pub fn was_compared(&self) -> bool {
        self.compared.is_some()
    }

    /// Returns two measured NTTs: on the program's own seat, and with two programs on the union of
    /// their seats.
    pub fn paired_ntt(&self, estimate: &CurveEstimate, cores_max: f64) -> Option<(f64, f64)> {
        let compared = self.compared?;
        let seat = estimate.curve.best_rate(cores_max) / estimate.curve.rate(compared.cores);
        Some((seat, seat * compared.over_pair?))
    }

    /// Number of core counts measured in this run, by the source of progress with the most core
    /// counts.
    pub fn seats_measured(&self) -> usize {
        self.best_measured().map_or(0, |(_, seats)| seats.len())
    }

    /// The source with the most measured core counts; of several such sources, the best source.
    fn best_measured(&self) -> Option<(ProgressSource, &BTreeMap<u64, RateEstimate>)> {
        let by_count = |(_, seats): &(&ProgressSource, &BTreeMap<u64, RateEstimate>)| seats.len();
        let best = self.seats.iter().rev().max_by_key(by_count);
        best.map(|(&source, seats)| (source, seats))
    }

    /// The curve for planning, if there is enough data.
    pub fn curve_estimate(&self, cores_max: f64) -> Option<CurveEstimate> {
        let measured = self.measured(cores_max);
        let Some(profile) = &self.profile else {
            return measured;
        };
        match measured {
            Some(measured)
                if self.seats_measured() > 1
                    && (self.profile_match == ProfileMatch::OtherArguments
                        || contradicts(&measured.curve, profile, &self.points())) =>
            {
                Some(measured)
            }
            _ => Some(CurveEstimate {
                curve: with_fewer_cores(&self.corrected(profile)),
                confidence: profile_confidence(profile),
                origin: CurveOrigin::Profile,
            }),
        }
    }

    /// The profile, corrected by the rates of whole repetitions on seats in this run, which may be
    /// lower because other programs run at the same time. Other core counts keep their rates from
    /// the profile.
    fn corrected(&self, profile: &Curve) -> Curve {
        if self.profile_match == ProfileMatch::OtherArguments {
            return profile.clone();
        }
        let now = |point: &CurvePoint| {
            let repetitions = self.seats.get(&ProgressSource::Repetition);
            let seat = repetitions.and_then(|seats| seats.get(&milli(point.cores)));
            let alone_best = point.rate >= profile.best_rate(f64::INFINITY);
            match seat.filter(|_| !alone_best) {
                Some(seat) => CurvePoint {
                    rate: seat.rate.min(point.rate),
                    ..*point
                },
                None => *point,
            }
        };
        let points = profile.points().iter().map(now).collect();
        Curve::new(points).unwrap_or_else(|_| profile.clone())
    }

    /// Measured NTT with all programs left to the kernel. The NTT is computed from the comparison
    /// with a seat, or else from a rate on shared CPUs in the unit of the curve.
    pub fn shared_ntt(&self, estimate: &CurveEstimate, cores_max: f64) -> Option<f64> {
        let best = estimate.curve.best_rate(cores_max);
        if let Some(compared) = self.compared {
            return Some(best / estimate.curve.rate(compared.cores) * compared.over_sharing);
        }
        let source = match estimate.origin {
            CurveOrigin::Measured => self.best_measured()?.0,
            CurveOrigin::Profile if self.profile_match == ProfileMatch::OtherArguments => {
                return None;
            }
            CurveOrigin::Profile => ProgressSource::Repetition,
        };
        Some(best / self.shared.get(&source)?.rate)
    }

    fn points(&self) -> Vec<CurvePoint> {
        let point = |(&milli, estimate): (&u64, &RateEstimate)| CurvePoint {
            cores: milli as f64 / 1e3,
            rate: estimate.rate,
            relative_error: estimate.relative_error,
            busy_cpus: Some(demand(milli as f64 / 1e3, estimate)),
        };
        let seats = self.best_measured().map(|(_, seats)| seats);
        seats.into_iter().flatten().map(point).collect()
    }

    fn measured(&self, cores_max: f64) -> Option<CurveEstimate> {
        let fitted = fit(&self.points(), cores_max.ceil() as u32)?;
        Some(CurveEstimate {
            curve: fitted.curve,
            confidence: fitted.confidence,
            origin: CurveOrigin::Measured,
        })
    }
}

/// Number of CPUs that the program would keep busy on a seat of `cores` cores if no other work used
/// the seat. On a busy machine, threads of other programs run on the seat, too: while a runnable
/// thread waits, the program demands the whole seat.
fn demand(cores: f64, estimate: &RateEstimate) -> f64 {
    let unused = (cores - estimate.busy_cpus).max(0.0);
    estimate.busy_cpus + unused * estimate.waiting
}

/// Converts cores to thousandths, since capacities are not whole numbers.
fn milli(cores: f64) -> u64 {
    (cores * 1e3).round() as u64
}

/// Whether the measurements at two or more core counts have another shape than the profile.
/// Measurements and profile may have different units; only the ratios of their rates are compared.
fn contradicts(measured: &Curve, profile: &Curve, points: &[CurvePoint]) -> bool {
    let ratios = points
        .iter()
        .map(|p| measured.rate(p.cores) / profile.rate(p.cores));
    let (least, most) = ratios.fold((f64::INFINITY, 0.0_f64), |(lo, hi), r| {
        (lo.min(r), hi.max(r))
    });
    most > least * (1.0 + 2.5 * SURPRISE)
}

/// Returns a curve whose points have at least the error of a profile of other arguments.
fn uncertain(curve: &Curve) -> Curve {
    let point = |point: &CurvePoint| CurvePoint {
        relative_error: point.relative_error.max(OTHER_ARGUMENTS_ERROR),
        ..*point
    };
    let points = curve.points().iter().map(point).collect();
    Curve::new(points).unwrap_or_else(|_| curve.clone())
}

fn profile_confidence(profile: &Curve) -> f64 {
    let worst = profile
        .points()
        .iter()
        .map(|p| p.relative_error)
        .fold(0.0, f64::max);
    (1.0 - 2.0 * worst).clamp(0.1, 0.95)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile() -> Curve {
        Curve::from_rates(&[(1, 1.0), (2, 1.5)].into()).unwrap()
    }

    fn repetition(rate: f64) -> RateEstimate {
        RateEstimate {
            rate,
            relative_error: 0.05,
            busy_cpus: 1.0,
            waiting: 0.0,
            source: ProgressSource::Repetition,
        }
    }

    #[test]
    fn seat_rates_correct_the_profile_except_its_best_rate() {
        let mut curve_data = CurveData::new(Some(profile()), ProfileMatch::Exact);
        curve_data.learn_seat(1.0, repetition(0.8));
        curve_data.learn_seat(2.0, repetition(1.2));
        let curve = curve_data.curve_estimate(2.0).unwrap().curve;
        assert_eq!((curve.rate(1.0), curve.rate(2.0)), (0.8, 1.5));
        let mut lucky = CurveData::new(Some(profile()), ProfileMatch::Exact);
        lucky.learn_seat(1.0, repetition(1.3));
        assert_eq!(lucky.curve_estimate(2.0).unwrap().curve.rate(1.0), 1.0);
    }

    #[test]
    fn a_profile_of_other_arguments_is_uncertain_and_replaced_by_measurements() {
        let mut curve_data = CurveData::new(Some(profile()), ProfileMatch::OtherArguments);
        let estimate = curve_data.curve_estimate(2.0).unwrap();
        assert!((estimate.confidence - 0.5).abs() < 1e-9, "{estimate:?}");
        assert!(
            estimate
                .curve
                .points()
                .iter()
                .all(|p| p.relative_error == 0.25)
        );
        // Rates of this run have another unit than the profile.
        curve_data.learn_seat(1.0, repetition(0.1));
        curve_data.learn_shared(repetition(0.1));
        let after_one = curve_data.curve_estimate(2.0).unwrap();
        assert_eq!(after_one.curve, estimate.curve);
        assert_eq!(curve_data.shared_ntt(&after_one, 2.0), None);
        curve_data.learn_seat(2.0, repetition(0.15));
        let measured = curve_data.curve_estimate(2.0).unwrap();
        assert_eq!(measured.origin, CurveOrigin::Measured);
    }

    #[test]
    fn shared_rates_count_only_in_the_units_of_the_estimate() {
        let mut curve_data = CurveData::new(Some(profile()), ProfileMatch::Exact);
        let estimate = curve_data.curve_estimate(2.0).unwrap();
        assert_eq!(curve_data.shared_ntt(&estimate, 2.0), None);
        curve_data.learn_shared(repetition(0.5));
        assert_eq!(curve_data.shared_ntt(&estimate, 2.0), Some(3.0));
        let beats = |rate| RateEstimate {
            source: ProgressSource::Heartbeat,
            ..repetition(rate)
        };
        curve_data.learn_shared(beats(900.0));
        assert_eq!(curve_data.shared_ntt(&estimate, 2.0), Some(3.0));
        let invented = CurveEstimate {
            origin: CurveOrigin::Measured,
            ..estimate.clone()
        };
        assert_eq!(
            curve_data.shared_ntt(&invented, 2.0),
            None,
            "no seat measured"
        );
        curve_data.learn_seat(2.0, beats(1800.0));
        assert!(!curve_data.learn_seat(2.0, beats(1800.0)), "no news");
        assert!(
            curve_data.learn_seat(2.0, repetition(1.5)),
            "in other units"
        );
        assert!(!curve_data.learn_seat(2.0, beats(1800.0)), "no news still");
        curve_data.forget_shared();
        assert_eq!(curve_data.shared_ntt(&estimate, 2.0), None);
    }

    #[test]
    fn a_significant_change_scales_the_whole_curve() {
        let beats = |rate, relative_error| RateEstimate {
            source: ProgressSource::Heartbeat,
            relative_error,
            ..repetition(rate)
        };
        let mut curve_data = CurveData::new(None, ProfileMatch::Exact);
        curve_data.learn_seat(6.0, beats(6.0, 0.01));
        curve_data.learn_seat(12.0, beats(8.0, 0.01));
        let before = curve_data.curve_estimate(12.0).unwrap().curve;
        assert!(!curve_data.learn_seat(6.0, beats(3.0, 0.1)), "one chunk");
        curve_data.learn_seat(24.0, beats(9.0, 0.1));
        curve_data.learn_seat(24.0, beats(6.0, 0.01));
        let curve = curve_data.curve_estimate(12.0).unwrap().curve;
        assert!(
            (curve.rate(12.0) / before.rate(12.0) - 1.0).abs() < 0.02,
            "it was never known"
        );
        assert!(curve_data.learn_seat(6.0, beats(3.0, 0.02)), "for sure");
        let after = curve_data.curve_estimate(12.0).unwrap().curve;
        for cores in [6.0, 9.0, 12.0] {
            assert!((after.rate(cores) / before.rate(cores) - 0.5).abs() < 0.02);
        }
    }

    #[test]
    fn demand_on_a_busy_machine_includes_the_time_in_which_threads_wait() {
        let demand_of = |busy_cpus, waiting| {
            let mut curve_data = CurveData::new(None, ProfileMatch::Exact);
            curve_data.learn_seat(
                1.0,
                RateEstimate {
                    busy_cpus,
                    waiting,
                    ..repetition(1.0)
                },
            );
            let curve = curve_data.curve_estimate(2.0).unwrap().curve;
            curve.busy_cpus(2.0).unwrap()
        };
        assert_eq!(demand_of(0.5, 0.0), 0.5, "waits for input");
        assert_eq!(demand_of(0.5, 1.0), 2.0, "waits for a CPU");
    }

    #[test]
    fn spinning_threads_need_cores_unless_the_curve_shows_otherwise() {
        assert_eq!(CurveData::new(None, ProfileMatch::Exact).cores_needed(4), 4);
        assert_eq!(
            CurveData::new(Some(profile()), ProfileMatch::Exact).cores_needed(2),
            0
        );
        let collapse = Curve::from_rates(&[(1, 0.2), (2, 1.0)].into()).unwrap();
        assert_eq!(
            CurveData::new(Some(collapse), ProfileMatch::Exact).cores_needed(0),
            2
        );
    }
}
