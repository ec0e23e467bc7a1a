"""Cutting a tree of modules into units whose parameters travel together."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby

import torch
from torch import nn

Path = str
Calls = Mapping[Path, bool]
"""The modules that a model calls, in their order, and whether each alone reads its parameters."""


@dataclass
class Unit:
    """Modules that run one after the other."""

    modules: list[nn.Module] = field(default_factory=list)
    names: list[Path] = field(default_factory=list)
    size: int = 0


@dataclass(frozen=True)
class Atom:
    """A module that is never cut."""

    name: Path
    module: nn.Module
    size: int
    replayed: bool
    """Whether it lies inside a module whose forward was replaced, so it may run by itself."""


def by_size(
    model: nn.Module,
    limit: float,
    apart: Collection[nn.Module] = (),
    opened: Collection[nn.Module] = (),
    calls: Calls | None = None,
    *,
    whole: Collection[nn.Module] = (),
) -> list[Unit]:
    """Units that are closed as soon as they hold ``limit`` bytes.

    Args:
        model: Whose submodules are dealt out; what belongs to the model itself stays with it.
        limit: Bytes of parameters.
        apart: Modules that do not run here; a unit does not reach over them.
        opened: Modules that are never called themselves, only what is inside.
        calls: What runs, where that is known; nothing else is dealt out.
        whole: Modules that stay in one unit, however large they are.
    """
    units = [Unit()]
    for atom in _atoms(model, limit, (), (set(apart), set(opened)), calls, kept=set(whole)):
        if units[-1].size >= limit or atom is None or atom.replayed:
            units.append(Unit())
        if atom is not None:
            _add(units[-1], atom)
        if atom is not None and atom.replayed:
            units.append(Unit())
    return [unit for unit in units if unit.modules]


def by_anchors(
    model: nn.Module,
    anchors: Collection[Path],
    apart: Collection[nn.Module] = (),
    opened: Collection[nn.Module] = (),
    calls: Calls | None = None,
    *,
    whole: Collection[nn.Module] = (),
) -> list[Unit]:
    """Units that end with the modules of these names, or with the last piece up to there."""
    units = [Unit()]
    not_run = set(apart), set(opened)
    atoms = list(_atoms(model, float("inf"), anchors, not_run, calls, kept=set(whole)))
    names = calls or [name for name, _ in model.named_modules(remove_duplicate=False)]
    ends = _ends(list(names), [atom.name for atom in atoms if atom is not None], anchors)
    for atom in atoms:
        if atom is None or atom.replayed:
            units.append(Unit())
        if atom is None:
            continue
        _add(units[-1], atom)
        if atom.replayed or atom.name in ends:
            units.append(Unit())
    return [unit for unit in units if unit.modules]


def without_shared(units: Collection[Unit]) -> list[Unit]:
    """The units without modules that use a parameter of another unit: those belong to the model."""
    uses = Counter(
        parameter
        for unit in units
        for parameter in {p for module in unit.modules for p in module.parameters()}
    )
    kept = []
    for unit in units:
        alone = Unit()
        for module, name in zip(unit.modules, unit.names, strict=True):
            if all(uses[parameter] == 1 for parameter in module.parameters()):
                _add(alone, Atom(name, module, _size(module), replayed=False))
        kept.append(alone)
    return [unit for unit in kept if unit.modules]


def of_one_format(units: Collection[Unit]) -> list[Unit]:
    """The units, cut where a module has parameters of another format than the one before it."""
    cut = []
    for unit in units:
        pairs = zip(unit.modules, unit.names, strict=True)
        for _, alike in groupby(pairs, key=lambda pair: formats(pair[0])):
            cut.append(Unit())
            for module, name in alike:
                _add(cut[-1], Atom(name, module, _size(module), replayed=False))
    return cut


def formats(module: nn.Module) -> frozenset[torch.dtype]:
    """Those of the parameters that are trained, which FSDP reduces in one piece."""
    return frozenset(p.dtype for p in module.parameters() if p.requires_grad)


def _add(unit: Unit, atom: Atom) -> None:
    unit.modules.append(atom.module)
    unit.names.append(atom.name)
    unit.size += atom.size


def _ends(names: list[Path], atoms: list[Path], anchors: Collection[Path]) -> set[Path]:
    """The atoms that end a unit: an anchor may be opened itself, or have no parameters."""
    order = {name: at for at, name in enumerate(names)}
    lasts = (max(order[name] for name in order if _inside(name, anchor)) for anchor in anchors)
    passed = ([name for name in atoms if order[name] <= last] for last in lasts)
    return {names[-1] for names in passed if names}


def _inside(name: Path, outer: Path) -> bool:
    return name == outer or name.startswith(f"{outer}.")


def _atoms(
    model: nn.Module,
    limit: float,
    anchors: Collection[Path],
    not_run: tuple[set[nn.Module], set[nn.Module]],
    calls: Calls | None,
    *,
    kept: set[nn.Module],
) -> Iterator[Atom | None]:
    """The modules to deal out, in their order; None where one runs elsewhere.

    ``not_run`` are those of other ranks, and those that are never called themselves; ``kept`` are
    those that only a name inside opens.
    """
    if calls is not None:
        yield from _called(model, calls, not_run[0])
        return
    apart, opened = not_run[0], not_run[1] | set(_wrapped(model)) - kept
    seen: set[nn.Module] = set()

    def walk(module: nn.Module, name: Path, replayed: bool) -> Iterator[Atom | None]:
        if module in seen:
            return
        seen.add(module)
        if module in apart:
            yield None
            return
        size = _size(module)
        most = float("inf") if module in kept else limit
        whole = module not in opened and not _opened(module, name, size, most, anchors)
        whole = whole and (module in kept or not _separable(module))
        if name and size and whole:
            yield Atom(name, module, size, replayed)
            return
        inside = replayed or (bool(name) and "forward" in vars(module))
        for child, submodule in module.named_children():
            yield from walk(submodule, f"{name}.{child}" if name else child, inside)

    yield from walk(model, "", False)


def _wrapped(model: nn.Module) -> Iterator[nn.Module]:
    """What is all that a model has, and what is all that this one has, and so on.

    Wrappers reach through each other: the outermost of peft calls the innermost module.
    """
    while not any(True for _ in model.parameters(recurse=False)):
        held = [child for child in model.children() if _size(child)]
        if len(held) != 1 or is_compound(held[0]) or not any(map(_size, held[0].children())):
            return
        model = held[0]
        yield model


def _called(model: nn.Module, calls: Calls, apart: set[nn.Module]) -> Iterator[Atom | None]:
    """The modules that run; each is called by its name, so none is opened."""
    for name, alone in calls.items():
        module = model.get_submodule(name)
        if module in apart:
            yield None
        elif alone and (size := _size(module)):
            yield Atom(name, module, size, replayed=False)


def _size(module: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in module.parameters())


def _opened(
    module: nn.Module, name: Path, size: int, limit: float, anchors: Collection[Path]
) -> bool:
    """Whether a module is dealt out in parts."""
    if type(module).forward is nn.Module.forward:
        return True  # a list of modules is never called itself
    if type(module).forward is nn.Sequential.forward and "forward" not in vars(module):
        return True  # a loop over its layers does not call it either
    if not any(True for child in module.children() for _ in child.parameters()):
        return False
    if is_compound(module):
        return False
    if any(anchor.startswith(f"{name}.") for anchor in anchors):
        return True
    return size > limit


def _separable(module: nn.Module) -> bool:
    """Whether it has parameters of several formats, which units of its children might not have."""
    inside = any(map(_size, module.children()))
    return len(formats(module)) > 1 and inside and not is_compound(module)


def is_compound(module: nn.Module) -> bool:
    """Layers of torch.nn that read the weights of their children without calling them."""
    mixed = type(module).__mro__
    own = next((cls for cls in mixed if cls.__module__.startswith("torch.nn.modules")), nn.Module)
    plain = (nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.TransformerEncoder)
    return own is not nn.Module and not isinstance(module, (*plain, nn.TransformerDecoder))
