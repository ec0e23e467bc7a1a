"""Functions that every rank computes completely: from parts of tensors torch cannot."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Function = Callable[..., Any]

_WRITE_OR_MIX: set[Function] = {F.batch_norm, F.instance_norm, F.multi_head_attention_forward}
"""They write to their arguments, or consist of others which would mix tensors."""
_WRONG: set[Function] = {
    *(torch.conv1d, torch.conv2d, torch.conv3d),
    *(torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d),
    *(torch.cumsum, torch.cumprod, torch.cummax, torch.cummin, torch.logcumsumexp),
    *(Tensor.cumsum, Tensor.cumprod, Tensor.cummax, Tensor.cummin, Tensor.logcumsumexp),
    *(torch.amax, torch.amin, Tensor.amax, Tensor.amin, F.adaptive_avg_pool2d),
    *(F.binary_cross_entropy, F.binary_cross_entropy_with_logits, F.cosine_embedding_loss),
    *(F.huber_loss, F.l1_loss, F.mse_loss, F.smooth_l1_loss, F.soft_margin_loss),
    *(torch.any, torch.all, Tensor.any, Tensor.all),
}
"""Of which DTensor computes other numbers without a word: means of parts that are not equally
large, sums along a dimension that is cut and counted from the end, windows over an edge."""
_WITHOUT_RULE: set[Function] = {
    *(F.avg_pool1d, F.avg_pool2d, F.avg_pool3d, F.max_pool3d, F.prelu, F.rms_norm, F.group_norm),
    *(F.adaptive_avg_pool3d, F.local_response_norm, F.hardshrink, F.hardsigmoid, F.hardswish),
    *(F.hardtanh, F.relu6, F.softshrink, F.logsigmoid, F.bilinear, F.unfold),
    *(torch.cdist, torch.masked_select, torch.prod, torch.quantile, torch.trapezoid),
    *(Tensor.masked_select, Tensor.prod, Tensor.quantile, Tensor.unfold),
    *(F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d),
    *(F.lp_pool1d, F.lp_pool2d, F.ctc_loss, F.multilabel_soft_margin_loss),
    *(torch.index_put, torch.polar, torch.take, torch.trace),
    *(Tensor.index_put, Tensor.take, Tensor.trace),
}
"""For which it has no rule, or none for their backward."""
READ: set[Function] = {
    *(torch.allclose, torch.bincount, torch.nonzero, torch.unique),
    *(Tensor.allclose, Tensor.bincount, Tensor.nonzero, Tensor.unique),
    *(Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.__contains__, Tensor.__format__),
}
"""What comes of them depends on all numbers, which no rank has."""
WRITE_WRONGLY: frozenset[Function] = frozenset(
    {Tensor.index_add_, Tensor.index_copy_, Tensor.scatter_add_}
)
"""Which write to a part by the places of the whole, or to a copy."""
COMPLETE = frozenset(_WRITE_OR_MIX | _WRONG | _WITHOUT_RULE | READ)


_GATHERS = frozenset({torch.gather, Tensor.gather})


def picks_by_tensor(func: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """Whether it picks by a mask, of which each rank has another part, or from a part of a tensor.

    DTensor gathers from the places that a rank has, and not from those that are meant.
    """
    if func in _GATHERS and len(args) == 3:
        dim = args[1] % args[0].ndim
        sizes = zip(args[0].shape, args[2].shape, strict=True)
        return any(one != other for at, (one, other) in enumerate(sizes) if at != dim)
    if func is not Tensor.__getitem__:
        return False
    places = args[1] if isinstance(args[1], tuple) else (args[1],)
    return any(isinstance(place, Tensor) and place.dtype == torch.bool for place in places)


def lists_places(func: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """Whether it is ``torch.where(mask)``, whose result is as long as the mask has places."""
    return func is torch.where and len(args) == 1


def has_no_rule(error: Exception) -> bool:
    """Whether DTensor knows no way to compute a function from parts."""
    return isinstance(error, NotImplementedError) and "sharding strategy" in str(error)
