"""What scripts ask of a variable about the program that it belongs to."""

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import has_torch_function_unary

from fleetx import roles
from fleetx.compat.recorded import agreed
from fleetx.compat.tables import HERE
from fleetx.record.recorder import record
from fleetx.record.variable import Variable


def _programs() -> Any:
    return importlib.import_module(f"{HERE}programs")


def _block(self: Variable) -> Any:
    """The block that it is written into."""
    return _programs().Block(self.program)


def _op(self: Variable) -> Any:
    """The operator that gives it; None for inputs and parameters."""
    if self.node.op in {"placeholder", "get_attr"}:
        return None
    return _programs().Operator(_block(self), self.node)


def _true(self: Variable) -> Any:
    """A variable is something, whatever its numbers will be, as in Paddle 1."""
    if not has_torch_function_unary(self):  # code of torch itself wants to know a number
        return record(self.program, torch.Tensor.__bool__, (self,), {})
    return True


def _noted(name: str, start: Any) -> property:
    """What the script said of a parameter."""

    def read(self: Variable) -> Any:
        parameter = self.program.parameter(self.node)
        return vars(self if parameter is None else parameter).get(name, start)

    def write(self: Variable, value: Any) -> None:
        parameter = self.program.parameter(self.node)
        vars(self if parameter is None else parameter)[name] = value

    return property(read, write)


class Description:
    """``variable.desc``, for scripts that look at it."""

    def __init__(self, variable: Variable) -> None:
        self._variable = variable

    def name(self) -> str:
        """The variable's."""
        return self._variable.name

    def shape(self) -> list[int]:
        """The sizes, -1 for those that come with the data."""
        sizes: list[Any] = list(self._variable.fake.shape)
        return [s if isinstance(s, int) else -1 for s in sizes]

    def dtype(self) -> Any:
        """The format of its numbers."""
        return self._variable.dtype

    def persistable(self) -> bool:
        """Whether it keeps its value between runs."""
        return bool(self._variable.persistable)


def _agreeing(func: Callable[..., Any]) -> Callable[..., Any]:
    """An operator of Python whose tensors may differ in free sizes."""

    def call(self: Variable, other: Any) -> Any:
        return func(self, agreed(self, other))

    return call


_OPERATORS: dict[str, Callable[..., Any]] = {
    "__add__": torch.add,
    "__sub__": torch.sub,
    "__mul__": torch.mul,
    "__truediv__": torch.div,
    "__iadd__": torch.add,
    "__isub__": torch.sub,
    "__imul__": torch.mul,
    "__itruediv__": torch.div,
}
"""In Paddle ``x += y`` makes another variable, too."""


def _is_distributed(self: Variable) -> bool:
    return bool(vars(self).get("_paddle_is_distributed", False))


def _set_is_distributed(self: Variable, value: bool) -> None:
    """Refuse parts of parameters that are each worker's own."""
    if value and roles.started() and roles.identity().is_collective and roles.worker_num() > 1:
        raise NotImplementedError(
            f"{self.name}.is_distributed = True says that each worker has a part of its own of "
            "this parameter; in programs here all workers have the same ones, so parts would mix. "
            "Write the layer with paddle.distributed.split, or train eagerly with "
            "ColumnParallelLinear, RowParallelLinear and VocabParallelEmbedding."
        )
    vars(self)["_paddle_is_distributed"] = bool(value)


def own() -> dict[str, Any]:
    """Names that variables have in a process that serves Paddle's modules."""
    return {
        "__bool__": _true,
        **{name: _agreeing(func) for name, func in _OPERATORS.items()},
        "block": property(_block),
        "op": property(_op),
        "desc": property(Description),
        "is_distributed": property(_is_distributed, _set_is_distributed),
        "is_data": property(lambda self: self.node.op == "placeholder"),
        "optimize_attr": _noted("optimize_attr", None),
        "regularizer": _noted("regularizer", None),
        "gradient_clip_attr": _noted("gradient_clip", None),
        "error_clip": _noted("error_clip", None),
        "do_model_average": _noted("do_model_average", None),
    }
