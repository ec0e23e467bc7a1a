"""Which parameters live on which rank of a pipeline, and those that live on several."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from fleetx.comm.local import local
from fleetx.graph.parts import Part
from fleetx.roles.subgroups import along


@dataclass(frozen=True)
class Tie:
    """One parameter that several ranks hold, under the names it has there."""

    ranks: tuple[int, ...]
    name: str
    """Its name here."""


class Homes:
    """What each rank of a pipeline keeps of a model."""

    def __init__(self, model: nn.Module, held: Sequence[Collection[Part]], rank: int) -> None:
        self._model, self._rank = model, rank
        self._paths = [_paths(parts) for parts in held]
        self._sets: set[tuple[int, ...]] = set()
        """The sets of ranks that share a parameter, this rank's or not."""
        self.ties = self._find_ties()
        self._groups: dict[tuple[int, ...], dist.ProcessGroup] = {}

    def keeps(self, path: str) -> bool:
        """Whether this rank has what lies at a path."""
        return _inside(path, self._paths[self._rank])

    @property
    def borrowed(self) -> set[str]:
        """Names of parameters here that an earlier rank counts as its own."""
        return {tie.name for tie in self.ties if tie.ranks[0] != self._rank}

    def forget_others(self) -> set[nn.Module]:
        """Let go of the parameters and buffers of other ranks; return the modules they were in.

        The tree of modules stays, so that names can still be looked up.
        """
        everywhere = set().union(*self._paths)
        named = list(self._model.named_modules(remove_duplicate=False))
        # What has several names is kept under all of them if it is kept under one.
        kept = {module for path, module in named if path and self.keeps(path)}
        places = {(id(kind), n) for kind, n, path in _tensors(named) if self.keeps(path)}
        for kind, name, _ in list(_tensors(named)):
            if (id(kind), name) not in places:
                kind[name] = None
        return {m for path, m in named if m not in kept and _inside(path, everywhere)}

    def _find_ties(self) -> list[Tie]:
        names: dict[nn.Parameter, list[str]] = {}
        for name, parameter in self._model.named_parameters(remove_duplicate=False):
            names.setdefault(parameter, []).append(name)
        ties = []
        for known in names.values():
            ranks = tuple(r for r, paths in enumerate(self._paths) if _any_inside(known, paths))
            if len(ranks) > 1:
                self._sets.add(ranks)
            if len(ranks) > 1 and self._rank in ranks:
                ties.append(Tie(ranks, next(name for name in known if self.keeps(name))))
        return ties

    def meet(self, mesh: DeviceMesh) -> None:
        """Make the groups in which tied parameters add up their gradients; all ranks call it."""
        for ranks in sorted(self._sets):
            group = along(mesh, "pp", ranks)
            if group is not None:
                self._groups[ranks] = group
        for tie in self.ties:
            self._check(tie)

    def _check(self, tie: Tie) -> None:
        here = local(self._model.get_parameter(tie.name)).detach()
        sizes = torch.tensor([here.numel(), -here.numel()], device=here.device)
        dist.all_reduce(sizes, op=dist.ReduceOp.MAX, group=self._groups[tie.ranks])
        if int(sizes[0]) != -int(sizes[1]):
            raise ValueError(
                f"the tied parameter {tie.name!r} has {here.numel()} numbers on this stage and "
                "another count on the stage that shares it, because only one of the two layers "
                "that use it is cut over ranks; cut both alike, or none."
            )

    @torch.no_grad()
    def add_up(self) -> None:
        """Let every copy of a tied parameter have the gradient of all of them."""
        for tie in self.ties:
            parameter = self._model.get_parameter(tie.name)
            if not parameter.requires_grad:
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            part = local(parameter.grad)
            dist.all_reduce(part, group=self._groups[tie.ranks])


def _paths(parts: Collection[Part]) -> set[str]:
    return {path for part in parts for path in part.modules | part.attributes}


def _tensors(
    named: Collection[tuple[str, nn.Module]],
) -> Iterator[tuple[dict[str, Any], str, str]]:
    """Where each parameter and buffer lies, its name there, and its path."""
    for path, module in named:
        for kind in (module._parameters, module._buffers):
            yield from ((kind, name, f"{path}.{name}" if path else name) for name in kind)


def _inside(path: str, places: Collection[str]) -> bool:
    """Whether a path is one of the places or lies below one."""
    steps = path.split(".")
    return any(".".join(steps[:length]) in places for length in range(1, len(steps) + 1))


def _any_inside(names: Collection[str], places: Collection[str]) -> bool:
    return any(_inside(name, places) for name in names)
