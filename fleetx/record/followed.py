"""The forward of a model as a graph over the model itself, recorded for inputs like an example."""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from typing_extensions import override

from fleetx.record import interception, module_calls, recorder
from fleetx.record.error import ProgramError, refusal
from fleetx.record.liveness import live_nodes
from fleetx.record.module_recording import record_call
from fleetx.record.probing import Runs, check_described, described, probed, tried
from fleetx.record.program_graph import ProgramGraph, T
from fleetx.record.side_effects import undone
from fleetx.record.source_lines import user_line
from fleetx.record.state import State, own_tensors
from fleetx.record.switches import regions, switched
from fleetx.record.writes import written
from fleetx.torch_internals import tree_leaves

Dimension = tuple[str, int]
"""An input and one of its dimensions."""


@dataclass(frozen=True)
class Example:
    """What a recording holds for: inputs by name, like those that it was made with."""

    graph: fx.Graph
    check: Callable[[Mapping[str, Any]], None]
    """Refuses inputs for which the code might have decided otherwise."""
    opened: frozenset[str]
    """Submodules that were meant to be one node, and were followed through instead."""


def follow(
    model: nn.Module, inputs: Mapping[str, Any], whole: Callable[[str, nn.Module], bool]
) -> Example:
    """Record the forward of a model for inputs like these; the model stays as it is.

    Tensors in the inputs become arguments of the graph; everything else stays what it is. Sizes
    are free, save those that the code makes numbers of or that only one size suits: these are then
    known to be those of the example.

    Args:
        model: what is called.
        inputs: arguments of its forward by name.
        whole: name and module -> whether a call of that submodule is one node.
    """
    known: set[Dimension] = set()
    tried: set[type[nn.Module]] = set()
    opened: set[str] = set()
    while True:  # each round knows one more of the dimensions, tries or opens more submodules
        program = Followed(
            model, lambda name, module: name not in opened and whole(name, module), tried
        )
        try:
            found = program.follow(inputs, known)
        except Exception as error:
            dimension = error.dimension if isinstance(error, ProgramError) else None
            inside, failed = program.inside, model.get_submodule(program.inside)
            if inside and type(failed) not in tried and _may_try(failed, dimension):
                tried.add(type(failed))
            elif dimension is not None and dimension not in known:
                known.add(dimension)
            elif inside and _has_inside(failed) and inside not in opened:
                opened.add(inside)
            else:
                raise
        else:
            return Example(found, program.check(inputs), frozenset(opened))


def _has_inside(module: nn.Module) -> bool:
    return next(module.children(), None) is not None


def _may_try(module: nn.Module, dimension: Dimension | None) -> bool:
    """Whether numbers may help a submodule that failed, though perhaps for want of a size."""
    return dimension is None or not _has_inside(module)


def _is_layer(module: nn.Module) -> bool:
    """Whether it is one of torch's, which decide neither by numbers nor by sizes."""
    return not _has_inside(module) and type(module).__module__.startswith("torch.nn")


