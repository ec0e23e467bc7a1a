"""A user's script up to the moment when its model, its optimizer and a batch are known."""

import runpy
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer

from fleetx.api import session
from fleetx.api.session import Given, Session, Watch
from fleetx.config.distributed_strategy import DistributedStrategy
from fleetx.plan.error import PlanError


class _Enough(BaseException):
    """All is known; not an `Exception`, so that no script swallows it."""


@dataclass
class Captured:
    """What the script has shown so far."""

    given: Given | None = None
    optimizer: Optimizer | None = None
    strategy: DistributedStrategy = field(default_factory=DistributedStrategy)
    ended: str = ""
    """How the script ended, if it did before all was known."""


def captured(script: str, arguments: Sequence[str], *, meta: bool) -> Captured:
    """Run the script until it has distributed its model and its optimizer.

    Args:
        script: its path.
        arguments: what it gets.
        meta: make its tensors without numbers.

    Raises:
        PlanError: it distributes no model.
    """
    found = Captured()
    try:
        with _watched(found), torch.device("meta") if meta else nullcontext():
            run(script, arguments)
    except _Enough:
        pass
    except (Exception, SystemExit) as error:
        if found.given is None:
            raise
        found.ended = f"{type(error).__name__}: {error}"
    if found.given is None:
        raise PlanError(
            f"{script} ended without a call of fleet.distributed_model(), so there is nothing to "
            "plan for. Static programs are not followed."
        )
    return found


@contextmanager
def _watched(found: Captured) -> Iterator[None]:
    def begins(job: Session) -> None:
        found.strategy = job.strategy

    def given(what: Given) -> None:
        found.given = what
        _stop_if_known(found)

    def optimizer(what: Any) -> None:
        if not isinstance(what, Optimizer):
            raise PlanError(
                "modules are followed, and this script trains a static program; give the module "
                "from which it is made to fleet.distributed_model()."
            )
        found.optimizer = what
        _stop_if_known(found)

    watch = Watch(begins=begins, given=given, optimizer=optimizer, lays_out=False)
    session.watches.append(watch)
    try:
        yield
    finally:
        session.watches.remove(watch)


def _stop_if_known(found: Captured) -> None:
    if found.given is not None and found.optimizer is not None:
        raise _Enough


def run(script: str, arguments: Sequence[str]) -> None:
    """Run it as `python` would."""
    before, path = sys.argv, [*sys.path]
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        sys.argv, sys.path[:] = before, path
