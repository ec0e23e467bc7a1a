"""Turning calls of torch into nodes: run on fakes to learn the shapes, then write down."""

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.overrides import is_tensor_method_or_property

from fleetx.record.autocast import autocast_in_force
from fleetx.record.constants import as_text_or_node, with_positions
from fleetx.record.decisions import settled_answer
from fleetx.record.error import ProgramError, refusal
from fleetx.record.gradient_hooks import GradientHook, Handle, check_differentiable, refuse
from fleetx.record.module_calls import mark, one_operator
from fleetx.record.module_options import options_of
from fleetx.record.program_graph import ProgramGraph
from fleetx.record.size_nodes import size_node
from fleetx.record.source_lines import user_line
from fleetx.record.variable import Variable, check_untransformed, node_of
from fleetx.record.writes import writes
from fleetx.torch_internals import (
    BatchNormBase,
    DataDependentOutputException,
    DropoutBase,
    DynamicOutputShapeException,
    tree_leaves,
    tree_map,
    version_of,
)

VIEWS = frozenset({"T", "mT", "H", "mH", "data", "real", "imag"})
"""Attributes of a tensor that are tensors."""

NUMBERS = frozenset(
    {"item", "tolist", "numpy", "__array__", "__bool__", "__int__", "__float__", "__index__"}
    | {"__complex__", "__contains__", "__deepcopy__", "__reduce_ex__", "data_ptr", "__dlpack__"}
)
"""What needs the numbers of a tensor."""

GRADIENTS = frozenset({"register_hook", "retain_grad", "register_post_accumulate_grad_hook"})
"""What waits for a gradient."""

DRAWS = frozenset({torch.rand, torch.randn, torch.randint, torch.randperm, torch.normal})
"""Drawn in every run, needed or not: numbers that are drawn later are then those of eager code."""

DROPOUTS = frozenset(
    {"dropout", "dropout_", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "rrelu"}
    | {"feature_alpha_dropout", "feature_dropout", "native_dropout", "bernoulli"}
)
"""Drawn in every run of training, for what is fed."""

Symbolic = torch.SymInt | torch.SymFloat | torch.SymBool


def record(program: ProgramGraph, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Write down one call of a torch function, method or property; return its variables."""
    name = getattr(func, "__name__", "")
    if name in NUMBERS:
        return _answer(name, args[0])
    check_untransformed(func)
    if name in GRADIENTS:
        return _about_gradients(program, name, *args, **kwargs)
    if name in {"__get__", "__set__", "__delete__"}:
        return _use_attribute(program, func, args)
    if name in {"__iter__", "unbind"}:
        _check_items(args[0], *args[1:], **kwargs)
    if name == "__getitem__":
        args = args[0], with_positions(args[1])
    found = _on_fakes(program, func, args, kwargs)
    in_place = writes(func, kwargs)
    if not in_place and not any(isinstance(leaf, Tensor) for leaf in tree_leaves(found)):
        return found  # a question about shape or dtype
    if is_tensor_method_or_property(func):
        made = emit(program, "call_method", name, args, kwargs, found=found)
    else:
        meta = {"kept": func in DRAWS, "acts": name in DROPOUTS}
        made = emit(program, "call_function", func, args, kwargs, found=found, **meta)
    same = in_place and args and isinstance(args[0], Variable) and found is args[0].fake
    return args[0] if same else made


def _use_attribute(program: ProgramGraph, func: Any, args: Any) -> Any:
    if func.__name__ == "__get__":
        return _read_property(program, func, args)
    return _assign(program, _attribute(func), *args)


def _answer(name: str, variable: Any) -> bool:
    answer = (
        settled_answer(variable) if name == "__bool__" and isinstance(variable, Variable) else None
    )
    if answer is None:
        raise _needs_numbers(name)
    return answer


def _assign(program: ProgramGraph, attribute: str, *args: Any) -> None:
    """``x.requires_grad = True`` is the one attribute that torch's methods can set as well."""
    if attribute != "requires_grad" or len(args) != 2:
        raise refusal(
            user_line(),
            f"the attribute {attribute!r} of a variable was assigned or deleted, which no operator "
            "does",
            "call a function or method that returns the changed tensor.",
        )
    record(program, Tensor.requires_grad_, args, {})


def record_module(
    program: ProgramGraph, module: nn.Module, path: str, args: Any, kwargs: Any
) -> Any:
    """Write down the call of a whole module."""
    state = {
        name: program.shapes.of(tensor)
        for name, tensor in (*module.named_parameters(), *module.named_buffers())
    }

    def call(*args: Any, **kwargs: Any) -> Any:
        return torch.func.functional_call(module, state, args, kwargs)

    versions = [version_of(tensor) for tensor in state.values()]
    given = [leaf.fake for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Variable)]
    given_versions = [version_of(fake) for fake in given]
    with one_operator():
        with _known_momentum(module):
            found = _on_fakes(program, call, args, kwargs)
        meta = {
            "training": module.training,
            "in_place": getattr(module, "inplace", False) is True
            or given_versions != [version_of(fake) for fake in given],
            "options": options_of(module),
            "acts": versions != [version_of(tensor) for tensor in state.values()] or _draws(module),
        }
    made = emit(program, "call_module", path, args, kwargs, found=found, **meta)
    if isinstance(made, Variable):
        program.names.setdefault(path, made.node)
    return made


