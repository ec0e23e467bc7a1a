"""A word for scripts that go over ``model.parameters()``, of which other workers hold some.

An optimizer is made of them, and moves those of this worker; whoever adds them up (a norm, a
penalty, a count) gets a sum over some, and other ones on other workers.
"""

import logging
import os
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import torch
from torch import nn

from fleetx.engine.engine import Engine
from fleetx.plan.error import PlanError

logger = logging.getLogger(__name__)

# With their ends: the folder of torchmetrics begins as torch's does.
_TORCH = f"{Path(torch.__file__).parent}{os.sep}"
_UTILS = f"{Path(_TORCH, 'nn', 'utils')}{os.sep}"
_OWN = f"{Path(__file__).parents[1]}{os.sep}"
_EACH_ALONE = "clip_grad_value_"
"""The function of ``torch.nn.utils`` that looks at every number by itself."""
_INSTEAD = (
    "strategy.clip limits gradients by the norm of all, weight_decay of the optimizer penalises "
    "all weights, fleet.full_state_dict(model) puts them together, and parameters are counted "
    "before fleet.distributed_model()"
)


class PartsOfParameters:
    """Looks at who goes over the parameters of one model."""

    def __init__(self, engine: Engine) -> None:
        self._engine = weakref.ref(engine)
        every, here = len(engine.parameter_names), len(engine.held())
        self.absent = every - here
        """How many parameters this worker has not."""
        self._has = f"{here} of {every} parameters of the model, and the others live elsewhere"
        self._told = False

    def of(self, found: Iterator[tuple[str, nn.Parameter]]) -> Iterator[tuple[str, nn.Parameter]]:
        """The same ones; whoever asks for the first alone wants its device or format."""
        for at, named in enumerate(found):
            yield named
            if at == 0:
                self._heed(sys._getframe(1))

    def _heed(self, frame: FrameType) -> None:
        engine, calls = self._engine(), _stack(frame)
        if engine is None or not calls:
            return
        where = f"{calls[-1].f_code.co_filename}:{calls[-1].f_lineno}"
        if calls[0].f_code.co_filename.startswith(_UTILS):
            raise PlanError(
                f"{where} gives model.parameters() to a function of torch.nn.utils that takes them "
                f"together, but this worker has {self._has}, so it would be wrong, and another one "
                f"on each worker: {_INSTEAD}."
            )
        if engine.driving:
            raise PlanError(
                f"{where} goes over model.parameters() inside of a batch, as a penalty in the "
                f"criterion does, but this worker has {self._has}, so it would be one of some of "
                f"them alone: {_INSTEAD}."
            )
        if not self._told and (engine.step is not None or _is_expression(calls[0])):
            self._told = True
            logger.warning(
                "%s goes over model.parameters(), but this worker has %s: what is done to each is "
                "right, and sums over them (norms, penalties, counts) are not those of the model. "
                "%s",
                *(where, self._has, _INSTEAD[0].upper() + _INSTEAD[1:]),
            )


def _stack(frame: FrameType | None) -> list[FrameType]:
    """Who asks for parameters, up to the script; nobody, if torch does, or fleetx, or an optimizer.

    ``Module.parameters`` hands on what it is asked for, and so do expressions that torch goes
    through.
    """
    found: list[FrameType] = []
    while frame is not None:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if file.startswith(_OWN) or name == _EACH_ALONE:
            return []
        hands_on = name == "parameters" if file.startswith(_TORCH) else _is_expression(frame)
        if not file.startswith(_TORCH) and not (hands_on and _is_torch(frame.f_back)):
            return [*found, frame]
        if file.startswith(_UTILS):
            found.append(frame)
        elif not hands_on:
            return []
        frame = frame.f_back
    return []


def _is_expression(frame: FrameType) -> bool:
    """Whether parameters are asked for one by one, by a sum or the like: groups are lists."""
    return frame.f_code.co_name == "<genexpr>"


def _is_torch(frame: FrameType | None) -> bool:
    return frame is not None and frame.f_code.co_filename.startswith(_TORCH)
