"""Leaves the checkpoints of longer runs alone while a script runs for a look at it."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

import safetensors.torch
import torch
from torch.distributed import checkpoint

import fleetx.io.files  # noqa: F401  (has taken the true functions by now, and minds them itself)
from fleetx.profiling.watching import replaced


@contextmanager
def nothing_saved(say: Callable[[str], None]) -> Iterator[None]:
    """Inside, torch and safetensors write nothing to paths; fleetx heeds ``Watch.saves``.

    Args:
        say: is told once that something was not written.
    """
    told = list[str]()

    def unsaved(call: str) -> None:
        if not told:
            told.append(call)
            say(f"{call}() was not carried out: checkpoints stay what they were")

    with ExitStack() as stack:
        for owner, name, result in (
            (torch, "save", lambda: None),
            (safetensors.torch, "save_file", lambda: None),
            (safetensors.torch, "save_model", lambda: None),
            (checkpoint, "save", lambda: None),
            (checkpoint, "async_save", _done),
        ):
            quiet = _quiet(owner, name, result, unsaved)
            stack.enter_context(replaced(owner, name, quiet))
        yield


def _quiet(
    owner: Any, name: str, result: Callable[[], Any], unsaved: Callable[[str], None]
) -> Callable[..., Any]:
    save = vars(owner)[name]

    @wraps(save)
    def quiet(*args: Any, **kwargs: Any) -> Any:
        if owner is torch and not _is_path(args, kwargs):
            return save(*args, **kwargs)  # into memory, as for a copy
        unsaved(f"{owner.__name__}.{name}")
        return result()

    return quiet


def _is_path(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    target = args[1] if len(args) > 1 else kwargs.get("f")
    return isinstance(target, str | os.PathLike)


def _done() -> Future[None]:
    future: Future[None] = Future()
    future.set_result(None)
    return future
