"""What the benchmark of clicks counts, held against a library."""

import numpy as np
from sklearn.metrics import roc_auc_score

from benchmarks.auc import auc


def test_the_area_is_that_of_a_library_ties_included() -> None:
    chance = np.random.default_rng(0)
    clicks = chance.random(1000) < 0.3
    scores = (chance.integers(0, 20, 1000) + 5 * clicks).astype(np.float32)
    np.testing.assert_allclose(auc(scores, clicks), roc_auc_score(clicks, scores))
