"""Work of a GPU, recorded once and replayed without the host: a CUDA graph and what it needs."""

import contextlib
import gc
import os
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.cuda import is_current_stream_capturing

from fleetx.torch_internals import tree_map

_LIBRARIES = tuple(
    os.path.join(folder, "")
    for folder in (os.path.dirname(torch.__file__), os.path.dirname(os.path.dirname(__file__)))
)
"""Where torch's code and ours lie."""


class Recorder:
    """Makes recordings that share their memory, because only one of them runs at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()
        self.active = False
        """Whether work is being recorded, so that the host cannot ask for results."""

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Work on the stream of the recordings.

        What runs before a recording does so there: autograd remembers the stream on which a
        parameter was first used, and a recording that touches another one breaks off.
        """
        outside = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(outside)
        with torch.cuda.stream(self._stream):
            yield
        outside.wait_stream(self._stream)

    @contextmanager
    def rehearsal(self) -> Iterator[None]:
        """Work beside, told that it is being recorded.

        Libraries take other paths when they are recorded, on which code is not compiled yet and
        kernels are not loaded; a recording would break off there.
        """
        with self.beside(), _told_of_it():
            yield

    def record(self, work: Callable[[], Any]) -> "Recording":
        """Record what ``work`` asks of the device; nothing of it runs yet."""
        graph = torch.cuda.CUDAGraph()
        self.active = True
        try:
            with _without_collection(), _told_of_it(), self._capture(graph):
                result = work()
        except BaseException:
            self._free_generator()
            raise
        finally:
            self.active = False
        return Recording(graph, result)

    def _free_generator(self) -> None:
        """Let random numbers be drawn again: a recording that breaks off leaves that forbidden.

        torch takes the generator back at the end of a recording that succeeds, an empty one too.
        """
        empty = torch.cuda.graph(torch.cuda.CUDAGraph(), stream=self._stream)
        with warnings.catch_warnings(), contextlib.suppress(RuntimeError):
            warnings.simplefilter("ignore")  # that it is empty
            with empty:
                pass

    def _capture(self, graph: torch.cuda.CUDAGraph) -> AbstractContextManager[None]:
        # Other threads, such as those that pin batches, go on with what they do.
        return torch.cuda.graph(
            graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
        )


@contextmanager
def _told_of_it() -> Iterator[None]:
    """Whoever asks torch whether work is being recorded hears that it is.

    In recordings, too: compiled code notices another function there, and would be made anew.
    """
    torch.cuda.is_current_stream_capturing = _being_recorded
    try:
        yield
    finally:
        torch.cuda.is_current_stream_capturing = is_current_stream_capturing


def _being_recorded() -> bool:
    return True


@contextmanager
def _without_collection() -> Iterator[None]:
    """Garbage of earlier work may lie on the device, and freeing it would end a recording."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def broke_off(error: BaseException) -> str:
    """Why a recording broke off, and at which line of a model or a criterion."""
    # The end of a recording that broke off fails, too, and says nothing of the reason.
    first = error.__context__ or error
    told = str(first).strip().rstrip(".")
    lines = [
        line
        for line in traceback.extract_tb(first.__traceback__)
        if not line.filename.startswith(_LIBRARIES)
    ]
    if not lines:
        return told
    last = lines[-1]
    return f"{told}. That is line {last.lineno} of {os.path.basename(last.filename)}: {last.line}"


class Recording:
    """Recorded work; its results lie in the same places after each replay."""

    def __init__(self, graph: torch.cuda.CUDAGraph, result: Any) -> None:
        self._graph, self._result = graph, result

    def replay(self) -> Any:
        """Run it on the current stream; the tensors in its result are the caller's own."""
        self._graph.replay()
        return copied(self._result)


def copied(tree: Any) -> Any:
    """The same with copies of its tensors."""
    return tree_map(lambda leaf: leaf.detach().clone() if isinstance(leaf, Tensor) else leaf, tree)


def recording(device: torch.device) -> bool:
    """Whether work for this device is being recorded, so that nobody may wait for it."""
    return device.type == "cuda" and is_current_stream_capturing()
