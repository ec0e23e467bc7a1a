"""``Program``: operators in the order in which they were recorded, and the state they use."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from typing_extensions import override

from fleetx.record import interception, recorder
from fleetx.record.error import ProgramError
from fleetx.record.initial import Initial
from fleetx.record.program_graph import ProgramGraph
from fleetx.record.state import State
from fleetx.record.variable import Variable
from fleetx.static.record.drawing import dot, text
from fleetx.static.record.evaluation import in_evaluation


class Program(ProgramGraph):
    """What ``Executor.run`` runs. As a start-up program it holds first values instead."""

    @override
    def record(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        interception.resume(func)
        return recorder.record(self, func, args, kwargs)

    # Variables.

    def find(self, variable: Tensor | str) -> fx.Node:
        """The node of a variable of this program, or of the program that this is a clone of."""
        if isinstance(variable, Variable):
            return variable.node if variable.program is self else self._twin(variable)
        if not isinstance(variable, str):
            raise TypeError(f"a variable is given by object or by name, got {variable!r}")
        return self.node(variable)

    def _twin(self, variable: Variable) -> fx.Node:
        """The node that was cloned from a variable's, or reads the same parameter."""
        if variable.node in self.descent:
            return self.descent[variable.node]
        found, theirs = self.node(variable.name), variable.node
        if found.meta.get("val") is theirs.meta["val"]:
            return found
        parameter = self.parameter(found)
        if parameter is not None and parameter is variable.program.parameter(theirs):
            return found
        raise ProgramError(
            f"the variable {variable.name!r} belongs to another program, and this one has another "
            "of that name; pass the name if you mean it, or clone() the program of the variable."
        )

    def var(self, name: str) -> Variable:
        """A variable by name."""
        node = self.node(name)
        return Variable(node.meta["val"], node, self)

    def list_vars(self) -> list[Variable]:
        """Every variable, parameters and buffers included, each once."""
        for name in self.state.persistent():
            self.node(name)
        found = {self.name_of(n): n for n in self.graph.nodes if _is_tensor(n)}
        return [Variable(node.meta["val"], node, self) for node in found.values()]

    def all_parameters(self) -> list[Variable]:
        """The parameters as variables, for fetching."""
        return [self.var(name) for name in self.state.trained()]

    def parameters(self) -> list[nn.Parameter]:
        """The parameters themselves; where workers share them, all workers call this together."""
        self.state.gather("static.Program.parameters")
        return list(self.state.trained().values())

    # Other forms.

    def clone(self, for_test: bool = False) -> "Program":
        """The same operators over the same state.

        Args:
            for_test: leave out training, let modules compute what they do after ``eval()``, and
                freeze dropout and batch normalisation that were called as functions.
        """
        if for_test:
            found = in_evaluation(self)
            assert isinstance(found, Program)
            return found
        copy = self.copied(self.graph.nodes)
        copy.for_test, copy.objective, copy.calls = self.for_test, self.objective, list(self.calls)
        copy.initial = dict(self.initial)
        return copy

    def over(self, state: State, layers: Mapping[str, Initial]) -> "Program":
        """The same operators over other values, where a twin of the state holds these layers."""
        made = self.clone()
        made.state, made.layers, made.objective = state, dict(layers), None
        for initial in layers.values():
            initial.state = initial.state or state
        return made

    def prune(self, feeds: Iterable[Tensor | str], targets: Sequence[Tensor | str]) -> "Program":
        """A program with only the operators that lead from these feeds to these targets.

        A feed may be any variable: what computes it is left out, and it is fed instead.
        """
        nodes = [self.find(target) for target in targets]
        return self.pruned([self.find(feed) for feed in feeds], nodes)

    @override
    def __str__(self) -> str:
        return text(self)

    def draw(self, path: str) -> None:
        """Write the operators as a graph in the DOT language."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(dot(self))


def program_of(variable: Variable) -> Program:
    """The program that a variable belongs to; the variable itself knows only its graph."""
    assert isinstance(variable.program, Program)
    return variable.program


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), Tensor)


def dtype_of(given: torch.dtype | str) -> torch.dtype:
    """A dtype by object or by its name in torch."""
    found = getattr(torch, given, None) if isinstance(given, str) else given
    if not isinstance(found, torch.dtype):
        raise TypeError(f"dtype is a torch.dtype or a name such as 'float32', got {given!r}")
    return found
