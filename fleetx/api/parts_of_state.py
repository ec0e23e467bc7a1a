"""A word for scripts that save what one worker holds of a model that is spread over several."""

import logging
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

from fleetx.ps.worker.sparse_module import SparseModule

logger = logging.getLogger(__name__)

# With their ends: the folder of torchmetrics begins as torch's does.
_TORCH = f"{Path(torch.__file__).parent}{os.sep}"
_PASSING = tuple(f"{_TORCH}{room}{os.sep}" for room in ("nn", "_dynamo"))
"""Modules around the model hand the call on."""
_KNOWING = (_TORCH, f"{Path(__file__).parents[1]}{os.sep}")
"""Whoever puts parts together itself: ``torch.distributed.checkpoint``, and this package."""


def own_part(state: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """What a state holds of one module among others, by the names that are its own."""
    return {n.removeprefix(prefix): value for n, value in state.items() if n.startswith(prefix)}


def tell_of_parts(state: Mapping[str, Any], whole: Collection[str], frame: FrameType) -> bool:
    """Warn a script that asked for a state, if that is not the state of the whole model.

    One that saves it on one worker, as scripts for torch's DDP do, would find out days later that
    the file does not hold what was trained.

    Args:
        state: what this worker has.
        whole: names in the state of the plain model.
        frame: of the call; not of a script, if our code or torch's asked for itself.

    Returns:
        Whether there was something to warn of.
    """
    line = _script_line(frame)
    cut = [name for name, value in state.items() if _is_cut(value)]
    absent = [name for name in whole if name not in state]
    if line is None or not (cut or absent):
        return False
    logger.warning(
        "%s asks for model.state_dict(), which gives this worker's part alone: of %d tensors, %d "
        "are cut%s and %d live on other workers%s. A file of it is not the model. Call "
        "fleet.full_state_dict(model) on all workers and save what worker 0 gets, or "
        "fleet.save_weights(model, folder) instead of save_pretrained(), or use "
        "fleet.CheckpointManager; parts are of use only where every worker saves and loads its own",
        *(line, len(whole), len(cut), _such_as(cut), len(absent), _such_as(absent)),
    )
    return True


def tell_of_rows(model: nn.Module, frame: FrameType) -> bool:
    """Warn a script that asked for a state, if the model has rows on servers.

    Args:
        model: whose state it is.
        frame: of the call, as above.

    Returns:
        Whether there was something to warn of.
    """
    tables = {m.options.name: None for m in model.modules() if isinstance(m, SparseModule)}
    line = _script_line(frame, passing=(*_PASSING, _TORCH))  # which collects no rows either
    if line is None or not tables:
        return False
    logger.warning(
        "%s asks for model.state_dict(), which holds no rows: those of %d tables%s are on the "
        "servers. fleet.save_persistables(folder) writes all that is trained, and "
        "fleet.load_persistables(folder) or fleet.init_server(folder) brings it back; "
        "fleet.save_inference_model(folder) is for serving",
        *(line, len(tables), _such_as([*tables])),
    )
    return True


def _script_line(frame: FrameType | None, passing: tuple[str, ...] = _PASSING) -> str | None:
    while frame is not None and frame.f_code.co_filename.startswith(passing):
        frame = frame.f_back
    if frame is None or frame.f_code.co_filename.startswith(_KNOWING):
        return None
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _is_cut(value: Any) -> bool:
    """Of DTensors, whose module is loaded only where there are some."""
    if not hasattr(value, "full_tensor"):
        return False
    sides = zip(value.device_mesh.shape, value.placements, strict=True)
    return any(ranks > 1 and not placement.is_replicate() for ranks, placement in sides)


def _such_as(names: list[str]) -> str:
    return f" ({names[0]}{', …' if len(names) > 1 else ''})" if names else ""
