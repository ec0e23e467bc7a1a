"""The module that a program becomes, so that engine and strategies need not know programs."""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, fx, nn
from typing_extensions import override

from fleetx.plan.error import PlanError
from fleetx.plan.option import unknown
from fleetx.static.build_options import Build
from fleetx.static.codegen import Code, code
from fleetx.static.flattening import flattened
from fleetx.static.in_place import activate_in_place
from fleetx.static.program import Program
from fleetx.static.splitting import Piece, numbered_by_device, numbered_by_names, split

Key = tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What one device of a pipeline runs: a module that is called with ``inputs`` in order."""

    path: str
    """Of the submodule."""
    device: str
    """What ``device_guard`` said."""
    inputs: tuple[str, ...]
    feeds: tuple[str, ...]
    """Those inputs that are fed to the program."""
    received: tuple[str, ...]
    """Those that the stage before gives."""
    shared: tuple[str, ...]
    """Those that are parameters which other stages use as well, by their names."""
    outputs: tuple[str, ...]
    """What the module returns: for the stage behind it, or as a result of the program."""
    shapes: Mapping[str, Tensor]
    """Input or output -> a fake tensor of its shape and dtype."""

    @classmethod
    def of(cls, piece: Piece, device: str, numbers: Mapping[fx.Node, int]) -> "Stage":
        """Describe a piece."""
        kinds = {"placeholder": "feeds", "get_attr": "shared"}
        by_kind: dict[str, list[str]] = {"feeds": [], "shared": [], "received": []}
        for node in piece.inputs:
            kind = "received" if node in numbers else kinds[node.op]
            by_kind[kind].append(str(node.target) if kind != "received" else node.name)
        return cls(
            path=piece.path,
            device=device,
            inputs=tuple(_called(node, numbers) for node in piece.inputs),
            outputs=tuple(node.name for node in piece.outputs),
            shapes={_called(n, numbers): n.meta["val"] for n in (*piece.inputs, *piece.outputs)},
            **{kind: tuple(names) for kind, names in by_kind.items()},
        )


def _called(node: fx.Node, numbers: Mapping[fx.Node, int]) -> str:
    return node.name if node in numbers else str(node.target)


class Part(nn.Module):
    """A segment or a stage: a module whose code depends on what is fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.code: Code = _nothing

    @override
    def forward(self, *inputs: Any) -> Any:
        return self.code(self, *inputs)

    def children_are_parts(self) -> bool:
        """Whether it was cut into segments or stages."""
        return "segments" in self._modules or "stages" in self._modules

    @override
    def state_dict(self, *args: Any, destination: Any = None, **kwargs: Any) -> Any:
        """Nothing: what it uses is saved under the names of the program."""
        return {} if destination is None else destination


