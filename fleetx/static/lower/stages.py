"""Stages of a pipeline: what the operators of one device take and give."""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor, fx

from fleetx.graph.part import Part
from fleetx.plan.error import PlanError
from fleetx.record.splitting import Piece
from fleetx.static.record.backward import differentiate

FEEDS = "feeds"
"""The one argument of a lowered program."""


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
    attributes: frozenset[str]
    """Paths of the parameters and buffers that its operators read directly."""

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
            inputs=tuple(called(node, numbers) for node in piece.inputs),
            outputs=tuple(node.name for node in piece.outputs),
            shapes={called(n, numbers): n.meta["val"] for n in (*piece.inputs, *piece.outputs)},
            attributes=frozenset(str(n.target) for n in piece.graph.nodes if n.op == "get_attr"),
            **{kind: tuple(names) for kind, names in by_kind.items()},
        )


def called(node: fx.Node, numbers: Mapping[fx.Node, int]) -> str:
    """The name of what a stage takes or gives."""
    return node.name if node in numbers else str(node.target)


def parts(
    stages: Sequence[Stage], feeds: Sequence[str], results: Sequence[str]
) -> tuple[Part, ...]:
    """The stages as a pipeline runs them.

    Args:
        stages: in order.
        feeds: the inputs of the program, which every stage gets as one tuple.
        results: what the last stage returns.
    """
    sends = [*(stage.received for stage in stages[1:]), ()]
    return tuple(
        _part(stage, feeds, sent or results, last=stage is stages[-1])
        for stage, sent in zip(stages, sends, strict=True)
    )


def _part(stage: Stage, feeds: Sequence[str], given: Sequence[str], *, last: bool) -> Part:
    graph = fx.Graph()
    fed = graph.placeholder(FEEDS)
    known = {name: graph.placeholder(name) for name in stage.received}
    known |= {name: graph.get_attr(name) for name in stage.shared}

    def find(name: str) -> fx.Node:
        if name not in known and name in feeds:
            known[name] = graph.call_function(operator.getitem, (fed, feeds.index(name)))
        elif name not in known:  # a constant that is fetched
            known[name] = graph.get_attr(name)
        return known[name]

    made = graph.call_module(stage.path, tuple(find(name) for name in stage.inputs))
    for at, name in enumerate(stage.outputs):
        known[name] = graph.call_function(operator.getitem, (made, at))
    graph.output(tuple(find(name) for name in given))
    return Part(
        graph=graph,
        inputs=(FEEDS,),
        receives=stage.received,
        sends=() if last else tuple(given),
        modules=frozenset({stage.path}),
        attributes=stage.attributes | frozenset(stage.shared),
    )


def check_order(
    numbers: Mapping[fx.Node, int], devices: Sequence[str], loss: fx.Node | None = None
) -> None:
    """Refuse devices that do not follow each other, or that are one alone."""
    before = 0
    for node, number in numbers.items():
        if number < before:
            raise PlanError(_backwards(node, devices[number], devices[before]))
        if node.target is differentiate:
            raise PlanError(
                f"{node.meta.get('line', node.name)}: static.gradients() and append_backward() "
                "differentiate operators of all devices in one place, and a pipeline has each "
                "device in a process of its own; leave the gradients to minimize()."
            )
        before = number
    _check_devices(numbers, devices)
    if loss is not None and numbers.get(loss) != len(devices) - 1:
        raise PlanError(
            f"the loss {loss.name!r} is not computed under {devices[-1]!r}, the last device of the "
            "program, where a pipeline begins its way back; record it there."
        )


def _backwards(node: fx.Node, device: str, before: str) -> str:
    return (
        f"{node.meta.get('line', node.name)}: an operator under device_guard({device!r}) comes "
        f"after one under {before!r}, and a pipeline runs its devices one after another; record it "
        "earlier, or there."
    )


def _check_devices(numbers: Mapping[fx.Node, int], devices: Sequence[str]) -> None:
    if len(devices) < 2:
        raise PlanError(
            "strategy.pipeline = True needs a program whose operators were recorded under at least "
            "two devices; write with static.device_guard('gpu:0'): …, then 'gpu:1'."
        )
    for before, device in pairwise(devices):
        first = next(node for node, number in numbers.items() if devices[number] == device)
        if not all(name.partition(":")[2] for name in (before, device)):
            raise PlanError(
                f"device_guard({device!r}) after {before!r} does not say which stage of a pipeline "
                "it is; number all devices: 'gpu:0', 'gpu:1', …"
            )
        if int(before.partition(":")[2]) >= int(device.partition(":")[2]):
            raise PlanError(_backwards(first, device, before))
