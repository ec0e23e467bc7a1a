"""What update rules with one rate per layer have in common: groups, state, the choice of a path."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from typing_extensions import override

from fleetx.comm.gpu_kernels import has_kernels
from fleetx.comm.taking_back import taken_back
from fleetx.strategies.layerwise.layers import Layers, wide
from fleetx.strategies.layerwise.pointers import PointerTable

Group = dict[str, Any]
Kind = tuple[str, torch.device, torch.dtype]
"""Path, device and number format: what tensors have in common that are moved together."""

PLAIN, HOST, DEVICE = "plain", "host", "device"
"""The paths: torch's list operations; fused CPU kernels; own GPU kernels over all tensors."""


class LayerwiseOptimizer(Optimizer, ABC):
    """Base of ``Lars`` and ``Lamb``.

    The group option ``excluded`` holds positions in ``params``: those parameters get neither the
    rule's decay nor a rate of their own. They stay in the group of the others, so that learning
    rates and schedulers, which address groups, reach them.
    """

    buffers: ClassVar[tuple[str, ...]]
    """Names of the state tensors that have the shape of the parameter."""

    mark: ClassVar[str]
    """A group option that only this rule has."""

    obeys_found_inf: ClassVar[bool] = True
    """Says to whoever records a step that its updates look at ``found_inf`` themselves."""

    found_inf: Tensor | None = None
    """A flag on the device, set for the time of a step that must not count where it is not zero."""

    def __init__(self, params: Any, defaults: Group) -> None:
        super().__init__(params, defaults)
        self._forget()

    @abstractmethod
    def move_plain(self, group: Group, layers: Layers) -> None:
        """Move the parameters with torch's list operations; right for every kind of tensor."""

    @abstractmethod
    def move_on_host(self, group: Group, layers: Layers) -> None:
        """Move parameters in the memory of the CPU."""

    @abstractmethod
    def move_on_device(self, group: Group, layers: Layers, table: PointerTable) -> None:
        """Move parameters on a GPU with a few kernels over all of them."""

    @override
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move every parameter that has a gradient; gradients stay as they are."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for number, group in enumerate(self.param_groups):
            for kind, layers in self._gathered(number, group).items():
                if kind[0] == DEVICE:
                    table = self._tables.setdefault((number, kind), PointerTable())
                    self.move_on_device(group, layers, table)
                else:
                    move = self.move_on_host if kind[0] == HOST else self.move_plain
                    with taken_back(layers.written(), self.found_inf):
                        move(group, layers)
                layers.grads.clear()  # nobody but the user decides how long gradients live
        return loss

    def _gathered(self, number: int, group: Group) -> dict[Kind, Layers]:
        """The layers of a group; sorted again only when something lies elsewhere than before.

        On a GPU, sorting a hundred tensors takes the host longer than the device needs to move
        them.
        """
        grads = [param.grad for param in group["params"]]
        if any(grad is not None and grad.layout is not torch.strided for grad in grads):
            raise ValueError(_sparse(self))
        seen, found = self._sorted.get(number, (None, {}))
        if seen != self._places(group, grads):
            found = self._sort(group)
            self._sorted[number] = self._places(group, grads), found
        for layers in found.values():
            layers.grads[:] = [grads[at] for at in layers.positions]
        return found

    def _places(self, group: Group, grads: list[Tensor | None]) -> tuple[Any, ...]:
        """What decides how tensors are sorted."""
        return (
            # Not where gradients lie: that changes with every backward.
            [None if grad is None else (grad.stride(), grad.dtype) for grad in grads],
            [param.data_ptr() for param in group["params"]],
            group["excluded"],
            group["fused"],
            # Whoever clears or replaces the state must not meet the old one again.
            id(self.state),
            len(self.state),
        )

    def _sort(self, group: Group) -> dict[Kind, Layers]:
        excluded, found = set(group["excluded"]), dict[Kind, Layers]()
        for position, param in enumerate(group["params"]):
            if param.grad is None:
                continue
            state = self.state[param]
            if not state:
                self._start(param, state)
            beside = [param.grad, *(state[name] for name in self.buffers)]
            path = PLAIN if group["fused"] is False else _path(param, beside)
            layers = found.setdefault((path, param.device, param.dtype), Layers())
            layers.positions.append(position)
            layers.params.append(param)
            layers.states.append(state)
            layers.excluded.append(position in excluded)
        return found

    def _start(self, param: Tensor, state: dict[str, Tensor]) -> None:
        for name in self.buffers:
            # Half precision would round small steps to nothing.
            state[name] = torch.zeros_like(param, dtype=wide(param.dtype))

    @override
    def add_param_group(self, param_group: Group) -> None:
        """Add a group; positions in its ``excluded`` must exist."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        if any(p.is_complex() for p in group["params"]):
            raise TypeError(f"{type(self).__name__} moves real parameters only, got a complex one")
        if beyond := [at for at in group["excluded"] if not 0 <= at < len(group["params"])]:
            raise ValueError(
                f"excluded must hold positions in the group's {len(group['params'])} parameters, "
                f"got {beyond}"
            )

    @override
    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._forget()

    def _forget(self) -> None:
        self._sorted: dict[int, tuple[Any, dict[Kind, Layers]]] = {}
        self._tables: dict[Any, PointerTable] = {}

    @override
    @torch.no_grad()
    def load_state_dict(self, state_dict: Any) -> None:
        """Take back what ``state_dict`` returned.

        Which parameters are excluded is not taken back: that belongs to how this optimizer was
        made.
        """
        if any(self.mark not in group for group in state_dict["param_groups"]):
            raise ValueError(
                f"the state is not one of {type(self).__name__}: its groups have no {self.mark!r}. "
                "The state of another update rule means something else; start without it."
            )
        excluded = [group["excluded"] for group in self.param_groups]
        super().load_state_dict(state_dict)
        for group, positions in zip(self.param_groups, excluded, strict=True):
            group["excluded"] = positions
        for param, saved in self._saved(state_dict):
            # The base class rounds state to the format of the parameter and keeps foreign layouts.
            self.state[param] = {name: _like(param, value) for name, value in saved.items()}

    def _saved(self, state_dict: Any) -> Iterator[tuple[Tensor, dict[str, Any]]]:
        params = chain.from_iterable(group["params"] for group in self.param_groups)
        keys = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
        for param, key in zip(params, keys, strict=True):
            if key in state_dict["state"]:
                yield param, state_dict["state"][key]


def _like(param: Tensor, value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    if value.shape != param.shape:
        return value.to(param.device, copy=True)
    return torch.empty_like(param, dtype=value.dtype).copy_(value)


def _sparse(optimizer: Optimizer) -> str:
    return (
        f"{type(optimizer).__name__} got a sparse gradient, and its rates depend on whole tensors; "
        "use dense gradients, such as those of nn.Embedding(..., sparse=False)."
    )


def _path(param: Tensor, beside: list[Tensor]) -> str:
    """The fastest path for one parameter, given its gradient and state."""
    if isinstance(param, DTensor) or not _dense(param):
        return PLAIN
    strides, dtype = param.stride(), param.dtype
    if any(t.stride() != strides or t.dtype is not dtype for t in beside):
        return PLAIN
    if param.is_cpu and dtype in (torch.float32, torch.float64):
        return HOST
    return DEVICE if param.is_cuda and dtype is torch.float32 and has_kernels() else PLAIN


def _dense(tensor: Tensor) -> bool:
    return (
        tensor.is_contiguous()
        or tensor.is_contiguous(memory_format=torch.channels_last)
        or tensor.is_contiguous(memory_format=torch.channels_last_3d)
    )
