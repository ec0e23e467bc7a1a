"""Changing how a module runs without wrapping it, so that names, class and attributes stay."""

from collections.abc import Callable
from types import MethodType
from typing import Any

from torch import nn
from typing_extensions import override

Forward = Callable[..., Any]


def replace_forward(module: nn.Module, change: Callable[[Forward], Forward]) -> None:
    """Let ``module`` run what ``change`` makes of its forward.

    The attribute shadows the method of the class. Hooks of the module stay outside of it.
    """
    # A method, because torch.compile knows those by their code, and other objects by themselves:
    # the code of a block would serve no other block whose layers were replaced like its own.
    module.forward = MethodType(_called, _StandIn(module, change(module.forward)))


def is_replaced(forward: Any) -> bool:
    """Whether it was put in the place of a module's own."""
    return isinstance(getattr(forward, "__self__", None), _StandIn)


def has_own_forward(module: nn.Module) -> bool:
    """Whether somebody has set a forward on the object itself, which a new one would leave out."""
    found = vars(module).get("forward")
    if found is None or is_replaced(found):
        return False
    if getattr(found, "__func__", None) is _called:  # a copy of a module that belonged to a job
        found = found.__self__
    return getattr(found, "__func__", None) is not type(module).forward


def _called(stand_in: Forward, *args: Any, **kwargs: Any) -> Any:
    return stand_in(*args, **kwargs)


_called.__name__ = "__call__"  # by which pickles of methods find the function again


class _StandIn:
    """The replaced forward.

    Copies and pickles of the module get the method of the class back: a copy belongs to no job.
    """

    def __init__(self, module: nn.Module, call: Forward) -> None:
        self._module, self._call = module, call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return _method_of_class, (self._module,)


def _method_of_class(module: nn.Module) -> Any:
    return MethodType(type(module).forward, module)