class _Own(State):
    """A model's own modules and tensors under their own names; nothing is added to it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.root = model
        for path, part in model.named_modules():
            self._know(part, path)
            for name, tensor in own_tensors(part):
                self._know(tensor, f"{path}.{name}" if path else name)

    @override
    def add(self, module: nn.Module, name: str) -> str:
        raise refusal(
            user_line(),
            f"a {type(module).__name__} is called that is no submodule of the model",
            "set it as an attribute, or keep it in an nn.ModuleList.",
        )

    @override
    def constant(self, tensor: Tensor) -> str:
        path = self.path(tensor)
        if path is None:
            raise refusal(
                user_line(),
                "a tensor is used that was made at once, and would be the same at every step",
                "register it as a buffer.",
            )
        return path


class Followed(ProgramGraph):
    """A graph over a live model instead of a program with a state of its own."""

    def __init__(
        self,
        model: nn.Module,
        whole: Callable[[str, nn.Module], bool],
        tried: Collection[type[nn.Module]] = (),
    ) -> None:
        super().__init__()
        self._model, self._whole, self._tried = model, whole, tried
        self._before = regions()
        self._example: dict[Any, int] = {}
        """Symbol of a free size -> what it is in the example."""
        self.inside = ""
        """The submodule that was to be one node and failed, if one did."""
        self.state = _Own(model)
        self._leaves: dict[str, fx.Node] = {}
        """Tensors of the inputs by their place in them -> the nodes that give them."""
        self._probed: Runs = {}

    @override
    def record(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        return recorder.record(self, func, args, kwargs)

    @override
    def inputs(self) -> dict[str, fx.Node]:
        return self._leaves

    @override
    def whole_call(self, module: nn.Module) -> Callable[..., Any] | None:
        path = self.state.path(module)
        if not path or not self._whole(path, module):
            return None

        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                with module_calls.inside(path), undone(module):
                    return self._layer(module, path, args, kwargs)
            except Exception:
                if not _is_layer(module):
                    self.inside = path
                raise

        return call

    def _layer(self, module: nn.Module, path: str, args: Any, kwargs: Any) -> Any:
        """A call of a submodule as one node."""
        given, found = (args, kwargs), None
        if _has_inside(module):
            with module_calls.one_operator():
                found = probed(self.shapes, module, path, given, self._probed)
        if found is not None:
            # Something inside may draw or count, so it runs even if nobody uses the result.
            return recorder.emit(self, "call_module", path, args, kwargs, found=found, acts=True)
        if type(module) in self._tried:
            with module_calls.one_operator():
                found = tried(self.shapes, module, given, self._example)
        if found is None:
            return recorder.record_module(self, module, path, args, kwargs)
        return self._guarded(path, args, kwargs, found)

    def _guarded(self, path: str, args: Any, kwargs: Any, found: Any) -> Any:
        """A call that decides by numbers: what it returns is held against what is recorded."""
        meta = {"found": found, "acts": True, "view": True}  # it may return what it is given
        made = recorder.emit(self, "call_module", path, args, kwargs, **meta)
        call = next(node for node in reversed(self.graph.nodes) if node.op == "call_module")
        told = recorder.as_arguments(self, (path, described(found)))
        check = self.graph.call_function(check_described, (call, *told))
        inherited = ("device", "grad", "autocast", "line", "replays")
        check.meta.update({key: call.meta[key] for key in inherited}, acts=True)
        module_calls.mark(check)
        return made

    @override
    def switched(self) -> str | None:
        return switched(self._before)

    @override
    def kept_object(self, value: T) -> T:
        plain = (Enum, np.generic, type, ModuleType, torch.Size)
        if isinstance(value, plain) or callable(value) or not hasattr(value, "__dict__"):
            return value
        raise refusal(
            user_line(),
            f"a {type(value).__name__} is handed to a submodule or an operator, which may change "
            "it at every step, such as a cache of keys and values (models of transformers keep "
            "none if the inputs hold use_cache=False, or after model.config.use_cache = False)",
            "hand on tensors alone.",
        )

    @override
    def remade(self, value: dict[Any, Any], held: dict[Any, Any]) -> Any:
        return self._made(type(value), held)

    def _made(self, kind: Any, held: dict[Any, Any]) -> fx.Node:
        named = is_dataclass(kind)
        return self.graph.call_function(kind, () if named else (held,), held if named else {})

    def follow(self, inputs: Mapping[str, Any], known: Collection[Dimension]) -> fx.Graph:
        """Record one call of the model."""
        given = self._variables(inputs, known)
        with interception.recording(lambda: self, lambda: self), torch.enable_grad():
            found = record_call(self, self._model, (), given)
        output = self.graph.output(self._result(found))
        self._note_modes(output)
        self._drop_unneeded(output)
        return self.graph

    def _variables(self, inputs: Mapping[str, Any], known: Collection[Dimension]) -> dict[str, Any]:
        """The inputs with variables in place of tensors."""

        def fake(name: str, value: Any) -> Any:
            if isinstance(value, Tensor):
                return self.shapes.like(name, value, known)
            return nested(fake, name, value)

        fakes = {name: fake(name, value) for name, value in inputs.items()}
        given, free = dict(every(inputs)), self.shapes.origin
        self._example = {symbol: given[name].shape[at] for symbol, (name, at) in free.items()}
        nodes = {
            name: self.graph.placeholder(name) for name in inputs if tree_has_tensors(fakes[name])
        }
        found = dict(inputs)
        for name, node in nodes.items():
            found[name] = recorder.wrap(self, node, fakes[name])
            for place, value in places(name, found[name]):
                self._leaves[place] = vars(value)["node"]
        return found

    def _result(self, value: Any) -> Any:
        """What the model returned, with nodes in place of variables."""
        if isinstance(value, OrderedDict) and is_dataclass(value):
            return self._made(type(value), {k: self._result(v) for k, v in value.items()})
        if isinstance(value, dict):
            held = {key: self._result(item) for key, item in value.items()}
            return held if type(value) is dict else self._made(type(value), held)
        if isinstance(value, tuple | list):
            return self._items(type(value), [self._result(item) for item in value])
        if is_dataclass(value) and not isinstance(value, type):
            held = {f.name: self._result(getattr(value, f.name)) for f in fields(value)}
            return self._made(type(value), held)
        return recorder.as_arguments(self, value)

    def _items(self, kind: Any, items: list[Any]) -> Any:
        if hasattr(kind, "_fields"):
            return kind(*items)
        # Arguments of a graph are plain lists and tuples, so others are made when it runs.
        return kind(items) if kind in (tuple, list) else self.graph.call_function(kind, (items,))

    def _note_modes(self, output: fx.Node) -> None:
        """Say by their paths which modules were asked for their mode, and where."""
        if self.calls:
            output.meta["asked"] = self.calls[-1].modes
        for node in self.graph.nodes:
            asked = node.meta.pop("asked", {})
            named = {self.state.path(module): mode for module, mode in asked.items()}
            if found := {path: mode for path, mode in named.items() if path is not None}:
                node.meta["modes"] = found

    def _drop_unneeded(self, output: fx.Node) -> None:
        """Leave out what nobody uses: questions that code asked and threw away."""
        # What a submodule returns may share memory with what it was given, so writes are kept.
        writers = [node for node in self.graph.nodes if written(node) is not None]
        live = live_nodes(self.graph, [output, *writers], with_state=True, with_acts=True)
        for node in reversed(list(self.graph.nodes)):
            if node not in live and node.op != "placeholder" and not node.users:
                self.graph.erase_node(node)

    def check(self, example: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], None]:
        """What refuses inputs that are not like the example."""
        shapes = self.shapes
        free = set(shapes.origin.values())
        if any(at == 0 for _, at in free):  # as many samples as a batch has
            free |= {(name, 0) for name, _ in every(example)}
        tensors = dict(every(example))

        def check(inputs: Mapping[str, Any]) -> None:
            now = dict(every(inputs))
            for name, tensor in tensors.items():
                if name in now:
                    _check_like(name, now[name], tensor, free)
            shapes.check({name: now[name] for name in tensors if name in now})

        return check


def _check_like(name: str, given: Tensor, example: Tensor, free: Collection[Dimension]) -> None:
    kind = f"{example.dtype} of the shape {list(example.shape)}"
    if given.dtype != example.dtype or given.dim() != example.dim():
        raise ValueError(
            f"the batch gives {name!r} as a {given.dtype} of the shape {list(given.shape)}, and "
            f"the model was cut for a {kind}, as in the sample; give batches like the sample of "
            "fleet.distributed_model()."
        )
    for at, (size, known) in enumerate(zip(given.shape, example.shape, strict=True)):
        if size != known and (name, at) not in free:
            raise ValueError(
                f"dimension {at} of {name!r} is {size} in a micro-batch, and the code of the model "
                f"fits {known} alone, as in the sample of fleet.distributed_model(); give a sample "
                "that is as large as a micro-batch, and batches like it."
            )


def nested(change: Callable[[str, Any], Any], name: str, value: Any) -> Any:
    """A dict, list or tuple with each item changed, given its place; other values as they are."""
    if isinstance(value, dict):
        return type(value)((key, change(f"{name}.{key}", item)) for key, item in value.items())
    if isinstance(value, tuple | list):
        items = [change(f"{name}.{at}", item) for at, item in enumerate(value)]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def places(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    """Every tensor in an input, by its place."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from places(f"{name}.{key}", item)
    elif isinstance(value, tuple | list):
        for at, item in enumerate(value):
            yield from places(f"{name}.{at}", item)


def every(inputs: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Every tensor in all inputs, by its place."""
    for name, value in inputs.items():
        yield from places(name, value)


def tree_has_tensors(value: Any) -> bool:
    """Whether a nest holds a tensor."""
    return any(isinstance(leaf, Tensor) for leaf in tree_leaves(value))
