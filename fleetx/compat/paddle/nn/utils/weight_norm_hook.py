"""``paddle.nn.utils.weight_norm``: a weight as a direction and a length."""

from typing import Any

import torch

from fleetx.compat.parameters import ParamAttr


def _length(weight: Any, dim: int | None) -> Any:
    if dim is None:
        return torch.linalg.vector_norm(weight)
    axes = [axis for axis in range(weight.dim()) if axis != dim % weight.dim()]
    return torch.linalg.vector_norm(weight, dim=axes)


def _weight(layer: Any, name: str, dim: int | None) -> Any:
    v, g = getattr(layer, f"{name}_v"), getattr(layer, f"{name}_g")
    if dim is None:
        return v * (g / _length(v, None))
    sizes = [1] * v.dim()
    sizes[dim] = -1
    return v * torch.reshape(g / _length(v, dim), sizes)


def weight_norm(layer: Any, name: str = "weight", dim: int | None = 0) -> Any:
    """Let a weight be ``weight_v`` scaled to the lengths ``weight_g`` in every forward."""
    weight = getattr(layer, name)
    start = weight.detach().clone()
    delattr(layer, name)
    v = layer.create_parameter(list(start.size()), ParamAttr(initializer=lambda t: t.copy_(start)))
    lengths = _length(start, dim).reshape(-1)
    g = layer.create_parameter([lengths.numel()], ParamAttr(initializer=lambda t: t.copy_(lengths)))
    layer.add_parameter(f"{name}_v", v)
    layer.add_parameter(f"{name}_g", g)

    def before(layer: Any, inputs: Any) -> None:
        object.__setattr__(layer, name, _weight(layer, name, dim))

    before(layer, None)
    vars(layer)["_weight_norm"] = (name, dim, layer.register_forward_pre_hook(before))
    return layer


def remove_weight_norm(layer: Any, name: str = "weight") -> Any:
    """Let it be a weight again."""
    _, dim, hook = vars(layer).pop("_weight_norm")
    hook.remove()
    value = _weight(layer, name, dim).detach()
    vars(layer).pop(name, None)
    delattr(layer, f"{name}_v")
    delattr(layer, f"{name}_g")
    fill = ParamAttr(initializer=lambda t: t.copy_(value))
    layer.add_parameter(name, layer.create_parameter(list(value.size()), fill))
    return layer
