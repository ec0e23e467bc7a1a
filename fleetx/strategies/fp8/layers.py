"""Which layers of a model multiply in float8, and why the others do not."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import nn

from fleetx.plan import option
from fleetx.plan.error import PlanError
from fleetx.plan.forward import has_own_forward
from fleetx.strategies.fp8.casting import MULTIPLE
from fleetx.torch_internals import parameters_of

FORMATS = (torch.float32, torch.bfloat16, torch.float16)
"""Of weights that can become float8; a double has digits that somebody wanted."""
SHOWN = 3
"""Names of layers that a sentence lists."""
LAYERS, EXCLUDE = "fp8_configs['layers']", "fp8_configs['exclude']"


@dataclass(frozen=True)
class Layer:
    """A module that multiplies by a matrix."""

    path: str
    module: nn.Module
    inputs: int
    outputs: int
    by_columns: bool = False
    """Whether its weight has a row for each input, as ``Conv1D`` of transformers."""


@dataclass(frozen=True)
class Chosen:
    """The layers that multiply in float8, and the others by the reasons why they do not."""

    taken: tuple[Layer, ...]
    left: dict[str, list[str]]

    def in_words(self) -> str:
        """How many there are of which kind."""
        every = len(self.taken) + sum(map(len, self.left.values()))
        others = "; ".join(f"{names(paths)}: {why}" for why, paths in self.left.items())
        rest = f" As without it are {others}." if others else ""
        return f"{len(self.taken)} of {every} linear layers multiply in float8.{rest}"


def chosen(model: nn.Module, layers: Collection[str], exclude: Collection[str]) -> Chosen:
    """What multiplies in float8: what patterns name, or all but the first and the last layer.

    Raises:
        PlanError: a pattern names nothing, or no layer is left.
    """
    known = list(linear_layers(model))
    for label, patterns in ((LAYERS, layers), (EXCLUDE, exclude)):
        _check_patterns(label, patterns, known)
    parents = _inside_attention(model)
    ends = {known[0].path, known[-1].path} if known else set()
    taken, left = list[Layer](), dict[str, list[str]]()
    for layer in known:
        why = _left_out(layer.path, layers, exclude, ends) or _why_not(layer, parents)
        if why:
            left.setdefault(why, []).append(layer.path)
        else:
            taken.append(layer)
    found = Chosen(tuple(taken), left)
    if not taken:
        raise PlanError(_nothing(found))
    return found


def linear_layers(model: nn.Module) -> Iterator[Layer]:
    """All layers that multiply by a matrix, in the order of ``named_modules()``."""
    for path, module in model.named_modules():
        if isinstance(module, nn.Linear):
            yield Layer(path, module, module.in_features, module.out_features)
        elif _is_conv1d(module):
            yield Layer(path, module, int(module.nx), int(module.nf), by_columns=True)


def _is_conv1d(module: nn.Module) -> bool:
    """Whether it is the linear layer of GPT-2; its library need not be there."""
    kind = type(module)
    return (kind.__module__, kind.__name__) == ("transformers.pytorch_utils", "Conv1D")


def _check_patterns(label: str, patterns: Iterable[str], known: list[Layer]) -> None:
    paths = [layer.path for layer in known]
    for pattern in patterns:
        if not any(_matches(path, pattern) for path in paths):
            message = f"{label} names {pattern!r}, and the model has no such linear layer"
            raise PlanError(option.unknown(message, pattern, paths))


def _matches(path: str, pattern: str) -> bool:
    """Whether a pattern names a layer, or a submodule in which it lies."""
    return fnmatchcase(path, pattern) or fnmatchcase(path, f"{pattern}.*")


def _left_out(
    path: str, layers: Collection[str], exclude: Collection[str], ends: set[str]
) -> str | None:
    """Why the options leave a layer out."""
    if any(_matches(path, pattern) for pattern in exclude):
        return f"{EXCLUDE} names them"
    if layers:
        named = any(_matches(path, pattern) for pattern in layers)
        return None if named else f"{LAYERS} does not name them"
    if path in ends:
        return f"the first and the last layer, where digits count most, unless {LAYERS} names them"
    return None


def _why_not(layer: Layer, attention: set[nn.Module]) -> str | None:
    """Why a layer cannot multiply in float8."""
    module = layer.module
    own = not layer.by_columns and type(module).forward is not nn.Linear.forward
    if own or has_own_forward(module):
        return f"{type(module).__name__} has a forward of its own"
    if module in attention:
        return "nn.MultiheadAttention never calls them"
    weight = parameters_of(module).get("weight")  # None: of another stage, or computed
    if weight is not None and weight.dtype not in FORMATS:
        return f"their weights are {weight.dtype}"
    sizes = layer.inputs, layer.outputs
    if all(size and size % MULTIPLE == 0 for size in sizes):
        return None
    return f"{sizes[0]} inputs and {sizes[1]} outputs are not both multiples of {MULTIPLE}"


def _inside_attention(model: nn.Module) -> set[nn.Module]:
    whole = (module for module in model.modules() if isinstance(module, nn.MultiheadAttention))
    return {inner for module in whole for inner in module.modules()}


def _nothing(found: Chosen) -> str:
    if not found.left:
        return (
            "strategy.fp8 = True cannot be in force: it is about linear layers (nn.Linear), and "
            "this model has none. Set strategy.fp8 = False."
        )
    others = "; ".join(f"{names(paths)}: {why}" for why, paths in found.left.items())
    return (
        f"strategy.fp8 = True cannot be in force: no linear layer is left for it ({others}). Name "
        f"layers whose sizes are multiples of {MULTIPLE} in {LAYERS}, or set strategy.fp8 = False."
    )


def names(paths: list[str]) -> str:
    """The first few of them."""
    shown = ", ".join(path or "the model itself" for path in paths[:SHOWN])
    more = len(paths) - SHOWN
    return f"{shown} and {more} more" if more > 0 else shown
