"""Tensors with Paddle's methods, in eager mode and in programs."""

import functools
import importlib
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

import numpy as np
import torch
from torch.overrides import has_torch_function_unary
from typing_extensions import override

from fleetx.compat import variables
from fleetx.compat.arrays import scalar_like
from fleetx.compat.dtypes import convert_dtype, dtype_of
from fleetx.compat.sizes import Sizes
from fleetx.compat.tables import HERE
from fleetx.compat.tensor_methods import METHODS
from fleetx.record.variable import Variable

Function = TypeVar("Function", bound=Callable[..., Any])

_torch_numpy = torch.Tensor.numpy


class _Count(int):
    """``x.size`` is a number in Paddle and a method in torch: this is both."""

    _shape: torch.Size

    def __call__(self, dim: int | None = None) -> Any:
        return self._shape if dim is None else self._shape[dim]


def _by_torch(tensor: torch.Tensor) -> bool:
    """Whether functions of torch run now, whose own code means torch's methods by these names."""
    return not has_torch_function_unary(tensor)


class Tensor(torch.Tensor):
    """A tensor of eager mode; results of operators with it are such tensors too.

    Where Paddle and torch mean different things by one name, Paddle's holds for scripts and
    torch's for the code of torch itself.
    """

    @property
    @override
    def shape(self) -> Any:  # type: ignore[override]
        """The sizes, as a list."""
        found = _shape_of(self)
        return found if _by_torch(self) else Sizes(found)

    @property
    @override
    def size(self) -> Any:
        """How many numbers there are; called, it is torch's method."""
        count = _Count(self.numel())
        count._shape = _shape_of(self)
        return count

    @property
    @override
    def real(self) -> Any:  # type: ignore[override]
        """The real parts; in scripts a method."""
        found = torch.real(self)
        return found if _by_torch(self) else lambda name=None: found

    @property
    @override
    def imag(self) -> Any:  # type: ignore[override]
        """The imaginary parts; in scripts a method."""
        found = torch.imag(self)
        return found if _by_torch(self) else lambda name=None: found

    @override
    def backward(  # type: ignore[override]
        self, grad_tensor: Any = None, retain_graph: bool = False, **kwargs: Any
    ) -> None:
        """Accumulate gradients; a loss of several numbers is summed."""
        given = kwargs.pop("gradient", grad_tensor)
        if hasattr(given, "sort_sum_gradient"):  # of Paddle 1.6, which said how to add up
            given = None
        if given is None and self.numel() != 1:
            given = torch.ones_like(self)
        # As a plain tensor: torch would run all of it, operators of scripts among it, as its own.
        plain = self.as_subclass(torch.Tensor)
        torch.autograd.backward(plain, given, retain_graph=retain_graph, **kwargs)

    @override
    def __getitem__(self, at: Any) -> Any:
        found = torch.Tensor.__getitem__(self, at)
        # A number of a tensor has the shape [1].
        return found if _by_torch(self) or found.dim() else found.reshape(1)

    @override
    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        found = numpy_of(self)
        return found if dtype is None else found.astype(dtype)

    @override
    def __float__(self) -> float:
        return float(self.item())

    @override
    def __int__(self) -> int:
        return int(self.item())

    @override
    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        numbers = np.array2string(numpy_of(self), separator=", ", prefix=" " * 7)
        return (
            f"Tensor(shape={list(_shape_of(self))}, dtype={convert_dtype(self.dtype)}, "
            f"place={_place(self)}, stop_gradient={not self.requires_grad},\n       {numbers})"
        )

    @override
    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.numel() == 1 and spec else repr(self)

    @override
    def __hash__(self) -> int:
        return id(self)


def _shape_of(tensor: torch.Tensor) -> torch.Size:
    return torch.Tensor.shape.__get__(tensor)  # type: ignore[attr-defined,no-any-return]


def wrap(value: Any) -> Any:
    """A tensor of torch, or a nest of them, with Paddle's methods; anything else as it is."""
    # By the exact type: values that are traced are of another, and must not be asked for theirs.
    if type(value) is torch.Tensor:
        return value.as_subclass(Tensor)
    if type(value) in (list, tuple):
        return type(value)(wrap(part) for part in value)
    if type(value) is dict:
        return {key: wrap(part) for key, part in value.items()}
    return value


