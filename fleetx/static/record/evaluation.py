"""Clones for tests: calls of modules that asked for their mode are recorded again."""

from collections.abc import Iterable

import torch
from torch import fx

from fleetx.record.error import ProgramError
from fleetx.record.interception import record_again
from fleetx.record.liveness import storage
from fleetx.record.module_calls import Call
from fleetx.record.program_graph import ProgramGraph
from fleetx.record.recording_state import paused
from fleetx.record.variable import standing_in, variables
from fleetx.static.record.alignment import aligned


def in_evaluation(program: ProgramGraph) -> ProgramGraph:
    """The program without its training, with every module in evaluation mode."""
    pruned = program.pruned_from
    if pruned is not None and not program.for_test and _asks(pruned.program):
        if pruned.version != program.version:
            raise ProgramError(
                "clone(for_test=True) of a program that was pruned, and recorded into since: its "
                "modules are to be recorded again in evaluation mode, and parts of them are gone; "
                "clone it for tests first, then prune it."
            )
        whole = in_evaluation(pruned.program)
        targets = [whole.node(name) for name in pruned.targets]
        return whole.pruned([whole.node(name) for name in pruned.feeds], targets)
    if not program.for_test:
        _check_methods(program)
    copy = program.copied(program.graph.nodes)
    copy.for_test = True
    if program.calls and not program.for_test:
        _Rewriting(copy).over([c for c in program.calls if not c.changes_nothing(paused())])
    return copy


def _check_methods(program: ProgramGraph) -> None:
    for node in program.graph.nodes:
        if "chosen" in node.meta:
            raise ProgramError(
                f"{node.meta['chosen']}: a method of a module chooses by self.training, and it was "
                "called outside of a call of the module, so clone(for_test=True) cannot record it "
                "again in evaluation mode; call the module itself, model(x), or record a second "
                "program of model.eval() under static.unique_name.guard()."
            )
        if "handed" in node.meta:
            raise ProgramError(
                f"{node.meta['handed']}: the mode of a module (.training) decides here what is "
                "recorded, outside of a call of the module, so clone(for_test=True) cannot record "
                "it again in evaluation mode; let a module's forward do it, as "
                "drop_path(x, 0.1, self.training), or record a second program of model.eval() "
                "under static.unique_name.guard()."
            )


def _asks(program: ProgramGraph) -> bool:
    pruned = program.pruned_from
    return bool(program.calls) or (pruned is not None and _asks(pruned.program))


