"""``paddle.fluid.contrib.layers.metric_op``: sums over all batches, for metrics of clicks."""

from typing import Any

import torch

from fleetx.compat import unique_names
from fleetx.compat.fills import Number
from fleetx.compat.parameters import ParamAttr, create
from fleetx.compat.recorded import rebind, settle


def ctr_metric_bundle(input: Any, label: Any, ins_tag_weight: Any = None) -> tuple[Any, ...]:
    """What metrics of all workers are computed from, added up over batches.

    Returns:
        Squared errors, absolute errors, predictions, their sigmoids, positive samples, samples.
    """
    settle(input, label)
    if input.dim() != 2 or list(input.shape) != list(label.shape):
        raise ValueError(
            f"ctr_metric_bundle() takes predictions and labels of shape [n, 1], got "
            f"{list(input.shape)} and {list(label.shape)}."
        )
    with torch.no_grad():
        given, wanted = input.detach(), torch.Tensor.to(label, input.dtype)
        each = [
            torch.square(given - wanted),
            torch.abs(given - wanted),
            given,
            torch.sigmoid(given),
            wanted,
            torch.ones_like(given),
        ]
        if ins_tag_weight is not None:
            each = [value * ins_tag_weight for value in each]
        held = [_kept() for _ in each]
        for sum_, value in zip(held, each, strict=True):
            rebind(sum_, sum_ + torch.reshape(torch.sum(value), (1,)))
    return tuple(held)


def _kept() -> Any:
    attr = ParamAttr(name=unique_names.generate("_generated_var"), trainable=False)
    return create("ctr_metric_bundle", attr, [1], "float32", default=Number(0.0))
