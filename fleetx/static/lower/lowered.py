"""The module that a program becomes, so that engine and strategies need not know programs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from typing_extensions import override

from fleetx.record.codegen import Code, code
from fleetx.record.splitting import (
    Piece,
    numbered_by_device,
    numbered_by_names,
    results,
    split,
)
from fleetx.record.state import RESERVED
from fleetx.static.lower.build_options import Build
from fleetx.static.lower.called_modules import calls
from fleetx.static.lower.cuts import matching
from fleetx.static.lower.flattening import flattened
from fleetx.static.lower.in_place import activate_in_place
from fleetx.static.lower.modes import Hidden, Modes
from fleetx.static.lower.sharing import Ownership, Twins, put_module, share
from fleetx.static.lower.stages import Stage, called, check_order, parts
from fleetx.static.record.program import Program
from fleetx.torch_internals import buffers_of, children_of, parameters_of, share_persistence

Key = tuple[Any, ...]


class Part(Hidden):
    """A segment or a stage: a module whose code depends on what is fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.code: Code = _nothing

    @override
    def forward(self, *inputs: Any) -> Any:
        return self.code(self, *inputs)

    @property
    def itself(self) -> "Part":
        """For code that hands the part on to a checkpoint in it."""
        return self

    def children_are_parts(self) -> bool:
        """Whether it was cut into segments or stages."""
        return "segments" in self._modules or "stages" in self._modules


@dataclass(frozen=True)
class Variant:
    """The form of a program for one list of fetches."""

    codes: list[tuple[Part, Code]]
    meta: Mapping[str, Any]
    """What strategies must know of it."""


