"""Which modules of a model are compiled, each by itself."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from torch import nn

from fleetx.graph.layer_kinds import runs, with_descendants
from fleetx.graph.meta import said
from fleetx.graph.repeated_blocks import repeated_blocks

Kind = tuple[object, ...]
"""Modules of one kind can run the same code."""


@dataclass(frozen=True)
class Pieces:
    """What is compiled by itself."""

    modules: tuple[nn.Module, ...]
    by_block: bool
    """Whether they are the blocks of a model and what stands beside them; else it is one piece."""

    def by_kind(self) -> dict[Kind, list[nn.Module]]:
        """The modules that can share their code, together."""
        found: dict[Kind, list[nn.Module]] = {}
        for module in self.modules:
            found.setdefault(_kind(module), []).append(module)
        return found


def pieces(
    model: nn.Module,
    opened: Collection[nn.Module],
    elsewhere: Collection[nn.Module],
    repeated: int | None = 1,
) -> Pieces:
    """The blocks that a model repeats, and what stands beside them; without blocks, the model.

    Args:
        model: what is compiled.
        opened: modules whose own forward never runs; of a model among them, parts of it do.
        elsewhere: modules that run on other ranks.
        repeated: how often a kind of block must come, on average, for blocks to be compiled; None:
            they never are.
    """
    away = with_descendants(elsewhere)
    # The code of a program calls single layers, never the modules around them.
    named = () if "calls" in said(model) else repeated_blocks(model)
    found = {model.get_submodule(path) for path in named}
    blocks = {block for block in found if block not in away and block not in opened}
    if model not in opened and not _often(blocks, repeated):
        blocks.clear()
    if not blocks:
        return Pieces(() if model in opened else (model,), by_block=False)
    return Pieces(tuple(_beside(model, blocks, opened, away)), by_block=True)


def _often(blocks: Collection[nn.Module], repeated: int | None) -> bool:
    """Whether it is worth it to compile them, and not the model that they are a part of."""
    return repeated is not None and len(blocks) >= repeated * len({_kind(b) for b in blocks})


def _beside(
    module: nn.Module,
    blocks: set[nn.Module],
    opened: Collection[nn.Module],
    away: Collection[nn.Module],
) -> Iterator[nn.Module]:
    """The blocks below a module, and the largest modules without a block that consist of several.

    A single layer is one kernel already.
    """
    if module in away:
        return
    inside = set(module.modules())
    if module in blocks:
        yield module
    elif module in opened or not runs(module) or inside & blocks:
        for child in dict.fromkeys(module.children()):
            yield from _beside(child, blocks, opened, away)
    elif len(inside) > 1:
        yield module


def _kind(module: nn.Module) -> Kind:
    """What decides over the code of a module, as far as it can be seen before it runs."""
    types = tuple((name, type(part)) for name, part in module.named_modules())
    shapes = tuple((name, tuple(p.shape), p.dtype) for name, p in module.named_parameters())
    return types, shapes
