"""What stands for the values of a forward while it is followed, and what it refuses to be."""

import operator
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.proxy import Attribute
from typing_extensions import override

from fleetx.graph import kinds
from fleetx.graph.torch_functions import SIZES
from fleetx.strategies.pipeline.refusal import Following, is_users

_OWN_FIELDS = frozenset({"tracer", "node", "_node", "root", "attr", "real"})


class _Refusing:
    """Whatever needs the value itself, which is not there before the forward runs."""

    tracer: Following

    def _kind(self) -> type:
        """Refuse to be asked by user code: no value is a tensor, so it would take another branch.

        ``isinstance`` reads ``__class__`` wherever the type itself does not answer, so that it
        need not be replaced, which all threads of the process would see.
        """
        frame: FrameType | None = sys._getframe(1)
        if frame is not None and frame.f_code is torch.is_tensor.__code__:
            frame = frame.f_back
        if frame is not None and is_users(frame):
            raise self.tracer.refusal("the kind of a value is asked for, which is not known yet")
        return type(self)

    __class__ = property(_kind)

    @override
    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _OWN_FIELDS:
            raise self.tracer.refusal(f"the attribute {name!r} of a value is set")
        object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        assert isinstance(self, fx.Proxy)
        return ValueAttribute(self, name)

    def __len__(self) -> int:
        raise self.tracer.refusal(
            "len() of a value is taken, which is not known yet", remedy="use .size(0)"
        )

    def _number(self) -> Any:
        raise self.tracer.refusal("a number is taken out of a value, which is not known yet")

    __int__ = __float__ = __index__ = __complex__ = _number


class Value(_Refusing, fx.Proxy):  # type: ignore[misc]
    """A value of the forward."""


class ValueAttribute(_Refusing, Attribute):  # type: ignore[misc]
    """An attribute of a value, or a method of it that is about to be called."""


class Stored(Value):
    """A parameter or buffer; its size is known."""

    real: Tensor

    @override
    def __getattr__(self, name: str) -> Any:
        if name in SIZES:
            return getattr(self.real, name)
        return super().__getattr__(name)


def _in_place(name: str, anew: Callable[[Any, Any], Any] | None) -> Callable[..., Any]:
    """A change in place; of a plain value, which is immutable, a new value instead."""

    def change(self: fx.Proxy, *args: Any) -> Any:
        if anew is not None and kinds.is_plain(self.node):
            return anew(self, *args)
        return self.tracer.create_proxy("call_method", name, (self, *args), {})

    return change


_CHANGES: dict[str, Callable[[Any, Any], Any] | None] = {
    "setitem": None,
    "iadd": operator.add,
    "isub": operator.sub,
    "imul": operator.mul,
    "itruediv": operator.truediv,
    "ifloordiv": operator.floordiv,
    "imod": operator.mod,
    "ipow": operator.pow,
    "imatmul": operator.matmul,
    "iand": operator.and_,
    "ior": operator.or_,
    "ixor": operator.xor,
}
for _name, _anew in _CHANGES.items():
    setattr(_Refusing, f"__{_name}__", _in_place(f"__{_name}__", _anew))
