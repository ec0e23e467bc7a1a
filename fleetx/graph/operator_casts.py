"""A context in which chosen operators run in a chosen number format."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode
from typing_extensions import override

from fleetx.comm.nested import mapped
from fleetx.torch_internals import parameters_of

CASTABLE = frozenset({torch.float16, torch.bfloat16, torch.float32})
"""A double stays what it is: whoever made it wanted the digits."""

_WITH_STATISTICS = frozenset({"batch_norm", "native_batch_norm", "instance_norm"})
"""They write to some of their arguments and compute in float32 inside: only the input is cast."""

_LOOKUPS = frozenset({"embedding", "embedding_bag"})
"""Cheaper to cast what was found than the table."""

_PLAIN = frozenset({bool, int, float, str, torch.dtype, torch.device, torch.Size})
_CHECKS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")


@dataclass(frozen=True, kw_only=True)
class Casts:
    """Which operators run in which number format; operators are names of torch functions."""

    device: str
    low: torch.dtype
    lowered: frozenset[str] = frozenset()
    kept: frozenset[str] = frozenset()
    """Operators that run in float32."""

    keeps: Callable[[Tensor], bool] | None = None
    """Whether operators that take this parameter run in float32; it comes before ``lowered``."""

    parameters: bool = False
    """Whether parameters appear in ``low`` to all operators that do not run in float32."""


class OperatorCasts(TorchFunctionMode):
    """Casts the inputs of operators; what it chose for one, autocast does not change again."""

    def __init__(self, casts: Casts) -> None:
        super().__init__()
        self._casts = casts

    @override
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if name == "__get__" and func == Tensor.dtype.__get__:  # type: ignore[attr-defined]
            return self._seen(args[0], func(*args))
        chosen = self._listed(name, args, kwargs)
        if chosen is None and (body := _body(func)) is not None:
            with self:
                return body(*args, **kwargs)
        chosen = chosen or self._by_parameter(name, args, kwargs)
        if chosen is None:
            return func(*args, **kwargs)
        if not torch.is_autocast_enabled(self._casts.device):
            return _run_in(chosen, name, func, args, kwargs)
        with torch.autocast(self._casts.device, enabled=False):
            return _run_in(chosen, name, func, args, kwargs)

    def _listed(self, name: str, args: Any, kwargs: Any) -> torch.dtype | None:
        if name in self._casts.kept:
            return torch.float32
        if name in self._casts.lowered and not self._kept_among(args, kwargs):
            return self._casts.low
        return None

    def _by_parameter(self, name: str, args: Any, kwargs: Any) -> torch.dtype | None:
        # What an operator writes into a cast copy of its argument would be lost.
        if name in {"__get__", "__set__", "__delete__"} or _writes(name, kwargs):
            return None
        if self._kept_among(args, kwargs):
            return torch.float32
        takes = self._casts.parameters and _any_parameter(_always, args, kwargs)
        return self._casts.low if takes else None

    def _kept_among(self, args: Any, kwargs: Any) -> bool:
        keeps = self._casts.keeps
        return keeps is not None and _any_parameter(keeps, args, kwargs)

    def _seen(self, tensor: Tensor, dtype: torch.dtype) -> torch.dtype:
        """Models ask a weight for its format to bring their inputs to it."""
        low = self._casts.parameters and _is_parameter(tensor) and dtype == torch.float32
        # Whoever spreads a parameter over ranks asks, too, and must hear the truth.
        if not low or hasattr(tensor, "to_local") or self._kept_among((tensor,), {}):
            return dtype
        return self._casts.low


def cast(values: Any, dtype: torch.dtype) -> Any:
    """The same structure with its floating tensors, doubles excepted, in another format."""
    if isinstance(values, Tensor):
        return _cast(values, dtype)
    # Nearly all calls have flat arguments, which need no walk through a tree.
    if type(values) is tuple:
        return tuple(cast(value, dtype) for value in values)
    if type(values) is dict:
        return {key: cast(value, dtype) for key, value in values.items()}
    if values is None or type(values) in _PLAIN:
        return values
    return mapped(lambda tensor: _cast(tensor, dtype), values)


def parameters_named(model: nn.Module, pattern: str) -> list[tuple[nn.Module, str]]:
    """Owner and attribute of each parameter of that name, or in a submodule of that name."""
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    found = [n for n in names if fnmatchcase(n, pattern) or fnmatchcase(n, f"{pattern}.*")]
    split = [name.rpartition(".") for name in found]
    return [(model.get_submodule(path), attribute) for path, _, attribute in split]


def one_of(places: Sequence[tuple[nn.Module, str]]) -> Callable[[Tensor], bool]:
    """Whether a tensor is the parameter at one of these owners and attributes."""
    # Asked of the owner each time: whoever lays parameters out may exchange the tensors.
    return lambda tensor: any(
        parameters_of(owner).get(attribute) is tensor for owner, attribute in places
    )


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if tensor.dtype in CASTABLE else tensor


def _run_in(
    dtype: torch.dtype, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Any
) -> Any:
    if name in _LOOKUPS:
        return cast(func(*args, **kwargs), dtype)
    if name in _WITH_STATISTICS:
        only = {key: cast(kwargs[key], dtype) for key in ("input",) if key in kwargs}
        return func(*cast(args[:1], dtype), *args[1:], **{**kwargs, **only})
    return func(*cast(args, dtype), **cast(kwargs, dtype))


def _is_parameter(leaf: Any) -> bool:
    return isinstance(leaf, Parameter)


def _any_parameter(asked: Callable[[Tensor], bool], args: Any, kwargs: Any) -> bool:
    """Whether one of the arguments, or of the items of a list, is such a parameter."""
    for value in (*args, *kwargs.values()):
        items = value if type(value) in {list, tuple} else (value,)
        if any(_is_parameter(item) and asked(item) for item in items):
            return True
    return False


def _always(tensor: Tensor) -> bool:
    return True


_IN_PLACE = frozenset(
    {"__setitem__", "__iadd__", "__isub__", "__imul__", "__imatmul__", "__itruediv__", "__idiv__"}
    | {"__ifloordiv__", "__imod__", "__ipow__", "__iand__", "__ior__", "__ixor__"}
)


def _writes(name: str, kwargs: Mapping[str, Any]) -> bool:
    in_place = name in _IN_PLACE or (name.endswith("_") and not name.endswith("__"))
    return in_place or kwargs.get("out") is not None


@cache
def _body(func: Callable[..., Any]) -> FunctionType | None:
    """The function without its own question to the context; None if it has no body in Python.

    Torch switches a context off while it answers for a function. One that is made of other
    operators, such as attention, must ask it again for each of them.
    """
    if not inspect.isfunction(func) or not set(_CHECKS) & set(func.__code__.co_names):
        return None
    if func.__module__ == "torch._tensor":
        return None  # methods lead to one operator, of the same name, that would lead back here
    unasked = func.__globals__ | dict.fromkeys(_CHECKS, lambda *tensors: False)
    body = FunctionType(func.__code__, unasked, func.__name__, func.__defaults__, func.__closure__)
    body.__kwdefaults__ = func.__kwdefaults__
    return body
