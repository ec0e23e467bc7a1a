"""A part of a model: what a recorder cuts, and what a stage of a pipeline runs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch.fx import Graph


def any_inputs(inputs: Mapping[str, Any]) -> None:
    """No inputs are refused."""


@dataclass(frozen=True)
class Part:
    """Consecutive operations of the forward.

    The placeholders of its graph are ``inputs`` and then ``receives``.
    """

    graph: Graph

    inputs: tuple[str, ...]
    """Arguments of the model that the part reads from the batch."""

    receives: tuple[str, ...]
    """Values from the part before: what that one sends, in the same order."""

    sends: tuple[str, ...]
    """Values for the part after; empty for the last one, which gives the model's own output."""

    modules: frozenset[str]
    """Paths of the submodules it calls."""

    attributes: frozenset[str]
    """Paths of the parameters, buffers and other tensors of the model that it uses directly."""

    modes: tuple[tuple[str, bool], ...] = ()
    """Modules whose ``training`` the code asked for, with the answer that became part of it."""

    check: Callable[[Mapping[str, Any]], None] = any_inputs
    """Refuses inputs of the model, by name, for which its forward was not followed."""

    @cached_property
    def code(self) -> Callable[..., Any]:
        """The graph as a function of the model, the inputs and what was received."""
        made = self.graph.python_code("self")
        names: dict[str, Any] = dict(made.globals)
        exec(compile(made.src, "<a part of the model>", "exec"), names)
        function: Callable[..., Any] = names["forward"]
        return function
