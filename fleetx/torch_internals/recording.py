"""What code is recorded with: graphs, modes, and the functions behind public ones."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx
from torch._guards import TracingContext
from torch.amp.autocast_mode import _enter_autocast as enter_autocast
from torch.amp.autocast_mode import _exit_autocast as exit_autocast
from torch.nn.utils import stateless
from torch.utils import checkpoint
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = [
    "ReplayIsDone",
    "TorchDispatchMode",
    "as_if_compiling",
    "checkpoint_generator",
    "compiler_works",
    "enter_autocast",
    "exit_autocast",
    "functional_call",
    "graph_root",
    "is_erased",
    "is_transformed",
    "replace_checkpoint_generator",
    "replace_functional_call",
    "set_grad_enabled",
    "symbolic_expression",
    "without_torch_function",
]

set_grad_enabled: Any = torch._C._set_grad_enabled
"""Switches gradients for good; the public one is a context that a graph cannot hold."""

without_torch_function: Any = torch._C.DisableTorchFunction
"""A context in which functions of torch do not ask tensor subclasses; modes still act."""


def compiler_works() -> bool:
    """Whether torch's compiler follows code, or makes code of what it has followed.

    Up to 2.12 ``torch.compiler.is_compiling()`` says no where shapes are computed in between.
    """
    return torch.compiler.is_compiling() or TracingContext.try_get() is not None


def is_transformed() -> bool:
    """Whether a transformation of torch.func runs."""
    return torch._C._functorch.maybe_current_level() is not None


def graph_root(graph: fx.Graph) -> fx.Node:
    """What stands before the first node of a graph."""
    return graph._root


def is_erased(node: fx.Node) -> bool:
    """Whether a node was taken out of its graph."""
    return node._erased


def symbolic_expression(size: torch.SymInt) -> Any:
    """A free size by the input that it comes from, even if it was found equal to another one."""
    return size.node._expr


functional_call: Any = stateless._functional_call
"""What ``torch.func.functional_call`` comes down to, whatever name a script imported it by."""


def replace_functional_call(function: Any) -> None:
    """Let ``torch.func.functional_call`` come down to something else; process-wide."""
    stateless._functional_call = function


checkpoint_generator: Any = checkpoint._checkpoint_without_reentrant_generator
"""What ``torch.utils.checkpoint.checkpoint(use_reentrant=False)`` comes down to."""


ReplayIsDone: type[Exception] = checkpoint._StopRecomputationError
"""Raised inside of a replayed forward as soon as all that backward needs was computed again."""


def replace_checkpoint_generator(function: Any) -> None:
    """Let non-reentrant checkpoints come down to something else; process-wide."""
    checkpoint._checkpoint_without_reentrant_generator = function


@contextmanager
def as_if_compiling() -> Iterator[None]:
    """Let ``torch.compiler.is_compiling()`` and ``is_exporting()`` answer yes.

    Flags that torch only reads to answer these two; they are put back in any case.
    """
    flags = torch.compiler._is_compiling_flag, torch.compiler._is_exporting_flag
    torch.compiler._is_compiling_flag = torch.compiler._is_exporting_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag, torch.compiler._is_exporting_flag = flags
