"""``register_hook`` of variables: an operator that registers it at every run."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, fx, nn
from typing_extensions import override

from fleetx.record.error import ProgramError
from fleetx.record.program_graph import ProgramGraph
from fleetx.record.source_lines import user_line
from fleetx.torch_internals import is_erased

Hook = Callable[[Tensor], Any]


class GradientHook(nn.Module):
    """Calls a function of the user's with the gradient of what goes through."""

    def __init__(self, hook: Hook) -> None:
        super().__init__()
        self.hook = hook

    @override
    def forward(self, tensor: Tensor) -> Tensor:
        if tensor.requires_grad:  # a run without a backward pass has nothing to call it with
            tensor.register_hook(self.hook)
        return tensor


class Handle:
    """Takes the hook away again."""

    def __init__(self, program: ProgramGraph, node: fx.Node) -> None:
        self._program, self._node = program, node

    def remove(self) -> None:
        """From the runs that come."""
        if not is_erased(self._node):
            self._program.graph.erase_node(self._node)
            self._program.changed()

    def __enter__(self) -> "Handle":
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


def refuse(name: str) -> None:
    """Stop at what asks a variable for a gradient as if it had numbers."""
    raise ProgramError(
        f"{user_line()}: {name} is about the gradient of a tensor that has numbers, and a variable "
        "has none while a program is recorded; make the gradient a variable with "
        "static.gradients(loss, [variable]) and fetch it, or look at it with register_hook()."
    )


def check_differentiable(variable: Any) -> None:
    """Refuse a hook that no gradient would reach, as torch does."""
    if variable.stop_gradient:
        raise ProgramError(
            f"{user_line()}: register_hook() of {variable.name!r}, which no gradient reaches, so "
            "the hook would never be called; set stop_gradient = False, or hook what comes after."
        )
