"""Layers for scripts that write a program line by line: ``static.nn.fc`` and its like.

They are modules of ``torch.nn``, so strategies find them, with torch's first values. Any function or
module of torch works on variables as well; these only make the module where it is used.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from fleetx.static.error import ProgramError
from fleetx.static.layers import Attr, ParamAttr, activated, layer, size_of
from fleetx.static.variable import Variable

Activation = str | Callable[[Any], Any] | None
Pair = int | tuple[int, int]

__all__ = [
    "ParamAttr",
    "batch_norm",
    "conv2d",
    "conv2d_transpose",
    "create_parameter",
    "cross_entropy",
    "dropout",
    "embedding",
    "fc",
    "group_norm",
    "instance_norm",
    "layer_norm",
    "pool2d",
    "prelu",
    "sparse_embedding",
]


def fc(
    x: Variable | Sequence[Variable],
    size: int,
    num_flatten_dims: int = 1,
    weight_attr: Attr = None,
    bias_attr: Attr = None,
    activation: Activation = None,
    name: str | None = None,
) -> Variable:
    """A fully connected layer; several inputs are transformed one by one and added.

    Args:
        x: one variable or several.
        size: the number of outputs.
        num_flatten_dims: leading dimensions that stay; the others become one.
        weight_attr: how the weight starts.
        bias_attr: how the bias starts; False for none.
        activation: what follows, by name or as a function.
        name: of the layer; numbered if None.
    """
    inputs = [x] if isinstance(x, Variable) else list(x)
    total: Any = None
    for at, given in enumerate(inputs):
        flat = given.flatten(num_flatten_dims) if given.dim() > num_flatten_dims + 1 else given
        width, with_bias = size_of(flat, -1), bias_attr is not False and at == 0
        module = layer(
            "fc",
            lambda width=width, with_bias=with_bias: nn.Linear(width, size, bias=with_bias),
            name=f"{name}_{at}" if name and at else name,
            weight=weight_attr,
            bias=bias_attr if with_bias else None,
        )
        total = module(flat) if total is None else total + module(flat)
    return activated(total, activation)


def conv2d(
    input: Variable,
    num_filters: int,
    filter_size: Pair,
    stride: Pair = 1,
    padding: Pair | str = 0,
    dilation: Pair = 1,
    groups: int = 1,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    act: Activation = None,
    name: str | None = None,
) -> Variable:
    """A convolution over images [N, C, H, W]."""
    channels = size_of(input, 1)
    module = layer(
        "conv2d",
        lambda: nn.Conv2d(
            channels,
            num_filters,
            filter_size,
            stride,
            padding,
            dilation,
            groups,
            bias=bias_attr is not False,
        ),
        name=name,
        weight=param_attr,
        bias=bias_attr,
    )
    return activated(module(input), act)


def conv2d_transpose(
    input: Variable,
    num_filters: int,
    filter_size: Pair,
    stride: Pair = 1,
    padding: Pair = 0,
    groups: int = 1,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    act: Activation = None,
    name: str | None = None,
) -> Variable:
    """The convolution whose gradient ``conv2d`` is."""
    channels, bias = size_of(input, 1), bias_attr is not False
    module = layer(
        "conv2d_transpose",
        lambda: nn.ConvTranspose2d(
            channels, num_filters, filter_size, stride, padding, groups=groups, bias=bias
        ),
        name=name,
        weight=param_attr,
        bias=bias_attr,
    )
    return activated(module(input), act)


def batch_norm(
    input: Variable,
    act: Activation = None,
    momentum: float = 0.9,
    epsilon: float = 1e-5,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    is_test: bool = False,
    name: str | None = None,
) -> Variable:
    """Batch normalisation; ``momentum`` is the share of the old statistics that stays."""
    kinds: dict[int, type[nn.Module]] = {
        2: nn.BatchNorm1d,
        3: nn.BatchNorm1d,
        4: nn.BatchNorm2d,
        5: nn.BatchNorm3d,
    }
    if input.dim() not in kinds:
        raise ProgramError(
            f"batch_norm takes 2 to 5 dimensions, but {input.name!r} has {input.dim()}; bring the "
            "channels to dimension 1."
        )
    channels, kind = size_of(input, 1), kinds[input.dim()]
    module = layer(
        "batch_norm",
        lambda: kind(channels, eps=epsilon, momentum=1 - momentum),
        name=name,
        weight=param_attr,
        bias=bias_attr,
    )
    module.train(not is_test)
    return activated(module(input), act)


def layer_norm(
    input: Variable,
    begin_norm_axis: int = 1,
    epsilon: float = 1e-5,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    act: Activation = None,
    name: str | None = None,
) -> Variable:
    """Normalisation over all dimensions from ``begin_norm_axis`` on."""
    shape = [size_of(input, dim) for dim in range(begin_norm_axis, input.dim())]
    module = layer(
        "layer_norm",
        lambda: nn.LayerNorm(shape, eps=epsilon),
        name=name,
        weight=param_attr,
        bias=bias_attr,
    )
    return activated(module(input), act)


def group_norm(
    input: Variable,
    groups: int,
    epsilon: float = 1e-5,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    act: Activation = None,
    name: str | None = None,
) -> Variable:
    """Normalisation over groups of channels."""
    channels = size_of(input, 1)
    module = layer(
        "group_norm",
        lambda: nn.GroupNorm(groups, channels, eps=epsilon),
        name=name,
        weight=param_attr,
        bias=bias_attr,
    )
    return activated(module(input), act)


def instance_norm(
    input: Variable,
    epsilon: float = 1e-5,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    name: str | None = None,
) -> Variable:
    """Normalisation of every channel of every sample of [N, C, H, W]."""
    channels = size_of(input, 1)
    module = layer(
        "instance_norm",
        lambda: nn.InstanceNorm2d(channels, eps=epsilon, affine=True),
        name=name,
        weight=param_attr,
        bias=bias_attr,
    )
    return module(input)  # type: ignore[no-any-return]


def embedding(
    input: Variable,
    size: tuple[int, int] | Sequence[int],
    is_sparse: bool = False,
    padding_idx: int | None = None,
    param_attr: Attr = None,
    name: str | None = None,
) -> Variable:
    """One row of a table for each id; ``is_sparse`` makes gradients of the rows that were used."""
    rows, width = size
    module = layer(
        "embedding",
        lambda: nn.Embedding(rows, width, padding_idx=padding_idx, sparse=is_sparse),
        name=name,
        weight=param_attr,
    )
    return module(input)  # type: ignore[no-any-return]


def sparse_embedding(
    input: Variable,
    size: tuple[int, int] | Sequence[int],
    padding_idx: int | None = None,
    param_attr: Attr = None,
    name: str | None = None,
) -> Variable:
    """A large table of which a batch touches few rows: gradients are sparse.

    Optimizers that take sparse gradients train it: ``torch.optim.SGD``, ``Adagrad``, ``SparseAdam``.
    """
    return embedding(input, size, True, padding_idx, param_attr, name)


def prelu(x: Variable, mode: str = "all", weight_attr: Attr = None, name: str | None = None) -> Variable:
    """ReLU whose slope below zero is learnt: one ("all"), or one for each channel ("channel")."""
    if mode not in {"all", "channel"}:
        raise ProgramError(f"prelu has the modes 'all' and 'channel', got {mode!r}")
    count = 1 if mode == "all" else size_of(x, 1)
    module = layer("prelu", lambda: nn.PReLU(count), name=name, weight=weight_attr)
    return module(x)  # type: ignore[no-any-return]


def dropout(x: Variable, dropout_prob: float = 0.5, is_test: bool = False) -> Variable:
    """Numbers are dropped at random, and the rest scaled up; a clone for tests drops nothing."""
    return F.dropout(x, dropout_prob, training=not is_test)  # type: ignore[return-value]


def pool2d(
    input: Variable,
    pool_size: Pair = 2,
    pool_type: str = "max",
    pool_stride: Pair = 1,
    pool_padding: Pair = 0,
    global_pooling: bool = False,
) -> Variable:
    """The largest ("max") or the mean number ("avg") of every window."""
    if pool_type not in {"max", "avg"}:
        raise ProgramError(f"pool2d has the types 'max' and 'avg', got {pool_type!r}")
    if global_pooling:
        reduce = F.adaptive_max_pool2d if pool_type == "max" else F.adaptive_avg_pool2d
        return reduce(input, 1)  # type: ignore[no-any-return]
    pool = F.max_pool2d if pool_type == "max" else F.avg_pool2d
    return pool(input, pool_size, pool_stride, pool_padding)  # type: ignore[no-any-return]


def cross_entropy(input: Variable, label: Variable) -> Variable:
    """Minus the logarithm of the probability of each label: [N, classes], [N, 1] -> [N, 1].

    It takes probabilities, such as ``fc(…, activation="softmax")`` gives; for logits use
    ``torch.nn.functional.cross_entropy``, which is steadier.
    """
    label = label.unsqueeze(-1) if label.dim() < input.dim() else label  # type: ignore[assignment]
    return -input.gather(-1, label).log()  # type: ignore[return-value]


class _Free(nn.Module):
    """One parameter by itself."""

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, zero: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(*shape, dtype=dtype))
        self._zero = zero

    def reset_parameters(self) -> None:
        """Zeros, or small numbers around zero."""
        nn.init.zeros_(self.weight) if self._zero else nn.init.normal_(self.weight, std=0.02)


def create_parameter(
    shape: Sequence[int],
    dtype: torch.dtype | str = "float32",
    attr: Attr = None,
    is_bias: bool = False,
    name: str | None = None,
) -> Variable:
    """A parameter for operators of your own."""
    from fleetx.static.current import default_main_program
    from fleetx.static.program import dtype_of

    found = dtype_of(dtype)
    module = layer("parameter", lambda: _Free(shape, found, is_bias), name=name, weight=attr)
    program = default_main_program()
    path = program.state.path(module.weight)  # type: ignore[arg-type]
    assert path is not None
    node = program.read(path)
    return Variable(node.meta["val"], node, program)
