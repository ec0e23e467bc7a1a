"""Losses and inputs of ``paddle.fluid.layers`` for many classes and for clicks."""

import math
from typing import Any

import torch
from torch.nn import functional as F

from fleetx.compat import unique_names
from fleetx.compat.paddle.fluid.layers.common import named, refused
from fleetx.compat.paddle.fluid.layers.linear import BIAS, WEIGHT
from fleetx.compat.parameters import create
from fleetx.compat.recorded import settle
from fleetx.static.layers.parameters import size_of


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
    if sampler not in {"uniform", "log_uniform"} or custom_dist is not None:
        raise refused(
            "layers.nce",
            f"sampler={sampler!r}",
            "draws by a distribution of the script's own, which is not covered",
            "use 'uniform' or 'log_uniform'",
        )
    layer, count = name or unique_names.generate("nce"), num_neg_samples or 10
    shape = [num_total_classes, size_of(input, 1)]
    weight = create(layer, param_attr, shape, input.dtype, default=WEIGHT)
    bias = create(layer, bias_attr, [shape[0], 1], input.dtype, default=BIAS, is_bias=True)
    drawn = torch.rand_like(torch.tile(input[:, :1].detach(), (1, count)))
    ids = torch.cat([label, _classes(drawn, sampler, shape[0])], 1)
    scores = torch.sum(input[:, None] * F.embedding(ids, weight), -1)
    if bias is not None:
        scores = scores + torch.squeeze(F.embedding(ids, bias), -1)
    given = torch.sigmoid(scores)
    chance = count * _chance(ids, sampler, shape[0])
    own = -torch.log(given[:, :1] / (given[:, :1] + chance[:, :1]))
    others = -torch.log(chance[:, 1:] / (given[:, 1:] + chance[:, 1:]))
    found = own + torch.sum(others, 1, keepdim=True)
    return named(found if sample_weight is None else found * sample_weight, name)


def _classes(drawn: Any, sampler: str, total: int) -> Any:
    """Classes for numbers between 0 and 1."""
    if sampler == "uniform":  # noqa: SIM108
        found = drawn * total
    else:
        found = torch.exp(drawn * math.log(total + 1)) - 1
    return torch.clamp_max(torch.Tensor.to(found, torch.int64), total - 1)


def _chance(ids: Any, sampler: str, total: int) -> Any:
    """How likely each class is drawn."""
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
