"""``paddle.jit.TracedLayer``: a layer as the program that one batch shows."""

from collections.abc import Sequence
from typing import Any

import torch

from fleetx import static
from fleetx.compat import models
from fleetx.compat.notes import note
from fleetx.compat.paddle.device import current_device
from fleetx.compat.paddle.jit.api import recorded
from fleetx.compat.paddle.static.input import InputSpec
from fleetx.compat.tensors import wrap


class TracedLayer:
    """A program that computes what a layer computed; batches may have other numbers of samples."""

    def __init__(self, program: static.Program, feeds: list[Any], fetches: list[Any]) -> None:
        self.program, self._feeds, self._fetches = program, feeds, fetches
        self._executor = static.Executor(current_device())

    @staticmethod
    def trace(layer: Any, inputs: Any) -> tuple[Any, "TracedLayer"]:
        """What a layer gives for a batch, and its program."""
        given = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
        specs = []
        for at, value in enumerate(given):
            made = InputSpec.from_tensor(value)
            specs.append(InputSpec([-1, *list(made.shape)[1:]], made.dtype, f"input_{at}"))
        return layer(*given), TracedLayer(*recorded(layer, specs))

    def set_strategy(self, build_strategy: Any = None, exec_strategy: Any = None) -> None:
        """Noted: both tuned Paddle's executor."""
        note("TracedLayer.set_strategy()", "it tuned Paddle's executor and changes no result.")

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """The outputs, as a list."""
        names = [feed.name for feed in self._feeds]
        feed = {
            name: torch.as_tensor(value).detach().cpu().as_subclass(torch.Tensor)
            for name, value in zip(names, inputs, strict=True)
        }
        found = self._executor.run(
            self.program, feed=feed, fetch_list=self._fetches, return_numpy=False
        )
        return [wrap(torch.as_tensor(value)) for value in found]

    def save_inference_model(
        self,
        path: str,
        feed: Sequence[int] | None = None,
        fetch: Sequence[int] | None = None,
        **configs: Any,
    ) -> None:
        """Write the program with its weights; ``feed`` and ``fetch`` choose by numbers."""
        for name in configs:
            note(f"TracedLayer.save_inference_model({name}=…)", "it is about Paddle's own format.")
        feeds = self._feeds if feed is None else [self._feeds[at] for at in feed]
        fetches = self._fetches if fetch is None else [self._fetches[at] for at in fetch]
        models.save_2(path, feeds, fetches, self._executor, program=self.program)