class Lowered(Part):
    """A program over its own state; called with a tuple of all inputs, it returns the fetches.

    The tree of the program's modules is mirrored, so that names of parameters are the program's.
    Modules in it are twins that share their parameters with the originals: what a strategy changes
    in how one runs stays in this form of the program. ``meta`` says where cuts ended up, what
    stands before each, what a pipeline runs, and in which order modules are called.
    """

    def __init__(
        self,
        program: Program,
        *,
        cuts: Sequence[str] = (),
        by_device: bool = False,
        own: bool = False,
        build: Build | None = None,
    ) -> None:
        super().__init__()
        self._build = build or Build()
        self.meta: dict[str, Any] = {"segments": {}, "before": {}}
        self.meta |= {"stages": (), "parts": (), "calls": {}}
        self._cuts, self._by_device = tuple(cuts), by_device
        self._variants: dict[Key, Variant] = {}
        self._chosen: Key | None = None
        self._with: dict[Any, set[Key | None]] = {}
        self.recorded_modes = Modes(self, own=own)
        self._twins = Twins(eval_mode=program.for_test, own=own)
        root = self._twins.of(program.state.root)
        self._modules, self._parameters, self._buffers = (
            dict(children_of(root)),
            parameters_of(root),
            buffers_of(root),
        )
        self.register_load_state_dict_post_hook(_without_parts)  # type: ignore[no-untyped-call]
        share_persistence(self, program.state.root)

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
            self._variants[key] = self._generated(program, graph)
        for part, chosen in self._variants[key].codes:
            part.code = chosen
        self.meta.update(self._variants[key].meta)
        # Without the program's number, which other workers do not have.
        self.meta["returns"] = key[1:]
        self._chosen = key

    def contains(self, func: Callable[..., Any]) -> bool:
        """Whether the chosen form calls a function."""
        return self._chosen in self._with.get(func, ())

    def _refresh(self, program: Program) -> None:
        """Take in layers that were recorded since."""
        root = program.state.root
        for name, child in children_of(root).items():
            if name not in self._modules and child is not None:
                self._modules[name] = self._twins.of(child)
        self._parameters |= {
            k: p for k, p in parameters_of(root).items() if k not in self._parameters
        }
        self._buffers |= {k: b for k, b in buffers_of(root).items() if k not in self._buffers}

    def _compiled(self, made: list[tuple[Part, Code]]) -> list[tuple[Part, Code]]:
        """Whole, or part by part: what a strategy does between parts cannot be compiled."""
        mode = "reduce-overhead" if self._build.cuda_graph else None
        parts = {part for part, _ in made if not part.children_are_parts()}
        return [
            (part, torch.compile(found, mode=mode) if part in parts else found)
            for part, found in made
        ]

    def _code(self, graph: fx.Graph) -> Code:
        return code(graph, compiled=self._build.compile)

    def _generated(self, program: Program, graph: fx.Graph) -> Variant:
        self.recorded_modes.set(graph, program)
        if self._build.in_place:
            activate_in_place(graph, self)
        if self._by_device:
            return self._in_stages(program, graph)
        codes, outer = self._in_segments(program, graph, self, "")
        return self._finished(codes, {"calls": calls(self, {"": outer})})

    def _finished(self, codes: list[tuple[Part, Code]], meta: dict[str, Any]) -> Variant:
        return Variant(self._compiled(codes) if self._build.compile else codes, meta)

    def _in_segments(
        self, program: Program, graph: fx.Graph, owner: Part, prefix: str
    ) -> tuple[list[tuple[Part, Code]], fx.Graph]:
        """The code of a part and of the segments in it, and the graph that calls these."""
        ends = self._ends(program, graph)
        numbers = numbered_by_names(graph, list(ends.values()))
        if not numbers:
            return [(owner, self._code(graph))], graph
        outer, pieces = split(graph, numbers, "segments", Ownership(graph, numbers))
        made = self._parts(owner, "segments", pieces)
        paths = [f"{prefix}{piece.path}" for piece in pieces]
        self.meta["before"] |= {path: tuple(paths[:at]) for at, path in enumerate(paths)}
        for name, end in ends.items():
            self.meta["segments"][name] = paths[numbers[end]]
        inner = (self._code(piece.graph) for piece in pieces)
        codes = [(owner, self._code(outer)), *zip(made, inner, strict=True)]
        return codes, outer

    def _in_stages(self, program: Program, graph: fx.Graph) -> Variant:
        numbers, devices = numbered_by_device(graph)
        found = results(graph)
        check_order(numbers, devices, found[0])
        owned = Ownership(graph, numbers)
        outer, pieces = split(graph, numbers, "stages", owned, chained=True)
        made = self._parts(self, "stages", pieces)
        codes: list[tuple[Part, Code]] = [(self, self._code(outer))]
        graphs: dict[str, fx.Graph] = {}
        for part, piece in zip(made, pieces, strict=True):
            prefix = f"{piece.path}."
            more, graphs[prefix] = self._in_segments(program, piece.graph, part, prefix)
            codes += more
        stages = tuple(
            Stage.of(piece, device, numbers) for piece, device in zip(pieces, devices, strict=True)
        )
        feeds = [str(node.target) for node in graph.nodes if node.op == "placeholder"]
        names = [called(node, numbers) for node in found]
        meta = {
            "stages": stages,
            "parts": parts(stages, feeds, names),
            "calls": calls(self, {**graphs, "": outer}),
        }
        return self._finished(codes, meta)

    def _parts(self, owner: nn.Module, name: str, pieces: Sequence[Piece]) -> list[Part]:
        """The modules of the pieces, made at the first time and kept."""
        if name not in children_of(owner):
            children_of(owner)[name] = nn.ModuleList(Part() for _ in pieces)
        made = [part for part in owner.get_submodule(name).children() if isinstance(part, Part)]
        assert len(made) == len(pieces), "cuts do not depend on what is fetched"
        for part, piece in zip(made, pieces, strict=True):
            for node in piece.graph.nodes:
                if node.op == "call_module":
                    put_module(part, str(node.target), self.get_submodule(str(node.target)))
                elif node.op == "get_attr":
                    path, _, attribute = str(node.target).rpartition(".")
                    share(part, path, self.get_submodule(path), attribute)
        return made

    def _ends(self, program: Program, graph: fx.Graph) -> dict[str, fx.Node]:
        """Name -> node of this graph at which it is cut."""
        by_name = {node.name: node for node in graph.nodes if node.op.startswith("call")}
        wanted = {
            name: program.node(name).name
            for entry in self._cuts
            for name in matching(program, entry)
        }
        return {name: by_name[node] for name, node in wanted.items() if node in by_name}


def _without_parts(module: nn.Module, found: Any) -> None:
    """Parts hold nothing of their own, so they miss nothing when a state is loaded."""
    kept = [key for key in found.missing_keys if key.partition(".")[0] not in RESERVED]
    found.missing_keys[:] = kept


def _nothing(part: nn.Module, *inputs: Any) -> Any:
    raise AssertionError("choose() comes before the first call")
