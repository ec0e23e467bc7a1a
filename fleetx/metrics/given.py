"""What users give to metrics: tensors, arrays or lists, in memory of any device."""

import logging
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fleetx.data import fillers

logger = logging.getLogger(__name__)


def pair(**given: Any) -> tuple[Tensor, Tensor]:
    """Both as tensors on the device of the first, without the samples that fill up a batch.

    Args:
        given: the two, under the names that the user knows them by.
    """
    found, true = (tensor_of(value, name) for name, value in given.items())
    true = true.to(found.device)
    if len(found) != len(true):
        return found, true  # whoever compares them says what is wrong
    filling = fillers.current()
    try:
        found, true = fillers.without((found, true), filling)
    except ValueError as error:
        logger.warning(
            "%s: all are counted. Leave out the places that loader.fillers names before, or pass "
            "uneven='drop' to distributed_loader()",
            error,
        )
    return found, true


def tensor_of(value: Any, noun: str) -> Tensor:
    """A tensor of at least one dimension."""
    try:
        tensor = _tensor(value).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"{noun} are {type(value).__name__} that make no rectangle of numbers ({error}); pass "
            "a tensor, an array, or a list of numbers"
        ) from None
    return tensor.reshape(-1) if tensor.dim() == 0 else tensor


def _tensor(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if isinstance(value, list | tuple) and any(isinstance(each, Tensor) for each in value):
        return torch.stack([torch.as_tensor(each) for each in value])
    array = np.asarray(value)
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64)
    return torch.as_tensor(array)


def check_lengths(predictions: Tensor, labels: Tensor, noun: str = "predictions") -> None:
    """One label for each prediction, which the user calls by the noun."""
    if len(predictions) != labels.numel():
        raise ValueError(
            f"there are {len(predictions)} {noun} for {labels.numel()} labels (shapes "
            f"{list(predictions.shape)} and {list(labels.shape)}); pass one label for each of the "
            f"{noun}, and classes by their numbers"
        )


def is_whole(tensor: Tensor) -> bool:
    """Whether these are numbers of classes, also where they come as floats; may wait for a card."""
    return not tensor.is_floating_point() or bool((tensor == tensor.round()).all())
