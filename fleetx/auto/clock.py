"""How long operators take on this machine's device: each kind of call is measured once.

Shapes decide how much of a device an operator reaches, so that no figure for all products or all
convolutions is right for a model. A model has a few hundred kinds of calls, which take a second.
"""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import cycle
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from fleetx.auto.cluster import Device
from fleetx.auto.fused import fused_kernels
from fleetx.auto.rehearsal import UNKNOWN, Rehearsal
from fleetx.plan.operators import Blank, Signature
from fleetx.plan.optimizer_spec import OptimizerSpec
from fleetx.plan.trace import Operation
from fleetx.plan.whole_call import WholeCall
from fleetx.plan.work import FusedKernels
from fleetx.torch_internals import is_mutable, tree_leaves, tree_map

ROUNDS = 5
WARM_UP = 2
PARAMETERS = 8
SMALL, LARGE_OF_CPU, LARGE_OF_CARD = 16, 1 << 19, 1 << 22
"""Parameters by which an update is measured, and the numbers that each of them has: together more
than a device has in its caches."""
TINY = 16
"""Numbers of a tensor that takes no time."""
LARGE, CACHES, MOST_COPIES = 1 << 20, 1 << 26, 16
"""Bytes that stay in the caches of one core from one operator to the next, and that all caches of a
machine have; copies of arguments that are made at most to get around them."""