class Lowered(Part):
    """A program over its own state; called with a tuple of all inputs, it returns the fetches.

    The tree of the program's modules is mirrored, so that names of parameters are the program's.
    Modules in it are twins that share their parameters with the originals: what a strategy changes
    in how one runs stays in this form of the program. ``meta`` says where cuts ended up.
    """

    def __init__(
        self,
        program: Program,
        *,
        cuts: Sequence[str] = (),
        by_device: bool = False,
        build: Build | None = None,
    ) -> None:
        super().__init__()
        self._build = build or Build()
        self.meta: dict[str, Any] = {"segments": {}, "stages": ()}
        self._cuts, self._by_device = tuple(cuts), by_device
        self._variants: dict[Key, list[tuple[Part, Code]]] = {}
        self._chosen: Key | None = None
        self._with: dict[Any, set[Key | None]] = {}
        self._twins = _Twins(eval_mode=program.for_test)
        root = self._twins.of(program.state.root)
        self._modules, self._parameters, self._buffers = (
            dict(root._modules),
            root._parameters,
            root._buffers,
        )
        self._non_persistent_buffers_set = program.state.root._non_persistent_buffers_set

    @override
    def forward(self, feeds: tuple[Any, ...]) -> Any:
        return self.code(self, *feeds)

    @override
    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return nn.Module.state_dict(self, *args, **kwargs)

    def choose(self, program: Program, outputs: Sequence[fx.Node], *, device: torch.device) -> None:
        """Let the coming calls return these nodes of the program, or of a clone of it."""
        key = (id(program), program.version, *(node.name for node in outputs))
        if key == self._chosen:
            return
        if key not in self._variants:
            self._refresh(program)
            graph = flattened(program, outputs, device)
            for node in graph.nodes:
                if node.op == "call_function":
                    self._with.setdefault(node.target, set()).add(key)
            made = self._generated(program, graph)
            self._variants[key] = self._compiled(made) if self._build.compile else made
        for part, chosen in self._variants[key]:
            part.code = chosen
        self._chosen = key

    def contains(self, func: Callable[..., Any]) -> bool:
        """Whether the chosen form calls a function."""
        return self._chosen in self._with.get(func, ())

    def _refresh(self, program: Program) -> None:
        """Take in layers that were recorded since."""
        for name, child in program.state.root._modules.items():
            if name not in self._modules and child is not None:
                self._modules[name] = self._twins.of(child)

    def _compiled(self, made: list[tuple[Part, Code]]) -> list[tuple[Part, Code]]:
        """Whole, or part by part: what a strategy does between parts cannot be compiled."""
        mode = "reduce-overhead" if self._build.cuda_graph else None
        parts = {part for part, _ in made if not part.children_are_parts()}
        return [
            (part, torch.compile(found, mode=mode) if part in parts else found)
            for part, found in made
        ]

    def _generated(self, program: Program, graph: fx.Graph) -> list[tuple[Part, Code]]:
        training = {str(n.target): n.meta["training"] for n in graph.nodes if n.op == "call_module"}
        for path, flag in training.items():
            self.get_submodule(path).training = flag and not program.for_test
        if self._build.in_place:
            activate_in_place(graph, self)
        if self._by_device:
            return self._in_stages(program, graph)
        return self._in_segments(program, graph, self, "")

    def _in_segments(
        self, program: Program, graph: fx.Graph, owner: Part, prefix: str
    ) -> list[tuple[Part, Code]]:
        ends = self._ends(program, graph)
        numbers = numbered_by_names(graph, list(ends.values()))
        if not numbers:
            return [(owner, code(graph))]
        outer, pieces = split(graph, numbers, "segments", _Ownership(graph, numbers))
        parts = self._parts(owner, "segments", pieces)
        for name, end in ends.items():
            self.meta["segments"][name] = f"{prefix}segments.{numbers[end]}"
        return [(owner, code(outer)), *zip(parts, (code(p.graph) for p in pieces), strict=True)]

    def _in_stages(self, program: Program, graph: fx.Graph) -> list[tuple[Part, Code]]:
        numbers, devices = numbered_by_device(graph)
        _check_stages(numbers, devices)
        owned = _Ownership(graph, numbers)
        outer, pieces = split(graph, numbers, "stages", owned, chained=True)
        parts = self._parts(self, "stages", pieces)
        made: list[tuple[Part, Code]] = [(self, code(outer))]
        for part, piece in zip(parts, pieces, strict=True):
            made += self._in_segments(program, piece.graph, part, f"{piece.path}.")
        self.meta["stages"] = tuple(
            Stage.of(piece, device, numbers) for piece, device in zip(pieces, devices, strict=True)
        )
        return made

    def _parts(self, owner: nn.Module, name: str, pieces: Sequence[Piece]) -> list[Part]:
        """The modules of the pieces, made at the first time and kept."""
        if name not in owner._modules:
            owner._modules[name] = nn.ModuleList(Part() for _ in pieces)
        parts = [part for part in owner.get_submodule(name).children() if isinstance(part, Part)]
        assert len(parts) == len(pieces), "cuts do not depend on what is fetched"
        for part, piece in zip(parts, pieces, strict=True):
            for node in piece.graph.nodes:
                if node.op == "call_module":
                    _hang(part, str(node.target), self.get_submodule(str(node.target)))
                elif node.op == "get_attr":
                    path, _, attribute = str(node.target).rpartition(".")
                    _share(part, path, self.get_submodule(path), attribute)
        return parts

    def _ends(self, program: Program, graph: fx.Graph) -> dict[str, fx.Node]:
        """Name -> node of this graph at which it is cut."""
        by_name = {node.name: node for node in graph.nodes if node.op.startswith("call")}
        wanted = {
            name: program.node(name).name
            for entry in self._cuts
            for name in matching(program, entry)
        }
        return {name: by_name[node] for name, node in wanted.items() if node in by_name}


