"""``paddle.fluid.contrib.memory_usage``."""

from typing import Any

from fleetx.static.record.program import Program

_UNITS = (("GB", 2**30), ("MB", 2**20), ("KB", 2**10), ("B", 1))


def memory_usage(program: Program, batch_size: int) -> tuple[float, float, str]:
    """Between how much memory the variables of a program need, and the unit."""
    if not isinstance(program, Program):
        raise TypeError(f"memory_usage() takes a program, got {program!r}")
    if batch_size <= 0:
        raise ValueError(f"batch_size is at least 1, got {batch_size}")
    total = sum(_size(node.meta.get("val"), batch_size) for node in program.graph.nodes)
    unit, divisor = next(pair for pair in _UNITS if total >= pair[1] or pair[1] == 1)
    return total / divisor * 0.9, total / divisor * 1.1, unit


def _size(value: Any, batch_size: int) -> int:
    shape = getattr(value, "shape", None)
    if shape is None:
        return 0
    count = int(value.element_size())
    for size in shape:
        count *= size if isinstance(size, int) and size > 0 else batch_size
    return count
