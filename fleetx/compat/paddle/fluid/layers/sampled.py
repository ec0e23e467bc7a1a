"""Losses and inputs of ``paddle.fluid.layers`` for many classes and for clicks."""

import math
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from fleetx.compat import unique_names
from fleetx.compat.paddle.fluid.layers.common import named
from fleetx.compat.paddle.fluid.layers.linear import BIAS, WEIGHT
from fleetx.compat.parameters import create
from fleetx.compat.recorded import settle
from fleetx.static.layers.parameters import size_of

_CLOSE = 1e-3
"""How far from 1 a sum of probabilities may be that a script has rounded."""


def nce(  # noqa: PLR0917
    input: Any,
    label: Any,
    num_total_classes: int,
    sample_weight: Any = None,
    param_attr: Any = None,
    bias_attr: Any = None,
    num_neg_samples: int | None = None,
    name: str | None = None,
    sampler: str = "uniform",
    custom_dist: Any = None,
    seed: int = 0,
    is_sparse: bool = False,
) -> Any:
    """How well the label is told from classes that are drawn, for each example: [N, 1]."""
    settle(input, label)
    _check_sampler(sampler, custom_dist, num_total_classes)
    layer, count = name or unique_names.generate("nce"), num_neg_samples or 10
    shape = [num_total_classes, size_of(input, 1)]
    weight = create(layer, param_attr, shape, input.dtype, default=WEIGHT)
    bias = create(layer, bias_attr, [shape[0], 1], input.dtype, default=BIAS, is_bias=True)
    drawn = torch.rand_like(torch.tile(input[:, :1].detach(), (1, count)))
    ids = torch.cat([label, _classes(drawn, sampler, shape[0], custom_dist)], 1)
    scores = torch.sum(input[:, None] * F.embedding(ids, weight), -1)
    if bias is not None:
        scores = scores + torch.squeeze(F.embedding(ids, bias), -1)
    given = torch.sigmoid(scores)
    chance = count * _chance(ids, sampler, shape[0], custom_dist)
    own = -torch.log(given[:, :1] / (given[:, :1] + chance[:, :1]))
    others = -torch.log(chance[:, 1:] / (given[:, 1:] + chance[:, 1:]))
    found = own + torch.sum(others, 1, keepdim=True)
    return named(found if sample_weight is None else found * sample_weight, name)


def _check_sampler(sampler: str, custom: Any, total: int) -> None:
    if sampler not in {"uniform", "log_uniform", "custom_dist"}:
        raise ValueError(
            f"layers.nce(sampler={sampler!r}): one of 'uniform', 'log_uniform' and 'custom_dist'."
        )
    if (sampler == "custom_dist") is (custom is None):
        raise ValueError(
            f"layers.nce(sampler={sampler!r}) and custom_dist={custom!r}: probabilities are given "
            "with sampler='custom_dist', and with no other; set both, or neither."
        )
    if custom is None:
        return
    chances = np.asarray(custom, "float64").reshape(-1)
    if len(chances) != total or chances.min() < 0 or abs(chances.sum() - 1) > _CLOSE:
        raise ValueError(
            f"layers.nce(custom_dist=...) has {len(chances)} numbers from {chances.min():g} on, "
            f"whose sum is {chances.sum():g}; give a probability for each of the {total} classes."
        )


def _classes(drawn: Any, sampler: str, total: int, custom: Any = None) -> Any:
    """Classes for numbers between 0 and 1."""
    if sampler == "custom_dist":
        ends = torch.from_numpy(np.cumsum(np.asarray(custom, "float64").reshape(-1)))
        found = torch.searchsorted(ends.float(), drawn, right=True)
        last = int(np.flatnonzero(np.asarray(custom).reshape(-1))[-1])  # ends may round below 1
        return torch.clamp_max(found, last)
    if sampler == "uniform":  # noqa: SIM108
        found = drawn * total
    else:
        found = torch.exp(drawn * math.log(total + 1)) - 1
    return torch.clamp_max(torch.Tensor.to(found, torch.int64), total - 1)


def _chance(ids: Any, sampler: str, total: int, custom: Any = None) -> Any:
    """How likely each class is drawn."""
    if sampler == "custom_dist":
        chances = torch.from_numpy(np.asarray(custom, "float32").reshape(-1, 1))
        return torch.squeeze(F.embedding(ids, chances), -1)
    if sampler == "uniform":
        return torch.full_like(ids, 1 / total, dtype=torch.float32)
    classes = torch.Tensor.to(ids, torch.float32)
    return torch.log((classes + 2) / (classes + 1)) / math.log(total + 1)


