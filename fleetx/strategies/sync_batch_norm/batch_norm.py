"""Batch normalisation over the samples of all ranks, for tensors on the CPU."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from typing_extensions import override


def normalise(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    *,
    eps: float,
    group: dist.ProcessGroup,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Normalise ``x`` (samples, channels, ...) by the mean and variance over all ranks.

    Returns:
        The result, and what was found per channel: mean, biased variance, number of values.
    """
    apply: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]] = _Normalise.apply
    return apply(x, weight, bias, eps, group)


@torch.no_grad()
def track(running: Tensor, batch: Tensor, share: float) -> None:
    """Move a running statistic towards that of the batch: running + share * (batch - running)."""
    running.mul_(1 - share).add_(batch.to(running.dtype), alpha=share)


def merge(means: Tensor, deviations: Tensor, counts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Statistics of parts -> mean, biased variance and count of the whole.

    With part i holding n_i values of mean m_i and sum of squared deviations d_i from it::

        n = sum(n_i)    mean = sum(n_i * m_i) / n    variance = sum(d_i + n_i * (m_i - mean)^2) / n

    No square of a value is summed, so nothing cancels where the mean is large.

    Args:
        means: one row per part, one column per channel.
        deviations: likewise.
        counts: one row per part, one column.
    """
    n, m, d = counts.double(), means.double(), deviations.double()
    count = n.sum()
    mean = (n * m).sum(0) / count
    variance = (d + n * (m - mean).square()).sum(0) / count
    return mean.to(means.dtype), variance.to(means.dtype), count


def statistics(x: Tensor, group: dist.ProcessGroup) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, biased variance and count over all ranks: one all-gather of 2 * channels + 1 numbers.

    Every rank merges the same rows, so all of them get the same bits.
    """
    channels = x.shape[1]
    count = x.numel() // channels
    if count:
        variance, mean = torch.var_mean(x, dim=_all_but_channels(x), correction=0)
    else:
        mean = variance = x.new_zeros(channels)
    mine = torch.cat([mean, variance * count, mean.new_tensor([count])])
    rows = mine.new_empty(dist.get_world_size(group), len(mine))
    dist.all_gather(list(rows.unbind()), mine, group=group)
    means, deviations, counts = rows.split([channels, channels, 1], dim=1)
    return merge(means, deviations, counts)


class _Normalise(torch.autograd.Function):
    """Forward: one all-gather. Backward: one all-reduce, if the input needs a gradient."""

    @staticmethod
    @override
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        group: dist.ProcessGroup,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        mean, variance, count = statistics(_wide(x), group)
        if count < 2:
            raise ValueError(
                f"a batch norm in training got {int(count)} value per channel on all ranks "
                f"together (input {list(x.shape)} here), which has no variance; train with larger "
                "batches."
            )
        ctx.save_for_backward(x, weight, mean, torch.rsqrt(variance + eps), count)
        ctx.group = group
        ctx.mark_non_differentiable(mean, variance, count)
        # The kernel that one process would use, with other statistics.
        y = F.batch_norm(_wide(x), mean, variance, _as(mean, weight), _as(mean, bias), eps=eps)
        # Not of itself: compiled code of torch 2.11 loses all gradients of a function that returns
        # what to() leaves alone.
        return y if y.dtype == x.dtype else y.to(x.dtype), mean, variance, count

    @staticmethod
    @once_differentiable
    @override
    def backward(ctx: Any, dy: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        x, weight, mean, inverse, count = ctx.saved_tensors
        dy, centred = _wide(dy), _wide(x) - _per_channel(mean, x)
        axes = _all_but_channels(x)
        sums = torch.stack([dy.sum(axes), (dy * centred).sum(axes)])
        dweight = (sums[1] * inverse).to(weight.dtype) if ctx.needs_input_grad[1] else None
        dbias = sums[0].clone() if ctx.needs_input_grad[2] else None
        if not ctx.needs_input_grad[0]:
            return None, dweight, dbias, None, None
        dist.all_reduce(sums, group=ctx.group)
        sums /= count
        spread = _per_channel(sums[1] * inverse.square(), x)
        dx = dy - _per_channel(sums[0], x) - centred * spread
        dx *= _per_channel(inverse if weight is None else inverse * weight, x)
        return dx.to(x.dtype), dweight, dbias, None, None


def _as(mean: Tensor, affine: Tensor | None) -> Tensor | None:
    return None if affine is None else affine.to(mean.dtype)


def _wide(x: Tensor) -> Tensor:
    """Statistics of half-precision numbers are computed in single precision."""
    return x.float() if x.dtype in {torch.float16, torch.bfloat16} else x


def _all_but_channels(x: Tensor) -> list[int]:
    return [dim for dim in range(x.dim()) if dim != 1]


def _per_channel(values: Tensor, x: Tensor) -> Tensor:
    return values.view(-1, *[1] * (x.dim() - 2))
