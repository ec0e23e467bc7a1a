"""What all workers computed for a batch, each sample once: for metrics of others."""

from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from fleetx.data.fillers import Filling, current, without
from fleetx.data.loader import DistributedLoader
from fleetx.data.team import Team, find_team
from fleetx.metrics.given import tensor_of
from fleetx.roles.messages import carried_on
from fleetx.torch_internals import tree_flatten, tree_unflatten

_DIMENSIONS = 8
"""A tensor that travels has at most so many."""


def gather_for_metrics(*values: Any, loader: DistributedLoader | None = None) -> Any:
    """The results of all workers for the batch at hand, without what only fills it up.

    Every worker gets the rows of all workers that share the data, for metrics of any library. Ranks
    that work on the same samples (of one pipeline or tensor-parallel group) count once. All workers
    must call it.

    Args:
        values: outputs, targets, ...: tensors, arrays or lists of numbers with a row (or several)
            for each sample, alone or in tuples, lists of tensors and dicts.
        loader: whose last batch it was; the one that is being iterated over if not said.

    Returns:
        The same with all rows as tensors, one worker behind the other: one value, or a tuple.
    """
    filling = current() if loader is None else loader.filling
    team, out = find_team(None), []
    for value in values:
        leaves, form = tree_flatten(value, is_leaf=_is_rows)
        out.append(tree_unflatten([_gathered(leaf, filling, team) for leaf in leaves], form))
    return out[0] if len(out) == 1 else tuple(out)


def _is_rows(value: Any) -> bool:
    """A list of numbers is one value."""
    return isinstance(value, list) and not any(
        isinstance(each, Tensor | dict | tuple) for each in value
    )


def _gathered(value: Any, filling: Filling, team: Team) -> Tensor:
    mine, flaw = _own(value, filling)
    if team.size == 1:
        if flaw is not None:
            raise flaw
        return mine
    if team.group is None:
        raise RuntimeError(
            f"fleet.gather_for_metrics() needs a group of the {team.size} workers, and they cannot "
            "reach each other; set MASTER_ADDR and MASTER_PORT for every worker"
        )
    sizes = _sizes(mine, flaw, team.group)
    if flaw is not None:
        raise flaw
    _check(sizes)
    return _joined(mine, [int(size[2]) for size in sizes], team)


def _own(value: Any, filling: Filling) -> tuple[Tensor, Exception | None]:
    """Rows of real samples; or what is wrong, which the others must hear before it is raised."""
    try:
        tensor = tensor_of(value, "values")
        if getattr(value, "ndim", None) == 0 or isinstance(value, int | float):
            raise ValueError(
                "fleet.gather_for_metrics() got one number, which is of no sample; pass rows, one "
                "for each sample, and numbers to fleet.util.all_gather()"
            )
        if tensor.dim() > _DIMENSIONS - 3:
            raise ValueError(f"values have {tensor.dim()} dimensions; flatten some of them")
        return without([tensor], filling)[0], None
    except (TypeError, ValueError) as error:
        return torch.zeros(0), error


def _sizes(mine: Tensor, flaw: Exception | None, group: dist.ProcessGroup) -> list[list[int]]:
    """Of each worker: whether all is well, the type, and the shape behind its length."""
    known = [flaw is None, _KINDS.index(mine.dtype), len(mine), mine.dim(), *mine.shape[1:]]
    header = torch.tensor([int(each) for each in known] + [0] * (_DIMENSIONS + 3 - len(known)))
    header = header.to(carried_on(group))
    found = [torch.zeros_like(header) for _ in range(dist.get_world_size(group))]
    dist.all_gather(found, header, group=group)
    return [each.tolist() for each in found]


_KINDS = [value for name, value in sorted(vars(torch).items()) if isinstance(value, torch.dtype)]


def _check(sizes: list[list[int]]) -> None:
    wrong = [index for index, size in enumerate(sizes) if not size[0]]
    if wrong:
        raise RuntimeError(
            f"fleet.gather_for_metrics() failed on worker {wrong[0]}, so nobody gets its rows; "
            "look there for the reason"
        )
    kinds = {(size[1], *size[3:]) for size in sizes}
    if len(kinds) > 1:
        told = "; ".join(
            f"worker {index}: {_KINDS[size[1]]} of shape {[size[2], *size[4 : 3 + size[3]]]}"
            for index, size in enumerate(sizes)
        )
        raise ValueError(
            f"rows of the workers differ and make no tensor ({told}); pad them to one size, or "
            "pass what is left of them, such as classes instead of scores"
        )


def _joined(mine: Tensor, lengths: list[int], team: Team) -> Tensor:
    """The rows of all workers, one worker behind the other."""
    assert team.group is not None
    there, kind, shape = mine.device, mine.dtype, mine.shape[1:]
    # As bytes, which every backend carries.
    width = shape.numel() * kind.itemsize
    padded = torch.zeros(max(lengths) * width, dtype=torch.uint8, device=carried_on(team.group))
    own = mine.contiguous().reshape(-1).view(torch.uint8)
    padded[: len(own)].copy_(own)
    found = [torch.empty_like(padded) for _ in range(team.size)]
    if max(lengths) * width:
        dist.all_gather(found, padded, group=team.group)
    rows = [
        part[: length * width].to(there).view(kind).view(length, *shape)
        for part, length in zip(found, lengths, strict=True)
    ]
    return torch.cat(rows)
