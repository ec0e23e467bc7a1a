"""Options of modules, such as a stride, which a script may change between two calls."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fleetx.torch_internals import tree_leaves

Options = dict[tuple[str, str], Any]
"""Path of a part of a module, and the name of an attribute of it -> the value."""


def options_of(module: nn.Module) -> Options:
    """What a module computes with besides tensors, such as its stride or its share to drop."""
    if isinstance(module, torch.jit.ScriptModule):
        return {}
    return {
        (path, name): copy.copy(value) if isinstance(value, list | dict | set) else value
        for path, part in module.named_modules()
        for name, value in vars(part).items()
        if not name.startswith("_") and name not in {"training", "forward"} and _plain(value)
    }


def _plain(value: Any) -> bool:
    return not any(isinstance(leaf, Tensor | nn.Module) for leaf in tree_leaves(value))


def changed(options: Options, base: Mapping[tuple[str, str], Any]) -> Options:
    """Those options that are others than in the base."""
    return {k: v for k, v in options.items() if k not in base or not _same(v, base[k])}


def same(a: Options, b: Options) -> bool:
    """Whether two calls had the same options."""
    return a.keys() == b.keys() and all(_same(value, b[key]) for key, value in a.items())


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    simple = (bool, int, float, str, bytes, tuple, list, dict, set)
    return type(a) is type(b) and isinstance(a, simple) and bool(a == b)


def give(module: nn.Module, options: Options) -> None:
    """Let a module compute with these options."""
    for (path, name), value in options.items():
        vars(module.get_submodule(path))[name] = value
