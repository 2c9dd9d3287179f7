// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is believed of one program's scalability, and why.

use std::collections::BTreeMap;

use usher_model::{Curve, CurvePoint, ProgressSource};

use super::meter::Estimate;
use crate::fit::{collapses, fit};

/// A measured rate replaces the curve's where they differ by more than this,
/// relative.
const SURPRISE: f64 = 0.10;

/// A rate known better than this is no accident.
const SURE: f64 = 0.03;

/// Where a belief comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// An earlier run, from the profile store.
    Profile,
    /// This run.
    Measured,
}

/// A curve to plan with.
#[derive(Debug, Clone, PartialEq)]
pub struct Belief {
    /// Progress a second against cores.
    pub curve: Curve,
    /// How far it is to be trusted, 0..1.
    pub confidence: f64,
    /// Where it comes from.
    pub origin: Origin,
}

/// What was measured of a program, and its profile.
#[derive(Debug, Clone, Default)]
pub struct Knowledge {
    profile: Option<Curve>,
    /// Measured in this run on seats of its own, by source, whose units
    /// differ, and thousandths of cores.
    seats: BTreeMap<ProgressSource, BTreeMap<u64, Estimate>>,
    /// Measured in this run while sharing with the present neighbours.
    shared: BTreeMap<ProgressSource, Estimate>,
    /// How it did on a seat and sharing with the present neighbours, tried.
    compared: Option<Compared>,
}

/// How a program did on a seat, and otherwise, beside the same neighbours.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Compared {
    /// Cores of the seat.
    pub cores: f64,
    /// How many times as fast it was there as with everything left to the kernel.
    pub over_sharing: f64,
    /// How many times as fast as with two programs on both their seats, where
    /// that was tried.
    pub over_pair: Option<f64>,
}

impl Knowledge {
    /// What an earlier run taught, or nothing.
    pub fn new(profile: Option<Curve>) -> Self {
        Self {
            profile,
            ..Self::default()
        }
    }

    /// A rate was measured on so many cores of its own. True when that says
    /// something new.
    pub fn learn_seat(&mut self, cores: f64, estimate: Estimate) -> bool {
        let seats = self.seats.entry(estimate.source).or_default();
        let before = seats.get(&milli(cores)).copied();
        if before.is_some_and(|known| estimate.relative_error > known.relative_error.max(SURE)) {
            // Only just begun there again.
            return false;
        }
        let differs = |known: Estimate| (known.rate / estimate.rate - 1.0).abs() > SURPRISE;
        if let Some(known) = before.filter(|&known| differs(known))
            && estimate.relative_error.max(known.relative_error) < SURE
        {
            // Whatever it is that changed (where its memory lies, what its
            // neighbours ask of the caches), it would be the same elsewhere.
            let ratio = estimate.rate / known.rate;
            seats.values_mut().for_each(|other| other.rate *= ratio);
        }
        seats.insert(milli(cores), estimate);
        before.is_none_or(differs)
    }

    /// A rate was measured while everything was left to the kernel. True
    /// when that says something new.
    pub fn learn_shared(&mut self, estimate: Estimate) -> bool {
        let before = self.shared.insert(estimate.source, estimate);
        before.is_none_or(|known| (known.rate / estimate.rate - 1.0).abs() > SURPRISE)
    }

    /// The neighbours have changed: what sharing with the old ones gave says
    /// nothing any more.
    pub fn forget_shared(&mut self) {
        self.shared.clear();
        self.compared = None;
    }

    /// The program does something else now: what was measured is over. A
    /// profile is of the whole run and stays.
    pub fn forget_phase(&mut self) {
        self.seats.clear();
        self.shared.clear();
        self.compared = None;
    }

    /// Fewest cores that the program must have, if `spinners` threads of it
    /// were seen to busy-wait: as many, unless points of its curve tell where
    /// it collapses, or that it does not.
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

    /// Seats and sharing were tried.
    pub fn learn_comparison(&mut self, compared: Compared) {
        self.compared = Some(compared);
    }

