"""Which modules of a model are compiled, each by itself."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from torch import nn

from fleetx.graph.layer_kinds import runs, with_descendants
from fleetx.graph.meta import said
from fleetx.graph.repeated_blocks import repeated_blocks

Kind = tuple[object, ...]
"""Modules of one kind can run the same code."""
EVEN, LARGE = 8, 4096
"""Numbers of 16 bits of which a row of a factor is a multiple where cards multiply quickly, and the
length of rows from which on it counts: the product with 50,257 words takes four times as long."""


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
    *,
    pads: bool = False,
) -> Pieces:
    """The blocks that a model repeats, and what stands beside them; without blocks, the model.

    Args:
        model: what is compiled.
        opened: modules whose own forward never runs; of a model among them, parts of it do.
        elsewhere: modules that run on other ranks.
        repeated: how often a kind of block must come, on average, for blocks to be compiled; None:
            they never are.
        pads: whether a single layer of a size that cards do not like is compiled, too, because code
            pads it.
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
    every = _beside(model, blocks, opened, away)
    worth = (module for module in every if _is_worth_it(module, blocks, pads=pads))
    return Pieces(tuple(worth), by_block=True)


def _is_worth_it(module: nn.Module, blocks: set[nn.Module], *, pads: bool) -> bool:
    """Whether code is faster: a single layer is one kernel already."""
    alone = module not in blocks and len({*module.modules()}) == 1
    return not alone or (pads and _is_uneven(module))


def _is_uneven(module: nn.Module) -> bool:
    """Whether its product is slow unless somebody pads it."""
    if type(module) is not nn.Linear:
        return False
    sizes = module.in_features, module.out_features
    return max(sizes) >= LARGE and any(size % EVEN for size in sizes)


def _often(blocks: Collection[nn.Module], repeated: int | None) -> bool:
    """Whether it is worth it to compile them, and not the model that they are a part of."""
    return repeated is not None and len(blocks) >= repeated * len({_kind(b) for b in blocks})


def _beside(
    module: nn.Module,
    blocks: set[nn.Module],
    opened: Collection[nn.Module],
    away: Collection[nn.Module],
) -> Iterator[nn.Module]:
    """The blocks below a module, and the largest modules without a block."""
    if module in away:
        return
    inside = set(module.modules())
    if module in blocks:
        yield module
    elif module in opened or not runs(module) or inside & blocks:
        for child in dict.fromkeys(module.children()):
            yield from _beside(child, blocks, opened, away)
    else:
        yield module


def _kind(module: nn.Module) -> Kind:
    """What decides over the code of a module, as far as it can be seen before it runs."""
    types = tuple((name, type(part)) for name, part in module.named_modules())
    shapes = tuple((name, tuple(p.shape), p.dtype) for name, p in module.named_parameters())
    return types, shapes