def continuous_value_model(input: Any, cvm: Any, use_cvm: bool = True) -> Any:
    """Rows that begin with shows and clicks: their logarithms, or without them."""
    if not use_cvm:
        return input[:, 2:]
    shows = torch.log(cvm[:, :1] + 1)
    clicks = torch.log(cvm[:, 1:2] + 1) - shows
    return torch.cat([shows, clicks, input[:, 2:]], 1)


def hsigmoid(  # noqa: PLR0917 (the order of Paddle)
    input: Any,
    label: Any,
    num_classes: int,
    param_attr: Any = None,
    bias_attr: Any = None,
    name: str | None = None,
    path_table: Any = None,
    path_code: Any = None,
    is_custom: bool = False,
    is_sparse: bool = False,
) -> Any:
    """How well the way to the label in a tree of classes is told, for each example: [N, 1]."""
    settle(input, label)
    layer = name or unique_names.generate("hierarchical_sigmoid")
    nodes = num_classes if is_custom else num_classes - 1
    weight = create(layer, param_attr, [nodes, size_of(input, 1)], input.dtype, default=WEIGHT)
    bias = create(layer, bias_attr, [nodes, 1], input.dtype, default=BIAS, is_bias=True)
    ids, turns = (path_table, path_code) if is_custom else _way(label, num_classes)
    there = torch.ge(ids, 0)
    at = torch.clamp_min(ids, 0)
    scores = torch.sum(input[:, None] * F.embedding(at, weight), -1)
    if bias is not None:
        scores = scores + torch.squeeze(F.embedding(at, bias), -1)
    scores = torch.clamp(scores, -40.0, 40.0) * torch.Tensor.to(there, input.dtype)
    # Steps that a short way has not count with a score of 0, as they do in Paddle.
    found = F.softplus(scores) - torch.Tensor.to(turns, input.dtype) * scores
    return named(torch.sum(found, 1, keepdim=True), name)


def _way(label: Any, classes: int) -> tuple[Any, Any]:
    """The inner nodes from the root of a full tree to a leaf, -1 behind its end, and the turns."""
    most = (classes - 1).bit_length()
    code = torch.reshape(label, (-1, 1)) + classes
    bits = [
        (torch.bitwise_right_shift(code, bit + 1) - 1, torch.bitwise_right_shift(code, bit) & 1)
        for bit in range(most)
    ]
    return torch.cat([node for node, _ in bits], 1), torch.cat([turn for _, turn in bits], 1)


def teacher_student_sigmoid_loss(
    input: Any,
    label: Any,
    soft_max_up_bound: float = 15.0,
    soft_max_lower_bound: float = -15.0,
) -> Any:
    """The loss of clicks, and that of a teacher's score; labels from 1 on were clicked."""
    x = torch.clamp(input, soft_max_lower_bound, soft_max_up_bound)
    hard = torch.Tensor.to(
        torch.ge(label, 1.0) | (torch.ge(label, -1.0) & torch.lt(label, 0.0)), x.dtype
    )
    taught = torch.ge(label, 0.0)
    score = torch.where(torch.ge(label, 1.0), label - 1.0, label)
    own = F.softplus(x) - x * hard
    return own + torch.where(taught, F.softplus(x) - x * score, torch.zeros_like(x))


def sampled_softmax_with_cross_entropy(  # noqa: PLR0917 (the order of Paddle)
    logits: Any,
    label: Any,
    num_samples: int,
    num_true: int = 1,
    remove_accidental_hits: bool = True,
    use_customized_samples: bool = False,
    customized_samples: Any = None,
    customized_probabilities: Any = None,
    seed: int = 0,
) -> Any:
    """Cross entropy of the label among classes that are drawn, for each example: [N, 1]."""
    settle(logits, label)
    total = size_of(logits, 1)
    if use_customized_samples:
        ids, chance = customized_samples, customized_probabilities
    else:
        drawn = torch.rand_like(torch.tile(logits[:, :1].detach(), (1, num_samples)))
        ids = torch.cat([label, _classes(drawn, "log_uniform", total)], 1)
        chance = num_samples * _chance(ids, "log_uniform", total)
    scores = torch.gather(logits, 1, ids) - torch.log(chance)
    if remove_accidental_hits:
        truth = ids[:, None, :num_true]
        hit = torch.any(torch.eq(ids[:, num_true:, None], truth), -1)
        hit = torch.cat([torch.zeros_like(ids[:, :num_true], dtype=torch.bool), hit], 1)
        scores = torch.where(hit, scores - 1e20, scores)
    found = F.log_softmax(scores, 1)[:, :num_true]
    return -torch.mean(found, 1, keepdim=True)