class OperatorClock:
    """Calls operators again on tensors of the same shapes, and keeps what they took.

    It calls them while other workers wait, and tells what they take while all compute. What the
    host takes to start an operator is no part of it: plans count that for themselves.

    Args:
        device: where; it must be here.
        worker: what one worker has of it.
        calls_models: whether models may run as a whole, too.
    """

    def __init__(self, device: torch.device, worker: Device, *, calls_models: bool = False) -> None:
        self._device, self._worker = device, worker
        # What a card computes does not depend on what ran before, and its host runs ahead.
        self._rehearsal = Rehearsal() if calls_models and device.type == "cpu" else None
        self._models: list[nn.Module] = []
        self.known: dict[str, tuple[float, float]] = {}
        """What was measured: a call, a model's own call, or a rule of updates -> seconds."""

    @cached_property
    def _calls(self) -> tuple[float, float]:
        """Seconds of a CPU for the call of an operator without work, and of its backward."""
        if self._device.type != "cpu":
            return 0.0, 0.0
        tiny = torch.zeros(TINY, requires_grad=True)
        backward = _gradients_of(torch.mul, (tiny, 2), {})
        assert backward is not None
        forward = self._seconds(lambda: _without_gradients(torch.mul, (tiny, 2), {}))
        return forward, self._seconds(backward)

    def __call__(self, one: Operation, wanted: Collection[int]) -> tuple[float, float]:
        """Seconds of its forward and of its backward; not numbers where it cannot be called."""
        if not one.count.moved:
            return 0.0, 0.0
        wanted = {place for place, number in enumerate(one.reads) if number in wanted}
        key = _key(one.signature, wanted)
        if key not in self.known:
            with _threads(self._worker.threads):
                forward, backward = self._measured(one.signature, wanted)
            crowding = self._worker.crowding
            self.known[key] = forward * crowding, backward * crowding
        return self.known[key]

    def update(self, rule: OptimizerSpec) -> tuple[float, float]:
        """Seconds for each parameter, and for each number in it."""
        key = repr((rule.cls, rule.defaults))
        if key not in self.known:
            with _threads(self._worker.threads):
                each, number = self._updated(rule)
            crowding = self._worker.crowding
            self.known[key] = each * crowding, number * crowding
        return self.known[key]

    def called(self, call: WholeCall) -> tuple[float, float]:
        """Seconds of the model's own forward and backward; not numbers where it may not run."""
        if self._rehearsal is None:
            return UNKNOWN
        key = f"model {self._named(call.model)}{call.run.key} {call.samples}"
        if key not in self.known:
            with _threads(self._worker.threads):
                forward, backward = self._rehearsal(call, self._worker.memory_gigabytes * 1e9 / 2)
            crowding = self._worker.crowding
            self.known[key] = forward * crowding, backward * crowding
        return self.known[key]

    def _named(self, model: nn.Module) -> str:
        """Nothing for the first one, its number for another."""
        numbers = [at for at, other in enumerate(self._models) if other is model]
        if not numbers:
            self._models.append(model)
            numbers = [len(self._models) - 1]
        return f"{numbers[0]} " if numbers[0] else ""

    def fused(self) -> FusedKernels:
        """What kernels of compiled code take; on a CPU plans do not compile by themselves."""
        return self._fused

    @cached_property
    def _fused(self) -> FusedKernels:
        if self._device.type != "cuda":
            return FusedKernels()
        return fused_kernels(self._device, self._worker, self._seconds)

    def _updated(self, rule: OptimizerSpec) -> tuple[float, float]:
        large = LARGE_OF_CARD if self._device.type == "cuda" else LARGE_OF_CPU
        try:
            few, many = (self._step(rule, numbers) for numbers in (SMALL, large))
        except Exception:  # a rule that wants more than parameters and its options: it is reckoned
            return float("nan"), float("nan")
        return few / PARAMETERS, max(many - few, 0.0) / (PARAMETERS * (large - SMALL))

    def _step(self, rule: OptimizerSpec, numbers: int) -> float:
        made = [nn.Parameter(torch.zeros(numbers, device=self._device)) for _ in range(PARAMETERS)]
        for parameter in made:
            parameter.grad = torch.ones_like(parameter)
        return self._seconds(rule.cls(made, **rule.accepted).step)

    def _measured(self, called: Signature, wanted: Collection[int]) -> tuple[float, float]:
        try:
            copies = [self._arguments(called, wanted) for _ in range(self._copies(called))]
            turns = cycle(copies)
            forward = self._seconds(
                lambda: _without_gradients(called.operator, *next(turns)), len(copies)
            )
            backward = self._backward(called.operator, copies)
            call, its_backward = self._calls
            return max(forward - call, 0.0), max(backward - its_backward, 0.0)
        except Exception:  # an operator that wants certain numbers: it is reckoned instead
            return float("nan"), float("nan")

    def _copies(self, called: Signature) -> int:
        """So many that a CPU finds none of large ones in its caches, as in a step of training."""
        leaves = tree_leaves((called.args, called.kwargs))
        size = sum(leaf.size for leaf in leaves if isinstance(leaf, Blank))
        if self._device.type != "cpu" or size < LARGE:
            return 1
        return max(2, min(MOST_COPIES, -(-CACHES // size)))

    def _arguments(self, called: Signature, wanted: Collection[int]) -> tuple[Any, Any]:
        made: tuple[Any, Any] = tree_map(self._maker(wanted), (called.args, called.kwargs))
        return made

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

    def _backward(self, operator: Any, copies: Sequence[tuple[Any, Any]]) -> float:
        if is_mutable(operator):
            return 0.0
        calls = [call for copy in copies if (call := _gradients_of(operator, *copy)) is not None]
        if not calls:
            return 0.0
        turns = cycle(calls)
        return self._seconds(lambda: next(turns)(), len(calls))  # noqa: PLW0108  (another each time)

    def _seconds(self, call: Callable[[], object], kinds: int = 1) -> float:
        """Of the device alone: on a card the host has started all before the first begins.

        Args:
            call: what is measured.
            kinds: after how many calls it begins anew.
        """
        for _ in range(max(WARM_UP, kinds)):
            call()
        return self._on_card(call) if self._device.type == "cuda" else _on_cpu(call)

    def _on_card(self, call: Callable[[], object]) -> float:
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        blocker = torch.empty(1 << 26, device=self._device)
        for _ in range(48):
            blocker.add_(1)  # milliseconds, in which the host gets ahead
        first.record()
        for _ in range(ROUNDS):
            call()
        last.record()
        torch.cuda.synchronize(self._device)
        return float(first.elapsed_time(last)) / ROUNDS / 1e3


@contextmanager
def _threads(number: int) -> Iterator[None]:
    """Computes with as many as a worker has; 0 leaves it at those of this process."""
    before = torch.get_num_threads()
    if number:
        torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _on_cpu(call: Callable[[], object]) -> float:
    """In the middle of some rounds: steps of a job meet others on the machine, too."""
    found = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return median(found)


def _without_gradients(operator: Any, args: Any, kwargs: Any) -> Any:
    with torch.no_grad():
        return operator(*args, **kwargs)


def _gradients_of(operator: Any, args: Any, kwargs: Any) -> Callable[[], object] | None:
    """A backward that can be run again and again; None where there is none."""
    given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    inputs = [tensor for tensor in given if tensor.requires_grad]
    if not inputs:
        return None
    made = operator(*args, **kwargs)
    outputs = [leaf for leaf in tree_leaves(made) if _has_gradient(leaf)][:1]
    if not outputs:
        return None
    ones = [torch.ones_like(output) for output in outputs]
    return lambda: torch.autograd.grad(outputs, inputs, ones, retain_graph=True, allow_unused=True)


def _has_gradient(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.requires_grad


def _key(called: Signature, wanted: Collection[int]) -> str:
    def plain(leaf: Any) -> str:
        if isinstance(leaf, Blank):
            return repr((leaf.shape, leaf.stride, leaf.dtype, leaf.place in wanted))
        return repr(leaf)

    return " ".join((str(called.operator), *map(plain, tree_leaves((called.args, called.kwargs)))))