def _draws(module: nn.Module) -> bool:
    """Whether a call takes random numbers."""
    return module.training and isinstance(module, DropoutBase | nn.RReLU)


@contextmanager
def _known_momentum(module: nn.Module) -> Iterator[None]:
    """Batch norms that average over all batches read how many there were; shapes need no count."""
    counts = isinstance(module, BatchNormBase) and module.momentum is None
    if counts:
        vars(module)["momentum"] = 0.0
    try:
        yield
    finally:
        if counts:
            vars(module)["momentum"] = None


def is_view(func: Any) -> bool:
    """Whether it reads an attribute of a tensor that is a tensor."""
    return getattr(func, "__name__", "") == "__get__" and _attribute(func) in VIEWS


def _attribute(func: Any) -> str:
    """The name of the attribute that is read or written."""
    return str(getattr(func.__self__, "__name__", ""))


def _about_gradients(
    program: ProgramGraph, name: str, variable: Variable, *args: Any, **kw: Any
) -> Any:
    if name != "register_hook":
        refuse(f"{name}()")
    return _hook(program, variable, *args, **kw)


def _hook(program: ProgramGraph, variable: Variable, hook: Callable[[Tensor], Any]) -> Any:
    check_differentiable(variable)
    parameter = program.parameter(variable.node)
    if parameter is not None:  # it is there at every run, and keeps its hooks
        return parameter.register_hook(hook)
    module = GradientHook(hook)
    path = program.state.operator(module, "gradienthook")
    meta = {"training": False, "in_place": True}  # so that it runs wherever the tensor is needed
    made = emit(program, "call_module", path, (variable,), {}, found=variable.fake, **meta)
    return Handle(program, made.node)


def _read_property(program: ProgramGraph, func: Any, args: Any) -> Any:
    if _attribute(func) == "grad":
        refuse(".grad")
    found = _on_fakes(program, func, args, {})
    if isinstance(found, Tensor) and is_view(func):
        read = args[0], _attribute(func)
        return emit(program, "call_function", getattr, read, {}, found=found)
    return found


