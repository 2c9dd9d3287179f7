// SPDX-License-Identifier: MIT OR Apache-2.0
//! Decides between seats and time sharing by the mean NTT (ANTT) of all programs.
//!
//! Seats are given if their predicted ANTT is lower than the ANTT of time sharing by a margin. The
//! margin is [`MARGIN`] plus the mean, over all curves, of the error of the worst point. The mean
//! error is limited to 10 %, or to 2 % if seats and time sharing were both measured with the
//! present programs. Seats in force are given up only if their ANTT is higher than the ANTT of time
//! sharing by more than [`MARGIN`]. The two thresholds keep the decision from alternating.
//!
//! Margins and errors are fractions (0.03 is 3 %). A decision takes linear time in the number of
//! points of all curves.

use usher_model::{Abstention, Plan};

use super::MARGIN;
use crate::seating::Request;

/// Upper limit of the error margin if seats and time sharing were both measured. After a
/// measurement, the errors of the curves matter less, because the curves determine only the weight
/// of each program's measured rates.
const COMPARED_MARGIN_MAX: f64 = 0.02;
/// Upper limit of the margin that is added to [`MARGIN`] for errors of the curves.
const ERROR_MARGIN_MAX: f64 = 0.10;

/// The decision between seats and time sharing, with the values that it is based on.
#[derive(Debug, Clone, PartialEq)]
pub struct SeatDecision {
    /// Whether seats are better by more than the margin.
    pub favours_seats: bool,
    /// Predicted ANTT on seats.
    pub antt_seats: f64,
    /// Predicted or measured ANTT of time sharing.
    pub antt_sharing: f64,
    /// Relative gain that seats must have.
    pub margin: f64,
    /// Whether the decision follows the result of an earlier comparison instead of the predictions.
    pub by_comparison: bool,
}

/// NTTs of the programs if all programs are left to the kernel.
#[derive(Debug, Clone, Copy)]
pub struct SharingNtt<'a> {
    /// One NTT per request.
    pub ntt: &'a [f64],
    /// Whether the NTTs were measured in a comparison with seats. If true, errors of the curves
    /// affect the NTTs on seats and under time sharing equally. If false, the NTTs are predicted.
    pub compared: bool,
}

/// Compares a seating with time sharing. If `seats_in_force`, the margin applies to the decision to
/// give up the seats.
pub fn predict_gain(
    plan: &Plan,
    requests: &[Request],
    sharing: &SharingNtt,
    seats_in_force: bool,
) -> SeatDecision {
    let weighted: f64 = requests
        .iter()
        .zip(sharing.ntt)
        .map(|(r, ntt)| r.weight * ntt)
        .sum();
    let antt_sharing = weighted / requests.len().max(1) as f64;
    let antt_seats = plan.antt.unwrap_or(f64::INFINITY);
    let margin = match sharing.compared {
        true => MARGIN + error_margin(requests).min(COMPARED_MARGIN_MAX),
        false => MARGIN + error_margin(requests),
    };
    let favours_seats = if seats_in_force {
        antt_seats <= antt_sharing * (1.0 + MARGIN)
    } else {
        antt_seats * (1.0 + margin) < antt_sharing
    };
    SeatDecision {
        favours_seats,
        antt_seats,
        antt_sharing,
        margin,
        by_comparison: false,
    }
}

/// The possible error of the curves: the mean, over all curves, of the error of the worst point.
fn error_margin(requests: &[Request]) -> f64 {
    let worst = |r: &Request| {
        r.curve
            .points()
            .iter()
            .map(|p| p.relative_error)
            .fold(0.0, f64::max)
    };
    let sum: f64 = requests.iter().map(worst).sum();
    (sum / requests.len().max(1) as f64).min(ERROR_MARGIN_MAX)
}

impl SeatDecision {
    /// The cause for which all programs are left to the kernel. `narrows`: the seating gives a
    /// program fewer CPUs than there are.
    pub fn abstention(&self, narrows: bool) -> Abstention {
        match narrows {
            false => Abstention::Unrestricted,
            true if self.by_comparison => Abstention::Compared,
            true => Abstention::SmallGain {
                antt_seats: self.antt_seats,
                antt_sharing: self.antt_sharing,
                required: self.margin,
            },
        }
    }

    /// A sentence for `usher explain`. `narrows`: the seating gives a program fewer CPUs than there
    /// are; `explores`: the purpose of the seats is to measure new programs.
    pub fn sentence(&self, narrows: bool, explores: bool) -> String {
        let Self {
            favours_seats,
            antt_seats,
            antt_sharing,
            margin,
            by_comparison,
        } = self;
        let gain = 100.0 * (1.0 - antt_seats / antt_sharing);
        // The margin increases the time with seats; `gain` is a part of the time without them.
        let required = 100.0 * margin / (1.0 + margin);
        match (narrows, explores, favours_seats) {
            (false, ..) => format!(
                "all programs share all CPUs, because the plan gives all CPUs to every program \
                 (ANTT {antt_sharing:.2})"
            ),
            (_, true, _) => {
                "the programs have seats for now, so that Usher can measure their progress in \
                 the seats"
                    .to_owned()
            }
            (.., true) if *by_comparison => {
                "the programs have seats, because Usher tried seats and sharing all CPUs, and \
                 seats were better"
                    .to_owned()
            }
            (.., false) if *by_comparison => {
                "all programs share all CPUs, because Usher tried seats and sharing all CPUs, and \
                 seats were no better"
                    .to_owned()
            }
            (.., true) => format!(
                "the programs have seats: predicted ANTT {antt_seats:.2}, against \
                 {antt_sharing:.2} if all share all CPUs ({gain:+.0} %)"
            ),
            (.., false) => format!(
                "all programs share all CPUs: predicted ANTT {antt_sharing:.2}, against \
                 {antt_seats:.2} with seats ({gain:+.0} %, less than the required {required:.0} \
                 %)"
            ),
        }
    }
}
