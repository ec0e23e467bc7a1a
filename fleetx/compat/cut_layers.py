"""Layers of which each worker of a group has a part."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from fleetx.compat import exchanges, modes, unique_names
from fleetx.compat.fills import Values
from fleetx.compat.groups import Group, alone, chosen
from fleetx.compat.hybrid import hybrid_group
from fleetx.compat.paddle.distributed.parallel import same_start
from fleetx.compat.paddle.nn.layer.layers import Layer
from fleetx.compat.parameters import ParamAttr
from fleetx.compat.plain import plain
from fleetx.compat.recorded import PARTS
from fleetx.compat.tensors import wrap


def model_group(given: Any = None) -> Group:
    """The workers that cut layers among them."""
    if given is not None:
        return chosen(given)
    return alone() if modes.is_static() else hybrid_group().get_model_parallel_group()


def _part(layer: Layer, shape: list[int], axis: int, attr: Any = None) -> nn.Parameter:
    """This worker's part of a parameter, which begins as the group's first worker drew it.

    An initializer that has the numbers of a part, as Paddle wants them, gives each worker its own.
    """
    group: Group = vars(layer)["_group"]
    is_bias = len(shape) == 1
    if group.nranks == 1:
        whole: nn.Parameter = layer.create_parameter(shape, attr=attr, is_bias=is_bias)
        return whole
    if shape[axis] % group.nranks:
        raise ValueError(
            f"a layer with {shape[axis]} features cannot be cut into {group.nranks} equal "
            "parts; choose a size that mp_degree divides."
        )
    size = shape[axis] // group.nranks
    part = [*shape[:axis], size, *shape[axis + 1 :]]
    if _given(attr) == part:
        made: nn.Parameter = layer.create_parameter(part, attr=attr, is_bias=is_bias)
    else:
        whole = layer.create_parameter(shape, attr=attr, is_bias=is_bias)
        holder = nn.Module()
        holder.value = whole
        same_start(holder, group)
        own = torch.chunk(whole.detach(), group.nranks, dim=axis)[group.rank].clone()
        made = nn.Parameter(plain(own), requires_grad=whole.requires_grad)
        vars(made).update(vars(whole))
    vars(made)["split_axis"] = axis
    object.__setattr__(made, "is_distributed", True)
    return made


def _given(attr: Any) -> list[int] | None:
    """The shape of the numbers that an initializer brings; None for one that draws them."""
    fill = getattr(ParamAttr.of(attr), "initializer", None)
    return list(np.shape(fill.value)) if isinstance(fill, Values) else None


class ColumnParallelLinear(Layer):
    """A linear layer cut along its outputs."""

    def __init__(  # noqa: PLR0917 (the order of Paddle)
        self,
        in_features: int,
        out_features: int,
        weight_attr: Any = None,
        has_bias: bool | None = None,
        gather_output: bool = True,
        fuse_matmul_bias: bool = False,
        mp_group: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        group = model_group(mp_group)
        vars(self)["_group"] = group
        self.gather_output, self.is_mp = gather_output, group.nranks > 1
        self.weight = _part(self, [in_features, out_features], 1, weight_attr)
        self.bias = _part(self, [out_features], 0) if has_bias else None

    @override
    def forward(self, x: Tensor) -> Any:
        """``x @ weight + bias``, whole or in parts."""
        group: Group = vars(self)["_group"]
        made = exchanges.identity(x, group) @ self.weight
        made = made if self.bias is None else made + self.bias
        return exchanges.concat(made, group) if self.gather_output else made


class RowParallelLinear(Layer):
    """A linear layer cut along its inputs."""

    def __init__(  # noqa: PLR0917 (the order of Paddle)
        self,
        in_features: int,
        out_features: int,
        weight_attr: Any = None,
        has_bias: bool = True,
        input_is_parallel: bool = False,
        fuse_matmul_bias: bool = False,
        mp_group: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        group = model_group(mp_group)
        vars(self)["_group"] = group
        self.input_is_parallel, self.is_mp = input_is_parallel, group.nranks > 1
        self.weight = _part(self, [in_features, out_features], 0, weight_attr)
        self.bias = self.create_parameter([out_features], is_bias=True) if has_bias else None

    @override
    def forward(self, x: Tensor) -> Any:
        """``x @ weight + bias``, of inputs in parts or whole."""
        group: Group = vars(self)["_group"]
        own = x if self.input_is_parallel else exchanges.split(x, group)
        made = exchanges.summed(own @ self.weight, group)
        return made if self.bias is None else made + self.bias


class VocabParallelEmbedding(Layer):
    """A table of rows cut over workers."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        weight_attr: Any = None,
        mp_group: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        group = model_group(mp_group)
        vars(self)["_group"] = group
        self.weight = _part(self, [num_embeddings, embedding_dim], 0, weight_attr)
        self.vocab_start_index = max(group.rank, 0) * (num_embeddings // group.nranks)

    @override
    def forward(self, x: Tensor) -> Any:
        """The rows of indices."""
        group: Group = vars(self)["_group"]
        found = exchanges.lookup(self.weight, x, self.vocab_start_index, group)
        return exchanges.summed(found, group)


class ParallelCrossEntropy(Layer):
    """The cross entropy of logits of which each worker has a part of the classes."""

    def __init__(
        self, mp_group: Any = None, name: str | None = None, ignore_index: int = -100
    ) -> None:
        super().__init__(name)
        vars(self)["_group"] = model_group(mp_group)
        self.ignore_index = ignore_index

    @override
    def forward(self, input: Tensor, label: Tensor) -> Any:
        """The loss of each sample, shaped ``[…, 1]``."""
        group: Group = vars(self)["_group"]
        return wrap(exchanges.softmax_with_cross_entropy(input, label, group, self.ignore_index)[0])


def split_layer(
    x: Tensor,
    size: tuple[int, int],
    operation: str,
    *,
    axis: int,
    partitions: int,
    gather_out: bool,
    weight_attr: Any,
    bias_attr: Any,
) -> Any:
    """``paddle.distributed.split``: a new layer, and what it makes of ``x``."""
    if operation not in {"linear", "embedding"}:
        raise ValueError(f"split() knows 'linear' and 'embedding', got {operation!r}")
    if modes.is_static():
        made = _whole(x, size, operation, weight_attr, bias_attr)
        if operation == "linear" and axis == 1 and not gather_out and partitions > 1:
            vars(made)[PARTS] = partitions
        return made
    if operation == "embedding":
        return VocabParallelEmbedding(size[0], size[1], weight_attr)(x)
    has_bias = bias_attr is not False
    if axis == 1:
        layer: Layer = ColumnParallelLinear(size[0], size[1], weight_attr, has_bias, gather_out)
    else:
        layer = RowParallelLinear(size[0], size[1], weight_attr, has_bias, False)
    return layer(x)


def _whole(x: Tensor, size: tuple[int, int], operation: str, weight: Any, bias: Any) -> Any:
    """In a program each worker has all of it: the same results, without saving memory."""
    layer = Layer(unique_names.generate("split"))
    table = layer.create_parameter([int(size[0]), int(size[1])], attr=weight)
    if operation == "embedding":
        return torch.nn.functional.embedding(x.long(), table)
    made = x @ table
    if bias is False:
        return made
    return made + layer.create_parameter([int(size[1])], attr=bias, is_bias=True)
