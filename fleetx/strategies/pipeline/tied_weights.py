"""Which parameters live on which rank of a pipeline, and those that live on several."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from fleetx.comm.local import local
from fleetx.graph.part import Part
from fleetx.roles.subgroups import along
from fleetx.strategies.pipeline.cutting import Cut
from fleetx.torch_internals import buffers_of, parameters_of


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
        self._used = set().union(*self._paths)
        self._adopt_unused()
        self._sets: set[tuple[int, ...]] = set()
        """The sets of ranks that share a parameter, this rank's or not."""
        self.ties = self._find_ties()
        self._groups: dict[tuple[int, ...], dist.ProcessGroup] = {}

    def keeps(self, path: str) -> bool:
        """Whether this rank has what lies at a path."""
        return _inside(path, self._paths[self._rank])

    def told(self) -> list[list[str]]:
        """What lies on which rank, by paths."""
        return [sorted(paths) for paths in self._paths]

    @property
    def borrowed(self) -> set[str]:
        """Names of parameters here that an earlier rank counts as its own."""
        return {tie.name for tie in self.ties if tie.ranks[0] != self._rank}

    def forget_others(self) -> set[nn.Module]:
        """Let go of the parameters and buffers of other ranks; return the modules they were in.

        The tree of modules stays, so that names can still be looked up.
        """
        named = list(self._model.named_modules(remove_duplicate=False))
        # What has several names is kept under all of them if it is kept under one.
        kept = {module for path, module in named if path and self.keeps(path)}
        places = {(id(kind), n) for kind, n, path in _tensors(named) if self.keeps(path)}
        before = {_owner(path) for _, _, path in _tensors(named)}
        for kind, name, _ in list(_tensors(named)):
            if (id(kind), name) not in places:
                kind[name] = None
        emptied = before - {_owner(path) for _, _, path in _tensors(named)}
        away = {path for path in emptied if not _around(path, self._used)}
        return {m for p, m in named if m not in kept and (p in away or _inside(p, self._used))}

    def _adopt_unused(self) -> None:
        """Let what no part uses live where the same tensor is used, or else on the first rank.

        A state without it would not be that of the model.
        """
        named = list(self._model.named_modules(remove_duplicate=False))
        users: dict[int, set[int]] = {}
        used = set()
        for kind, name, path in _tensors(named):
            ranks = {rank for rank, paths in enumerate(self._paths) if _inside(path, paths)}
            users.setdefault(id(kind[name]), set()).update(ranks)
            used |= {(id(kind), name)} if ranks else set()
        for kind, name, path in _tensors(named):
            if (id(kind), name) in used:
                continue
            ranks = users[id(kind[name])]
            for rank in ranks or {0}:
                self._paths[rank].add(path)
            if isinstance(kind[name], nn.Parameter) and not ranks:
                # No gradient will ever come, and whoever reduces gradients would wait for it.
                kind[name].requires_grad_(False)

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


def parts_of_ranks(cut: Cut, ranks: int) -> list[list[Part]]:
    """The parts that each rank runs, in training or in evaluation."""
    held: list[list[Part]] = [[] for _ in range(ranks)]
    for found in cut.parts.values():
        for number, part in enumerate(found):
            held[number % ranks].append(part)
    return held


def _paths(parts: Collection[Part]) -> set[str]:
    return {path for part in parts for path in part.modules | part.attributes}


def _tensors(
    named: Collection[tuple[str, nn.Module]],
) -> Iterator[tuple[dict[str, Any], str, str]]:
    """Where each parameter and buffer lies, its name there, and its path."""
    for path, module in named:
        for kind in (parameters_of(module), buffers_of(module)):
            for name in kind:
                if kind[name] is not None:
                    yield kind, name, f"{path}.{name}" if path else name


def _inside(path: str, places: Collection[str]) -> bool:
    """Whether a path is one of the places or lies below one."""
    steps = path.split(".")
    return any(".".join(steps[:length]) in places for length in range(1, len(steps) + 1))


def _owner(path: str) -> str:
    return path.rpartition(".")[0]


def _around(path: str, places: Collection[str]) -> bool:
    """Whether one of the places lies below a path; all lie below that of the model itself."""
    return not path or any(place.startswith(f"{path}.") for place in places)


def _any_inside(names: Collection[str], places: Collection[str]) -> bool:
    return any(_inside(name, places) for name in names)
