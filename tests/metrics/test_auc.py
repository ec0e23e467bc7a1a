"""The area under the curve, against scikit-learn and its definition."""

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from fleetx import roles
from fleetx.metrics import AUC, auc
from fleetx.metrics.tally import Tally
from fleetx.testing import world


def sample(seed: int, count: int = 400, largest: float = 1.0) -> tuple[Tensor, Tensor]:
    """Scores up to ``largest``, of which high ones are more often right."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(count, generator=generator)
    labels = (torch.rand(count, generator=generator) < scores * 0.6).float()
    return scores * largest, labels


def joined(*samples: tuple[Tensor, Tensor]) -> float:
    scores, labels = (torch.cat(each).double().numpy() for each in zip(*samples, strict=True))
    return float(roc_auc_score(labels, scores))


@pytest.mark.parametrize("largest", [1.0, 1e-3, 1e-30])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.bfloat16])
def test_it_is_that_of_scikit_learn(largest: float, kind: torch.dtype) -> None:
    scores, labels = sample(0, 5000, largest)
    scores = scores.to(kind)  # many are equal in bfloat16
    metric = AUC()
    for part in range(7):
        metric.update(scores[part::7], labels[part::7])
    assert metric.compute() == pytest.approx(joined((scores, labels)), abs=1e-12)


def test_equal_scores_count_half_and_nothing_is_a_half() -> None:
    metric = AUC()
    assert metric.local() == 0.5
    metric.update(torch.tensor([]), torch.tensor([]))
    metric.update(torch.tensor([0.0, -0.0, 0.5]), torch.tensor([1, 0, 0]))
    assert metric.local() == 0.25
    metric.reset()
    metric.update(torch.tensor([0.0, 1.0]), torch.tensor([0, 1]))
    assert metric.compute() == 1.0


def test_memory_is_bounded_and_small_scores_are_still_told_apart() -> None:
    tally, metric = Tally(1000), AUC(limit=1000)
    samples = [sample(seed, 3000, 10.0**-seed) for seed in range(6)]
    for scores, labels in samples:
        for part in range(4):
            metric.update(scores[part::4], labels[part::4])
            tally.add(scores[part::4].double().numpy(), labels[part::4].numpy() > 0.5)
            assert tally._pending <= 1000
            assert len(tally._keys) <= 1000
    assert 500 < len(tally) <= 1000, "no more is given up than must be"
    assert tally.counts.sum() == 18000, "no example is lost"
    # A thousand scores over six powers of ten are 2 % wide or less; pairs inside of one count half.
    assert metric.compute() == pytest.approx(joined(*samples), abs=1e-3)


def test_many_small_batches_do_not_pile_up() -> None:
    tally = Tally(1 << 20)
    for _ in range(5000):
        tally.add(np.array([0.5]), np.array([True]))
    assert len(tally._waiting) < 5000
    assert tally.counts.tolist() == [[5000], [0]]


COUNTS = (700, 50, 0)


def both(limit: int) -> tuple[float, float]:
    roles.start(is_collective=True)
    metric = AUC(limit)
    metric.update(*sample(roles.worker_index(), COUNTS[roles.worker_index()], 1e-3))
    return metric.compute(), metric.local()


def test_workers_put_their_counts_together() -> None:
    samples = [sample(seed, count, 1e-3) for seed, count in enumerate(COUNTS)]
    expected = joined(*samples)
    found = world(3).run(both, 750)
    assert [whole for whole, _ in found] == pytest.approx([expected] * 3, abs=1e-12)
    assert found[0][1] != pytest.approx(expected, abs=1e-6), "each has a part only"
    # One less, and some are not told apart any more; all workers find the same.
    coarse = [whole for whole, _ in world(3).run(both, 749)]
    assert coarse == [coarse[0]] * 3
    assert coarse[0] == pytest.approx(expected, abs=5e-3)


def test_histograms_are_added_up() -> None:
    assert auc(np.array([[0, 3, 5]]), np.array([[4, 2, 0]])) == (3 * 5 + 5 * 6) / (8 * 6)


def test_nonsense_is_refused() -> None:
    for wrong in (1.5, -0.1, float("nan")):
        with pytest.raises(ValueError, match="between 0 and 1"):
            AUC().update(torch.tensor([wrong]), torch.tensor([1.0]))
    with pytest.raises(ValueError, match="2 predictions for 1 labels"):
        AUC().update(torch.tensor([0.5, 0.5]), torch.tensor([1.0]))
    with pytest.raises(ValueError, match="2 or more"):
        AUC(limit=1)
