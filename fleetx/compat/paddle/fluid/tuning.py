"""Calls that tuned Paddle's executor."""

from collections.abc import Mapping
from typing import Any

from fleetx.compat.notes import note


def memory_optimize(
    input_program: Any = None,
    skip_opt_set: Any = None,
    print_log: bool = False,
    level: int = 0,
    skip_grads: bool = True,
) -> None:
    """Memory of values that nobody needs any more is used again anyway."""
    note("memory_optimize()", "it tuned Paddle's executor and changes no result.")


def release_memory(input_program: Any = None, skip_opt_set: Any = None) -> None:
    """The same."""
    note("release_memory()", "it tuned Paddle's executor and changes no result.")


def set_flags(flags: Mapping[str, Any]) -> None:
    """Flags of Paddle's executor."""
    for name in flags:
        note(f"set_flags({name})", "it tuned Paddle's executor and changes no result.")


def disable_signal_handler() -> None:
    """Paddle's own handlers of signals are not here."""
