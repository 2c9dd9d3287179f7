# SPDX-License-Identifier: MIT OR Apache-2.0
"""Singular values of a random N x N matrix: svd.py N"""

import sys

import numpy

size = int(sys.argv[1])
rng = numpy.random.Generator(numpy.random.PCG64(15))
values = numpy.linalg.svd(rng.standard_normal((size, size)), compute_uv=False)
print("largest %.6f, smallest %.6f" % (values[0], values[-1]))
