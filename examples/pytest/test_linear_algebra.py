# SPDX-License-Identifier: MIT OR Apache-2.0
"""Tests of linear algebra with matrices of 120 to 400 rows, as test suites of numerical programs
contain them. Each test repeats its computation with new random matrices.

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
    for _ in range(80 // DIVISOR):
        a, b = rng.standard_normal((150, 150)), rng.standard_normal((150, 50))
        assert numpy.allclose(a @ numpy.linalg.solve(a, b), b, atol=1e-6)


def test_residual_of_least_squares_is_orthogonal(rng):
    for _ in range(40 // DIVISOR):
        a, b = rng.standard_normal((300, 150)), rng.standard_normal(300)
        x = numpy.linalg.lstsq(a, b, rcond=None)[0]
        assert numpy.allclose(a.T @ (a @ x - b), 0, atol=1e-8)


def test_exponential_of_a_rotation_is_orthogonal(rng):
    for _ in range(60 // DIVISOR):
        a = rng.standard_normal((150, 150)) / 150
        rotation = scipy.linalg.expm(a - a.T)
        assert numpy.allclose(rotation @ rotation.T, numpy.eye(150))


def test_factors_of_qr_give_the_matrix(rng):
    for _ in range(80 // DIVISOR):
        a = rng.standard_normal((200, 120))
        q, r = scipy.linalg.qr(a, mode="economic")
        assert numpy.allclose(q.T @ q, numpy.eye(120))
        assert numpy.allclose(q @ r, a)


def test_inverse_of_the_inverse_is_the_matrix(rng):
    for _ in range(60 // DIVISOR):
        a = rng.standard_normal((130, 130)) + 20 * numpy.eye(130)
        assert numpy.allclose(numpy.linalg.inv(numpy.linalg.inv(a)), a)


def test_ridge_regression_finds_the_coefficients(rng):
    for _ in range(60 // DIVISOR):
        a, x = rng.standard_normal((400, 120)), rng.standard_normal(120)
        gram = a.T @ a + 1e-9 * numpy.eye(120)
        found = scipy.linalg.cho_solve(scipy.linalg.cho_factor(gram), a.T @ (a @ x))
        assert numpy.allclose(found, x)
