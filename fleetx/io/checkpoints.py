"""Checkpoints of eager training: everything a run needs to go on as if it had not stopped."""

import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from torch import nn

from fleetx import roles
from fleetx.api.layout import full_state_dict, load_full_state_dict
from fleetx.api.optimizer import DistributedOptimizer
from fleetx.expected import MAPPING, PATH, WHOLE, Kind, a, takes
from fleetx.io import checkpoint_folder
from fleetx.io.agreement import CheckpointError, together
from fleetx.io.files import Folder, load_tensors, save_tensors
from fleetx.io.worker_state import WorkerState
from fleetx.roles.worker_util import util

logger = logging.getLogger(__name__)

WEIGHTS = "model.safetensors"
"""The plain model's names, complete, whatever the layout."""
STATE = "worker-{}.safetensors"
"""What a worker keeps for itself: its optimizer's state, where it stands in the data."""

_reached: WeakKeyDictionary[DistributedOptimizer, dict[Path, int]] = WeakKeyDictionary()
"""Folder -> the step that a run has saved there last, or that it went on from."""


class Stateful(Protocol):
    """A loader, a scheduler: whatever knows its own state."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""

    def load_state_dict(self, state_dict: Any) -> Any:
        """Take it back."""


_TRAINED: dict[str, Kind] = {
    "folder": PATH,
    "model": a(nn.Module, "what fleet.distributed_model() returned"),
    "optimizer": a(DistributedOptimizer, "what fleet.distributed_optimizer() returned"),
    "parts": MAPPING.such_as("a dict of loaders, schedulers and the like by name") | None,
}


@takes(
    "save_checkpoint",
    **_TRAINED,
    step=WHOLE,
    numbers=MAPPING.such_as("a dict of plain values by name") | None,
    keep=WHOLE,
)
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

    It appears complete or not at all. Checkpoints in the folder that the run has neither written
    nor gone on from are another one's, and are moved into ``folder/earlier-N`` before.

    Args:
        folder: where checkpoints are gathered.
        model: what ``distributed_model`` returned.
        optimizer: what ``distributed_optimizer`` returned.
        step: a number that grows; the highest one is loaded.
        parts: loaders, schedulers and the like by name.
        numbers: plain values by name, which ``load_checkpoint`` returns.
        keep: how many of the latest ones of this run stay.
    """
    if keep < 1:
        raise ValueError(f"save_checkpoint(keep={keep}) would leave none; keep at least 1.")
    target = checkpoint_folder.target(Path(folder), step)
    beside = checkpoint_folder.unfinished(target)
    extra = {
        "parts": {name: part.state_dict() for name, part in (parts or {}).items()},
        "numbers": _numbers(step, numbers or {}),
    }
    mine = WorkerState(model, optimizer).tensors(extra)
    weights = full_state_dict(model)

    def begin() -> None:
        shutil.rmtree(beside, ignore_errors=True)  # of a run that was killed while it saved
        beside.mkdir(parents=True)
        save_tensors(beside / WEIGHTS, weights)

    def end() -> None:
        _check_seen(beside)
        reached = _reached.get(optimizer, {}).get(target.parent.resolve(), -1)
        _part_from_others(target.parent, after=min(step, reached))
        checkpoint_folder.install(target)
        checkpoint_folder.prune(target, keep)

    try:
        together(begin, first_only=True)
        together(lambda: save_tensors(beside / STATE.format(roles.worker_index()), mine))
        together(end, first_only=True)
    except Exception:
        shutil.rmtree(beside, ignore_errors=True)  # on each machine, if they do not share it
        raise
    _reached.setdefault(optimizer, {})[target.parent.resolve()] = step
    return target


def _numbers(step: int, given: Mapping[str, Any]) -> dict[str, Any]:
    own = {"step": step, "workers": roles.worker_num()}
    if taken := sorted(own.keys() & given.keys()):
        raise ValueError(
            f"save_checkpoint(numbers=...) has {taken[0]!r}, a name under which checkpoints keep a "
            "number of their own; choose another name."
        )
    return own | dict(given)


def _part_from_others(folder: Path, after: int) -> None:
    aside = checkpoint_folder.set_aside(folder, after)
    if aside is not None:
        logger.warning(
            "%s had checkpoints that this run did not go on from; they are in %s now", folder, aside
        )


