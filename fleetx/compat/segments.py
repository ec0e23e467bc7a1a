"""Where a list of layers is cut into the stages of a pipeline, as Paddle cuts it."""

import re
from collections.abc import Sequence
from typing import Any

BY_NAME = "layer:"


def segments(layers: Sequence[Any], count: int, method: Any = "uniform") -> list[int]:
    """The first layer of each of ``count`` segments, and the number of all layers."""
    if len(layers) < count:
        raise ValueError(
            f"PipelineLayer has {len(layers)} layers for {count} stages; give as many layers as "
            "stages at least, or lower pp_degree."
        )
    if isinstance(method, list | tuple):
        return _given(list(method), len(layers), count)
    if method == "uniform":
        return _uniform(len(layers), count)
    if isinstance(method, str) and method.startswith(BY_NAME):
        return _by_name(layers, count, method)
    raise ValueError(
        f"PipelineLayer(seg_method={method!r}): 'uniform', 'layer:<class>', or the numbers of the "
        "layers that begin a stage."
    )


def _uniform(layers: int, count: int) -> list[int]:
    """As even as can be; the last segments are the longer ones."""
    size, longer = divmod(layers, count)
    bounds = [0]
    for number in range(1, count + 1):
        bounds.append(bounds[-1] + size + (number > count - longer))
    return bounds


def _given(bounds: list[int], layers: int, count: int) -> list[int]:
    made = bounds if bounds and bounds[0] == 0 else [0, *bounds]
    made = made if made[-1] == layers else [*made, layers]
    if len(made) != count + 1 or made != sorted(set(made)):
        raise ValueError(
            f"PipelineLayer(seg_method={bounds}) makes {len(made) - 1} stages of {layers} layers, "
            f"and the job has {count}; give the first layer of each stage, in their order."
        )
    return made


def _by_name(layers: Sequence[Any], count: int, method: str) -> list[int]:
    """As many layers of one class in each segment; those around them go with their neighbours."""
    pattern = re.compile(method.removeprefix(BY_NAME), re.IGNORECASE)
    found = [number for number, layer in enumerate(layers) if pattern.search(_name(layer))]
    if not found or len(found) % count:
        raise ValueError(
            f"PipelineLayer(seg_method={method!r}): {len(found)} layers have that name, and they "
            f"cannot be dealt evenly to {count} stages; choose another name, or 'uniform'."
        )
    size = len(found) // count
    ends = [found[number * size - 1] + 1 for number in range(1, count)]
    return [0, *ends, len(layers)]


def _name(layer: Any) -> str:
    """The class of a layer, or the name of a function."""
    made = getattr(layer, "layer_func", layer)
    return str(getattr(made, "__name__", type(made).__name__))
