"""The whole weights of a model that is spread over ranks, and back again."""

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fleetx.api.extra_state import extra_states, load_extra_states
from fleetx.engine.engine import Engine
from fleetx.engine.saved_names import is_added, is_extra
from fleetx.roles.messages import broadcast_json, describe, described


@torch.no_grad()
def whole_state(engine: Engine, *, everywhere: bool = False) -> dict[str, Any]:
    """What the plain model saves, complete and on the host, under its names.

    These are parameters, buffers and what modules give as ``get_extra_state()``, of any type.
    All ranks must call it. Worker 0 gets the state; the others an empty dict, unless it is wanted
    everywhere. One tensor at a time is whole on each rank.
    """
    wanted = everywhere or not dist.is_initialized() or dist.get_rank() == 0
    state = engine.job.model.state_dict()
    found = extra_states(engine, state)
    tensors = {
        name: value
        for name, value in state.items()
        if not is_extra(name) and not is_added(name, value)
    }
    for name, value in whole(engine, tensors):
        if wanted and name not in found:
            found[name] = value.detach().cpu().clone()
    if not wanted:
        return {}
    assert (missing := set(engine.saved_names) - found.keys()) == set(), f"{missing} live nowhere"
    # What a model itself has added to its state is the same on every rank.
    added = {name: copy.deepcopy(state[name]) for name in state if is_added(name, state[name])}
    return {name: found[name] for name in engine.saved_names} | added


def whole(engine: Engine, own: Mapping[str, Tensor]) -> Iterable[tuple[str, Tensor]]:
    """The tensors of all stages by name, each gathered from the ranks over which it is spread.

    Args:
        engine: whose layout it is.
        own: what this rank has; ranks of one stage have the same names in the same order.
    """
    if engine.job.size("pp") == 1:
        yield from ((name, _whole(value)) for name, value in own.items())
        return
    group, device = engine.job.mesh["pp"].get_group(), engine.job.device
    for stage in range(engine.job.size("pp")):
        mine = dist.get_rank(group) == stage
        names = broadcast_json(
            list(own) if mine else None, source=stage, group=group, device=device
        )
        for name in names:
            value = _whole(own[name]) if mine else None
            kind = describe(value) if value is not None else None
            kind = broadcast_json(kind, source=stage, group=group, device=device)
            value = described(kind, device).detach() if value is None else value.contiguous()
            if value.numel():
                dist.broadcast(value, group=group, group_src=stage)
            yield name, value


def _whole(value: Tensor) -> Tensor:
    spread: Any = value
    whole: Tensor = spread.full_tensor() if hasattr(spread, "full_tensor") else value
    return whole.detach()


@torch.no_grad()
def load_whole_state(engine: Engine, state: Mapping[str, Any]) -> None:
    """Take the whole weights of the plain model; every rank keeps its part of them.

    All ranks must call it with the same state.
    """
    missing = sorted(set(engine.saved_names) - state.keys())
    held = engine.job.model.state_dict()
    added = {name for name, value in held.items() if is_added(name, value)}
    strange = sorted(state.keys() - set(engine.saved_names) - added)
    if missing or strange:
        raise ValueError(
            f"the state does not belong to this model: it lacks {missing[:3]} and has unknown "
            f"{strange[:3]}; pass the state_dict() of the plain model, or what "
            "fleet.full_state_dict() returned."
        )
    load_extra_states(engine, state)
    for name, value in held.items():
        if is_extra(name) or name in added:
            continue
        if value.shape != state[name].shape:
            raise ValueError(
                f"{name!r} has the shape {list(state[name].shape)} in the state and "
                f"{list(value.shape)} in the model; load the state of the same model."
            )
        value.copy_(spread_like(state[name], value))
    engine.job.brought(state)


def spread_like(whole: Tensor, like: Tensor) -> Tensor:
    """A whole tensor, laid out over ranks as another one is."""
    if not hasattr(like, "full_tensor"):
        return whole
    from torch.distributed.tensor import distribute_tensor

    laid: Any = like
    # Every rank has the whole value, so nothing needs to be sent.
    moved = whole.to(laid.device)
    return distribute_tensor(moved, laid.device_mesh, laid.placements, src_data_rank=None)
