"""``paddle.nn.layer.layers``: the base class of layers."""

import importlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

import numpy as np
import torch
from torch import nn
from typing_extensions import override

from fleetx.compat import modes, parameters, unique_names
from fleetx.compat.default_dtype import get_default_dtype
from fleetx.compat.dtypes import convert_dtype, dtype_of
from fleetx.compat.fills import Number, XavierFill
from fleetx.compat.paddle.device import current_device, device_of
from fleetx.compat.tensors import wrap
from fleetx.record.variable import Variable


def snake(name: str) -> str:
    """The name of a class as Paddle counts layers by it."""
    parted = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub("([a-z])([A-Z])", r"\1_\2", parted).lower()


def stored(parameter: Any) -> Any:
    """The tensor that a program reads by a variable; an eager parameter is its own."""
    if isinstance(parameter, Variable):
        return parameter.program.parameter(parameter.node)
    return parameter


_OF_TORCH = {"running_mean": "_mean", "running_var": "_variance"}


class Listed(list[Any]):
    """A list that can also be asked for its next, as torch's code asks iterators."""

    def __next__(self) -> Any:
        left = vars(self).setdefault("left", iter(list(self)))
        return next(left)


class Layer(nn.Module):
    """A module with Paddle's methods; in static mode its parameters are variables of a program."""

    _full_name: str
    _dtype: str
    _variables: dict[str, Any]

    def __init__(self, name_scope: str | None = None, dtype: Any = None) -> None:
        nn.Module.__init__(self)
        scope = name_scope or snake(type(self).__name__)
        vars(self).update(
            _full_name=unique_names.generate(scope),
            _dtype=convert_dtype(dtype if dtype is not None else get_default_dtype()),
            _variables={},
        )

    @property
    def _helper(self) -> Any:
        """What Paddle's own layers are written with, which scripts copy."""
        helpers = importlib.import_module("fleetx.compat.paddle.fluid.layer_helper")
        return helpers.LayerHelper(self.full_name(), name=self.full_name(), dtype=self._dtype)

    def full_name(self) -> str:
        """The name after which its parameters are called: ``linear_0``."""
        return str(self._full_name)

    @override
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not modes.is_static():
            return wrap(nn.Module.__call__(self, *args, **kwargs))
        # A program has the parameters by their names already: recording this as a module of torch
        # would give them to it again, under another.
        for before in list(self._forward_pre_hooks.values()):
            given = before(self, args)
            args = args if given is None else given if isinstance(given, tuple) else (given,)
        made = self.forward(*args, **kwargs)
        for after in list(self._forward_hooks.values()):
            given = after(self, args, made)
            made = made if given is None else given
        return made

    @override
    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, Variable) and "_variables" in vars(self) and value.persistable:
            self._variables[name] = value
        super().__setattr__(name, value)

    # Parameters

    def create_parameter(
        self,
        shape: Any,
        attr: Any = None,
        dtype: Any = None,
        is_bias: bool = False,
        default_initializer: Any = None,
    ) -> Any:
        """A parameter called after this layer; None if ``attr`` is False."""
        start = default_initializer or (
            Number(0.0) if is_bias else XavierFill(None, None, uniform=True)
        )
        with torch.device(current_device() if not modes.is_static() else "cpu"):
            return parameters.create(
                self.full_name(),
                attr,
                shape,
                self._dtype if dtype is None else dtype,
                default=start,
                is_bias=is_bias,
            )

    def create_variable(
        self, name: str | None = None, persistable: bool | None = None, dtype: Any = None
    ) -> Any:
        """An empty tensor."""
        return wrap(torch.zeros(1, dtype=dtype_of(dtype or self._dtype)))

    create_tensor = create_variable

    def add_parameter(self, name: str, parameter: Any) -> Any:
        """Hold a parameter under a name."""
        setattr(self, name, parameter)
        return parameter

    @override
    def parameters(self, include_sublayers: bool = True, recurse: bool = True) -> list[Any]:  # type: ignore[override]
        """All parameters, as a list."""
        deep = include_sublayers and recurse
        return Listed(value for _, value in self.named_parameters(include_sublayers=deep))

    @override
    def named_parameters(
        self,
        prefix: str = "",
        recurse: bool = True,
        remove_duplicate: bool = True,
        include_sublayers: bool = True,
    ) -> Iterator[tuple[str, Any]]:
        """All parameters by their paths."""
        deep = recurse and include_sublayers
        yield from super().named_parameters(prefix, deep, remove_duplicate)
        seen: set[int] = set()
        for path, layer in self.named_modules(prefix=prefix) if deep else [(prefix, self)]:
            for name, value in vars(layer).get("_variables", {}).items():
                if id(value) not in seen:
                    seen.add(id(value))
                    yield f"{path}.{name}" if path else name, value

    @override
    def buffers(self, include_sublayers: bool = True, recurse: bool = True) -> list[Any]:  # type: ignore[override]
        """All buffers, as a list."""
        return Listed(super().buffers(include_sublayers and recurse))

    @override
    def register_buffer(  # type: ignore[override]
        self, name: str, tensor: Any, persistable: bool = True, persistent: bool = True
    ) -> None:
        """Hold a tensor that no optimizer moves; it is saved unless told otherwise."""
        plain = tensor if tensor is None else tensor.as_subclass(torch.Tensor)
        super().register_buffer(name, plain, persistable and persistent)

    def clear_gradients(self, set_to_zero: bool = True) -> None:
        """Forget all gradients."""
        for value in self.parameters():
            value.grad = None

    # Layers

    def add_sublayer(self, name: str, sublayer: Any) -> Any:
        """Hold a layer under a name."""
        self.add_module(str(name), sublayer)
        return sublayer

    def sublayers(self, include_self: bool = False) -> list[Any]:
        """All layers inside, as a list."""
        return [layer for _, layer in self.named_sublayers(include_self=include_self)]

    def named_sublayers(
        self, prefix: str = "", include_self: bool = False, layers_set: Any = None
    ) -> Iterator[tuple[str, Any]]:
        """All layers inside by their paths."""
        for path, layer in self.named_modules(prefix=prefix):
            if include_self or layer is not self:
                yield path, layer

    def register_forward_post_hook(self, hook: Callable[..., Any]) -> Any:
        """Call ``hook(layer, input, output)`` behind every forward."""
        return self.register_forward_hook(hook)

    # Values

    @override
    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """All parameters and buffers by their paths; in static mode the tensors of the scope."""
        shallow = kwargs.pop("include_sublayers", True) is False
        kwargs.pop("use_hook", None)
        prefix = kwargs.pop("structured_name_prefix", None)
        if prefix is not None:
            kwargs["prefix"] = prefix
        found = super().state_dict(*args, **{"keep_vars": True, **kwargs})
        if args or kwargs.get("destination") is not None:
            return found
        for path, value in self.named_parameters(prefix=kwargs.get("prefix", "").rstrip(".")):
            if isinstance(value, Variable):
                found[path] = stored(value)
        for path, value in found.items():
            if type(value) is torch.Tensor:
                found[path] = wrap(value)  # buffers, for scripts: the same numbers
        if shallow:
            own = {*vars(self)["_parameters"], *vars(self)["_buffers"], *self._variables}
            found = {key: value for key, value in found.items() if key in own}
        return _renamed(found)

    def set_state_dict(
        self, state_dict: Mapping[str, Any], use_structured_name: bool = True
    ) -> tuple[list[str], list[str]]:
        """Copy values in, by paths or by the names of parameters; what is missing, what is left."""
        known = self.state_dict()
        if not use_structured_name:
            known = {value.name: value for value in known.values()}
        missing = [key for key in known if key not in state_dict]
        for key, value in known.items():
            if key in state_dict:
                _fill(key, value, state_dict[key])
        return missing, [key for key in state_dict if key not in known]

    set_dict = load_dict = set_state_dict

    @override
    def load_state_dict(self, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        """torch's, or Paddle's where no option of torch is given."""
        if args or kwargs or all(isinstance(v, torch.Tensor) for v in state_dict.values()):
            return super().load_state_dict(state_dict, *args, **kwargs)
        return self.set_state_dict(state_dict)

    @override
    def to(  # type: ignore[override]
        self, device: Any = None, dtype: Any = None, blocking: Any = None, **kwargs: Any
    ) -> Self:
        """Move to a device, or to another format."""
        if isinstance(device, torch.dtype):
            device, dtype = None, device
        given: dict[str, Any] = dict(kwargs)
        if device is not None:
            given["device"] = device_of(device)
        if dtype is not None:
            given["dtype"] = dtype_of(dtype)
        return super().to(**given) if given else self

    def backward(self, *inputs: Any) -> Any:
        """Layers have none of their own."""
        raise ValueError("a Layer has no backward(); call loss.backward().")


def _renamed(found: Any) -> Any:
    """Norms that became torch's own (sync_batch_norm) have statistics by other names."""
    kept = type(found)()
    for key, value in found.items():
        path, dot, last = key.rpartition(".")
        if last != "num_batches_tracked":
            kept[f"{path}{dot}{_OF_TORCH.get(last, last)}"] = value
    return kept


def _fill(key: str, value: Any, given: Any) -> None:
    source = given if isinstance(given, torch.Tensor) else torch.as_tensor(np.array(given))
    if tuple(source.size()) != tuple(value.size()):
        raise ValueError(
            f"set_state_dict(): {key} has the shape {list(value.size())}, the file has "
            f"{list(source.size())}; build the layer with the sizes of the file."
        )
    with torch.no_grad():
        value.copy_(source)
