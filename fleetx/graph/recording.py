"""Work of a GPU, recorded once and replayed without the host: a CUDA graph and what it needs."""

import contextlib
import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor


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

    def record(self, work: Callable[[], Tensor]) -> "Recording":
        """Record what ``work`` asks of the device; nothing of it runs yet."""
        graph = torch.cuda.CUDAGraph()
        self.active = True
        try:
            with _without_collection(), self._capture(graph):
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


class Recording:
    """Recorded work; its result lies in the same place after each replay."""

    def __init__(self, graph: torch.cuda.CUDAGraph, result: Tensor) -> None:
        self._graph, self._result = graph, result

    def replay(self) -> Tensor:
        """Run it on the current stream; the result is the caller's own."""
        self._graph.replay()
        return self._result.clone()


def recording(device: torch.device) -> bool:
    """Whether work for this device is being recorded, so that nobody may wait for it."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
