"""How transformers stores what its models have under other names, or in one piece, in memory."""

import importlib
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fleetx.io.arrangement import Arrangement, joined, stacked
from fleetx.io.weight_folder import Kind

Shape = Callable[[str], Sequence[int]]
"""That of a stored tensor."""
_Parts = dict[str, list[Arrangement]]
"""Stored tensors by the pattern that their names match."""


def in_memory(
    model: nn.Module,
    stored: Collection[str],
    known: Collection[str],
    shape: Shape,
    *,
    strict: bool,
) -> dict[str, Arrangement]:
    """The name that each stored tensor has in a model -> where it lies in the files.

    Transformers knows older names of its models, and writes some of them to this day (ViT), and it
    puts some tensors together from several (the experts of Mixtral); it is asked for both.

    Args:
        model: of transformers, or any other.
        stored: the names in the files.
        known: those of the model.
        shape: that of a tensor in the files.
        strict: refuse tensors that are put together in a way that is not known here.
    """
    found = {name: Arrangement.of(name, shape(name)) for name in stored}
    if (loading := _loading(model)) is None:
        return found
    converters, renamings = _conversions(model, loading)
    merged: dict[str, _Parts] = defaultdict(lambda: defaultdict(list))
    for name in sorted(stored, key=loading.dot_natural_key):  # experts by their numbers
        renamed, pattern = loading.rename_source_key(name, renamings, converters)
        if renamed not in known:
            continue  # a stranger, which is told with all others
        if pattern is not None:
            merged[renamed][pattern].append(found[name])
        elif name not in known:
            found[renamed] = found.pop(name)
    for target, parts in merged.items():
        _merge(found, target, parts, converters, strict=strict)
    return found


def _merge(
    found: dict[str, Arrangement],
    target: str,
    parts: _Parts,
    converters: Sequence[Any],
    *,
    strict: bool,
) -> None:
    """Let one tensor of the model take the place of those that it is put together from."""
    names = [one.pieces[0].name for held in parts.values() for one in held]
    converter = next(each for each in converters if next(iter(parts)) in each.source_patterns)
    try:
        found[target] = _arranged(converter, parts)
    except ValueError as error:
        if strict:
            raise ValueError(
                f"transformers makes {target!r} of {names[0]!r}, of {len(names)} in all, which "
                f"fleet.load_weights() cannot do ({error}). Write the folder with "
                "save_pretrained(folder, save_original_format=False), and load that."
            ) from None
        found.pop(target, None)  # what has the same name in the files has other numbers there
        return
    for name in names:
        if name != target:
            del found[name]


def _conversions(model: nn.Module, loading: Any) -> tuple[list[Any], list[Any]]:
    """What puts tensors together, and what renames them."""
    transforms = importlib.import_module("transformers.conversion_mapping")
    every = transforms.get_model_conversion_mapping(model)
    return (
        [each for each in every if isinstance(each, loading.WeightConverter)],
        [each for each in every if isinstance(each, loading.WeightRenaming)],
    )


def _arranged(converter: Any, parts: _Parts) -> Arrangement:
    """What a converter of transformers makes of stored tensors, given by its patterns.

    Raises:
        ValueError: It does something else than putting them side by side.
    """
    found: dict[str, list[Arrangement]] = dict(parts)
    for operation in converter.operations:
        kind = type(operation).__name__
        if kind == "MergeModulelist":
            found = {p: [stacked(held, operation.dim)] for p, held in found.items()}
        elif kind == "Concatenate":
            every = [one for p in converter.source_patterns for one in found.get(p, ())]
            found = {"": [joined(every, operation.dim)]}
        elif kind != "Transpose" or not operation.check_dims:  # which turns what does not fit
            raise ValueError(f"{kind} moves numbers inside of tensors")
    (only,) = found.values()
    return only[0]


class OnDisk:
    """What is written of a model: the tensors that ``save_pretrained`` would write."""

    def __init__(self, model: nn.Module, kinds: Mapping[str, Kind]) -> None:
        """Ask transformers for names and shapes.

        Args:
            model: of transformers, or any other, which is stored as it is.
            kinds: those of its tensors, by their names in memory.
        """
        self._model, self._loading = model, _loading(model)
        own = {
            n: torch.empty(s, dtype=getattr(torch, d), device="meta") for n, (s, d) in kinds.items()
        }
        self._names = self._asked(own) or {name: {name: value} for name, value in own.items()}
        self._whole = {
            n for n, value in own.items() if value is next(iter(self._names[n].values()))
        }
        self.kinds: dict[str, Kind] = {
            name: (list(value.shape), str(value.dtype).removeprefix("torch."))
            for parts in self._names.values()
            for name, value in parts.items()
        }
        """Those of the tensors that are written, in their order."""

    def _asked(self, own: dict[str, Tensor]) -> dict[str, dict[str, Tensor]] | None:
        """For each tensor what is stored of it; None if some are not stored by themselves.

        They are then stored under the names of the model, which ``from_pretrained`` reads as well.
        """
        every = self._stored(own)
        kept = {id(value): name for name, value in every.items()}
        found = {
            name: {kept[id(value)]: value} if id(value) in kept else self._stored({name: value})
            for name, value in own.items()
        }
        told = {name: value.shape for parts in found.values() for name, value in parts.items()}
        together = told == {name: value.shape for name, value in every.items()}
        return found if together and all(found.values()) else None

    def _stored(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """What transformers makes of these tensors; nothing if it takes others as well."""
        try:
            return self._reverted(tensors)
        except (ValueError, LookupError, RuntimeError):
            return {}

    def _reverted(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        revert = getattr(self._loading, "revert_weight_conversion", None)
        return tensors if revert is None else dict(revert(self._model, tensors))

    def parts(self, name: str, whole: Tensor) -> Iterator[tuple[str, Tensor]]:
        """A tensor of the model as it is written."""
        if name not in self._names:
            return
        if name in self._whole:
            yield next(iter(self._names[name])), whole
        else:
            yield from self._reverted({name: whole}).items()


def _loading(model: nn.Module) -> Any:
    """The module of transformers that converts, for its own models; None if there is none."""
    library = sys.modules.get("transformers")
    if library is None or not isinstance(model, library.PreTrainedModel):
        return None
    try:
        return importlib.import_module("transformers.core_model_loading")
    except ImportError:
        return None  # before transformers 5, models had the names that they are stored under
