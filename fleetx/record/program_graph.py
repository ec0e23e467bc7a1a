"""What was recorded: operators in their order, the names they go by and the state they use.

Code that records works on this part of a program. ``Program`` adds what users call, which needs
that code: recording a call of torch, recording modules again for tests.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from torch import Tensor, fx, nn

from fleetx.plan.option import unknown
from fleetx.record.error import ProgramError
from fleetx.record.initial import Initial
from fleetx.record.liveness import live_nodes
from fleetx.record.module_calls import Call, mark
from fleetx.record.objective import Objective
from fleetx.record.replay import Replay
from fleetx.record.shapes import Shapes
from fleetx.record.state import Names, State
from fleetx.torch_internals import parameters_of

T = TypeVar("T")


@dataclass(frozen=True)
class Pruned:
    """Where a pruned program comes from, by names."""

    program: "ProgramGraph"
    feeds: list[str]
    targets: list[str]
    version: int
    """Of the pruned program, when it was made."""


class ProgramGraph(ABC):
    """The operators of a program."""

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
        self.objective: Objective | None = None
        """What its runs train; None for a program that only computes."""
        self.for_test = False
        self.build: tuple[Mapping[str, Any], Mapping[str, Any]] | None = None
        """Options about how it is rewritten and run, from a ``CompiledProgram``."""
        self.random_seed = 0
        """Seeds the first run when it is not 0."""
        self.readers: list[Any] = []
        self.layers: dict[str, Initial] = {}
        """The layers of the program, with how they start."""
        self.calls: list[Call] = []
        """Calls of modules that asked for their mode, so that tests record them again."""
        self.descent: dict[fx.Node, fx.Node] = {}
        """Nodes of the programs that this is a clone of -> those that stand for them here."""
        self.lost: dict[str, str] = {}
        """Names that only training has -> why a clone for tests cannot compute them."""
        self.pruned_from: Pruned | None = None
        self.attachments: dict[type, Any] = {}
        """What code that runs programs keeps with this one, by its type; clones begin without."""
        self.version = 0
        self._by_name: dict[str, fx.Node] = {}
        self._inputs: tuple[int, dict[str, fx.Node]] = (-1, {})

    @abstractmethod
    def record(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Append a call of torch; return its variables."""

    def changed(self) -> None:
        """Note that lowered forms of the program are out of date."""
        self.version += 1

    # Names.

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

    # Parameters.

    def parameter(self, node: fx.Node) -> nn.Parameter | None:
        """The parameter that a node reads; None for anything else."""
        if node.op != "get_attr":
            return None
        owner, _, name = str(node.target).rpartition(".")
        return parameters_of(self.state.root.get_submodule(owner)).get(name)

    def freeze(self, parameter: nn.Parameter, stop: bool) -> None:
        """Let a parameter stay as it is, or move, in a training that is still to come."""
        name = self.state.path(parameter)
        if self.objective is not None and (name in self.objective.trained) is stop:
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

    # What other recordings than those of programs do otherwise.

    def whole_call(self, module: nn.Module) -> Callable[..., Any] | None:
        """Records a call of the module as one operator, hooks included; None if that is not due."""
        return None

    def switched(self) -> str | None:
        """The mode of torch that is another one now and that operators would not have; or None."""
        return None

    def kept_object(self, value: T) -> T:
        """An argument that is no value of Python's own, as it is kept."""
        return value

    def remade(self, value: dict[Any, Any], held: dict[Any, Any]) -> Any:
        """A dict of a class of its own as an argument, given what it holds."""
        return held

    # Recording and other forms.

    @contextmanager
    def replayed(self, given: Iterable[fx.Node], options: Mapping[str, Any]) -> Iterator[Replay]:
        """Note for the operators recorded inside that a checkpoint replays them together."""
        before = self.replays
        replay = Replay(frozenset(node.name for node in given), options)
        self.replays = *before, replay
        try:
            yield replay
        finally:
            self.replays = before

    def pruned(self, feeds: Iterable[fx.Node], targets: Sequence[fx.Node]) -> Self:
        """A program with only the operators that lead from these feeds to these targets."""
        given = set(feeds)
        kept = live_nodes(self.graph, targets, stop=given)
        inner = [node for node in given if node in kept and node.op != "placeholder"]
        rest = [n for n in self.graph.nodes if n in kept and n not in given]
        inputs = [n for n in self.graph.nodes if n in kept and n in given and n not in inner]
        copy = self.copied([*inputs, *rest], fed=inner)
        copy.for_test = self.for_test
        copy.pruned_from = Pruned(
            self, [self.name_of(n) for n in given], [self.name_of(n) for n in targets], copy.version
        )
        return copy

    def copied(self, nodes: Iterable[fx.Node], fed: Iterable[fx.Node] = ()) -> Self:
        """A program of some of the operators; other nodes are fed."""
        copy = type(self)()
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