def op(function: Function) -> Function:
    """A function of Paddle, whose eager results have Paddle's methods."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return wrap(function(*args, **kwargs))

    return call  # type: ignore[return-value]


def at_least_1d(value: torch.Tensor) -> torch.Tensor:
    """Paddle's numbers have the shape [1]."""
    return value if value.dim() else torch.reshape(value, (1,))


def joined(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that is spread over workers as one, which all of them ask for together."""
    gather = getattr(tensor, "full_tensor", None)
    return tensor if gather is None else gather()


def numpy_of(tensor: torch.Tensor) -> Any:
    """The numbers of a tensor, also of one that has gradients, is on a card or bfloat16."""
    plain = joined(tensor.detach()).cpu()
    plain = plain.float() if plain.dtype == torch.bfloat16 else plain.resolve_conj()
    found = _torch_numpy(plain)
    number = found.ndim == 0 and isinstance(tensor, Tensor)
    return scalar_like(found.reshape(1) if number else found)


# Below: what scripts ask of every tensor, parameters and variables among them. They are attached to
# ``torch.Tensor`` itself, because optimizers, DDP and checkpoints must see plain parameters.
#
# Why that is safe. torch has no such names, so that nothing but a script meets them. Two it has:
# ``name``, which is None for every tensor there, and ``numpy``, which gives what torch's gives
# wherever torch's does not refuse. Both are found in a base class of ``torch.Tensor``, so that
# ``uninstall`` only has to take the names away again.


def _stop_gradient(self: torch.Tensor) -> bool:
    return not self.requires_grad


def _set_stop_gradient(self: torch.Tensor, stop: bool) -> None:
    if not (self.is_floating_point() or self.is_complex()):
        return  # whole numbers have no gradient, whatever a script says
    if self.is_leaf:
        self.requires_grad_(not stop)
    elif stop:
        self.detach_()


def _name(self: torch.Tensor) -> str:
    known: dict[str, Any] = vars(self)
    if "paddle_name" not in known:
        _names.count += 1
        known["paddle_name"] = f"generated_tensor_{_names.count - 1}"
    return str(known["paddle_name"])


class _Names:
    count = 0


_names = _Names()


def _set_name(self: torch.Tensor, name: str) -> None:
    vars(self)["paddle_name"] = name


def _kept(attribute: str, start: Any) -> property:
    """An attribute that is only remembered."""
    key = f"_paddle_{attribute}"
    return property(
        lambda self: vars(self).get(key, start),
        lambda self, value: vars(self).__setitem__(key, value),
    )


def _astype(self: torch.Tensor, dtype: Any) -> torch.Tensor:
    """The same numbers in another format."""
    return torch.Tensor.to(self, dtype_of(dtype))


def _clear_grad(self: torch.Tensor, set_to_zero: bool = True) -> None:
    """Forget the gradient."""
    self.grad = None


def _gradient(self: torch.Tensor) -> Any:
    """The gradient as an array; None where there is none."""
    return None if self.grad is None else numpy_of(self.grad)


def _set_value(self: torch.Tensor, value: Any) -> None:
    """Copy other numbers in."""
    given = value.detach() if isinstance(value, torch.Tensor) else torch.as_tensor(np.array(value))
    if tuple(given.shape) != tuple(_shape_of(self)) and given.numel() != self.numel():
        raise ValueError(
            f"set_value() got the shape {list(given.shape)} for a tensor of {list(_shape_of(self))}"
            "; give an array of the same shape."
        )
    with torch.no_grad():
        self.copy_(given.reshape(_shape_of(self)))


def _place(self: torch.Tensor) -> Any:
    return importlib.import_module("fleetx.compat.paddle.device").place_of(self.device)


def _block(self: torch.Tensor) -> Any:
    """What scripts hand to an initializer with a parameter: it needs none here."""
    return importlib.import_module(f"{HERE}programs").default_main_program().global_block()


def _parameter_shape(self: torch.Tensor) -> Any:
    """The sizes, for scripts as a list: they compare it with lists, and leave out what differs."""
    caller = str(sys._getframe(1).f_globals.get("__name__", "")).partition(".")[0]
    return _shape_of(self) if caller in {"torch", "fleetx"} else Sizes(_shape_of(self))


_PARAMETERS_OWN = {"shape": property(_parameter_shape)}
"""Of ``torch.nn.Parameter``: parameters of layers are no tensors of the class above."""


def _numpy(self: torch.Tensor, *, force: bool = False) -> Any:
    if isinstance(self, Variable) or (isinstance(self, Tensor) and _by_torch(self)):
        return _torch_numpy(self, force=force)
    return numpy_of(self)


ATTACHED: dict[str, Any] = {
    "name": property(_name, _set_name),
    "numpy": _numpy,
    "astype": _astype,
    "cast": _astype,
    "stop_gradient": property(_stop_gradient, _set_stop_gradient),
    "trainable": property(
        lambda self: self.requires_grad, lambda self, on: self.requires_grad_(on)
    ),
    "persistable": _kept("persistable", False),
    "lod_level": _kept("lod_level", 0),
    "is_distributed": _kept("is_distributed", False),
    "clear_grad": _clear_grad,
    "clear_gradient": _clear_grad,
    "gradient": _gradient,
    "set_value": _set_value,
    "_grad_ivar": lambda self: wrap(self.grad),
    "get_tensor": lambda self: self,
    "retain_grads": lambda self: self.retain_grad(),
    "value": lambda self: self,
    "place": property(_place),
    "block": property(_block),
}
"""Of every tensor."""

TORCHS = frozenset(
    {"dim", "dims", "dim0", "dim1", "split_size", "other", "repeats", "index", "src"}
)
"""Keywords by which a call means torch's method."""


def _native(frame: FrameType) -> bool:
    """Whether a line of fleetx itself calls, which means torch's methods."""
    name = str(frame.f_globals.get("__name__", ""))
    return name.startswith("fleetx.") and not name.startswith(HERE)


def _method(module: str, name: str) -> Callable[..., Any]:
    own = getattr(torch.Tensor, name, None)

    def call(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        torchs = _by_torch(self) or not TORCHS.isdisjoint(kwargs) or _native(sys._getframe(1))
        if own is not None and torchs:
            return own(self, *args, **kwargs)
        return getattr(importlib.import_module(HERE + module), name)(self, *args, **kwargs)

    call.__name__ = name
    return call


_methods = {
    name: _method(module, name) for module, names in METHODS.items() for name in names.split()
}
for _named, _made in _methods.items():
    if _named not in vars(Tensor):
        setattr(Tensor, _named, _made)


class _Shape:
    """``shape`` of a variable, as a list outside of torch."""

    def __get__(self, variable: Any, owner: Any = None) -> Any:
        if variable is None:
            return self
        found = _shape_of(variable)
        return found if _by_torch(variable) else Sizes(found)


_replaced: dict[str, Any] = {}
"""Of Variable, while Paddle's are there."""

_persistable = Variable.__dict__["persistable"]


def _is_persistable(self: Variable) -> bool:
    return bool(vars(self).get("_paddle_persistable", _persistable.__get__(self)))


def _variables_own() -> dict[str, Any]:
    """What variables get: every method of Paddle, and attributes that scripts assign."""
    keep = _kept("persistable", False)
    return {
        **{name: made for name, made in _methods.items() if name not in vars(Variable)},
        **variables.own(),
        "shape": _Shape(),
        "persistable": property(_is_persistable, keep.fset),
    }


def install() -> None:
    """Give every tensor of this process the names that scripts ask for."""
    if _replaced:
        return
    for name, value in ATTACHED.items():
        if name not in vars(torch.Tensor):
            setattr(torch.Tensor, name, value)
    for name, value in _PARAMETERS_OWN.items():
        setattr(torch.nn.Parameter, name, value)
    for name, value in _variables_own().items():
        _replaced[name] = vars(Variable).get(name)
        setattr(Variable, name, value)


def uninstall() -> None:
    """Take them away again."""
    for name, value in ATTACHED.items():
        if vars(torch.Tensor).get(name) is value:
            delattr(torch.Tensor, name)
    for name in _PARAMETERS_OWN:
        if name in vars(torch.nn.Parameter):
            delattr(torch.nn.Parameter, name)
    for name, before in _replaced.items():
        if before is None:
            delattr(Variable, name)
        else:
            setattr(Variable, name, before)
    _replaced.clear()
