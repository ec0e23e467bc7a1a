"""``Program``: operators in the order in which they were recorded, and the state they use."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn
from typing_extensions import override

from fleetx.plan.option import unknown
from fleetx.static.error import ProgramError
from fleetx.static.module_calls import Call, mark
from fleetx.static.shapes import Shapes
from fleetx.static.state import Names, State
from fleetx.static.variable import Variable

if TYPE_CHECKING:
    from fleetx.static.minimize import Training
    from fleetx.static.replays import Replay
    from fleetx.static.runs import Run
    from fleetx.static.startup import Initial


@dataclass(frozen=True)
class Pruned:
    """Where a pruned program comes from, by names."""

    program: "Program"
    feeds: list[str]
    targets: list[str]
    version: int
    """Of the pruned program, when it was made."""


class Program:
    """What ``Executor.run`` runs. As a start-up program it holds first values instead."""

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.state = State()
        self.shapes = Shapes()
        self.layer_names = Names()
        self.initial: dict[str, Initial] = {}
        """Name of a layer -> how its first values are made, when this is a start-up program."""
        self.names: dict[str, fx.Node] = {}
        """Names that users gave, and the paths of modules for what they return."""
        self.device: str | None = None
        """The ``device_guard`` that is in force."""
        self.replays: tuple[Replay, ...] = ()
        """The checkpoints of torch's that are being recorded, from the outermost."""
        self.sizes: dict[Any, Any] = {}
        """Expression over free dimensions -> the node that computes it."""
        self.training: Training | None = None
        self.alone: Program | None = None
        """The same training without exchange between workers, once it was asked for."""
        self.for_test = False
        self.build: tuple[Mapping[str, Any], Mapping[str, Any]] | None = None
        """Options about how it is rewritten and run, from a ``CompiledProgram``."""
        self.random_seed = 0
        """Seeds the first run when it is not 0."""
        self.readers: list[Any] = []
        self.layers: dict[str, Initial] = {}
        """The layers of the program, with how they start."""
        self.runs: dict[torch.device, Run] = {}
        self.calls: list[Call] = []
        """Calls of modules that asked for their mode, so that tests record them again."""
        self.descent: dict[fx.Node, fx.Node] = {}
        """Nodes of the programs that this is a clone of -> those that stand for them here."""
        self.lost: dict[str, str] = {}
        """Names that only training has -> why a clone for tests cannot compute them."""
        self.pruned_from: Pruned | None = None
        self.version = 0
        self._by_name: dict[str, fx.Node] = {}
        self._inputs: tuple[int, dict[str, fx.Node]] = (-1, {})

    def changed(self) -> None:
        """Note that lowered forms of the program are out of date."""
        self.version += 1

    @property
    def has_run(self) -> bool:
        """Whether an executor has prepared it."""
        return bool(self.runs) or (self.training is not None and self.training.run is not None)

    # Inputs, names and variables.

    def inputs(self) -> dict[str, fx.Node]:
        """Name -> node of everything that is fed."""
        if self._inputs[0] != self.version:
            found = {str(n.target): n for n in self.graph.nodes if n.op == "placeholder"}
            self._inputs = self.version, found
        return self._inputs[1]

    def name_of(self, node: fx.Node) -> str:
        """The name of a node's variable."""
        if node.op in {"placeholder", "get_attr"}:
            return str(node.target)
        return str(node.meta.get("name", node.name))

    def rename(self, node: fx.Node, name: str) -> None:
        """Give a variable a name of its own."""
        if not name:
            raise ProgramError("a variable cannot have an empty name.")
        if node.op in {"placeholder", "get_attr"}:
            raise ProgramError(
                f"{self.name_of(node)!r} is the name under which it is fed or saved, so it cannot "
                f"become {name!r}; name it where it is made."
            )
        if any(other is not node and self.name_of(other) == name for other in self.graph.nodes):
            raise ProgramError(f"two variables cannot be called {name!r}; choose another name.")
        node.meta["name"] = name
        self.names[name] = node
        self.changed()

    def node(self, name: str) -> fx.Node:
        """The node of a variable by name."""
        if name in self.names:
            return self.names[name]
        if name in self.lost:
            raise ProgramError(self.lost[name])
        if len(self._by_name) < len(self.graph.nodes):
            self._by_name = {self.name_of(node): node for node in self.graph.nodes}
        if name in self._by_name:
            return self._by_name[name]
        if name in self.state.persistent():
            return self.read(name)
        known = [*self.names, *self._by_name]
        raise ProgramError(unknown(f"the program has no variable {name!r}", name, known))

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

    def parameter(self, node: fx.Node) -> nn.Parameter | None:
        """The parameter that a node reads; None for anything else."""
        if node.op != "get_attr":
            return None
        owner, _, name = str(node.target).rpartition(".")
        return self.state.root.get_submodule(owner)._parameters.get(name)

    def freeze(self, parameter: nn.Parameter, stop: bool) -> None:
        """Let a parameter stay as it is, or move, in a training that is still to come."""
        name = self.state.path(parameter)
        if self.training is not None and (name in self.training.trained) is stop:
            raise ProgramError(
                f"stop_gradient = {stop} of {name!r} comes after minimize(); set it before."
            )
        parameter.requires_grad_(not stop)

    def read(self, path: str) -> fx.Node:
        """A node for a parameter, buffer or constant."""
        tensor = self.state.root
        for part in path.split("."):
            tensor = getattr(tensor, part)
        assert isinstance(tensor, Tensor)
        node = self.graph.get_attr(path)
        node.meta.update(val=self.shapes.of(tensor), device=self.device)
        mark(node)
        return node

    # Other forms.

    def clone(self, for_test: bool = False) -> "Program":
        """The same operators over the same state.

        Args:
            for_test: leave out training, let modules compute what they do after ``eval()``, and
                freeze dropout and batch normalisation that were called as functions.
        """
        if for_test:
            from fleetx.static.evaluation import in_evaluation

            return in_evaluation(self)
        copy = self.copied(self.graph.nodes)
        copy.for_test, copy.training, copy.calls = self.for_test, self.training, list(self.calls)
        return copy

    def prune(self, feeds: Iterable[Tensor | str], targets: Sequence[Tensor | str]) -> "Program":
        """A program with only the operators that lead from these feeds to these targets.

        A feed may be any variable: what computes it is left out, and it is fed instead.
        """
        from fleetx.static.liveness import live_nodes

        nodes = [self.find(target) for target in targets]
        given = {self.find(feed) for feed in feeds}
        kept = live_nodes(self.graph, nodes, stop=given)
        inner = [node for node in given if node in kept and node.op != "placeholder"]
        rest = [n for n in self.graph.nodes if n in kept and n not in given]
        inputs = [n for n in self.graph.nodes if n in kept and n in given and n not in inner]
        copy = self.copied([*inputs, *rest], fed=inner)
        copy.for_test = self.for_test
        copy.pruned_from = Pruned(
            self, [self.name_of(n) for n in given], [self.name_of(n) for n in nodes], copy.version
        )
        return copy

    def copied(self, nodes: Iterable[fx.Node], fed: Iterable[fx.Node] = ()) -> "Program":
        """A program of some of the operators; other nodes are fed."""
        copy = Program()
        copy.state, copy.shapes, copy.layer_names = self.state, self.shapes, self.layer_names
        copy.random_seed, copy.build = self.random_seed, self.build
        copy.readers, copy.layers = list(self.readers), dict(self.layers)
        mapped: dict[fx.Node, fx.Node] = {}
        for node in fed:
            mapped[node] = copy.graph.placeholder(self.name_of(node))
            sizes = (size if isinstance(size, int) else None for size in node.meta["val"].shape)
            mapped[node].meta.update(val=node.meta["val"], device=None, shape=tuple(sizes))
        for node in nodes:
            mapped[node] = copy.graph.node_copy(node, mapped.__getitem__)
        found = {name: mapped[node] for name, node in self.names.items() if node in mapped}
        copy.names = {name: node for name, node in found.items() if node.op != "placeholder"}
        copy.sizes = {
            expression: mapped.get(value, value) if isinstance(value, fx.Node) else value
            for expression, value in self.sizes.items()
            if not isinstance(value, fx.Node) or value in mapped
        }
        copy.lost = dict(self.lost)
        inherited = {old: mapped[node] for old, node in self.descent.items() if node in mapped}
        copy.descent = inherited | mapped
        return copy

    @override
    def __str__(self) -> str:
        from fleetx.static.drawing import text

        return text(self)

    def draw(self, path: str) -> None:
        """Write the operators as a graph in the DOT language."""
        from fleetx.static.drawing import dot

        with open(path, "w", encoding="utf-8") as file:
            file.write(dot(self))


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), Tensor)


def dtype_of(given: torch.dtype | str) -> torch.dtype:
    """A dtype by object or by its name in torch."""
    found = getattr(torch, given, None) if isinstance(given, str) else given
    if not isinstance(found, torch.dtype):
        raise TypeError(f"dtype is a torch.dtype or a name such as 'float32', got {given!r}")
    return found
