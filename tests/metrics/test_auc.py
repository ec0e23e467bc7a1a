"""The area under the curve, against its definition."""

import numpy as np
import pytest
import torch

from fleetx import roles
from fleetx.metrics import AUC, auc
from fleetx.testing import world


def sample(seed: int, count: int = 400) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = (torch.rand(count, generator=generator) < 0.3).float()
    shift = 0.2 * labels
    return (torch.rand(count, generator=generator) * 0.8 + shift).clamp(0, 1), labels


def by_pairs(predictions: torch.Tensor, labels: torch.Tensor) -> float:
    up, down = predictions[labels > 0.5], predictions[labels <= 0.5]
    above = (up[:, None] > down[None]).float() + 0.5 * (up[:, None] == down[None]).float()
    return above.mean().item()


def test_it_is_the_share_of_pairs_in_the_right_order() -> None:
    predictions, labels = sample(0)
    rounded = (predictions * 511).round() / 511
    metric = AUC(bins=512)
    for part in range(4):
        metric.update(predictions[part::4], labels[part::4])
    assert abs(metric.compute() - by_pairs(rounded, labels)) < 1e-6
    assert abs(AUC().local() - 0.5) < 1e-9, "nothing was counted"
    perfect = AUC()
    perfect.update(labels, labels)
    assert perfect.compute() == 1.0


def both() -> tuple[float, float]:
    roles.start(is_collective=True)
    metric = AUC()
    metric.update(*sample(roles.worker_index()))
    return metric.compute(), auc(metric.positive, metric.negative)


def test_workers_add_their_counts_up() -> None:
    found = world(2).run(both)
    whole = AUC()
    for seed in range(2):
        whole.update(*sample(seed))
    assert {value for pair in found for value in pair} == {whole.local()}
    parts = AUC()
    parts.update(*sample(0))
    assert not np.isclose(parts.local(), whole.local(), atol=1e-6)


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        AUC().update(torch.tensor([1.5]), torch.tensor([1.0]))
    with pytest.raises(ValueError, match="2 or more"):
        AUC(bins=1)
