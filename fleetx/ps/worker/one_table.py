"""Layers of one name are one table: those that would be two in torch are refused."""

from collections.abc import Iterable, Mapping

from torch import Tensor

from fleetx.ps.worker.sparse_module import SparseModule


def refuse_merged(modules: Iterable[SparseModule], names: Mapping[Tensor, str]) -> None:
    """Refuse layers over one table that a script meant to learn by themselves.

    Args:
        modules: all of a model.
        names: the names of its parameters, by which layers are told.
    """
    known: dict[str, list[SparseModule]] = {}
    for module in modules:
        others = known.setdefault(module.options.name, [])
        for other in others:
            _compare(other, module, *(_path(each, names) for each in (other, module)))
        others.append(module)


def _path(module: SparseModule, names: Mapping[Tensor, str]) -> str:
    return repr(names.get(module.anchor, "anchor").removesuffix("anchor").removesuffix("."))


def _compare(one: SparseModule, other: SparseModule, first: str, second: str) -> None:
    table = one.options.name
    if other.is_copy_of(one):
        raise ValueError(
            f"{first} and {second} are copies of one layer, as copy.deepcopy() makes them, and in "
            f"torch each would learn by itself; here both have the name of table {table!r}, and so "
            "its rows. Make the second one with a name of its own, SparseEmbedding(..., "
            f"name={table + '_2'!r}), or put one layer in both places if they shall share them"
        )
    if one.given is None or other.given is None:
        return
    if (id_ := one.given.apart_from(other.given)) is not None:
        raise ValueError(
            f"{first} and {second} are to begin with different rows of id {id_}, and here both "
            f"have the name of table {table!r}, which has one row for it, so that one of them "
            "would be left out. Give each a name of its own, SparseEmbedding.from_pretrained(..., "
            f"name={table + '_2'!r}), or both the same rows if they shall share them"
        )
