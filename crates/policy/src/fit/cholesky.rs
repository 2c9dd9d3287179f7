// SPDX-License-Identifier: MIT OR Apache-2.0
//! Solves systems of linear equations with about a dozen unknowns by the Cholesky decomposition,
//! for the fit of curves. The matrix must be symmetric and positive definite. The decomposition
//! takes cubic time in the number of unknowns, and each solution quadratic time. If the matrix is
//! not positive definite or the numbers overflow, there is no decomposition.
//!
//! No crate for linear algebra is used: the common crates either take minutes to build, or are
//! licensed under Apache-2.0 alone and cannot be linked to programs under GPL-2.0-only.

/// The lower triangular matrix L for which L Lᵀ is the given symmetric positive definite matrix.
#[derive(Debug, Clone)]
pub(super) struct Cholesky {
    /// Row `r` has `r + 1` elements.
    lower: Vec<Vec<f64>>,
}

impl Cholesky {
    /// Decomposes a symmetric matrix of `size` rows with the elements `element(row, column)`, which
    /// is called for the lower triangle only. Returns `None` if the matrix is not positive
    /// definite.
    pub fn new(size: usize, element: impl Fn(usize, usize) -> f64) -> Option<Self> {
        let mut lower: Vec<Vec<f64>> = Vec::with_capacity(size);
        for row in 0..size {
            let mut elements: Vec<f64> = Vec::with_capacity(row + 1);
            for column in 0..row {
                let above = &lower[column];
                let rest = element(row, column) - dot(&elements, &above[..column]);
                elements.push(rest / above[column]);
            }
            let square = element(row, row) - dot(&elements, &elements);
            // The comparison is also false if `square` is NaN.
            if !(square > 0.0 && square.is_finite()) {
                return None;
            }
            elements.push(square.sqrt());
            lower.push(elements);
        }
        Some(Self { lower })
    }

    /// Solves the equations for the right-hand side `right`, which must have the matrix's size.
    pub fn solve(&self, right: &[f64]) -> Vec<f64> {
        let mut solution: Vec<f64> = Vec::with_capacity(right.len());
        for (row, value) in self.lower.iter().zip(right) {
            let rest = value - dot(&solution, row);
            solution.push(rest / row[solution.len()]);
        }
        for at in (0..solution.len()).rev() {
            solution[at] /= self.lower[at][at];
            let known = solution[at];
            for (below, factor) in solution[..at].iter_mut().zip(&self.lower[at]) {
                *below -= factor * known;
            }
        }
        solution
    }
}

/// The scalar product; surplus elements of the longer vector are ignored.
pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_matrix_that_is_not_positive_definite_is_refused() {
        assert!(Cholesky::new(2, |_, _| 1.0).is_none());
        assert!(Cholesky::new(1, |_, _| -1.0).is_none());
        assert!(Cholesky::new(1, |_, _| f64::NAN).is_none());
        assert!(Cholesky::new(1, |_, _| f64::INFINITY).is_none());
        assert!(Cholesky::new(0, |_, _| 0.0).is_some());
    }

    proptest! {
        /// A Aᵀ + 1 is positive definite for every A.
        #[test]
        fn a_solution_gives_the_right_side(
            size in 1_usize..8,
            a in prop::collection::vec(-10.0..10.0, 64),
            expected in prop::collection::vec(-10.0..10.0, 8),
        ) {
            let rows: Vec<&[f64]> = a.chunks(8).collect();
            let matrix = |r: usize, c: usize| dot(rows[r], rows[c]) + f64::from(u8::from(r == c));
            let right: Vec<f64> = (0..size)
                .map(|r| (0..size).map(|c| matrix(r, c) * expected[c]).sum())
                .collect();
            let solution = Cholesky::new(size, matrix).unwrap().solve(&right);
            for (found, expected) in solution.iter().zip(&expected) {
                prop_assert!((found - expected).abs() < 1e-6, "{solution:?}");
            }
        }
    }
}
