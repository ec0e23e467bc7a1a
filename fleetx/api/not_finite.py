"""``fleet.init(on_nan="stop")``: before an update, look for what is not finite, and stop all."""

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fleetx.comm.held_gradients import all_waiting
from fleetx.comm.local import local
from fleetx.engine.engine import Engine
from fleetx.roles.session import world

STOP = "stop"


def stop_at_nan(engine: Engine) -> None:
    """Raise ``FloatingPointError`` on all workers if the loss or a gradient of one is not finite.

    The parameters are still those of the update before. A plan that leaves out such updates by
    itself, as amp does while its scale is too large, is let do so: there the loss counts alone.
    """
    held = dict(reversed(engine.held().items()))  # in the order of the model
    gradients = {} if _is_left_out(engine) else _gradients(engine)
    looked = [*gradients.values(), *([] if engine.loss is None else [engine.loss])]
    if not _anywhere(engine, not all_finite(looked)):
        return
    raise FloatingPointError(_sentence(engine, held, gradients))


def _is_left_out(engine: Engine) -> bool:
    return any(strategy.leaves_out_overflow() for strategy in engine.plan.strategies)


def _gradients(engine: Engine) -> dict[str, Tensor]:
    """In the order of the model, also while its modules show gathered weights."""
    found = all_waiting(engine.job.model)
    return {engine.first_name(name): gradient for name, gradient in found.items()}


@torch.no_grad()
def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether all numbers that lie on this rank are finite; asks each device once."""
    flags: dict[torch.device, list[Tensor]] = {}
    for tensor in tensors:
        part = local(tensor)
        values = part.coalesce().values() if part.is_sparse else part
        flags.setdefault(values.device, []).append(values.isfinite().all())
    return all(bool(torch.stack(found).all()) for found in flags.values())


def _anywhere(engine: Engine, fact: bool) -> bool:
    """Whether it is so on any worker, also where workers update by themselves for a while."""
    if engine.job.mesh.size() == 1:
        return fact
    flag = torch.tensor(float(fact), device=engine.job.device)
    dist.all_reduce(flag, dist.ReduceOp.MAX)
    return bool(flag)


def _sentence(engine: Engine, held: Mapping[str, Any], gradients: Mapping[str, Tensor]) -> str:
    here = world("distributed_model")
    own = json.dumps(_finding(engine, held, gradients))
    shared = here.barrier is not None and engine.job.mesh.size() > 1
    said = here.barrier.tell("on_nan", own) if shared and here.barrier is not None else [own]
    index = range(len(said)) if shared else [here.identity.index]
    found = [
        f"worker {at}: {text}"
        for at, one in zip(index, said, strict=True)
        if (text := json.loads(one))
    ]
    return (
        f"fleet.init(on_nan='stop') ends the job before update {engine.updates + 1}, because "
        f"something is not finite ({'; '.join(found)}). The parameters are those of the update "
        "before. Look at that batch and at the learning rate, limit gradients (strategy.clip), or "
        "leave on_nan out to go on."
    )


def _finding(engine: Engine, held: Mapping[str, Any], gradients: Mapping[str, Tensor]) -> str:
    """What is not finite on this worker: what comes first in a step is named first."""
    told = []
    if name := _first(held):
        told.append(f"the parameter {name!r} itself")
    if engine.loss is not None and not math.isfinite(float(engine.loss)):
        told.append(f"the loss is {float(engine.loss)}")
    if name := _first(gradients):
        told.append(f"the gradient of {name!r}")
    return ", ".join(told)


def _first(tensors: Mapping[str, Tensor]) -> str:
    return next((name for name, tensor in tensors.items() if not all_finite([tensor])), "")
