// SPDX-License-Identifier: MIT OR Apache-2.0
//! Detects programs that collapse on too few cores.
//!
//! Between two neighbouring samples of a normal program, progress grows at most in proportion to
//! the cores, apart from a cache that becomes sufficient. If progress *per core* grows by more than
//! a factor of [`DROP`] and measurement errors do not explain it, the cause is not the work itself:
//! threads busy-wait for a partner that is not running. Measured: LAMMPS with two MPI ranks is 5.5
//! times slower on one core than on two, 2.8 times per core; four threads on a yielding lock 4.6
//! times.
//!
//! The threshold lies between the two samples. The upper end is used, since too few cores cost
//! several-fold and too many cost a fraction.

use usher_model::CurvePoint;

/// Largest growth of progress per core that does not count as a collapse.
pub const DROP: f64 = 1.5;

/// Number of standard errors that the drop must exceed.
const SIGMAS: f64 = 2.0;

/// The position and size of a collapse.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Collapse {
    /// Least number of cores at which the program is known not to collapse: the value for a
    /// [`Request`](crate::seating::Request)'s `spinners`.
    pub cores: u32,
    /// Progress per core just below, relative to that at `cores`: < 1/1.5.
    pub factor: f64,
}

/// Returns the collapse at the highest core count that the samples show, if any. The samples may be
/// in any order.
pub fn collapses(samples: &[CurvePoint]) -> Option<Collapse> {
    let good = |x: f64| x.is_finite() && x > 0.0;
    let usable = samples.iter().filter(|s| good(s.cores) && good(s.rate));
    let mut sorted: Vec<&CurvePoint> = usable.collect();
    sorted.sort_by(|a, b| a.cores.total_cmp(&b.cores));
    let per_core = |s: &CurvePoint| s.rate.ln() - s.cores.ln();
    sorted.windows(2).rev().find_map(|pair| {
        let (low, high) = (pair[0], pair[1]);
        let growth = per_core(high) - per_core(low);
        let error = low.relative_error.hypot(high.relative_error);
        let fell = high.cores > low.cores && growth > DROP.ln() + SIGMAS * error;
        fell.then(|| Collapse {
            cores: high.cores.ceil() as u32,
            factor: (-growth).exp(),
        })
    })
}
