"""How long operators take on this machine's device: each kind of call is measured once.

Shapes decide how much of a device an operator reaches, so that no figure for all products or all
convolutions is right for a model. A model has a few hundred kinds of calls, which take a second.
"""

import time
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor

from fleetx.plan.operators import Blank, Signature
from fleetx.plan.trace import Operation
from fleetx.torch_internals import is_mutable, tree_leaves, tree_map

ROUNDS = 5
WARM_UP = 2


class OperatorClock:
    """Calls operators again on tensors of the same shapes, and keeps what they took.

    Args:
        device: where; it must be here.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._known: dict[Any, tuple[float, float]] = {}

    def __call__(self, one: Operation, wanted: Collection[int]) -> tuple[float, float]:
        """Seconds of its forward and of its backward; not numbers where it cannot be called."""
        if not one.count.moved:
            return 0.0, 0.0
        wanted = {place for place, number in enumerate(one.reads) if number in wanted}
        key = _key(one.signature, wanted)
        if key not in self._known:
            self._known[key] = self._measured(one.signature, wanted)
        return self._known[key]

    def _measured(self, called: Signature, wanted: Collection[int]) -> tuple[float, float]:
        try:
            args, kwargs = tree_map(self._maker(wanted), (called.args, called.kwargs))
            forward = self._seconds(lambda: _without_gradients(called.operator, args, kwargs))
            return forward, self._backward(called.operator, args, kwargs)
        except Exception:  # an operator that wants certain numbers: it is reckoned instead
            return float("nan"), float("nan")

    def _maker(self, wanted: Collection[int]) -> Callable[[Any], Any]:
        def make(leaf: Any) -> Any:
            if isinstance(leaf, torch.device):
                return self._device
            if not isinstance(leaf, Blank):
                return leaf
            if not leaf.dtype.is_floating_point:
                return torch.zeros(leaf.shape, dtype=leaf.dtype, device=self._device)
            made = torch.empty_strided(
                leaf.shape, leaf.stride, dtype=leaf.dtype, device=self._device
            )
            if 0 not in leaf.stride:
                made.uniform_(0.1, 1)
            return made.requires_grad_(leaf.place in wanted)

        return make

    def _backward(self, operator: Any, args: Any, kwargs: Any) -> float:
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        inputs = [tensor for tensor in given if tensor.requires_grad]
        if not inputs or is_mutable(operator):
            return 0.0
        made = operator(*args, **kwargs)
        outputs = [leaf for leaf in tree_leaves(made) if _has_gradient(leaf)][:1]
        if not outputs:
            return 0.0
        ones = [torch.ones_like(output) for output in outputs]
        return self._seconds(
            lambda: torch.autograd.grad(outputs, inputs, ones, retain_graph=True, allow_unused=True)
        )

    def _seconds(self, call: Callable[[], object]) -> float:
        """Of the device alone: on a card the host has started all before the first begins."""
        for _ in range(WARM_UP):
            call()
        return self._on_card(call) if self._device.type == "cuda" else _on_cpu(call)

    def _on_card(self, call: Callable[[], object]) -> float:
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        blocker = torch.empty(1 << 26, device=self._device)
        for _ in range(8):
            blocker.add_(1)  # a millisecond, in which the host gets ahead
        first.record()
        for _ in range(ROUNDS):
            call()
        last.record()
        torch.cuda.synchronize(self._device)
        return float(first.elapsed_time(last)) / ROUNDS / 1e3


def _on_cpu(call: Callable[[], object]) -> float:
    """The least of some rounds: what others do at the same time only adds."""
    found = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return min(found)


def _without_gradients(operator: Any, args: Any, kwargs: Any) -> Any:
    with torch.no_grad():
        return operator(*args, **kwargs)


def _has_gradient(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.requires_grad


def _key(called: Signature, wanted: Collection[int]) -> Any:
    def plain(leaf: Any) -> Any:
        if isinstance(leaf, Blank):
            return leaf.shape, leaf.stride, leaf.dtype, leaf.place in wanted
        return repr(leaf)

    return called.operator, tuple(map(plain, tree_leaves((called.args, called.kwargs))))