@takes("set_checkpoints_aside", folder=PATH)
def set_checkpoints_aside(folder: Folder) -> Path | None:
    """Begin anew in a folder that may have checkpoints: move them into ``folder/earlier-N``.

    All workers must call it. Without it, the first ``save_checkpoint`` of a run does the same, and
    a run that dies before would go on from the checkpoint of another.

    Returns:
        Where they are now, on the first worker; None if there were none.
    """
    return together(lambda: checkpoint_folder.set_aside(Path(folder)), first_only=True)


@takes("load_checkpoint", **_TRAINED)
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
        The numbers that were saved, and "step" and "workers".
    """
    path = _chosen(Path(folder))
    if path is None:
        return None
    worker = WorkerState(model, optimizer)
    tensors = together(lambda: load_tensors(_own_file(path)))
    assert tensors is not None
    together(lambda: worker.check(tensors))
    together(lambda: load_full_state_dict(model, load_tensors(path / WEIGHTS)))
    extra = together(lambda: worker.take(tensors))
    assert extra is not None
    together(lambda: _load_parts(parts or {}, extra["parts"], optimizer))
    worker.draw_as(extra)
    numbers: dict[str, Any] = extra["numbers"]
    _reached.setdefault(optimizer, {})[path.parent.resolve()] = numbers["step"]
    return numbers


def _load_parts(
    parts: Mapping[str, Stateful], states: Mapping[str, Any], optimizer: DistributedOptimizer
) -> None:
    for name, part in parts.items():
        if name not in states:
            raise CheckpointError(
                f"load_checkpoint(parts=...) has {name!r}, which was not saved; the checkpoint has "
                f"{', '.join(sorted(states)) or 'none'}. Give the parts that were saved."
            )
        part.load_state_dict(states[name])
        if rates := getattr(part, "get_last_lr", None):
            for group, rate in zip(optimizer.param_groups, rates(), strict=True):
                group["lr"] = rate


def _chosen(folder: Path) -> Path | None:
    """The checkpoint to load, as the first worker sees it."""
    alone = (folder / WEIGHTS).is_file()
    found = checkpoint_folder.found(folder)
    if alone and (not found or _workers(folder)):
        name = "."
    else:  # weights that another library put beside the checkpoints are none of them
        name = next((path.name for path in reversed(found)), "")
    name = util.all_gather(name)[0]
    return folder / name if name else None


def _workers(path: Path) -> int:
    """How many workers have left a file there."""
    return len(list(path.glob(STATE.format("*[0-9]"))))


def _own_file(path: Path) -> Path:
    own, weights = path / STATE.format(roles.worker_index()), path / WEIGHTS
    saved = _workers(path)
    if not weights.is_file():
        raise CheckpointError(
            f"worker {roles.worker_index()} does not see {str(weights)!r}: the checkpoint is not "
            "whole, or the machines do not share the folder. Load from one that all of them see."
        )
    if not saved:
        raise CheckpointError(
            f"{str(path)!r} is no checkpoint of fleetx: it has a {WEIGHTS}, as other libraries "
            f"write it, and no {STATE.format(0)}, which save_checkpoint() writes beside it. Load "
            "the weights alone: fleet.load_full_state_dict(model, "
            f"safetensors.torch.load_file({str(weights)!r}))."
        )
    if saved != roles.worker_num():
        raise CheckpointError(
            f"{str(path)!r} was written by {saved} workers, and there are {roles.worker_num()} "
            "now: what each of them kept for itself cannot be dealt anew. Start as many, or load "
            f"{WEIGHTS} alone with fleet.load_full_state_dict()."
        )
    return own


def _check_seen(beside: Path) -> None:
    """What all workers wrote must be in one folder, or nothing could be loaded later."""
    every = range(roles.worker_num())
    if missing := [at for at in every if not (beside / STATE.format(at)).is_file()]:
        raise CheckpointError(
            f"save_checkpoint() wrote to {str(beside.parent)!r} on every worker, and worker 0 does "
            f"not see what {_listed(missing)} wrote there: the folder is not the same one on all "
            "machines. Give a folder that they share, such as one on a network file system."
        )


def _listed(workers: list[int]) -> str:
    some = ", ".join(map(str, workers[:4])) + (", ..." if len(workers) > 4 else "")
    return f"worker{'s' if len(workers) > 1 else ''} {some}"