def _on_fakes(program: ProgramGraph, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    def fake(leaf: Any) -> Any:
        if isinstance(leaf, Variable):
            return leaf.fake
        return program.shapes.of(leaf) if isinstance(leaf, Tensor) else leaf

    fakes = [_in_slices(fake, tree_map(fake, part)) for part in (args, kwargs)]
    try:
        return program.shapes.call(func, *fakes)
    except (DataDependentOutputException, GuardOnDataDependentSymNode) as error:
        raise _needs_numbers(getattr(func, "__name__", repr(func))) from error
    except DynamicOutputShapeException as error:
        raise refusal(
            user_line(),
            f"the shape that {getattr(func, '__name__', func)} returns depends on numbers, which a "
            "program does not have",
            "use torch.where or a mask of fixed shape.",
        ) from error


def _check_items(tensor: Tensor, dim: int = 0) -> None:
    if isinstance(tensor.shape[dim], torch.SymInt):
        raise refusal(
            user_line(),
            f"a loop over dimension {dim} of {tensor!r} has as many rounds as it is long, and that "
            "size is free",
            "give it a size in static.data(), or write the loop as operators over the whole "
            "dimension.",
        )


def _in_slices(change: Callable[[Any], Any], values: Any) -> Any:
    """Apply to what hides in slices, which are leaves of no tree."""

    def leaf(value: Any) -> Any:
        if isinstance(value, slice):
            return slice(change(value.start), change(value.stop), change(value.step))
        return value

    return tree_map(leaf, values)


def _needs_numbers(name: str) -> ProgramError:
    return refusal(
        user_line(),
        f"{name} needs the numbers of a variable, and a program has none while it is recorded (an "
        "if, while or float() on a value, .item(), .numpy())",
        "write torch.where for a choice, or fetch the variable with Executor.run() and decide "
        "outside.",
    )


def emit(
    program: ProgramGraph, op: str, target: Any, args: Any, kwargs: Any, *, found: Any, **meta: Any
) -> Any:
    """Append a node and return what it gives, with variables in place of fakes."""
    if (mode := program.switched()) is not None:
        raise refusal(user_line(), f"{mode} around this line", "switch it outside of the model.")
    arguments = as_arguments(program, tuple(args)), as_arguments(program, dict(kwargs))
    node = program.graph.create_node(op, target, *arguments)
    _note(program, node)
    node.meta.update(meta)
    program.changed()
    return wrap(program, node, found)


def _note(program: ProgramGraph, node: fx.Node) -> None:
    node.meta.update(
        device=program.device,
        grad=torch.is_grad_enabled(),
        autocast=autocast_in_force(),
        line=user_line(),
        replays=program.replays,
    )
    mark(node)


def wrap(program: ProgramGraph, node: fx.Node, found: Any) -> Any:
    """Variables for what a node gives, in the structure in which torch returns it."""
    node.meta["val"] = found
    if isinstance(found, Tensor):
        return Variable(found, node, program)
    if isinstance(found, (tuple, list)):
        items = [_item(program, node, at, value) for at, value in enumerate(found)]
        if type(found) in {tuple, list}:
            return type(found)(items)
        return type(found)(*items) if hasattr(found, "_fields") else type(found)(items)
    if isinstance(found, dict):
        return type(found)((k, _item(program, node, k, value)) for k, value in found.items())
    return found


def _item(program: ProgramGraph, node: fx.Node, key: Any, value: Any) -> Any:
    if not isinstance(value, (Tensor, tuple, list, dict)):
        return value
    item = program.graph.call_function(operator.getitem, (node, key))
    _note(program, item)
    return wrap(program, item, value)


def as_arguments(program: ProgramGraph, value: Any) -> Any:
    """The same nest with nodes in place of tensors and sizes."""
    if isinstance(value, (Tensor, *Symbolic.__args__)):
        return _as_node(program, value)
    if isinstance(value, tuple):
        items = [as_arguments(program, item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, list):
        return [as_arguments(program, item) for item in value]
    if isinstance(value, dict):
        held = {key: as_arguments(program, item) for key, item in value.items()}
        return held if type(value) is dict else program.remade(value, held)
    if isinstance(value, slice):
        parts = (value.start, value.stop, value.step)
        return slice(*(as_arguments(program, part) for part in parts))
    return as_text_or_node(program, value)


def _as_node(program: ProgramGraph, value: Any) -> Any:
    if isinstance(value, Variable):
        return node_of(value)
    if not isinstance(value, Tensor):
        return size_node(program, value)
    if value.grad_fn is not None:
        raise ProgramError(
            f"{user_line()}: a tensor of shape {list(value.shape)} was computed from parameters "
            f"before it met the program ({value.grad_fn.name()}), so it would stay what it is now; "
            "compute it under static.program_guard(), or call .detach() if it shall not change."
        )
    return program.read(program.state.constant(value))
