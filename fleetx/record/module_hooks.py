"""Hooks around the forward of modules: the user's are recorded, torch's own run each time."""

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from fleetx.record.error import ProgramError
from fleetx.record.source_lines import user_line

_FORWARD_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_BACKWARD_HOOKS = ("_backward_hooks", "_backward_pre_hooks")


def copied(module: nn.Module) -> nn.Module:
    """A module beside another one, with the same attributes.

    Parametrized ones refuse to be copied, because a pickle of them could not be read; their class
    was made for them, and here the two are used together.
    """
    if not parametrize.is_parametrized(module):
        return copy.copy(module)
    made = type(module).__new__(type(module))
    vars(made).update(vars(module))
    return made


def without_hooks(module: nn.Module) -> nn.Module:
    """The module without the user's hooks around its forward, which were recorded as they ran."""
    if isinstance(module, torch.jit.ScriptModule):
        return module
    bare = copied(module)
    for name in _FORWARD_HOOKS:
        vars(bare)[name] = _chosen(vars(module)[name], ours=False)
    return bare


def has_hooks(module: nn.Module) -> bool:
    """Whether the user wants something to happen before or after its forward."""
    if isinstance(module, torch.jit.ScriptModule):
        return False
    return any(_chosen(vars(module)[name], ours=True) for name in _FORWARD_HOOKS)


def check_backward_hooks(module: nn.Module) -> None:
    """Refuse hooks for the backward pass of a module that becomes many operators."""
    if any(getattr(module, name) for name in _BACKWARD_HOOKS):
        raise ProgramError(
            f"{user_line()}: {type(module).__name__} has a backward hook, and a program has its "
            "operators instead of it, so that nothing would call the hook; put it on a layer of "
            "torch.nn inside, or call register_hook() of what the module takes or returns."
        )


def _chosen(hooks: Mapping[int, Any], *, ours: bool) -> dict[int, Any]:
    """Hooks of the user's, or those that torch itself set, such as that of a weight norm."""
    return OrderedDict(
        (key, hook)
        for key, hook in hooks.items()
        if (getattr(hook, "__module__", None) or "").startswith("torch.") is not ours
    )


@contextmanager
def with_forward(
    module: nn.Module, forward: Callable[[nn.Module], Callable[..., Any]]
) -> Iterator[None]:
    """Let a call of the module run the user's hooks, and in between another forward.

    Args:
        module: whose hooks they are.
        forward: makes the forward, of the module as it will run: without those hooks.
    """
    before = dict(vars(module))

    def run(*args: Any, **kwargs: Any) -> Any:
        bare = copied(module)
        now = {k: v for k, v in vars(module).items() if k not in aside}
        vars(bare).clear()
        vars(bare).update({**now, **{k: before[k] for k in aside if k in before}})
        return forward(without_hooks(bare))(*args, **kwargs)

    aside = {"forward", *_FORWARD_HOOKS, *_BACKWARD_HOOKS}
    vars(module).update(
        forward=run,
        **{name: _chosen(before[name], ours=True) for name in _FORWARD_HOOKS},
        **{name: type(before[name])() for name in _BACKWARD_HOOKS},
    )
    try:
        yield
    finally:
        for name in aside:
            if name in before:
                vars(module)[name] = before[name]
            else:
                vars(module).pop(name, None)
