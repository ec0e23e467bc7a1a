"""The tracer that follows a forward and refuses what it could only get wrong."""

import dis
import inspect
import sys
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from dataclasses import is_dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import Argument, Target
from torch.nn.utils.parametrize import ParametrizationList, is_parametrized
from typing_extensions import override

from fleetx.graph import kinds
from fleetx.strategies.pipeline.loops import loop_of
from fleetx.strategies.pipeline.refusal import REMEDY, TraceError, users_frame, where
from fleetx.strategies.pipeline.side_effects import regions, switched
from fleetx.strategies.pipeline.values import Stored, Value
from fleetx.torch_internals import assert_in_graph, has_backward_hooks, has_forward_hooks

Whole = Callable[[str, nn.Module], bool]
_NEEDS_VALUE = frozenset({"item", "tolist", "numpy", "data_ptr", "__bool__", "__array__"})
_OTHER_SHAPE = frozenset(
    {"resize_", "resize_as_", "set_", "squeeze_", "unsqueeze_", "transpose_", "t_", "swapaxes_"}
)
_VIEWS = (nn.Flatten, nn.Unflatten, nn.Identity, nn.Dropout)


class Follower(fx.Tracer):
    """Follows one model once."""

    proxy_buffer_attributes = True

    def __init__(self, model: nn.Module, whole: Whole, given: Collection[str]) -> None:
        super().__init__()
        self._whole, self._given = whole, given
        self._regions = regions()
        self._modes: dict[str, bool] = {}
        self._names = {id(module): name for name, module in model.named_modules()}
        self._stored = _stored(model)

    def refusal(self, what: str, *, remedy: str = REMEDY) -> TraceError:
        """The error that says where user code is and what it does."""
        return self.error(where(users_frame(sys._getframe(1))), what, remedy)

    def error(self, place: str, what: str, remedy: str = REMEDY) -> TraceError:
        """The error about one place of user code."""
        inside = next((path for path, _ in reversed(self.module_stack.values())), "")
        part = f" of {inside!r}" if inside else ""
        error = TraceError(f"{place}: in the forward{part}, {what}: {remedy}.")
        error.path = inside
        return error

    def note_mode(self, module: nn.Module, mode: bool) -> None:
        """Remember that code asked whether a module trains."""
        name = self._names.get(id(module))
        if name is not None:
            self._modes[name] = mode

    @override
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return stays_whole(m) or self._whole(module_qualified_name, m)

    @override
    def call_module(
        self,
        m: nn.Module,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if id(m) not in self._names:
            raise self.refusal(
                f"a {type(m).__name__} is called that is no submodule of the model",
                remedy="set it as an attribute, or keep it in an nn.ModuleList",
            )
        return super().call_module(m, loop_of(self, m) or forward, args, kwargs)

    @override
    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Any, list[Any]]:
        taken: list[str] = []
        positional: list[Any] = []
        named: dict[str, Any] = {}
        for parameter in list(inspect.signature(root_fn).parameters.values())[1:]:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            taken.append(parameter.name)
            value = parameter.default
            if value is parameter.empty or parameter.name in self._given:
                value = self.create_proxy("placeholder", parameter.name, (), {})
            if parameter.kind == parameter.KEYWORD_ONLY:
                named[parameter.name] = value
            else:
                positional.append(value)

        unknown = sorted(set(self._given) - set(taken))
        if unknown:
            raise TraceError(f"the forward takes no {unknown[0]!r}; it takes {taken}.")

        def forward() -> Any:
            return root_fn(self.root, *positional, **named)

        return forward, []

    @override
    def proxy(self, node: fx.Node) -> fx.Proxy:
        return Value(node, self)

    @override
    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, fx.Proxy]) -> Any:
        path = self._stored.get(id(attr_val)) if isinstance(attr_val, Tensor) else None
        if path is None:
            return attr_val
        if path not in parameter_proxy_cache:
            value = Stored(self.create_node("get_attr", path, (), {}), self)
            value.real = attr_val
            parameter_proxy_cache[path] = value
        return parameter_proxy_cache[path]

    @override
    def create_arg(self, a: Any) -> Argument:
        if isinstance(a, fx.Proxy):
            return a.node
        if isinstance(a, Tensor):
            return self._tensor(a)
        if isinstance(a, nn.Module):
            raise self.refusal("a module is passed as an argument")
        if isinstance(a, OrderedDict) and not is_dataclass(a):
            if type(a) is not OrderedDict:
                raise self.refusal(f"a {type(a).__name__} is made of values")
            held = super().create_arg(dict(a))
            return self.create_node("call_function", OrderedDict, (held,), {})
        if is_dataclass(a) and isinstance(a, dict):
            held = {key: self.create_arg(value) for key, value in a.items()}
            return self.create_node("call_function", type(a), (), held)
        return super().create_arg(a)

    def _tensor(self, tensor: Tensor) -> fx.Node:
        path = self._stored.get(id(tensor)) or self.tensor_attrs.get(tensor)
        if path is None:
            raise self.refusal(
                "a tensor is used that was made at once, and would be the same at every step",
                remedy=f"register it as a buffer, or {REMEDY}",
            )
        return self.create_node("get_attr", path, (), {})

    @override
    def create_node(
        self,
        kind: str,
        target: Target,
        args: tuple[Argument, ...],
        kwargs: dict[str, Argument],
        name: str | None = None,
        type_expr: Any | None = None,
    ) -> fx.Node:
        acts = kind.startswith("call_")
        if acts:
            self._check(kind, target)
        node = super().create_node(kind, target, args, kwargs, name)
        if kind == "call_module":
            module = self.root.get_submodule(str(target))
            node.meta["inplace"] = getattr(module, "inplace", False) is True
            node.meta["view"] = isinstance(module, _VIEWS)
        if self._modes and (kind == "output" or (acts and not kinds.is_free(node))):
            node.meta["modes"], self._modes = self._modes, {}
        changed = kinds.changed(node) if acts else None
        if changed is not None and kinds.source(changed).op == "get_attr":
            raise self.refusal(f"{kinds.source(changed).target!r} of the model is changed in place")
        return node

    def _check(self, kind: str, target: Target) -> None:
        mode = switched(self._regions)
        if mode is not None:
            raise self.refusal(f"{mode} around this line")
        if kind == "call_method" and target in _NEEDS_VALUE:
            raise self.refusal(f".{target}() takes a number out of a value, which is not known yet")
        if kind == "call_method" and target in _OTHER_SHAPE:
            raise self.refusal(f".{target}() changes the shape of a value in place")

    @override
    def to_bool(self, obj: fx.Proxy) -> bool:
        frame = users_frame(sys._getframe(1))
        if frame is not None and _asserts(frame):
            text = f"AssertionError at {where(frame)}"
            self.create_proxy("call_function", assert_in_graph, (obj, text), {})
            return True
        raise self.refusal("the code decides by a value, which is not known yet")

    @override
    def iter(self, obj: fx.Proxy) -> Iterator[Any]:
        raise self.refusal("the code loops over a value, whose length is not known yet")


def _stored(model: nn.Module) -> dict[int, str]:
    """The path of each parameter and buffer, by identity; of several the first."""
    found: dict[int, str] = {}
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        found.setdefault(id(tensor), name)
    return found


def stays_whole(module: nn.Module) -> bool:
    """Whether a module has no inside, or something acts on its call, so that it must be called."""
    return (
        next(module.children(), None) is None
        or "forward" in module.__dict__
        or has_forward_hooks(module)
        or has_backward_hooks(module)
        or isinstance(module, torch.jit.ScriptModule | ParametrizationList)
        or is_parametrized(module)
    )


def _asserts(frame: FrameType) -> bool:
    """Whether a frame is about to decide an ``assert``."""
    passed = ("TO_BOOL", "CACHE", "NOT_TAKEN")
    code = [i for i in dis.get_instructions(frame.f_code) if i.opname not in passed]
    jump = [i for i in code if i.offset >= frame.f_lasti][:2]
    return (
        len(jump) == 2
        and "JUMP" in jump[0].opname
        and jump[0].opname.endswith("IF_TRUE")
        and (jump[1].opname == "LOAD_ASSERTION_ERROR" or jump[1].argval is AssertionError)
    )
