"""Writing one checkpoint: every worker its part, at the same time, beside the training or not."""

import hashlib
import json
import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fleetx.io import checkpoint_folder
from fleetx.io.agreement import CheckpointError, together_in
from fleetx.io.chunks import Chunk, chunk_of
from fleetx.io.division import Division
from fleetx.io.files import save_tensors
from fleetx.io.host_copies import HostCopies
from fleetx.io.manifest import TENSORS, WORKER, Manifest, files_below
from fleetx.io.run_state import GIVEN, RunState
from fleetx.io.training_state import leaves
from fleetx.roles.messages import gather_bytes

logger = logging.getLogger(__name__)


@dataclass
class Prepared:
    """What one worker has to write, as it is at the moment of the save."""

    tensors: dict[str, Chunk] = field(default_factory=dict)
    own: dict[str, Tensor] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    failure: Exception | None = None
    """Why there is nothing: the others hear of it when they begin to write."""


def prepared(collect: Callable[[], Prepared]) -> Prepared:
    """The same with what went wrong, which must not leave the others waiting."""
    try:
        return collect()
    except Exception as error:  # whatever it is, the write raises it everywhere
        return Prepared(failure=error)


def collected(state: RunState, extra: Mapping[str, Any], copies: HostCopies | None) -> Prepared:
    """The part of this worker.

    Args:
        state: of the run.
        extra: parts and numbers of the caller.
        copies: keeps it while training goes on; None where training waits for the write.
    """
    division = Division(state.place, state.sizes)
    mine = {str(e.key): chunk_of(e.tensor) for e in division.mine(state.entries())}
    mine = {
        key: chunk for key, chunk in mine.items() if chunk.here.numel() or not prod(chunk.whole)
    }
    own = dict(leaves(GIVEN, state.given(extra)))
    if copies is not None:
        mine = copies.take(mine)
    layout = state.layout()
    facts = {
        "share": state.share,
        "mesh": layout["mesh"],
        "rule": layout["rule"],
        "options": state.options(),
        "tied": state.tied(),
        "parts": {name: _digest(name, part) for name, part in extra["parts"].items()},
    }
    return Prepared(mine, {name: _on_host(tensor) for name, tensor in own.items()}, facts)


@dataclass(frozen=True, kw_only=True)
class Write:
    """One checkpoint that is being written; all workers run it."""

    target: Path
    step: int
    keep: int
    worker: int
    after: int
    """Checkpoints of the folder with a higher step are another run's."""
    group: dist.ProcessGroup | None
    mine: Prepared
    tables: Callable[[Path], None] | None = None
    """How the first worker lets servers write what they hold."""

    def run(self) -> None:
        """Write, and give the checkpoint its name; it appears on all workers or on none."""
        beside = checkpoint_folder.unfinished(self.target)
        try:
            self._together(partial(self._begin, beside))
            self._write(beside)
            if self.tables is not None:
                self._together(partial(self.tables, beside), first_only=True)
            facts = self._gathered()
            self._together(partial(self._end, beside, facts), first_only=True)
        except Exception:
            shutil.rmtree(beside, ignore_errors=True)  # on each machine, if they do not share it
            raise

    def _together(self, action: Callable[[], None], *, first_only: bool = False) -> None:
        together_in(self.group, action, first_only=first_only)

    def _begin(self, beside: Path) -> None:
        if self.worker == 0:
            shutil.rmtree(beside, ignore_errors=True)  # of a run that was killed while it saved
            beside.mkdir(parents=True)
        if self.mine.failure is not None:
            raise self.mine.failure

    def _write(self, beside: Path) -> None:
        from fleetx.io import shards  # loads torch's distributed checkpoint

        own = beside / WORKER.format(self.worker)
        self._together(partial(save_tensors, own, self.mine.own))
        shards.write(beside / TENSORS, self.mine.tensors, self.group)

    def _gathered(self) -> list[dict[str, Any]]:
        said = [json.dumps(self.mine.facts).encode()]
        if self.group is not None:
            said = gather_bytes(said[0], self.group)
        return [json.loads(text) for text in said]

    def _end(self, beside: Path, facts: list[dict[str, Any]]) -> None:
        _check_seen(beside, len(facts))
        (beside / TENSORS).mkdir(exist_ok=True)
        Manifest(
            step=self.step,
            workers=len(facts),
            mesh=facts[0]["mesh"],
            shares=[told["share"] for told in facts],
            rule=facts[0]["rule"],
            options={name: kept for told in facts for name, kept in told["options"].items()},
            tied=facts[0]["tied"],
            parts=[told["parts"] for told in facts],
            files=files_below(beside),
        ).write(beside)
        _part_from_others(self.target.parent, self.after)
        checkpoint_folder.install(self.target)
        checkpoint_folder.prune(self.target, self.keep)


def _part_from_others(folder: Path, after: int) -> None:
    aside = checkpoint_folder.set_aside(folder, after)
    if aside is not None:
        logger.warning(
            "%s had checkpoints that this run did not go on from; they are in %s now", folder, aside
        )


def _check_seen(beside: Path, workers: int) -> None:
    """What all workers wrote must be in one folder, or nothing could be loaded later."""
    if missing := [at for at in range(workers) if not (beside / WORKER.format(at)).is_file()]:
        raise CheckpointError(
            f"save_checkpoint() wrote to {str(beside.parent)!r} on every worker, and worker 0 does "
            f"not see what {_listed(missing)} wrote there: the folder is not the same one on all "
            "machines. Give a folder that they share, such as one on a network file system."
        )


def _listed(workers: list[int]) -> str:
    some = ", ".join(map(str, workers[:4])) + (", ..." if len(workers) > 4 else "")
    return f"worker{'s' if len(workers) > 1 else ''} {some}"


def _on_host(tensor: Tensor) -> Tensor:
    spread: Any = tensor.detach()
    part: Tensor = spread.to_local() if hasattr(spread, "to_local") else spread
    return part.to("cpu", copy=True)


def _digest(name: str, part: Any) -> str:
    """By which one knows whether workers had the same."""
    found = hashlib.sha1(usedforsecurity=False)
    for path, tensor in leaves(name, part):
        found.update(path.encode())
        found.update(_on_host(tensor).contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