    /// Whether seats and sharing were tried beside the present neighbours.
    pub fn was_compared(&self) -> bool {
        self.compared.is_some()
    }

    /// NTT on the seat that was tried, and with two programs on both their seats.
    pub fn paired_ntt(&self, belief: &Belief, cores_max: f64) -> Option<(f64, f64)> {
        let compared = self.compared?;
        let seat = belief.curve.best_rate(cores_max) / belief.curve.rate(compared.cores);
        Some((seat, seat * compared.over_pair?))
    }

    /// How many core counts were measured in this run, by one source.
    pub fn seats_measured(&self) -> usize {
        self.best_measured().map_or(0, |(_, seats)| seats.len())
    }

    /// The source that measured most core counts, of those the best.
    fn best_measured(&self) -> Option<(ProgressSource, &BTreeMap<u64, Estimate>)> {
        let by_count = |(_, seats): &(&ProgressSource, &BTreeMap<u64, Estimate>)| seats.len();
        let best = self.seats.iter().rev().max_by_key(by_count);
        best.map(|(&source, seats)| (source, seats))
    }

    /// The curve to plan with, if there is ground for one.
    pub fn belief(&self, cores_max: f64) -> Option<Belief> {
        let measured = self.measured(cores_max);
        let Some(profile) = &self.profile else {
            return measured;
        };
        match measured {
            Some(measured)
                if self.seats_measured() > 1
                    && contradicts(&measured.curve, profile, &self.points()) =>
            {
                Some(measured)
            }
            _ => Some(Belief {
                curve: self.corrected(profile),
                confidence: profile_confidence(profile),
                origin: Origin::Profile,
            }),
        }
    }

