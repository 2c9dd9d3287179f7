# SPDX-License-Identifier: MIT OR Apache-2.0
"""Grid search with scikit-learn. joblib starts four worker processes (loky)."""

import os

import numpy
from sklearn.decomposition import PCA
from sklearn.kernel_ridge import KernelRidge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

SAMPLES = 200 if "USHER_EXAMPLE_QUICK" in os.environ else 600

rng = numpy.random.default_rng(1)
samples = rng.standard_normal((SAMPLES, 120))
target = numpy.sin(samples[:, 0]) + samples[:, 1] * samples[:, 2]
grid = {
    "pca__n_components": [20, 60, 100],
    "kernelridge__alpha": [0.01, 0.1, 1.0, 10.0],
    "kernelridge__gamma": [0.001, 0.01, 0.1],
}
model = make_pipeline(PCA(svd_solver="full"), KernelRidge(kernel="rbf"))
search = GridSearchCV(model, grid, cv=4, n_jobs=4).fit(samples, target)
print("best", search.best_params_, "score %.4f" % search.best_score_)
