"""Losses of ``paddle.fluid.layers``."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from typing_extensions import override

from fleetx.compat import unique_names
from fleetx.compat.fills import XavierFill
from fleetx.compat.labels import check_alike, check_labels
from fleetx.compat.paddle.fluid.layers.common import named
from fleetx.compat.parameters import ParamAttr, create
from fleetx.compat.recorded import agreed, settle
from fleetx.record.variable import Variable
from fleetx.static.layers.parameters import size_of

kIgnoreIndex = -100


def cross_entropy(
    input: Any, label: Any, soft_label: bool = False, ignore_index: int = kIgnoreIndex
) -> Any:
    """Minus the logarithm of the probability of each label: [N, classes], [N, 1] -> [N, 1]."""
    logs = torch.nan_to_num(torch.log(input), nan=float("nan"), neginf=-1e20)
    return _picked(logs, label, soft_label, ignore_index, -1)


def _picked(logs: Any, label: Any, soft: bool, ignore: int, axis: int) -> Any:
    check_labels(logs, label, axis, soft=soft)
    label = _of_rows(logs, label)
    if soft:
        return -torch.sum(logs * label, axis, keepdim=True)
    flat = label.dim() < logs.dim()
    at = torch.unsqueeze(label, axis) if flat else label
    at = torch.Tensor.to(at, torch.int64)
    ignored = torch.eq(at, ignore)
    found = -torch.gather(logs, axis, torch.where(ignored, torch.zeros_like(at), at))
    # Zeros of the predictions' sizes: a run with fewer labels than rows fails here.
    found = torch.where(ignored, torch.zeros_like(torch.narrow(logs, axis, 0, 1)), found)
    return torch.squeeze(found, axis) if flat else found


def _of_rows(x: Any, label: Any) -> Any:
    """Labels of as many rows as there are predictions."""
    flat = label.dim() < x.dim()
    found = agreed(x, torch.unsqueeze(label, -1) if flat else label)
    return torch.squeeze(found, -1) if flat else found


def softmax_with_cross_entropy(  # noqa: PLR0917
    logits: Any,
    label: Any,
    soft_label: bool = False,
    ignore_index: int = kIgnoreIndex,
    numeric_stable_mode: bool = True,
    return_softmax: bool = False,
    axis: int = -1,
) -> Any:
    """The cross entropy of logits, which may be shown as probabilities as well."""
    found = _picked(F.log_softmax(logits, axis), label, soft_label, ignore_index, axis)
    return (found, F.softmax(logits, axis)) if return_softmax else found


def sigmoid_cross_entropy_with_logits(
    x: Any,
    label: Any,
    ignore_index: int = kIgnoreIndex,
    name: str | None = None,
    normalize: bool = False,
) -> Any:
    """The cross entropy of each number by itself."""
    label = torch.Tensor.to(agreed(x, label), x.dtype)
    kept = torch.Tensor.to(torch.ne(label, ignore_index), x.dtype)
    found = F.binary_cross_entropy_with_logits(x, label * kept, reduction="none") * kept
    if normalize:
        found = found / torch.clamp_min(torch.sum(kept), 1.0)
    return named(found, name)


def square_error_cost(input: Any, label: Any) -> Any:
    """The squared difference of each number."""
    return torch.square(input - agreed(input, label))


def mse_loss(input: Any, label: Any) -> Any:
    """The mean squared difference."""
    return torch.reshape(torch.mean(torch.square(input - label)), (1,))


def log_loss(input: Any, label: Any, epsilon: float = 1e-4, name: str | None = None) -> Any:
    """The cross entropy of probabilities of class 1."""
    check_alike(input, label)
    label = agreed(input, label)
    found = -label * torch.log(input + epsilon) - (1 - label) * torch.log(1 - input + epsilon)
    return named(found, name)


def huber_loss(input: Any, label: Any, delta: float) -> Any:
    """Squared near zero, in a line farther away."""
    check_alike(input, label)
    return F.huber_loss(input, label, reduction="none", delta=delta)


def smooth_l1(
    x: Any,
    y: Any,
    inside_weight: Any = None,
    outside_weight: Any = None,
    sigma: float | None = None,
) -> Any:
    """Squared near zero, in a line farther away, added up for each row: [N, 1]."""
    square = float(sigma or 1.0) ** 2
    apart = (x - y) * (1.0 if inside_weight is None else inside_weight)
    size = torch.abs(apart)
    near = 0.5 * square * torch.square(apart)
    found = torch.where(size < 1.0 / square, near, size - 0.5 / square)
    found = found * (1.0 if outside_weight is None else outside_weight)
    return torch.sum(torch.flatten(found, 1), 1, keepdim=True)


def kldiv_loss(x: Any, target: Any, reduction: str = "mean", name: str | None = None) -> Any:
    """How much logarithms of probabilities differ from probabilities."""
    logs = torch.log(torch.where(target > 0, target, torch.ones_like(target)))
    apart = torch.where(target > 0, target * (logs - x), torch.zeros_like(x))
    if reduction == "none":
        return named(apart, name)
    total = torch.sum(apart)
    counts = {"mean": torch.mean(apart), "sum": total, "batchmean": total / x.shape[0]}
    return named(torch.reshape(counts[reduction], (1,)), name)


def rank_loss(label: Any, left: Any, right: Any, name: str | None = None) -> Any:
    """How badly two scores are in order."""
    apart = left - right
    return named(F.softplus(apart) - label * apart, name)


def margin_rank_loss(
    label: Any, left: Any, right: Any, margin: float = 0.1, name: str | None = None
) -> Any:
    """How far two scores are from being in order by a margin."""
    return named(torch.relu(-label * (left - right) + margin), name)


def bpr_loss(input: Any, label: Any, name: str | None = None) -> Any:
    """How the score of the label stands against all others: [N, 1]."""
    check_labels(input, label)
    classes = input.shape[-1]
    chosen = torch.gather(input, -1, label)
    each = F.softplus(input - chosen)
    own = torch.gather(each, -1, label)
    return named((torch.sum(each, -1, keepdim=True) - own) / (classes - 1), name)


def dice_loss(input: Any, label: Any, epsilon: float = 1e-5, name: str | None = None) -> Any:
    """One minus how much predicted and true regions overlap."""
    ids = torch.squeeze(label, -1)
    true = torch.Tensor.to(F.one_hot(ids, input.shape[-1]), input.dtype)
    over = tuple(range(1, input.dim()))
    both = torch.sum(input * true, over)
    total = torch.sum(input, over) + torch.sum(true, over)
    return named(torch.reshape(torch.mean(1 - 2 * both / (total + epsilon)), (1,)), name)


def npair_loss(anchor: Any, positive: Any, labels: Any, l2_reg: float = 0.002) -> Any:
    """How far rows of one class are from each other, against those of others."""
    ids = torch.reshape(labels, (-1, 1))
    same = torch.Tensor.to(torch.eq(ids, torch.transpose(ids, 0, 1)), anchor.dtype)
    same = same / torch.sum(same, 1, keepdim=True)
    sizes = torch.mean(torch.sum(anchor**2, 1)) + torch.mean(torch.sum(positive**2, 1))
    scores = F.log_softmax(torch.matmul(anchor, torch.transpose(positive, 0, 1)), -1)
    each = -torch.sum(same * scores, -1)
    return torch.reshape(torch.mean(each) + sizes * 0.25 * l2_reg, (1,))


class CenterLoss(nn.Module):
    """Half the square distance to the centre of a class; centres follow their samples."""

    one_operator = True
    centers: nn.Parameter

    def __init__(self, centers: Any, rate: float, moves: bool) -> None:
        super().__init__()
        self.rate, self.moves = rate, moves
        self.register_parameter("centers", centers)

    @override
    def forward(self, x: Any, label: Any) -> Any:
        """The loss of each sample, shaped [n, 1]."""
        index = label.reshape(-1).long()
        apart = x - self.centers.detach()[index]
        if self.moves and self.training:
            with torch.no_grad():
                total = torch.zeros_like(self.centers).index_add(0, index, apart)
                count = torch.ones_like(self.centers[:, :1])
                count = count.index_add(0, index, torch.ones_like(apart[:, :1]))
                self.centers.data.add_(self.rate * total / count)
        return 0.5 * torch.sum(apart**2, 1, keepdim=True)


def center_loss(  # noqa: PLR0917
    input: Any,
    label: Any,
    num_classes: int,
    alpha: float,
    param_attr: Any,
    update_center: bool = True,
) -> Any:
    """How far samples are from the centre of their class."""
    settle(input, label)
    layer, given = unique_names.generate("center_loss"), ParamAttr.of(param_attr) or ParamAttr()
    attr = ParamAttr(name=given.name, initializer=given.initializer, trainable=False)
    shape, start = [num_classes, size_of(input, 1)], XavierFill(None, None, uniform=True)
    made = create(layer, attr, shape, input.dtype, default=start)
    centers = made.program.parameter(made.node) if isinstance(made, Variable) else made
    return CenterLoss(centers, float(alpha), update_center)(input, label)
