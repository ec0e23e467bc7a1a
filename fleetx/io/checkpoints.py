"""Checkpoints of training: everything a run needs to go on as if it had not stopped."""

import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor

from fleetx import roles
from fleetx.api import servers
from fleetx.api.optimizer import DistributedOptimizer
from fleetx.api.session import may_save
from fleetx.expected import FLAG, MAPPING, PATH, WHOLE, Kind, a, takes
from fleetx.io import checkpoint_folder, loading, manifest, old_checkpoints, server_tables
from fleetx.io.agreement import CheckpointError, together
from fleetx.io.background import writing
from fleetx.io.files import Folder
from fleetx.io.host_copies import HostCopies
from fleetx.io.old_checkpoints import WEIGHTS
from fleetx.io.saving import Write, collected, prepared
from fleetx.io.trained import PARTS, Model, Mover, Stateful, Summed, Trained, trained
from fleetx.roles import activity
from fleetx.roles.subgroups import spare_group
from fleetx.roles.worker_util import util

logger = logging.getLogger(__name__)

_reached: WeakKeyDictionary[DistributedOptimizer, dict[Path, int]] = WeakKeyDictionary()
"""Folder -> the step that a run has saved there last, or that it went on from."""
_copies: WeakKeyDictionary[DistributedOptimizer, HostCopies] = WeakKeyDictionary()
"""Memory for what is written while training goes on."""


_TRAINED: dict[str, Kind] = {
    "folder": PATH,
    "model": a(Model, "what fleet.distributed_model() returned, or a program"),
    "optimizer": a(
        Mover, "what fleet.distributed_optimizer() returned, or the executor of a program"
    ),
    "parts": PARTS | None,
}


@takes(
    "save_checkpoint",
    **_TRAINED,
    step=WHOLE,
    numbers=MAPPING.such_as("a dict of plain values by name") | None,
    keep=WHOLE,
    wait=FLAG,
)
@activity.during("saving a checkpoint")
def save_checkpoint(
    folder: Folder,
    model: Model,
    optimizer: Mover,
    *,
    step: int,
    parts: Mapping[str, Stateful] | None = None,
    numbers: dict[str, Any] | None = None,
    keep: int = 1,
    wait: bool = True,
) -> Path:
    """Write ``folder/checkpoint-<step>``; all workers must call it, and see the same folder.

    Every worker writes its own part at the same time. The checkpoint appears complete or not at
    all, and any layout on any number of workers can load it. Checkpoints in the folder that the run
    has neither written nor gone on from are another one's, and are moved into ``folder/earlier-N``
    before.

    Args:
        folder: where checkpoints are gathered.
        model: what ``distributed_model`` returned, or a program that was minimised.
        optimizer: what ``distributed_optimizer`` returned, or the executor of the program.
        step: a number that grows; the highest one is loaded.
        parts: loaders, schedulers, metrics and the like by name.
        numbers: plain values by name, which ``load_checkpoint`` returns.
        keep: how many of the latest ones of this run stay.
        wait: False returns as soon as everything is copied to the host, and writes while training
            goes on. What fails then is raised, on all workers, by the next call of this function,
            of ``load_checkpoint`` or of ``finish_checkpoints``, and at the latest ends the script
            with a failure.
    """
    if keep < 1:
        raise ValueError(f"save_checkpoint(keep={keep}) would leave none; keep at least 1.")
    numbers = _numbers(step, numbers or {})
    finish_checkpoints()
    target = checkpoint_folder.target(Path(folder), step)
    if not may_save():
        return target
    found = trained("save_checkpoint", model, optimizer)
    write = _taken(found, target, step=step, keep=keep, wait=wait, parts=parts, numbers=numbers)
    known = _reached.setdefault(found.state.optimizer, {})

    def run() -> None:
        write.run()
        known[target.parent.resolve()] = step

    if wait:
        run()
    else:
        writing.start(run)
    return target


def _taken(
    found: Trained,
    target: Path,
    *,
    step: int,
    keep: int,
    wait: bool,
    parts: Mapping[str, Stateful] | None,
    numbers: Mapping[str, Any],
) -> Write:
    """All that this worker has to write, as it is now."""
    mover, tables = found.state.optimizer, server_tables.settled(wait=wait)
    copies = None if wait else _copies.setdefault(mover, HostCopies())

    def collect() -> Any:
        every = {**(parts or {}), **found.parts}
        states = {name: part.state_dict() for name, part in every.items()}
        return collected(found.state, {"parts": states, "numbers": numbers}, copies)

    reached = _reached.get(mover, {}).get(target.parent.resolve(), -1)
    return Write(
        target=target,
        step=step,
        keep=keep,
        worker=roles.worker_index(),
        after=min(step, reached),
        group=spare_group("save_checkpoint"),
        mine=prepared(collect),
        tables=tables,
    )


def finish_checkpoints() -> None:
    """Wait until the checkpoint that is being written is complete; raise what failed in it.

    Without one it returns at once. All workers must call it.
    """
    writing.finish()


