"""``paddle.fluid.layers.control_flow``: choices, comparisons, counting, arrays, printing."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from fleetx.compat.paddle.fluid.layers.common import refused
from fleetx.compat.paddle.fluid.layers.elementwise import (
    equal,
    greater_equal,
    greater_than,
    less_equal,
    less_than,
    not_equal,
)
from fleetx.compat.paddle.fluid.layers.parted_rows import IfElse
from fleetx.compat.recorded import fake, in_loop, only_if, operator, rebind, settle
from fleetx.compat.whiles import While, while_loop
from fleetx.record.variable import Variable

__all__ = [
    "IfElse",
    "ParallelDo",
    "Print",
    "Switch",
    "While",
    "array_length",
    "array_read",
    "array_write",
    "case",
    "cond",
    "create_array",
    "equal",
    "greater_equal",
    "greater_than",
    "increment",
    "is_empty",
    "less_equal",
    "less_than",
    "not_equal",
    "switch_case",
    "while_loop",
]


class Switch:
    """The first case that is true, or the default: what is assigned there is assigned."""

    def __init__(self, name: str | None = None) -> None:
        self._before: list[Any] = []

    def __enter__(self) -> "Switch":
        return self

    def __exit__(self, *error: object) -> None:
        return None

    @contextmanager
    def case(self, condition: Any) -> Iterator[None]:
        """Assign inside only if this is true, and no case before."""
        chosen = condition
        for before in self._before:
            chosen = torch.logical_and(chosen, torch.logical_not(before))
        self._before.append(condition)
        with only_if(chosen):
            yield

    @contextmanager
    def default(self) -> Iterator[None]:
        """Assign inside only if no case is true."""
        if not self._before:
            raise ValueError("Switch.default() comes behind at least one case(); write that first.")
        chosen = torch.logical_not(self._before[0])
        for before in self._before[1:]:
            chosen = torch.logical_and(chosen, torch.logical_not(before))
        with only_if(chosen):
            yield


def increment(x: Any, value: float = 1.0, in_place: bool = True) -> Any:
    """A number more; in place, whoever holds x sees it."""
    step = value if torch.is_floating_point(x) else int(value)
    found = x + step
    return rebind(x, found) if in_place else found


def is_empty(x: Any, cond: Any = None, name: str | None = None) -> Any:
    """Whether there are no numbers."""
    if isinstance(x, Variable):
        settle(x)

        def empty(given: Tensor) -> Tensor:
            return torch.full((1,), given.numel() == 0, device=given.device)

        found = operator(empty, x, like=fake([1], torch.bool))
    else:
        found = torch.tensor([x.numel() == 0])
    return found if cond is None else rebind(cond, found)


def Print(  # noqa: PLR0917
    input: Any,
    first_n: int = -1,
    message: str | None = None,
    summarize: int = 20,
    print_tensor_name: bool = True,
    print_tensor_type: bool = True,
    print_tensor_shape: bool = True,
    print_tensor_layout: bool = True,
    print_tensor_lod: bool = True,
    print_phase: str = "both",
) -> Any:
    """Prints a tensor in every run, or in the first ones; gives it on."""
    name = input.name if isinstance(input, Variable) and print_tensor_name else ""
    counts = [0]

    def printed(x: Tensor) -> Tensor:
        counts[0] += 1
        if first_n < 0 or counts[0] <= first_n:
            parts = [message or "", f"Variable: {name}" if name else ""]
            parts += [f"shape: {list(x.shape)}"] if print_tensor_shape else []
            parts += [f"dtype: {x.dtype}"] if print_tensor_type else []
            shown = torch.flatten(x.detach())
            shown = shown if summarize < 0 else shown[:summarize]
            line = "\t".join(part for part in [*parts, f"data: {shown.tolist()}"] if part)
            sys.stdout.write(f"{line}\n")
        return x.clone()

    if not isinstance(input, Variable):
        return printed(input)
    settle(input)
    found = operator(printed, input, like=torch.empty_like(input.fake))
    found.node.meta["acts"] = True
    return found


def cond(
    pred: Any,
    true_fn: Callable[[], Any] | None = None,
    false_fn: Callable[[], Any] | None = None,
    name: str | None = None,
    return_names: Any = None,
) -> Any:
    """What one of two functions gives; a program computes both and chooses when it runs."""
    if not isinstance(pred, Variable):
        chosen = true_fn if bool(pred) else false_fn
        return None if chosen is None else chosen()
    flag = torch.reshape(pred, ())
    with only_if(flag):
        yes = true_fn() if true_fn is not None else None
    with only_if(torch.logical_not(flag)):
        no = false_fn() if false_fn is not None else None
    return _chosen(flag, yes, no)


def _chosen(flag: Any, yes: Any, no: Any) -> Any:
    if yes is None or no is None:
        return None
    if isinstance(yes, (list, tuple)):
        return type(yes)(_chosen(flag, a, b) for a, b in zip(yes, no, strict=True))
    return torch.where(flag, yes, no)


def case(
    pred_fn_pairs: Sequence[Any], default: Callable[[], Any] | None = None, name: Any = None
) -> Any:
    """What the function of the first condition gives that is true."""
    pairs = list(pred_fn_pairs)
    last = default or pairs.pop()[1]
    if not pairs:
        return last()
    flag, function = pairs[0]
    return cond(flag, function, lambda: case(pairs[1:], last) if pairs[1:] else last())


def switch_case(
    branch_index: Any, branch_fns: Any, default: Callable[[], Any] | None = None, name: Any = None
) -> Any:
    """What the function of a number gives."""
    entries = branch_fns.items() if isinstance(branch_fns, dict) else enumerate(branch_fns)
    known = [entry if isinstance(entry[1], tuple) is False else entry[1] for entry in entries]
    pairs = [(torch.eq(branch_index, int(at)), function) for at, function in sorted(known, key=_at)]
    return case(pairs, default)


def _at(entry: Any) -> int:
    return int(entry[0])


class Array(list[Any]):
    """Tensors by their number."""


def create_array(dtype: Any, initialized_list: Any = None) -> Array:
    """An array without entries."""
    return Array(initialized_list or [])


def _number(i: Any, call: str) -> int:
    """Where an array is written or read, which must be known while a program is written."""
    if not isinstance(i, Variable):
        return int(torch.as_tensor(i).reshape(-1)[0])
    value = None if in_loop() else constant_of(i)
    if value is None:
        raise refused(
            f"layers.{call}",
            f"i={i.name!r}",
            "counts by a number that only a run knows, as in a While block",
            "write the loop in Python, whose rounds are then recorded one by one",
        )
    return value


def constant_of(variable: Variable) -> int | None:
    """The number that a variable is in every run; None if a run decides."""
    try:
        return int(_constant(variable.node))
    except TypeError:
        return None


def _constant(node: Any) -> Any:
    if node.op in {"placeholder", "get_attr", "call_module"} or "clock" in node.meta:
        raise TypeError(node.name)
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), _constant)
    func = getattr(Tensor, node.target) if node.op == "call_method" else node.target
    return func(*args, **kwargs)


def array_write(x: Any, i: Any, array: Any = None) -> Any:
    """Put a tensor at a number, which may be the next one."""
    array = Array() if array is None else array
    at = _number(i, "array_write")
    while len(array) <= at:
        array.append(None)
    array[at] = x
    return array


def array_read(array: Any, i: Any) -> Any:
    """The tensor at a number."""
    return array[_number(i, "array_read")]


def array_length(array: Any) -> Any:
    """How many tensors there are."""
    return torch.tensor([len(array)])


class ParallelDo:
    """A block on every card of a process, each with a part of the batch; a process has one here."""

    def __init__(self, places: Any = None, use_nccl: bool = False, name: Any = None) -> None:
        self._outputs: list[Any] = []

    @contextmanager
    def do(self) -> Iterator[None]:
        """Write the block."""
        yield

    def read_input(self, var: Any) -> Any:
        """The part of an input that this card has."""
        return var

    def write_output(self, var: Any) -> None:
        """Give a value to the outside."""
        self._outputs.append(var)

    def __call__(self) -> Any:
        """What was given: that of all cards, one behind the other."""
        return self._outputs[0] if len(self._outputs) == 1 else self._outputs
