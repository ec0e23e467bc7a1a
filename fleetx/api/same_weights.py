"""Replicas must hold the same numbers in what they train: held against each other now and then.

They begin with the same ones and move by gradients that they have exchanged, so they part only
where a script writes into parameters past that.
"""

import base64
import json

import numpy as np
import torch
from torch import Tensor

from fleetx.comm.same_numbers import FIGURES, first_apart, held_here, prints_of
from fleetx.engine.engine import Engine
from fleetx.plan.error import PlanError
from fleetx.roles.barrier import Barrier


def hold_replicas(
    engine: Engine, barrier: Barrier, model: int, update: int, before: int | None
) -> None:
    """Refuse parameters that differ from those of the replica that came here first.

    Args:
        engine: whose parameters they are.
        barrier: by which workers tell each other.
        model: which of the job's models it is.
        update: the one that follows.
        before: the update before which they were compared last, if they were.
    """
    strategies = engine.plan.strategies
    if engine.job.size("dp") == 1 or any(strategy.drifts for strategy in strategies):
        return
    held = reversed(engine.held().items())  # in the order of the model
    parts = held_here({name: parameter for name, parameter in held if parameter.requires_grad})
    if not parts:
        return
    prints = prints_of([*parts.values()])
    own = json.dumps([barrier.index, _packed(prints)])
    earlier = _topic(engine, model, before) if before else ""
    worker, said = json.loads(barrier.first_said(_topic(engine, model, update), own, earlier))
    if apart := first_apart(parts, prints, _unpacked(said)):
        raise PlanError(_sentence(apart, worker, barrier.index, update))


def _topic(engine: Engine, model: int, update: int) -> str:
    """Of the replicas of one part of the model, which differ along dp alone."""
    job = engine.job
    part = "/".join(str(job.mesh.get_local_rank(axis)) for axis in ("pp", "sharding", "tp"))
    return f"weights/{model}/{part}/{update}"


def _packed(prints: Tensor) -> str:
    return base64.b64encode(prints.numpy().tobytes()).decode()


def _unpacked(said: str) -> Tensor:
    numbers = np.frombuffer(base64.b64decode(said), dtype=np.float32)
    return torch.from_numpy(numbers.copy()).reshape(-1, FIGURES)


def _sentence(name: str, first: int, own: int, update: int) -> str:
    return (
        f"workers {first} and {own} hold different numbers in the parameter {name!r} before update "
        f"{update}, and each would train on by itself. Replicas part where a script writes into "
        "parameters on one worker alone, or other numbers on each: a load under `if rank == 0`, "
        "nn.init after fleet.distributed_model() with other seeds, an update by hand with "
        "gradients of torch.autograd.grad(), which workers do not exchange. Load on all workers, "
        "draw numbers before fleet.distributed_model() or with the same seed, and move parameters "
        "by loss.backward() and the optimizer that fleet.distributed_optimizer() returned."
    )
