// SPDX-License-Identifier: MIT OR Apache-2.0
//! Noticing programs that collapse on too few cores.
//!
//! Between two neighbouring samples of an honest program, progress grows at
//! most in proportion to the cores, give or take a cache that begins to
//! suffice. Where progress *per core* more than [`DROP`]-folds and the
//! measurement errors do not explain it, the program loses to something that
//! has nothing to do with work: threads that busy-wait for a partner that is
//! not running. Measured: LAMMPS with two MPI ranks 5.5 times slower on one
//! core than on two, 2.8 times a core; four threads on a yielding lock 4.6.
//!
//! The threshold lies somewhere in the gap between the two samples; the upper
//! end is the answer, since giving too few cores costs several-fold and
//! giving too many costs a fraction.

use usher_model::CurvePoint;

/// Growth of progress per core that is no longer honest.
pub const DROP: f64 = 1.5;

/// Standard errors that the drop must exceed.
const SIGMAS: f64 = 2.0;

/// Where a program collapses.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Collapse {
    /// Fewest cores at which it is known not to: what a
    /// [`Request`](crate::seating::Request)'s `spinners` wants.
    pub cores: u32,
    /// Progress per core just below, relative to that at `cores`: < 1/1.5.
    pub factor: f64,
}

/// Whether the samples (in any order) show a collapse: the highest one.
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
