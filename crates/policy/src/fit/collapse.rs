// SPDX-License-Identifier: MIT OR Apache-2.0
//! Detects programs that collapse on too few cores, which means that they become several times
//! slower.
//!
//! Between two neighbouring samples of a normal program, progress grows at most in proportion to
//! the cores. The only exception is a cache that becomes large enough for the program's data. If
//! progress *per core* grows by more than a factor of [`DROP`] and measurement errors do not
//! explain the growth, the cause is not the work itself: threads busy-wait for a partner that is
//! not running. Measured: LAMMPS with two MPI ranks is 5.5 times slower on one core than on two
//! cores (2.8 times per core), and four threads with a yielding lock are 4.6 times slower.
//!
//! The program collapses at a core count between those of the two samples. The higher count is
//! used, because too few cores slow the program down several times, and too many cores only by a
//! fraction. If several pairs of samples show a collapse, the pair with the highest core counts is
//! used.
//!
//! "Measurement errors do not explain the growth" means: the logarithm of the growth exceeds that
//! of [`DROP`] by more than 2 standard errors of the pair. The time is that of sorting the samples.

use usher_model::CurvePoint;

/// Largest growth of progress per core that does not count as a collapse.
pub const DROP: f64 = 1.5;

/// Number of standard errors by which the growth must exceed [`DROP`].
const SIGMAS: f64 = 2.0;

/// The position and size of a collapse.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Collapse {
    /// Least number of cores at which the program is known not to collapse: the value for a
    /// [`Request`](crate::seating::Request)'s `spinners`.
    pub cores: u32,
    /// Progress per core in the next sample below `cores`, divided by the progress per core at
    /// `cores`; less than 1/1.5.
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
