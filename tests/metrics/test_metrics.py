"""Metrics over two workers are those of scikit-learn on the joined data."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import (
    accuracy_score,
    mean_absolute_error,
    mean_squared_error,
    roc_auc_score,
    root_mean_squared_error,
    top_k_accuracy_score,
)
from torch import Tensor

from fleetx import roles
from fleetx.metrics import AUC, MAE, MSE, RMSE, Accuracy, acc, mae, mse, rmse
from fleetx.testing import world

CLASSES = 7
SHARES = {"even": (20, 20), "uneven": (33, 4), "empty": (25, 0)}


def scored(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    scores = torch.randn(count, CLASSES, generator=generator)
    scores[torch.arange(count), labels] += 1.0
    return scores, labels


def numbers(count: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randn(count, 2, generator=generator)
    return targets + 0.3 * torch.randn(count, 2, generator=generator), targets


def share(tensors: tuple[Tensor, Tensor], counts: tuple[int, int]) -> tuple[Tensor, Tensor]:
    start = 0 if roles.worker_index() == 0 else counts[0]
    end = start + counts[roles.worker_index()]
    return tensors[0][start:end], tensors[1][start:end]


def measured(counts: tuple[int, int]) -> dict[str, float]:
    roles.start(is_collective=True)
    total = sum(counts)
    metrics: dict[str, Any] = {"acc1": Accuracy(), "acc3": Accuracy(topk=3)}
    errors: dict[str, Any] = {"mae": MAE(), "mse": MSE(), "rmse": RMSE()}
    area = AUC()
    scores, labels = share(scored(total), counts)
    given, targets = share(numbers(total), counts)
    for part in range(3):  # in batches, the last of which may be empty
        for metric in metrics.values():
            metric.update(scores[part::3], labels[part::3])
        for metric in errors.values():
            metric.update(given[part::3], targets[part::3])
        area.update(scores[part::3, 0].sigmoid() / 1000, (labels[part::3] == 0).float())
    every = {**metrics, **errors, "auc": area}
    return {name: metric.compute() for name, metric in every.items()}


@pytest.mark.parametrize("counts", SHARES.values(), ids=SHARES)
def test_two_workers_agree_with_scikit_learn(counts: tuple[int, int]) -> None:
    scores, labels = (tensor.numpy() for tensor in scored(sum(counts)))
    given, targets = (tensor.double().numpy() for tensor in numbers(sum(counts)))
    expected = {
        "acc1": accuracy_score(labels, scores.argmax(1)),
        "acc3": top_k_accuracy_score(labels, scores, k=3, labels=range(CLASSES)),
        "mae": mean_absolute_error(targets, given),
        "mse": mean_squared_error(targets, given),
        "rmse": root_mean_squared_error(targets.reshape(-1), given.reshape(-1)),
        "auc": roc_auc_score(labels == 0, scores[:, 0]),
    }
    for found in world(2).run(measured, counts):
        assert found == pytest.approx(expected, rel=1e-12, abs=1e-12)


def nothing() -> list[float]:
    roles.start(is_collective=True)
    return [metric.compute() for metric in (Accuracy(), MAE(), RMSE(), AUC())]


def test_nothing_counted_is_no_number() -> None:
    for found in world(2).run(nothing):
        assert [math.isnan(value) for value in found] == [True, True, True, False]
        assert found[3] == 0.5, "as the documents have it"


def from_counts() -> tuple[float, ...]:
    roles.start(is_collective=True)
    mine = roles.worker_index() + 1
    return acc(mine, 4), mae(2.0 * mine, 3), mse(np.array(9.0), np.array([2])), rmse(9.0, 2)


def test_the_documents_functions_add_counts_up() -> None:
    assert world(2).run(from_counts) == [(3 / 8, 1.0, 4.5, math.sqrt(4.5))] * 2


def test_blank_entries_and_classes_instead_of_scores() -> None:
    metric = Accuracy()
    metric.update(torch.tensor([1, 2, 0, 0]), torch.tensor([1, 1, -1, 0]))
    assert metric.counts == (2, 3)
    metric.reset()
    assert math.isnan(metric.local())
    few = Accuracy(topk=5)
    few.update(torch.tensor([[0.1, 0.9], [0.2, 0.8]]), torch.tensor([0, 1]))
    assert few.local() == 1.0, "with two classes the right one is among five"


CHANCES, CLICKS = [0.9, 0.2, 0.7, 0.4], [1, 0, 0, 1]
FORMS: dict[str, Callable[[list[Any]], Any]] = {
    "list": lambda values: values,
    "array": np.array,
    "tensor": torch.tensor,
    "column": lambda values: torch.tensor(values)[:, None],
    "tensors": lambda values: [torch.tensor(value) for value in values],
}
LABELS: dict[str, Callable[[list[int]], Any]] = {
    **FORMS,
    "bools": lambda values: torch.tensor(values) > 0,
    "floats": lambda values: torch.tensor(values).float(),
    "bytes": lambda values: np.array(values, np.uint8),
}


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
@pytest.mark.parametrize("given", FORMS.values(), ids=FORMS)
def test_probabilities_of_two_classes_in_any_form(given: Any, labels: Any) -> None:
    """Once 0.0, for no probability is equal to a label; lists crashed."""
    right, area = Accuracy(), AUC()
    right.update(given(CHANCES), labels(CLICKS))
    area.update(given(CHANCES), labels(CLICKS))
    assert right.counts == (2, 4)
    assert area.local() == roc_auc_score(CLICKS, CHANCES)
    both = [[1 - chance, chance] for chance in CHANCES]
    table, scores = AUC(), Accuracy()
    table.update(np.array(both), labels(CLICKS))
    scores.update(both, labels(CLICKS))
    assert (table.local(), scores.counts) == (area.local(), (2, 4))


@pytest.mark.parametrize("given", FORMS.values(), ids=FORMS)
def test_classes_and_numbers_in_any_form(given: Any) -> None:
    metric = Accuracy()
    metric.update(given([3, 1, 2]), given([3, 1, 0]))
    metric.update(given([3.0, 1.0, 0.0]), given([3, 1, 0]))
    assert metric.counts == (5, 6)
    error = MAE()
    error.update(given([1.5, 2.0]), given([1, 4]))
    assert error.local() == 1.25


def test_empty_batches_count_nothing() -> None:
    metric, area, error = Accuracy(), AUC(), MAE()
    metric.update(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long))
    metric.update([], [])
    area.update([], [])
    error.update([], [])
    assert metric.counts == (0, 0)


@pytest.mark.parametrize(
    ("metric", "given", "labels", "match"),
    [
        (Accuracy, [2.5, -1.5], [1, 0], "neither classes nor probabilities"),
        (Accuracy, [0.5, 0.2], [1, 2], "neither 0 nor 1"),
        (Accuracy, [[0.1, 0.9]], [0.5], "name no classes"),
        (Accuracy, np.zeros((2, 3, 4)), [1, 0], "which dimension the classes are"),
        (Accuracy, np.zeros((2, 3)), np.eye(3)[:2], "2 scores for 6 labels"),
        (Accuracy, [0.1, 0.9], [1], "2 scores for 1 labels"),
        (Accuracy, [[0.1], [0.2, 0.3]], [1, 0], "no rectangle"),
        (Accuracy, None, [1], "pass a tensor"),
        (AUC, [0.1, 1.2], [1, 0], "not between 0 and 1"),
        (AUC, [0.1, 0.2], [1, 2], "neither 0 nor 1"),
        (AUC, np.zeros((2, 3)), [1, 0], "more than two classes"),
        (AUC, [0.1], [1, 0], "1 predictions for 2 labels"),
        (AUC, "text", [1], "pass a tensor"),
        (MAE, [1.0, 2.0], [[1.0], [2.0]], r"shape \[2\] and targets of shape \[2, 1\]"),
        (RMSE, {"a": 1}, [1.0], "pass a tensor"),
    ],
)
def test_what_cannot_be_counted_is_said(metric: Any, given: Any, labels: Any, match: str) -> None:
    with pytest.raises((ValueError, TypeError), match=match):
        metric().update(given, labels)


def test_labels_that_are_no_class_are_noticed_when_the_device_is_asked() -> None:
    metric = Accuracy()
    metric.update(torch.randn(3, 3), torch.tensor([1, 2, 3]))  # numbered from 1
    with pytest.raises(ValueError, match="1 labels are none of the classes 0 to 2"):
        metric.compute()
    other = Accuracy(ignore_label=3)
    other.update(torch.randn(3, 3), torch.tensor([1, 2, 3]))
    assert other.counts[1] == 2


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="1 or more"):
        Accuracy(topk=0)
    with pytest.raises(ValueError, match="pass a matrix"):
        Accuracy(topk=5).update(torch.tensor([1, 2]), torch.tensor([1, 2]))
    with pytest.raises(ValueError, match="2 scores for 3 labels"):
        Accuracy().update(torch.zeros(2, 3), torch.zeros(3))
    with pytest.raises(ValueError, match=r"shape \[3\] and targets of shape \[3, 1\]"):
        MSE().update(torch.zeros(3), torch.zeros(3, 1))
