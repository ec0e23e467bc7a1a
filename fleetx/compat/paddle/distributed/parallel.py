"""``paddle.distributed.parallel``: workers of an eager script."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from typing_extensions import override

from fleetx import roles
from fleetx.compat import worlds
from fleetx.compat.groups import Group, everybody, joined
from fleetx.compat.paddle.fluid.dygraph import parallel_helper  # noqa: F401 (asked for here)
from fleetx.compat.paddle.nn.layer.layers import Layer
from fleetx.compat.plain import plain


class ParallelEnv:
    """Who this process is, as the launcher says."""

    @property
    def rank(self) -> int:
        """The number of this worker."""
        return worlds.rank()

    local_rank = rank
    """Its number; Paddle calls the number among all workers so."""

    @property
    def world_size(self) -> int:
        """How many workers there are."""
        return worlds.world_size()

    nranks = world_size

    @property
    def device_id(self) -> int:
        """The number of its card."""
        return worlds.device_number()

    dev_id = device_id

    @property
    def device_type(self) -> str:
        """What computes."""
        return "gpu" if torch.cuda.is_available() else "cpu"

    @property
    def current_endpoint(self) -> str:
        """The address of this worker."""
        return worlds.own_endpoint()

    @property
    def trainer_endpoints(self) -> list[str]:
        """Addresses of all workers."""
        return worlds.endpoints()

    @property
    def nrings(self) -> int:
        """One: torch chooses by itself."""
        return 1


def init_parallel_env() -> Group:
    """Meet the other workers."""
    joined()
    return everybody()


def get_rank(group: Any = None) -> int:
    """The number of this worker, among all or in a group."""
    return worlds.rank() if group is None else int(group.rank)


def get_world_size(group: Any = None) -> int:
    """How many workers there are, in all or in a group."""
    return worlds.world_size() if group is None else int(group.nranks)


def is_initialized() -> bool:
    """Whether the workers have met."""
    return roles.started()


def is_available() -> bool:
    """Workers can always exchange."""
    return True


def get_backend(group: Any = None) -> str:
    """What carries the exchange."""
    return "NCCL" if torch.cuda.is_available() else "GLOO"


def destroy_process_group(group: Any = None) -> None:
    """Nothing to do: groups go with the process."""


class DataParallel(Layer):
    """Lets the gradients of a layer be the mean over all workers."""

    def __init__(  # noqa: PLR0917 (the order of Paddle)
        self,
        layers: nn.Module,
        strategy: Any = None,
        comm_buffer_size: int = 25,
        last_comm_buffer_size: float = 1,
        find_unused_parameters: bool = False,
        group: Any = None,
    ) -> None:
        super().__init__(layers.__class__.__name__.lower() + "_data_parallel")
        among = group or everybody()
        self._layers = layers
        wrapped: nn.Module = layers
        if among.nranks > 1 and any(p.requires_grad for p in layers.parameters()):
            layers.to(roles.device())
            wrapped = nn.parallel.DistributedDataParallel(
                layers,
                process_group=among.process_group,
                bucket_cap_mb=comm_buffer_size,
                find_unused_parameters=find_unused_parameters,
            )
            # As in Paddle, running statistics are each worker's own after the start. Copies in a
            # forward would also spoil the backward of another one before it, as GANs have.
            wrapped.broadcast_buffers = False
        vars(self)["_wrapped"] = wrapped
        vars(self)["_is_exchanging"] = False

    @override
    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """That of the layer."""
        wrapped = vars(self)["_wrapped"]
        if torch.is_grad_enabled() and getattr(wrapped, "require_backward_grad_sync", True):
            vars(self)["_is_exchanging"] = True
        return wrapped(*inputs, **kwargs)

    @override
    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """That of the layer, by its own names."""
        return self._layers.state_dict(*args, **kwargs)

    @override
    def set_state_dict(self, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        """That of the layer, by its own names."""
        return self._layers.set_state_dict(state_dict, *args, **kwargs)  # type: ignore[operator]

    set_dict = load_dict = set_state_dict

    def scale_loss(self, loss: Any) -> Any:
        """The same loss: gradients become their mean when they are exchanged."""
        return loss

    def apply_collective_grads(self) -> None:
        """Make gradients their mean, unless they travelled while they were computed.

        They did if this forward was called; scripts of Paddle 1 may have called the layer's own.
        """
        wrapped, done = vars(self)["_wrapped"], vars(self)["_is_exchanging"]
        vars(self)["_is_exchanging"] = False
        if done or not isinstance(wrapped, nn.parallel.DistributedDataParallel):
            return
        for parameter in self._layers.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad, group=wrapped.process_group)
                parameter.grad.div_(dist.get_world_size(wrapped.process_group))

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Keep gradients to this worker inside."""
        wrapped = vars(self)["_wrapped"]
        if isinstance(wrapped, nn.parallel.DistributedDataParallel):
            with wrapped.no_sync():
                yield
        else:
            yield

    @override
    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            inner = vars(self).get("_modules", {}).get("_layers")
            if inner is None:
                raise
            return getattr(inner, name)


def same_start(layer: nn.Module, group: Group) -> None:
    """Let all workers of a group begin with the parameters of its first one."""
    if group.nranks == 1:
        return
    with torch.no_grad():
        for value in [*layer.parameters(), *layer.buffers()]:
            if not getattr(value, "is_distributed", False):
                moved = plain(value).detach().contiguous()
                dist.broadcast(moved, group.ranks[0], group=group.process_group)
                value.copy_(moved)
