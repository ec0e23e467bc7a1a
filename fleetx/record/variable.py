"""``Variable``: a tensor that is recorded instead of computed."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor, fx
from typing_extensions import override

from fleetx.record.error import ProgramError
from fleetx.record.program_graph import ProgramGraph
from fleetx.record.source_lines import user_line
from fleetx.torch_internals import is_transformed, tree_leaves, wrapper_subclass


class Variable(Tensor):
    """A name, a shape and a dtype in a program; whatever torch does with it becomes an operator.

    It is a ``torch.Tensor``, so that models accept it, but it has no numbers: ``Executor.run``
    computes them from what is fed.
    """

    fake: Tensor
    node: fx.Node
    program: ProgramGraph

    minimized: ClassVar[Callable[..., Any]]
    """What ``minimize`` of a distributed torch optimizer does with such a loss.

    Training belongs to ``fleetx.static.run``, which records nothing; ``fleetx.static`` joins them.
    """

    @staticmethod
    def __new__(cls, fake: Tensor, node: fx.Node, program: ProgramGraph) -> "Variable":
        """Wrap a fake tensor and the node that will compute it."""
        strided = fake.layout == torch.strided
        made: Variable = wrapper_subclass(
            cls,
            fake.size(),
            strides=fake.stride() if strided else None,
            storage_offset=fake.storage_offset() if strided else 0,
            dtype=fake.dtype,
            device=fake.device,
            requires_grad=False,
        )
        vars(made).update(fake=fake, node=node, program=program)
        return made

    @property
    @override
    def name(self) -> str:
        """The name under which it is fetched, cut at and printed; may be set."""
        return self.program.name_of(self.node)

    @name.setter
    def name(self, name: str) -> None:
        self.program.rename(self.node, name)

    @property
    def persistable(self) -> bool:
        """Whether it is a parameter or buffer, which keeps its value between runs."""
        return self.node.op == "get_attr"

    @property
    def stop_gradient(self) -> bool:
        """Whether no gradient flows through it, so that a parameter stays as it is; may be set."""
        parameter = self.program.parameter(self.node)
        if parameter is not None:
            return not parameter.requires_grad
        return bool(self.node.meta.get("stopped", not self.fake.requires_grad))

    @stop_gradient.setter
    def stop_gradient(self, stop: bool) -> None:
        parameter = self.program.parameter(self.node)
        if parameter is not None:
            self.program.freeze(parameter, bool(stop))
        else:
            self.node.meta["stopped"] = bool(stop)
        self.program.changed()

    @override
    def backward(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise ProgramError(
            f"{user_line()}: {self.name}.backward() cannot run, because a variable has no numbers; "
            "call optimizer.minimize(loss) or static.append_backward(loss), then Executor.run()."
        )

    @override
    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        sizes = ", ".join(str(size) for size in self.fake.shape)
        return f"Variable({self.name}: {str(self.fake.dtype).removeprefix('torch.')}[{sizes}])"

    __str__ = __repr__

    @override
    def __format__(self, spec: str) -> str:
        return repr(self)

    @classmethod
    @override
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return common_program((args, kwargs)).record(func, args, kwargs or {})

    @classmethod
    @override
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> NoReturn:
        raise ProgramError(_past_torch(func))


def _past_torch(func: Any) -> str:
    return (
        f"{user_line()}: {func} was given a variable past the functions of torch, as by torch.func "
        "(vmap, grad, jacrev) or an extension, so it cannot be recorded; write it with functions "
        "of torch over a whole batch and static.gradients(), or feed its result."
    )


def check_untransformed(func: Any) -> None:
    """Refuse calls under a transformation of torch.func, whose tensors only live inside of it."""
    if is_transformed():
        raise ProgramError(_past_torch(getattr(func, "__name__", func)))


def as_variable(value: object, call: str) -> Variable:
    """The value, which must be a variable; torch's own annotations only say that it is a tensor."""
    if not isinstance(value, Variable):
        raise TypeError(f"{call} takes a variable of a static program, got {value!r}")
    return value


def variables(values: Any) -> list[Variable]:
    """All variables in a nest of lists, tuples and dicts."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Variable)]


class _StandIns(threading.local):
    """While a clone records a module again, whose code may know variables of the first program."""

    program: ProgramGraph | None = None
    nodes: Mapping[fx.Node, fx.Node]


_stand_ins = _StandIns()


@contextmanager
def standing_in(program: ProgramGraph, nodes: Mapping[fx.Node, fx.Node]) -> Iterator[None]:
    """Take variables of these nodes for those of the nodes of a clone that they became."""
    _stand_ins.program, _stand_ins.nodes = program, nodes
    try:
        yield
    finally:
        _stand_ins.program = None


def node_of(variable: Variable) -> fx.Node:
    """The node of a variable, in the program that is recorded now."""
    if _stand_ins.program is None:
        return variable.node
    return _stand_ins.nodes.get(variable.node, variable.node)


def _home(variable: Variable) -> ProgramGraph:
    known = _stand_ins.program is not None and variable.node in _stand_ins.nodes
    return _stand_ins.program if known else variable.program  # type: ignore[return-value]


def common_program(values: Any) -> ProgramGraph:
    """The one program whose variables these are."""
    programs = {id(home): home for home in map(_home, variables(values))}
    if len(programs) > 1:
        raise ProgramError(
            f"{user_line()}: variables of two programs meet in one operator, and a program runs by "
            "itself; record both under the same static.program_guard(), or fetch one and feed it."
        )
    return next(iter(programs.values()))
