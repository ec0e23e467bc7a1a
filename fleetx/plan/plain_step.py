"""The step of a job without any strategy, which strategies then change verb by verb."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from fleetx.plan.error import PlanError
from fleetx.plan.job import Job
from fleetx.plan.step import Driven, Step

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def unscaled(loss: Tensor) -> Tensor:
    """The scale of a job in which nothing scales."""
    return loss


def plain_step(job: Job) -> Step:
    """The step of a job with no strategy at all."""

    def drive(step: Step, batch: Any) -> Driven:
        raise AssertionError("a plan always has one provider of drive")

    def update() -> bool:
        assert job.optimizer is not None
        try:
            with ready_for(job.optimizer):
                job.optimizer.step()
        except (dist.DistError, torch.OutOfMemoryError, PlanError):
            raise
        except Exception as error:
            # What a recording breaks off at tells whoever records.
            if job.recorded is None and (axes := _cut_over(job.optimizer)):
                raise PlanError(_cannot_update(job.optimizer, axes, error)) from error
            raise
        return True

    def unless(flag: Tensor, update: Callable[[], bool]) -> bool:
        # The one place where the host must know what the device found.
        return False if flag.item() else update()

    def evaluate(inputs: Any) -> Any:
        raise AssertionError("a plan always has one provider of drive")

    return Step(
        scale=unscaled,
        drive=drive,
        evaluate=evaluate,
        due=lambda: True,
        sync=lambda armed: None,
        reduce=None,
        ready=lambda due: True,
        resume=lambda: None,
        agree=lambda flag: flag,
        total=lambda number: number,
        unless=unless,
        update=update,
        settle=lambda loss: None,
    )


def ready_for(optimizer: Optimizer) -> AbstractContextManager[None]:
    """Where methods of rules that nobody here knows see whole tensors if parts do not do."""
    library = type(optimizer).__module__.partition(".")[0]
    known = library in {"torch", "fleetx"} and not isinstance(optimizer, torch.optim.Adafactor)
    if isinstance(optimizer, torch.optim.Rprop) and _meshes(optimizer):
        _move_one_by_one(optimizer)
    meshes = [] if known else _meshes(optimizer)
    if not meshes:
        return nullcontext()
    from fleetx.spread.other_rules import computed_whole  # which needs DTensor

    return computed_whole(max(meshes, key=lambda mesh: mesh.ndim))


def _move_one_by_one(optimizer: Optimizer) -> None:
    """On a card Rprop takes all tensors as a list and copies it, which torch knows of whole ones.

    What a user chose stays.
    """
    for group in optimizer.param_groups:
        if group["foreach"] is None:
            group["foreach"] = False


def _cut_over(optimizer: Optimizer) -> str:
    """The axes of the mesh over which parameters of an optimizer are cut; nothing if none is.

    DTensor is not imported: jobs without one shall not pay for loading it.
    """
    names = (mesh.mesh_dim_names or () for mesh in _meshes(optimizer))
    return " and ".join(sorted({axis for found in names for axis in found}))


def _meshes(optimizer: Optimizer) -> "list[DeviceMesh]":
    """Over which its parameters are spread."""
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    meshes = (getattr(parameter, "device_mesh", None) for parameter in parameters)
    return [mesh for mesh in meshes if mesh is not None]


def _cannot_update(optimizer: Optimizer, axes: str, error: Exception) -> str:
    """Rules of other libraries call operators that torch does not know for cut tensors."""
    name = type(optimizer).__name__
    told = str(error).strip().partition("\n")[0].rstrip(".!") or "no reason"
    return (
        f"{name} cannot update parameters that are cut over workers (here over the axis {axes} of "
        f"the mesh): its step() ended with {type(error).__name__}: {told}. Train with a rule that "
        "torch applies to cut tensors, as it does SGD, Adam, AdamW, NAdam, RAdam and RMSprop, or "
        f"turn off the strategy that cuts ({axes})."
    )
