"""Fully connected layers, and parameters by themselves."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from fleetx.expected import Kind, expect
from fleetx.record.variable import Variable
from fleetx.static.layers.parameters import Activation, Attr, activated, layer, one_of, size_of
from fleetx.static.record.current import default_main_program
from fleetx.static.record.program import dtype_of

_INPUTS = Kind(
    "a variable of a static program, or a list of them",
    lambda x: (
        isinstance(x, Tensor) or (isinstance(x, Sequence) and not isinstance(x, str) and x != [])
    ),
)


def fc(
    x: Tensor | Sequence[Tensor],
    size: int,
    num_flatten_dims: int = 1,
    *,
    weight_attr: Attr = None,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    activation: Activation = None,
    act: Activation = None,
    name: str | None = None,
) -> Variable:
    """A fully connected layer; several inputs are transformed one by one and added.

    Args:
        x: one variable or several.
        size: the number of outputs.
        num_flatten_dims: leading dimensions that stay; the others become one.
        weight_attr: how the weight starts.
        param_attr: another name of ``weight_attr``.
        bias_attr: how the bias starts; False for none.
        activation: what follows, by name or as a function.
        act: another name of ``activation``.
        name: of the layer; numbered if None.
    """
    expect("static.nn.fc", "x", x, _INPUTS)
    weight = one_of(weight_attr=weight_attr, param_attr=param_attr)
    inputs = [x] if isinstance(x, Tensor) else list(x)
    added = []
    for at, given in enumerate(inputs):
        flat = given.flatten(num_flatten_dims) if given.dim() > num_flatten_dims + 1 else given
        with_bias = bias_attr is not False and at == 0
        module = layer(
            "fc",
            partial(nn.Linear, size_of(flat, -1), size, bias=with_bias),
            name=f"{name}_{at}" if name and at else name,
            weight=weight,
            bias=bias_attr if with_bias else None,
        )
        added.append(module(flat))
    return activated(sum(added[1:], start=added[0]), one_of(activation=activation, act=act))


class _Free(nn.Module):
    """One parameter by itself."""

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, zero: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(*shape, dtype=dtype))
        self._zero = zero

    def reset_parameters(self) -> None:
        """Zeros, or small numbers around zero."""
        if self._zero:
            nn.init.zeros_(self.weight)
        else:
            nn.init.normal_(self.weight, std=0.02)


def create_parameter(
    shape: Sequence[int],
    dtype: torch.dtype | str = "float32",
    *,
    attr: Attr = None,
    param_attr: Attr = None,
    weight_attr: Attr = None,
    is_bias: bool = False,
    name: str | None = None,
) -> Variable:
    """A parameter for operators of your own."""
    found = dtype_of(dtype)
    start = one_of(attr=attr, param_attr=param_attr, weight_attr=weight_attr)
    module = layer("parameter", lambda: _Free(shape, found, is_bias), name=name, weight=start)
    program = default_main_program()
    path = program.state.path(module.get_parameter("weight"))
    assert path is not None
    node = program.read(path)
    return Variable(node.meta["val"], node, program)
