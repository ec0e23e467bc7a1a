"""Checkpoints as fleetx wrote them first: whole weights in a file, and a file for each worker.

What a worker kept for itself fits the layout that wrote it and no other.
"""

import json
from collections.abc import Mapping
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fleetx import roles
from fleetx.api.saved_layout import check_options, check_same
from fleetx.api.weights import load_whole_state
from fleetx.comm.local import local
from fleetx.io.agreement import CheckpointError, together
from fleetx.io.files import load_tensors
from fleetx.io.run_state import WAITING, RunState
from fleetx.io.training_state import MARK, PART, STRATEGIES, to_state, tree

WEIGHTS = "model.safetensors"
"""The plain model's names, complete, whatever the layout."""
STATE = "worker-{}.safetensors"
"""What a worker kept for itself: its optimizer's state, where it stood in the data."""
EXTRA = f"{MARK}run"
"""Whatever else is in a worker's file, beside the names of parameters."""
OWN = f"{MARK}own{MARK}"
"""Before the name of a parameter or buffer that differed from worker to worker."""

_ALONE = (
    "Load it there once and save it again, which writes a checkpoint that fits every layout, or "
    "load its weights alone: fleet.load_full_state_dict(model, fleetx.io.checkpoint_weights({!r}))."
)


def is_one(path: Path) -> bool:
    """Whether a folder is such a checkpoint."""
    return (path / WEIGHTS).is_file() and _workers(path) > 0


def weights(path: Path) -> dict[str, Tensor]:
    """Its weights."""
    return load_tensors(path / WEIGHTS)


def take(path: Path, state: RunState) -> tuple[dict[str, Any], set[str]]:
    """Take it back, in the layout that wrote it; as ``loading.take``."""
    found = together(lambda: load_tensors(_own_file(path)))
    assert found is not None
    old = _Old(state, found)
    together(lambda: old.check(path))
    together(lambda: load_whole_state(state.engine, weights(path)))
    together(old.take)
    given = old.given()
    return given, set(given["parts"])


class _Old:
    """What one worker finds in its file."""

    def __init__(self, state: RunState, tensors: Mapping[str, Tensor]) -> None:
        self._engine, self._optimizer = state.engine, state.optimizer
        self._tensors = tensors
        names = {p: name for name, p in state.engine.job.model.named_parameters()}
        self._names = [names[p] for p in self._optimizer.parameters]  # type: ignore[index]
        """Of the optimizer's parameters, in its order."""

    def given(self) -> dict[str, Any]:
        """Parts, numbers and random states."""
        ours = {n: t for n, t in self._tensors.items() if n.startswith(EXTRA)}
        extra: dict[str, Any] = tree(ours)[""]["run"]
        return extra

    def check(self, path: Path) -> None:
        """Refuse what was saved under another layout, or is not complete; nothing changes."""
        here = self._optimizer.state_dict()
        if (layout := self.given().get("layout")) is None:
            raise CheckpointError(
                f"{str(path)!r} was written by an earlier fleetx, which did not say how what each "
                f"worker keeps lies over them. {_ALONE.format(str(path))}"
            )
        saved = json.loads(layout)
        try:
            check_same(saved, here["layout"])
            check_options(saved, here["layout"])
            kept = to_state(self._tensors, here, self._names)["strategies"]
            self._optimizer.check_strategies(kept)
        except ValueError as error:
            raise CheckpointError(
                f"{str(path)!r} has the format of an earlier fleetx, which fits the layout that "
                f"wrote it alone: {error} {_ALONE.format(str(path))}"
            ) from error
        if kept.get("amp") and kept.get("sharding", {}).get(WAITING):
            raise CheckpointError(
                f"{str(path)!r} has the format of an earlier fleetx and was written between two "
                "updates, where sharding kept gradients at the scale of amp's loss without saying "
                "which; load a checkpoint from the end of a group of batches, or its weights "
                "alone: fleet.load_full_state_dict(model, "
                f"fleetx.io.checkpoint_weights({str(path)!r}))."
            )

    def take(self) -> None:
        """Take back the state of optimizer and strategies."""
        self._take_apart()
        state = to_state(self._tensors, self._optimizer.state_dict(), self._names)
        held = dict(zip(self._names, self._optimizer.parameters, strict=True))
        for number, kept in state["state"].items():
            for key, value in kept.items():
                kept[key] = _spread(value, held[self._names[number]])
        for path in (n.removesuffix(PART) for n in self._tensors if n.endswith(PART)):
            *way, name = path.removeprefix(STRATEGIES + MARK).split(MARK)
            branch = reduce(getitem, way, state["strategies"])
            branch[name] = _spread(branch[name], held[name])
        self._optimizer.take(state)
        self._optimizer.zero_grad()  # of batches before; what waits for an update to come stays

    @torch.no_grad()
    def _take_apart(self) -> None:
        for name, value in self._engine.job.model.state_dict().items():
            if (own := self._tensors.get(f"{OWN}{name}")) is not None:
                local(value).copy_(own)


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
            "write it, and nothing that save_checkpoint() writes. Load the weights alone: "
            "fleet.load_full_state_dict(model, "
            f"safetensors.torch.load_file({str(weights)!r}))."
        )
    if saved != roles.worker_num():
        raise CheckpointError(
            f"{str(path)!r} has the format of an earlier fleetx and was written by {saved} "
            f"workers, and there are {roles.worker_num()} now: what each of them kept for itself "
            f"cannot be dealt anew. Start as many. {_ALONE.format(str(path))}"
        )
    return own


def _spread(value: Any, parameter: Tensor) -> Any:
    """As its parameter lies, where that is spread over workers."""
    from torch.distributed.tensor import DTensor

    if not (isinstance(value, torch.Tensor) and isinstance(parameter, DTensor) and value.dim()):
        return value
    return DTensor.from_local(
        value.to(parameter.device),
        parameter.device_mesh,
        parameter.placements,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