def matching(program: Program, entry: str) -> list[str]:
    """The names of variables that an entry of a strategy stands for: a name, or a pattern."""
    if entry in program.names:
        return [entry]
    named = {program.name_of(node) for node in program.graph.nodes if node.op.startswith("call")}
    if entry in named:
        return [entry]
    matched = [name for name in program.names if fnmatchcase(name, entry)]
    # What lies inside of a module that matches is not a cut of its own.
    found = [name for name in matched if not any(name.startswith(f"{o}.") for o in matched)]
    if not found:
        message = f"a strategy cuts the program at {entry!r}, which is no variable of it"
        raise PlanError(unknown(message, entry, [*program.names, *named]))
    return found


class _Twins:
    """Twins of modules: the same parameters, buffers and options, but a forward of their own."""

    def __init__(self, *, eval_mode: bool) -> None:
        self._eval = eval_mode
        self._made: dict[int, nn.Module] = {}

    def of(self, module: nn.Module) -> nn.Module:
        """The one twin of a module."""
        if id(module) not in self._made:
            twin = self._made[id(module)] = copy.copy(module)
            twin._modules = {
                name: None if child is None else self.of(child)
                for name, child in module._modules.items()
            }
            if self._eval:
                twin.training = False
        return self._made[id(module)]


class _Ownership:
    """Says which piece may read a parameter by itself: the one piece that uses all of its owner."""

    def __init__(self, graph: fx.Graph, numbers: Mapping[fx.Node, int]) -> None:
        self._users: dict[str, set[int | None]] = {}
        for node in graph.nodes:
            if node.op == "get_attr":
                users = self._users.setdefault(_owner(node), set())
                users |= {numbers.get(user) for user in node.users}

    def __call__(self, node: fx.Node, number: int) -> bool:
        # What lies directly in the program has no owner that could go into a piece.
        return bool(_owner(node)) and self._users[_owner(node)] == {number}


def _owner(node: fx.Node) -> str:
    return str(node.target).rpartition(".")[0]


def _hang(part: nn.Module, path: str, module: nn.Module) -> None:
    """Put a module at a path below a part."""
    *above, last = path.split(".")
    _containers(part, above)._modules[last] = module


def _share(part: nn.Module, path: str, owner: nn.Module, attribute: str) -> None:
    """Let a part see the parameters that lie directly in a module, and nothing below it."""
    view = _containers(part, path.split("."))
    if attribute in vars(owner):
        vars(view)[attribute] = vars(owner)[attribute]
    view._parameters, view._buffers = owner._parameters, owner._buffers


def _containers(part: nn.Module, path: Iterable[str]) -> nn.Module:
    for name in path:
        if name not in part._modules:
            part._modules[name] = nn.Module()
        child = part._modules[name]
        assert child is not None
        part = child
    return part


def _check_stages(numbers: Mapping[fx.Node, int], devices: Sequence[str]) -> None:
    before = 0
    for node, number in numbers.items():
        if number < before:
            raise PlanError(
                f"{node.meta.get('line', node.name)}: an operator under "
                f"device_guard({devices[number]!r}) comes after one under {devices[before]!r}, and "
                "a pipeline runs its devices one after another; record it earlier, or there."
            )
        before = number
    if len(devices) < 2:
        raise PlanError(
            "strategy.pipeline = True needs a program whose operators were recorded under at least "
            "two devices; write with static.device_guard('gpu:0'): …, then 'gpu:1'."
        )


def _nothing(part: nn.Module, *inputs: Any) -> Any:
    raise AssertionError("choose() comes before the first call")
