"""Checkpoints of eager training: everything a run needs to go on as if it had not stopped."""

import re
import shutil
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from fleetx import roles
from fleetx.engine.layout import full_state_dict, load_full_state_dict
from fleetx.engine.optimizer import DistributedOptimizer
from fleetx.io.files import Folder, load_tensors, save_tensors
from fleetx.io.training_state import MARK, leaves, to_state, to_tensors, tree
from fleetx.roles.collectives import util

WEIGHTS = "model.safetensors"
"""The plain model's names, complete, whatever the layout."""
STATE = "worker-{}.safetensors"
"""What a worker keeps for itself: its optimizer's state, where it stands in the data."""
EXTRA = f"{MARK}run"
"""Whatever else goes into a worker's file, beside the names of parameters."""
PATTERN = re.compile(r"checkpoint-(\d+)")


class Stateful(Protocol):
    """A loader, a scheduler: whatever knows its own state."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""

    def load_state_dict(self, state_dict: Any) -> Any:
        """Take it back."""


def save_checkpoint(
    folder: Folder,
    model: nn.Module,
    optimizer: DistributedOptimizer,
    *,
    step: int,
    parts: dict[str, Stateful] | None = None,
    numbers: dict[str, Any] | None = None,
    keep: int = 1,
) -> Path:
    """Write ``folder/checkpoint-<step>``; all workers must call it, and see the same folder.

    It appears complete or not at all.

    Args:
        folder: where checkpoints are gathered.
        model: what ``distributed_model`` returned.
        optimizer: what ``distributed_optimizer`` returned.
        step: a number that grows; the highest one is loaded.
        parts: loaders, schedulers and the like by name.
        numbers: plain values by name, which ``load_checkpoint`` returns.
        keep: how many of the latest ones stay.
    """
    target = Path(folder) / f"checkpoint-{step}"
    beside = target.with_name(f".{target.name}")
    extra = {name: part.state_dict() for name, part in (parts or {}).items()}
    extra |= {"numbers": {"step": step, "workers": roles.worker_num(), **(numbers or {})}}
    mine = to_tensors(optimizer.state_dict(), _names(model, optimizer))
    mine |= dict(leaves(EXTRA, extra))
    local = {name: _local(tensor) for name, tensor in mine.items()}
    weights = full_state_dict(model)
    if roles.is_first_worker():
        shutil.rmtree(beside, ignore_errors=True)  # of a run that was killed while it saved
        beside.mkdir(parents=True)
        save_tensors(beside / WEIGHTS, weights)
    util.barrier()
    save_tensors(beside / STATE.format(roles.worker_index()), local)
    util.barrier()
    if roles.is_first_worker():
        shutil.rmtree(target, ignore_errors=True)
        beside.rename(target)
        for old in _found(Path(folder))[:-keep]:
            shutil.rmtree(old, ignore_errors=True)
    util.barrier()
    return target


def load_checkpoint(
    folder: Folder,
    model: nn.Module,
    optimizer: DistributedOptimizer,
    *,
    parts: dict[str, Stateful] | None = None,
) -> dict[str, Any] | None:
    """Take everything back to the latest checkpoint; None if there is none.

    Args:
        folder: where checkpoints are gathered, or one checkpoint.
        model: what ``distributed_model`` returned.
        optimizer: what ``distributed_optimizer`` returned.
        parts: the same names as they were saved under.

    Returns:
        The numbers that were saved, and "step".
    """
    path = Path(folder)
    if not (path / WEIGHTS).is_file():
        found = _found(path)
        if not found:
            return None
        path = found[-1]
    load_full_state_dict(model, load_tensors(path / WEIGHTS))
    tensors = load_tensors(_own_file(path))
    names = _names(model, optimizer)
    state = to_state(tensors, optimizer.state_dict(), names)
    held = dict(zip(names, optimizer.parameters, strict=True))
    for number, kept in state["state"].items():
        for key, value in kept.items():
            kept[key] = _spread(value, held[names[number]])
    optimizer.load_state_dict(state)
    optimizer.zero_grad()  # of batches before; what was held for an update to come stays
    extra = tree({n: t for n, t in tensors.items() if n.startswith(EXTRA)})[""]["run"]
    for name, part in (parts or {}).items():
        part.load_state_dict(extra[name])
        if rates := getattr(part, "get_last_lr", None):
            for group, rate in zip(optimizer.param_groups, rates(), strict=True):
                group["lr"] = rate
    numbers: dict[str, Any] = extra["numbers"]
    return numbers


def _found(folder: Path) -> list[Path]:
    """The complete checkpoints, the latest one last."""
    every = [path for path in folder.glob("checkpoint-*") if PATTERN.fullmatch(path.name)]
    return sorted(every, key=lambda path: int(path.name.partition("-")[2]))


def _own_file(path: Path) -> Path:
    own = path / STATE.format(roles.worker_index())
    saved = len(list(path.glob(STATE.format("*"))))
    if saved != roles.worker_num():
        raise ValueError(
            f"{str(path)!r} was written by {saved} workers, and there are {roles.worker_num()} "
            "now: what each of them kept for itself cannot be dealt anew. Start as many, or load "
            f"{WEIGHTS} alone with fleet.load_full_state_dict()."
        )
    return own


def _names(model: nn.Module, optimizer: DistributedOptimizer) -> list[str]:
    """The names of the optimizer's parameters, in its order."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    return [names[parameter] for parameter in optimizer.parameters]  # type: ignore[index]


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
