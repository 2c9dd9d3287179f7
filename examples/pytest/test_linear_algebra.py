# SPDX-License-Identifier: MIT OR Apache-2.0
"""Tests of linear algebra with matrices of 120 to 300 rows, as test suites of numerical programs
contain them. For such matrices, a thread pool gains nothing. Each test repeats its computation with
new random matrices.

The environment variable SEEDS contains the seeds, "0 1 2 3" by default. With
USHER_EXAMPLE_QUICK, a test computes a twentieth of its repetitions."""

import os

import numpy
import pytest
import scipy.linalg

SEEDS = list(map(int, os.environ.get("SEEDS", "0 1 2 3").split()))
DIVISOR = 20 if "USHER_EXAMPLE_QUICK" in os.environ else 1


@pytest.fixture(params=SEEDS)
def rng(request):
    return numpy.random.default_rng(request.param)


def test_solution_satisfies_the_system(rng):
    for _ in range(400 // DIVISOR):
        a, b = rng.standard_normal((150, 150)), rng.standard_normal((150, 50))
        assert numpy.allclose(a @ numpy.linalg.solve(a, b), b, atol=1e-6)


def test_residual_of_least_squares_is_orthogonal(rng):
    for _ in range(40 // DIVISOR):
        a, b = rng.standard_normal((300, 150)), rng.standard_normal(300)
        x = numpy.linalg.lstsq(a, b, rcond=None)[0]
        assert numpy.allclose(a.T @ (a @ x - b), 0, atol=1e-8)


def test_factors_of_lu_give_the_matrix(rng):
    for _ in range(200 // DIVISOR):
        a = rng.standard_normal((150, 150))
        permutation, lower, upper = scipy.linalg.lu(a)
        assert numpy.allclose(permutation @ lower @ upper, a)


def test_determinant_of_a_product_is_the_product(rng):
    for _ in range(200 // DIVISOR):
        a, b = rng.standard_normal((120, 120)), rng.standard_normal((120, 120))
        _, log_a = numpy.linalg.slogdet(a)
        _, log_b = numpy.linalg.slogdet(b)
        assert numpy.isclose(numpy.linalg.slogdet(a @ b)[1], log_a + log_b)


def test_inverse_of_the_inverse_is_the_matrix(rng):
    for _ in range(300 // DIVISOR):
        a = rng.standard_normal((130, 130)) + 20 * numpy.eye(130)
        assert numpy.allclose(numpy.linalg.inv(numpy.linalg.inv(a)), a)


def test_eigenvectors_are_orthogonal(rng):
    for _ in range(200 // DIVISOR):
        a = rng.standard_normal((120, 120))
        _, vectors = numpy.linalg.eigh(a + a.T)
        assert numpy.allclose(vectors.T @ vectors, numpy.eye(120))
