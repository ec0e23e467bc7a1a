"""Operators of Paddle's executor that models for use are made of, as functions of torch."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fleetx.compat.files.tensors import NUMPY

Inputs = dict[str, list[Tensor]]
Attrs = dict[str, Any]
Function = Callable[[Inputs, Attrs], Any]

FORMATS = {number: torch.from_numpy(kind(0).reshape(1)).dtype for number, kind in NUMPY.items()}
"""Paddle's number of a format -> torch's."""


def _on_one(function: Callable[[Tensor], Tensor]) -> Function:
    return lambda given, attrs: function(given["X"][0])


def _on_two(function: Callable[[Tensor, Tensor], Tensor]) -> Function:
    def call(given: Inputs, attrs: Attrs) -> Tensor:
        x, y, axis = given["X"][0], given["Y"][0], attrs.get("axis", -1)
        if axis not in {-1, None} and y.dim() < x.dim():  # the axis of x where those of y begin
            y = y.reshape((*y.shape, *[1] * (x.dim() - axis - y.dim())))
        return function(x, y)

    return call


def _over(function: Callable[..., Any]) -> Function:
    def call(given: Inputs, attrs: Attrs) -> Any:
        x, keep = given["X"][0], bool(attrs.get("keep_dim", False))
        every = attrs.get("reduce_all") or not attrs.get("dim")
        found = function(x, dim=tuple(range(x.dim()) if every else attrs["dim"]), keepdim=keep)
        return found if found.dim() else found.reshape(1)

    return call


def _reshaped(given: Inputs, attrs: Attrs) -> Tensor:
    x = given["X"][0]
    return x.reshape([x.shape[at] if size == 0 else size for at, size in enumerate(attrs["shape"])])


def _multiplied(given: Inputs, attrs: Attrs) -> Tensor:
    x, y = given["X"][0], given["Y"][0]
    if attrs.get("trans_x", attrs.get("transpose_X")):
        x = x.transpose(-2, -1)
    if attrs.get("trans_y", attrs.get("transpose_Y")):
        y = y.transpose(-2, -1)
    return torch.matmul(x, y) * float(attrs.get("alpha", 1.0))


def _mul(given: Inputs, attrs: Attrs) -> Tensor:
    x, y, at = given["X"][0], given["Y"][0], attrs.get("x_num_col_dims", 1)
    flat = x.flatten(at) if x.dim() > at + 1 else x
    return torch.matmul(flat, y.flatten(attrs.get("y_num_col_dims", 1)))


def _paddings(attrs: Attrs, x: Tensor) -> tuple[Tensor, Any]:
    """The input, padded by itself where its two sides differ, and the padding that is left."""
    _refuse(attrs, "padding_algorithm", "EXPLICIT", "VALID")
    _refuse(attrs, "data_format", "NCHW", "AnyLayout")
    if attrs.get("padding_algorithm") == "VALID":
        return x, 0
    sides = list(attrs.get("paddings", [0, 0]))
    if len(sides) == 4:
        if sides[0] == sides[1] and sides[2] == sides[3]:
            return x, (sides[0], sides[2])
        return F.pad(x, (sides[2], sides[3], sides[0], sides[1])), 0
    return x, tuple(sides)


def _refuse(attrs: Attrs, name: str, *known: str) -> None:
    if attrs.get(name, known[0]) not in known:
        raise NotImplementedError(f"{name}={attrs[name]!r} is not known; {' or '.join(known)} is.")


def _conv2d(given: Inputs, attrs: Attrs) -> Tensor:
    x, padding = _paddings(attrs, given["Input"][0])
    weight, groups = given["Filter"][0], attrs.get("groups", 1)
    bias = given["Bias"][0] if given.get("Bias") else None
    return F.conv2d(x, weight, bias, attrs["strides"], padding, attrs["dilations"], groups)


def _pool2d(given: Inputs, attrs: Attrs) -> Tensor:
    x, biggest = given["X"][0], attrs["pooling_type"] == "max"
    if attrs.get("global_pooling"):
        return x.amax((2, 3), keepdim=True) if biggest else x.mean((2, 3), keepdim=True)
    if attrs.get("adaptive"):
        return (F.adaptive_max_pool2d if biggest else F.adaptive_avg_pool2d)(x, attrs["ksize"])
    x, padding = _paddings(attrs, x)
    size, stride, ceil = attrs["ksize"], attrs["strides"], bool(attrs.get("ceil_mode"))
    if biggest:
        return F.max_pool2d(x, size, stride, padding, ceil_mode=ceil)
    return F.avg_pool2d(x, size, stride, padding, ceil, not attrs.get("exclusive", True))


def _batch_norm(given: Inputs, attrs: Attrs) -> Tensor:
    mean, variance = given["Mean"][0], given["Variance"][0]
    scale, bias = given["Scale"][0], given["Bias"][0]
    return F.batch_norm(given["X"][0], mean, variance, scale, bias, eps=attrs["epsilon"])


def _layer_norm(given: Inputs, attrs: Attrs) -> Tensor:
    x = given["X"][0]
    sizes = tuple(x.shape[attrs.get("begin_norm_axis", 1) :])
    parts = [given[n][0].reshape(sizes) if given.get(n) else None for n in ("Scale", "Bias")]
    return F.layer_norm(x, sizes, parts[0], parts[1], attrs.get("epsilon", 1e-5))


def _looked_up(given: Inputs, attrs: Attrs) -> Tensor:
    ids = given["Ids"][0].long()
    found = F.embedding(ids, given["W"][0])
    hidden = attrs.get("padding_idx", -1)
    return found if hidden < 0 else found * (ids != hidden)[..., None].to(found.dtype)


def _old_lookup(given: Inputs, attrs: Attrs) -> Tensor:
    return _looked_up({**given, "Ids": [given["Ids"][0].squeeze(-1)]}, attrs)


def _dropped(given: Inputs, attrs: Attrs) -> Tensor:
    scaled = attrs.get("dropout_implementation") == "upscale_in_train"
    return given["X"][0] if scaled else given["X"][0] * (1.0 - attrs.get("dropout_prob", 0.5))


def _sliced(given: Inputs, attrs: Attrs) -> Tensor:
    x = given["Input"][0]
    for axis, start, end in zip(attrs["axes"], attrs["starts"], attrs["ends"], strict=True):
        x = x[(*[slice(None)] * axis, slice(start, end))]
    gone = attrs.get("decrease_axis") or []
    return x.squeeze(tuple(gone)) if gone else x


def _parts(given: Inputs, attrs: Attrs) -> list[Tensor]:
    x, axis = given["X"][0], attrs.get("axis", 0)
    if not attrs.get("sections"):
        return list(x.tensor_split(attrs["num"], axis))
    sizes = list(attrs["sections"])
    if -1 in sizes:
        sizes[sizes.index(-1)] = x.shape[axis] - sum(s for s in sizes if s != -1)
    return list(x.split(sizes, axis))


def _scaled(given: Inputs, attrs: Attrs) -> Tensor:
    x = given["X"][0]
    by, bias = float(attrs.get("scale", 1.0)), float(attrs.get("bias", 0.0))
    found = x * by + bias if attrs.get("bias_after_scale", True) else (x + bias) * by
    return found.to(x.dtype)


def _unsqueezed(given: Inputs, attrs: Attrs) -> Tensor:
    x = given["X"][0]
    for axis in attrs["axes"]:
        x = x.unsqueeze(axis)
    return x


def _squeezed(given: Inputs, attrs: Attrs) -> Tensor:
    x, axes = given["X"][0], tuple(attrs.get("axes") or ())
    return x.squeeze(axes) if axes else x.squeeze()


def _filled(given: Inputs, attrs: Attrs) -> Tensor:
    value = float(attrs["str_value"]) if attrs.get("str_value") else attrs.get("value", 0.0)
    return torch.full(attrs["shape"], value, dtype=FORMATS[attrs.get("dtype", 5)])


def _largest(given: Inputs, attrs: Attrs) -> Tensor:
    keep = bool(attrs.get("keepdims", False))
    return torch.argmax(given["X"][0], attrs.get("axis", -1), keep)


OPERATORS: dict[str, Function] = {
    "arg_max": _largest,
    "assign": _on_one(lambda x: x),
    "batch_norm": _batch_norm,
    "cast": lambda given, attrs: given["X"][0].to(FORMATS[attrs["out_dtype"]]),
    "clip": lambda given, attrs: given["X"][0].clamp(attrs["min"], attrs["max"]),
    "concat": lambda given, attrs: torch.cat(given["X"], attrs.get("axis", 0)),
    "conv2d": _conv2d,
    "depthwise_conv2d": _conv2d,
    "dropout": _dropped,
    "elementwise_add": _on_two(torch.add),
    "elementwise_div": _on_two(torch.div),
    "elementwise_max": _on_two(torch.maximum),
    "elementwise_min": _on_two(torch.minimum),
    "elementwise_mul": _on_two(torch.mul),
    "elementwise_pow": _on_two(torch.pow),
    "elementwise_sub": _on_two(torch.sub),
    "exp": _on_one(torch.exp),
    "fill_constant": _filled,
    "flatten2": lambda given, attrs: given["X"][0].flatten(attrs.get("axis", 1)),
    "flatten_contiguous_range": lambda given, attrs: given["X"][0].flatten(
        attrs["start_axis"], attrs["stop_axis"]
    ),
    "gather": lambda given, attrs: given["X"][0][given["Index"][0].reshape(-1).long()],
    "gelu": lambda given, attrs: F.gelu(
        given["X"][0], approximate="tanh" if attrs.get("approximate") else "none"
    ),
    "hard_swish": _on_one(F.hardswish),
    "layer_norm": _layer_norm,
    "leaky_relu": lambda given, attrs: F.leaky_relu(given["X"][0], attrs.get("alpha", 0.02)),
    "log": _on_one(torch.log),
    "lookup_table": _old_lookup,
    "lookup_table_v2": _looked_up,
    "matmul": _multiplied,
    "matmul_v2": _multiplied,
    "mean": _on_one(lambda x: x.mean().reshape(1)),
    "mul": _mul,
    "pool2d": _pool2d,
    "pow": lambda given, attrs: given["X"][0] ** attrs.get("factor", 1.0),
    "reduce_max": _over(torch.amax),
    "reduce_mean": _over(torch.mean),
    "reduce_min": _over(torch.amin),
    "reduce_sum": _over(torch.sum),
    "relu": _on_one(F.relu),
    "relu6": _on_one(F.relu6),
    "reshape2": _reshaped,
    "scale": _scaled,
    "sigmoid": _on_one(torch.sigmoid),
    "silu": _on_one(F.silu),
    "slice": _sliced,
    "softmax": lambda given, attrs: torch.softmax(given["X"][0], attrs.get("axis", -1)),
    "split": _parts,
    "sqrt": _on_one(torch.sqrt),
    "square": _on_one(torch.square),
    "squeeze2": _squeezed,
    "stack": lambda given, attrs: torch.stack(given["X"], attrs.get("axis", 0)),
    "sum": lambda given, attrs: torch.stack(given["X"]).sum(0),
    "swish": _on_one(F.silu),
    "tanh": _on_one(torch.tanh),
    "transpose2": lambda given, attrs: given["X"][0].permute(attrs["axis"]),
    "unsqueeze2": _unsqueezed,
}
"""Operator -> what it gives for its inputs and options."""
