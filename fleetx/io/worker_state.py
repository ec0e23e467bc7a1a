"""What one worker keeps for itself in a checkpoint, and how it takes that back."""

import json
from collections.abc import Mapping
from functools import reduce
from operator import getitem
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from fleetx.api import session
from fleetx.api.optimizer import DistributedOptimizer
from fleetx.api.saved_layout import WHOLE, check_options, check_same
from fleetx.engine.engine import Engine
from fleetx.io.agreement import CheckpointError
from fleetx.io.random_state import random_state, set_random_state
from fleetx.io.training_state import (
    MARK,
    PART,
    STRATEGIES,
    leaves,
    to_state,
    to_tensors,
    tree,
)

EXTRA = f"{MARK}run"
"""Whatever else goes into a worker's file, beside the names of parameters."""
OWN = f"{MARK}own{MARK}"
"""Before the name of a parameter or buffer that differs from worker to worker."""


class WorkerState:
    """The state of a model's optimizer and strategies, of random numbers, and what is given."""

    def __init__(self, model: nn.Module, optimizer: DistributedOptimizer) -> None:
        self._engine = _engine_of(optimizer)
        self._optimizer = optimizer
        names = {parameter: name for name, parameter in model.named_parameters()}
        self._names = [names[parameter] for parameter in optimizer.parameters]  # type: ignore[index]
        """Of the optimizer's parameters, in its order."""

    def tensors(self, extra: Mapping[str, Any]) -> dict[str, Tensor]:
        """All of it by name; of what is spread over workers, this one's part."""
        found = to_tensors(self._optimizer.state_dict(), self._names)
        layout = json.dumps(self._optimizer.state_dict()["layout"])
        given = {**extra, "random": random_state(self._engine.job.device), "layout": layout}
        found |= dict(leaves(EXTRA, given)) | self._apart()
        return {_marked(name, tensor): _local(tensor) for name, tensor in found.items()}

    def check(self, tensors: Mapping[str, Tensor]) -> None:
        """Refuse what was saved under another layout, or is not complete; nothing changes."""
        here = self._optimizer.state_dict()
        if (layout := _given(tensors).get("layout")) is None:
            raise CheckpointError(
                "the checkpoint was written by an earlier fleetx, which did not say how what each "
                f"worker keeps lies over them. {WHOLE}"
            )
        saved = json.loads(layout)
        check_same(saved, here["layout"])
        check_options(saved, here["layout"])
        self._optimizer.check_strategies(to_state(tensors, here, self._names)["strategies"])

    def take(self, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        """Take back what ``tensors`` returned, short of random numbers; return what was given."""
        self._take_apart(tensors)
        state = to_state(tensors, self._optimizer.state_dict(), self._names)
        held = dict(zip(self._names, self._optimizer.parameters, strict=True))
        for number, kept in state["state"].items():
            for key, value in kept.items():
                kept[key] = _spread(value, held[self._names[number]])
        for path in (name.removesuffix(PART) for name in tensors if name.endswith(PART)):
            *way, name = path.removeprefix(STRATEGIES + MARK).split(MARK)
            branch = reduce(getitem, way, state["strategies"])
            branch[name] = _spread(branch[name], held[name])
        self._optimizer.take(state)
        self._optimizer.zero_grad()  # of batches before; what waits for an update to come stays
        return _given(tensors)

    def draw_as(self, extra: Mapping[str, Any]) -> None:
        """Let random numbers go on; last of all, for whoever takes a state back may draw some."""
        set_random_state(extra["random"], self._engine.job.device)

    def _apart(self) -> dict[str, Tensor]:
        """Parameters and buffers, where replicas are not equal now."""
        # While gradients wait for an update, running statistics are each worker's own, too.
        if all(s.in_step() and not s.waiting() for s in self._engine.plan.strategies):
            return {}
        state = self._engine.job.model.state_dict()
        return {f"{OWN}{name}": value for name, value in state.items()}

    @torch.no_grad()
    def _take_apart(self, tensors: Mapping[str, Tensor]) -> None:
        for name, value in self._engine.job.model.state_dict().items():
            if (own := tensors.get(f"{OWN}{name}")) is not None:
                _local(value).copy_(own)


def _given(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    ours = {name: tensor for name, tensor in tensors.items() if name.startswith(EXTRA)}
    extra: dict[str, Any] = tree(ours)[""]["run"]
    return extra


def _engine_of(optimizer: DistributedOptimizer) -> Engine:
    for engine in session.current("save_checkpoint").engines:
        if optimizer.steers(engine):
            return engine
    raise CheckpointError(
        "a checkpoint is that of an optimizer and the model that it moves; call "
        "fleet.distributed_model() and fleet.distributed_optimizer() first."
    )


def _marked(name: str, tensor: Tensor) -> str:
    """What an optimizer keeps lies as its parameter does; of a strategy's nobody else knows."""
    part = isinstance(tensor, DTensor) and name.startswith(STRATEGIES)
    return f"{name}{PART}" if part else name


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _spread(value: Any, parameter: Tensor) -> Any:
    """As its parameter lies, where that is spread over workers."""
    if not (isinstance(value, torch.Tensor) and isinstance(parameter, DTensor) and value.dim()):
        return value
    return DTensor.from_local(
        value.to(parameter.device),
        parameter.device_mesh,
        parameter.placements,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
