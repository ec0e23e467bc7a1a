"""Limits on gradients: those that a program was told, and how an eager step obeys one."""

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

from fleetx.api.grad_clip import GradClip
from fleetx.compat.groups import Group
from fleetx.record.program_graph import ProgramGraph

_told: WeakKeyDictionary[ProgramGraph, list[tuple[GradClip, frozenset[str] | None]]] = (
    WeakKeyDictionary()
)
"""What ``set_gradient_clip`` said of a program: limits, and whose (None: all parameters')."""


def limit(program: ProgramGraph, clip: GradClip, names: Sequence[str] | None = None) -> None:
    """Limit gradients of a program whose optimizer names no limit; what is said last holds."""
    _told.setdefault(program, []).append((clip, None if names is None else frozenset(names)))


def hand_on(program: ProgramGraph, clone: ProgramGraph) -> None:
    """Limit the gradients of a clone as those of the program."""
    if program in _told:
        _told[clone] = list(_told[program])


def checked(given: Any) -> GradClip | None:
    """What an optimizer was given as limit."""
    if given is not None and not isinstance(given, GradClip):
        raise TypeError(
            "grad_clip is one of ClipGradByGlobalNorm, ClipGradByNorm and ClipGradByValue of "
            f"paddle.nn, got {given!r}"
        )
    return given


def clip_of(program: ProgramGraph) -> GradClip | None:
    """The limit that a program and its parameters name for all that is trained.

    A program limits all gradients together, so limits of some parameters are refused.
    """
    trained = program.state.trained()
    found = {name: _limit_of(program, name, value) for name, value in trained.items()}
    kinds = {repr(_key(clip)): clip for clip in found.values()}
    if len(kinds) < 2:
        return next(iter(kinds.values()), None)
    one, other = list(kinds)[:2]
    names = [next(n for n, c in found.items() if repr(_key(c)) == key) for key in (one, other)]
    raise ValueError(
        f"the gradient of {names[0]} is limited by {kinds[one]!r} and that of {names[1]} by "
        f"{kinds[other]!r} (set_gradient_clip, or ParamAttr(gradient_clip=...)), and a program "
        "limits all gradients together here; give the optimizer one "
        "grad_clip=fluid.clip.GradientClipByGlobalNorm(...) instead."
    )


def _limit_of(program: ProgramGraph, name: str, parameter: Tensor) -> GradClip | None:
    for clip, names in reversed(_told.get(program, [])):
        if names is None or name in names:
            return clip
    return checked(getattr(parameter, "gradient_clip", None))


def _key(clip: GradClip | None) -> Any:
    """What two limits have in common that limit gradients together."""
    return clip and (clip.options(), getattr(clip, "group_name", None))


def clip_gradients(
    clip: GradClip, parameters: Sequence[Tensor], group: Group | None = None
) -> None:
    """Limit the gradients of parameters in place; those marked ``need_clip=False`` stay.

    Args:
        clip: the limit.
        parameters: those of this worker.
        group: the workers that hold other parts of the same layers.
    """
    moved = [p for p in parameters if p.grad is not None and getattr(p, "need_clip", True)]
    chosen = [p.grad for p in moved if p.grad is not None]
    if not chosen:
        return
    options = clip.options()
    limit = options["limit"]
    with torch.no_grad():
        if options["by"] == "value":
            for gradient in chosen:
                gradient.clamp_(options.get("lowest", -limit), limit)
        elif options["by"] == "norm":
            for gradient in chosen:
                gradient.mul_(_factor(_norm([gradient]), limit))
        else:
            common = _common_norm(moved, group)
            factor = _factor(_norm(chosen) if common is None else common, limit)
            for gradient in chosen:
                gradient.mul_(factor)


def _norm(tensors: Sequence[Tensor]) -> Tensor:
    """The Euclidean norm of all numbers together."""
    found: Tensor = torch.stack([torch.linalg.vector_norm(t) for t in tensors])
    total: Tensor = torch.linalg.vector_norm(found)
    return total


def _factor(norm: Tensor, limit: float) -> Tensor:
    """One for what is small enough, exactly."""
    return limit / torch.clamp(norm, min=limit)


def _common_norm(parameters: Sequence[Tensor], group: Group | None) -> Tensor | None:
    """The norm over the parts of all workers; None where each has everything."""
    if group is None or group.nranks == 1:
        return None
    cut = [p.grad for p in parameters if getattr(p, "is_distributed", False)]
    whole = [p.grad for p in parameters if not getattr(p, "is_distributed", False)]
    squares = _square([g for g in cut if g is not None])
    dist.all_reduce(squares, group=group.process_group)
    return (squares + _square([g for g in whole if g is not None])).sqrt()


def _square(gradients: Sequence[Tensor]) -> Tensor:
    return _norm(gradients).square() if gradients else torch.zeros(())