class _Rewriting:
    """Puts what modules do in evaluation mode in place of what they do in training."""

    def __init__(self, copy: ProgramGraph) -> None:
        self._copy = copy
        self._first = dict(copy.descent)
        """What stood for what before anything was rewritten; such nodes stay to the end."""
        self._ancestors: dict[fx.Node, list[fx.Node]] = {}
        for ancestor, node in self._first.items():
            self._ancestors.setdefault(node, []).append(ancestor)
        self._doomed: set[fx.Node] = set()
        """Nodes that only training has."""
        self._replaced: dict[fx.Node, fx.Node] = {}
        self._new: set[fx.Node] = set()
        self._same_storage: list[tuple[fx.Node, fx.Node]] = []

    def over(self, calls: Iterable[Call]) -> None:
        """Rewrite all calls, in the order in which they were made."""
        for call in calls:
            self._rewrite(call)
        for node in list(reversed(self._copy.graph.nodes)):
            if node in self._doomed:
                self._copy.graph.erase_node(node)
        self._unite_storages()
        self._copy.changed()

    def _rewrite(self, call: Call) -> None:
        copy = self._copy
        region = {node: self._first[node] for node in call.nodes()}
        names = self._freed(set(region.values()))
        if all(v.node in copy.descent for v in variables((call.args, call.kwargs))):
            again = self._recorded(call)
            self._new.update(again.nodes())
            for node in again.nodes():
                node.meta["kept_mode"] = True  # what the module's own eval() left in training
            with standing_in(copy, copy.descent):
                pairs = aligned(call, again)
        else:  # it works on what only training has
            pairs = {}
        self._replace(region, pairs)
        for name, node in names.items():
            if node in self._replaced:
                self._name(name, self._replaced[node])
        self._doomed.update(region.values())
        self._lose({n for n in region.values() if n not in self._replaced}, names, call)

    def _freed(self, region: set[fx.Node]) -> dict[str, fx.Node]:
        """Take names away from nodes, so that what replaces them can have them."""
        copy = self._copy
        found = {copy.name_of(node): node for node in region}
        found |= {name: node for name, node in copy.names.items() if node in region}
        for name, node in found.items():
            copy.names.pop(name, None)
            node.meta.pop("name", None)
        return found

    def _recorded(self, call: Call) -> Call:
        copy, sizes = self._copy, self._copy.sizes
        # Sizes that were computed later are not there yet; those of inputs are.
        copy.sizes = {k: v for k, v in sizes.items() if not _computed(v)}
        assert call.end is not None
        try:
            with (
                copy.graph.inserting_before(self._first[call.end].next),
                standing_in(copy, copy.descent),
            ):
                return record_again(copy, call)
        except Exception as error:
            raise ProgramError(
                f"{call.line}: {call.path} chooses by self.training, so clone(for_test=True) "
                f"records it again in evaluation mode, and that failed: {error} Write what it does "
                "in evaluation mode as operators of a program too, or record a second program of "
                "model.eval() under static.unique_name.guard()."
            ) from error
        finally:
            copy.sizes = {k: v for k, v in copy.sizes.items() if not _computed(v)} | sizes

    def _replace(self, region: dict[fx.Node, fx.Node], pairs: dict[fx.Node, fx.Node]) -> None:
        old = set(region.values())
        for first, new in pairs.items():
            node = region[first]
            node.replace_all_uses_with(new, lambda user: user not in old)
            self._replaced[node] = new
            self._same_storage.append((node, new))
            if "stopped" in node.meta and new in self._new:
                new.meta["stopped"] = node.meta["stopped"]
            for ancestor in self._ancestors[node]:
                self._copy.descent[ancestor] = new

    def _name(self, name: str, node: fx.Node) -> None:
        self._copy.names.setdefault(name, node)
        if node in self._new and node.op.startswith("call"):
            node.meta.setdefault("name", name)

    def _lose(self, nodes: set[fx.Node], names: dict[str, fx.Node], call: Call) -> None:
        """Note what depends on nodes that there are no longer."""
        copy = self._copy
        lost = {name for name, node in names.items() if node in nodes and name not in copy.names}
        stack = list(nodes)
        while stack:
            for user in stack.pop().users:
                if user not in self._doomed and user not in nodes:
                    nodes.add(user)
                    stack.append(user)
                    lost.add(copy.name_of(user))
        for node in nodes:
            for ancestor in self._ancestors.get(node, []):
                copy.descent.pop(ancestor, None)
        lost |= {name for name, node in copy.names.items() if node in nodes}
        copy.lost |= {name: _only_in_training(name, call) for name in lost}
        copy.names = {name: node for name, node in copy.names.items() if node not in nodes}
        self._doomed |= nodes

    def _unite_storages(self) -> None:
        """Let what stands for a tensor count as its memory: later operators may write into it."""
        same: dict[int, int] = {}

        def find(at: int) -> int:
            while at in same:
                at = same[at]
            return at

        for a, b in self._same_storage:
            here, there = storage(a), storage(b)
            if here is not None and there is not None and find(here) != find(there):
                same[find(here)] = find(there)
        for node in self._copy.graph.nodes:
            if (at := storage(node)) in same and at is not None:
                node.meta["storage"] = find(at)


def _only_in_training(name: str, call: Call) -> str:
    return (
        f"{call.line}: {call.path} chooses by self.training, and in evaluation mode it does not "
        f"compute {name!r}, so a clone for tests cannot; fetch what it computes then, such as "
        f"{call.path!r}, or run the program that trains."
    )


def _computed(size: object) -> bool:
    """Whether a size is computed from those of inputs, where it was first needed."""
    return isinstance(size, fx.Node) and size.target is not torch.ops.aten.sym_size.int