    /// The profile with the rates of whole repetitions on its seats in this
    /// run put in: beside other programs they may be lower than alone. The
    /// rates of other core counts stay what they were alone.
    fn corrected(&self, profile: &Curve) -> Curve {
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

    /// NTT while everything is left to the kernel, where it was measured:
    /// against a seat of which a rate is believed, or in the belief's own units.
    pub fn shared_ntt(&self, belief: &Belief, cores_max: f64) -> Option<f64> {
        let best = belief.curve.best_rate(cores_max);
        if let Some(tried) = self.compared {
            return Some(best / belief.curve.rate(tried.cores) * tried.over_sharing);
        }
        let source = match belief.origin {
            Origin::Measured => self.best_measured()?.0,
            Origin::Profile => ProgressSource::Repetition,
        };
        Some(best / self.shared.get(&source)?.rate)
    }

    fn points(&self) -> Vec<CurvePoint> {
        let point = |(&milli, estimate): (&u64, &Estimate)| CurvePoint {
            cores: milli as f64 / 1e3,
            rate: estimate.rate,
            relative_error: estimate.relative_error,
            busy_cpus: Some(estimate.busy_cpus),
        };
        let seats = self.best_measured().map(|(_, seats)| seats);
        seats.into_iter().flatten().map(point).collect()
    }

    fn measured(&self, cores_max: f64) -> Option<Belief> {
        let fitted = fit(&self.points(), cores_max.ceil() as u32)?;
        Some(Belief {
            curve: fitted.curve,
            confidence: fitted.confidence,
            origin: Origin::Measured,
        })
    }
}

/// Thousandths of cores: capacities are no whole numbers.
fn milli(cores: f64) -> u64 {
    (cores * 1e3).round() as u64
}

/// Whether what was measured at two or more core counts has another shape
/// than the profile: the units may differ, the ratios may not.
fn contradicts(measured: &Curve, profile: &Curve, points: &[CurvePoint]) -> bool {
    let ratios = points
        .iter()
        .map(|p| measured.rate(p.cores) / profile.rate(p.cores));
    let (least, most) = ratios.fold((f64::INFINITY, 0.0_f64), |(lo, hi), r| {
        (lo.min(r), hi.max(r))
    });
    most > least * (1.0 + 2.5 * SURPRISE)
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

    fn repetition(rate: f64) -> Estimate {
        Estimate {
            rate,
            relative_error: 0.05,
            busy_cpus: 1.0,
            source: ProgressSource::Repetition,
        }
    }

    #[test]
    fn what_a_seat_gives_beside_others_corrects_the_profile_and_the_best_alone_stays() {
        let mut knowledge = Knowledge::new(Some(profile()));
        knowledge.learn_seat(1.0, repetition(0.8));
        knowledge.learn_seat(2.0, repetition(1.2));
        let curve = knowledge.belief(2.0).unwrap().curve;
        assert_eq!((curve.rate(1.0), curve.rate(2.0)), (0.8, 1.5));
        let mut lucky = Knowledge::new(Some(profile()));
        lucky.learn_seat(1.0, repetition(1.3));
        assert_eq!(lucky.belief(2.0).unwrap().curve.rate(1.0), 1.0);
    }

    #[test]
    fn measured_sharing_counts_in_the_beliefs_own_units_only() {
        let mut knowledge = Knowledge::new(Some(profile()));
        let belief = knowledge.belief(2.0).unwrap();
        assert_eq!(knowledge.shared_ntt(&belief, 2.0), None);
        knowledge.learn_shared(repetition(0.5));
        assert_eq!(knowledge.shared_ntt(&belief, 2.0), Some(3.0));
        let beats = |rate| Estimate {
            source: ProgressSource::Heartbeat,
            ..repetition(rate)
        };
        knowledge.learn_shared(beats(900.0));
        assert_eq!(knowledge.shared_ntt(&belief, 2.0), Some(3.0));
        let invented = Belief {
            origin: Origin::Measured,
            ..belief.clone()
        };
        assert_eq!(
            knowledge.shared_ntt(&invented, 2.0),
            None,
            "no seat measured"
        );
        knowledge.learn_seat(2.0, beats(1800.0));
        assert!(!knowledge.learn_seat(2.0, beats(1800.0)), "no news");
        assert!(knowledge.learn_seat(2.0, repetition(1.5)), "in other units");
        assert!(!knowledge.learn_seat(2.0, beats(1800.0)), "no news still");
        knowledge.forget_shared();
        assert_eq!(knowledge.shared_ntt(&belief, 2.0), None);
    }

    #[test]
    fn a_rate_that_has_changed_for_sure_changes_the_whole_curve() {
        let beats = |rate, relative_error| Estimate {
            source: ProgressSource::Heartbeat,
            relative_error,
            ..repetition(rate)
        };
        let mut knowledge = Knowledge::new(None);
        knowledge.learn_seat(6.0, beats(6.0, 0.01));
        knowledge.learn_seat(12.0, beats(8.0, 0.01));
        let before = knowledge.belief(12.0).unwrap().curve;
        assert!(!knowledge.learn_seat(6.0, beats(3.0, 0.1)), "one chunk");
        knowledge.learn_seat(24.0, beats(9.0, 0.1));
        knowledge.learn_seat(24.0, beats(6.0, 0.01));
        let curve = knowledge.belief(12.0).unwrap().curve;
        assert!(
            (curve.rate(12.0) / before.rate(12.0) - 1.0).abs() < 0.02,
            "it was never known"
        );
        assert!(knowledge.learn_seat(6.0, beats(3.0, 0.02)), "for sure");
        let after = knowledge.belief(12.0).unwrap().curve;
        for cores in [6.0, 9.0, 12.0] {
            assert!((after.rate(cores) / before.rate(cores) - 0.5).abs() < 0.02);
        }
    }

    #[test]
    fn spinning_threads_need_cores_unless_the_curve_knows_better() {
        assert_eq!(Knowledge::new(None).cores_needed(4), 4);
        assert_eq!(Knowledge::new(Some(profile())).cores_needed(2), 0);
        let collapse = Curve::from_rates(&[(1, 0.2), (2, 1.0)].into()).unwrap();
        assert_eq!(Knowledge::new(Some(collapse)).cores_needed(0), 2);
    }
}
