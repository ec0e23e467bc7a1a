"""Stages of a pipeline: what the operators of one device take and give."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, fx

from fleetx.plan.error import PlanError
from fleetx.static.splitting import Piece


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


def check_order(numbers: Mapping[fx.Node, int], devices: Sequence[str]) -> None:
    """Refuse devices that do not follow each other, or that are one alone."""
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
