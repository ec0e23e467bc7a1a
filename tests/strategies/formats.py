"""Which number formats operators really compute in, seen below autocast and autograd."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

SPELLED = {torch.float16: "half", torch.bfloat16: "bf16", torch.float32: "float"}


class Formats(TorchDispatchMode):
    """Records the formats of the floating inputs of every kernel, by its name."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: dict[str, set[str]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        inputs = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        formats = {SPELLED.get(t.dtype, str(t.dtype)) for t in inputs if t.is_floating_point()}
        self.seen.setdefault(func.overloadpacket.__name__, set()).update(formats)
        return func(*args, **(kwargs or {}))


def formats(run: Callable[[], Any]) -> dict[str, set[str]]:
    """Kernel -> formats of what went in."""
    with Formats() as recorded:
        run()
    return recorded.seen