def _numbers(step: int, given: Mapping[str, Any]) -> dict[str, Any]:
    own = {"step": step, "workers": roles.worker_num()}
    if taken := sorted(own.keys() & given.keys()):
        raise ValueError(
            f"save_checkpoint(numbers=...) has {taken[0]!r}, a name under which checkpoints keep a "
            "number of their own; choose another name."
        )
    return own | dict(given)


@takes("set_checkpoints_aside", folder=PATH)
def set_checkpoints_aside(folder: Folder) -> Path | None:
    """Begin anew in a folder that may have checkpoints: move them into ``folder/earlier-N``.

    All workers must call it. Without it, the first ``save_checkpoint`` of a run does the same, and
    a run that dies before would go on from the checkpoint of another.

    Returns:
        Where they are now, on the first worker; None if there were none.
    """
    if not may_save():
        return None
    return together(lambda: checkpoint_folder.set_aside(Path(folder)), first_only=True)


@takes("load_checkpoint", **_TRAINED)
@activity.during("loading a checkpoint")
def load_checkpoint(
    folder: Folder,
    model: Model,
    optimizer: Mover,
    *,
    parts: Mapping[str, Stateful] | None = None,
) -> dict[str, Any] | None:
    """Take everything back to the latest checkpoint; None if there is none.

    Args:
        folder: where checkpoints are gathered, or one checkpoint.
        model: what ``distributed_model`` returned, or a program that was minimised.
        optimizer: what ``distributed_optimizer`` returned, or the executor of the program.
        parts: the same names as they were saved under.

    Returns:
        The numbers that were saved, and "step" and "workers".
    """
    finish_checkpoints()
    path, is_old = _chosen(Path(folder))
    if path is None:
        return None
    found = trained("load_checkpoint", model, optimizer)
    state, every = found.state, {**(parts or {}), **found.parts}
    together(partial(server_tables.check, path))
    servers.open_tables()  # else a save with which servers began would be taken over after this
    summed = [name for name, part in every.items() if isinstance(part, Summed)]
    given, fitting = (
        old_checkpoints.take(path, state) if is_old else loading.take(path, state, summed)
    )
    server_tables.load(path)
    found.changed()
    together(lambda: _load_parts(every, given["parts"], fitting, state.optimizer))
    _tell_of_others(path, sorted(given["parts"].keys() - every.keys()))
    state.draw_as(given)
    numbers: dict[str, Any] = given["numbers"]
    _reached.setdefault(state.optimizer, {})[path.parent.resolve()] = numbers["step"]
    return numbers


@takes("checkpoint_weights", folder=PATH)
def checkpoint_weights(folder: Folder) -> dict[str, Tensor]:
    """The whole weights of a checkpoint, or of the latest in a folder, on the host.

    They have the names of the plain model, whatever the layout was. No job is needed.
    """
    path = Path(folder)
    if not (path / manifest.NAME).is_file():
        found = checkpoint_folder.found(path)
        if not found:
            raise FileNotFoundError(f"{str(folder)!r} is no checkpoint and has none in it.")
        path = found[-1]
    return loading.weights(path) if _has_manifest(path) else old_checkpoints.weights(path)


def _load_parts(
    parts: Mapping[str, Stateful],
    states: Mapping[str, Any],
    fitting: set[str],
    optimizer: DistributedOptimizer,
) -> None:
    for name, part in parts.items():
        if name not in states:
            raise CheckpointError(
                f"load_checkpoint(parts=...) has {name!r}, which was not saved; the checkpoint has "
                f"{', '.join(sorted(states)) or 'none'}. Give the parts that were saved."
            )
        if name not in fitting:
            continue
        if isinstance(part, Summed) and isinstance(states[name], list):
            part.load_state_dicts(states[name])
            continue
        part.load_state_dict(states[name])
        if rates := getattr(part, "get_last_lr", None):
            for group, rate in zip(optimizer.param_groups, rates(), strict=True):
                group["lr"] = rate


def _tell_of_others(path: Path, names: list[str]) -> None:
    """One worker says which parts the script did not name: they begin anew in silence else."""
    if names and roles.is_first_worker():
        logger.warning(
            "%s has the state of %s, which load_checkpoint(parts=...) does not name: it begins "
            "anew, unless the script brings it back by itself; give the parts that were saved",
            path,
            ", ".join(map(repr, names)),
        )


def _chosen(folder: Path) -> tuple[Path | None, bool]:
    """The checkpoint to load, and whether it is one of an earlier fleetx, as worker 0 sees it."""
    found = checkpoint_folder.found(folder)
    alone = _has_manifest(folder) or old_checkpoints.is_one(folder)
    foreign = (folder / WEIGHTS).is_file() and not found
    # Weights that another library put beside the checkpoints are none of them.
    name = "." if alone or foreign else next((path.name for path in reversed(found)), "")
    name, is_old = util.all_gather([name, not _has_manifest(folder / name)])[0]
    return (folder / name if name else None), is_old


def _has_manifest(path: Path) -> bool:
    """Whether a checkpoint has the present format."""
    return (path / manifest.NAME).is_file()
