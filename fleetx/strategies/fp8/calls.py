"""Layers that a model does not call: it multiplies by their weights itself, as without float8."""

import logging
from collections.abc import Iterable
from typing import Any

import torch

from fleetx.graph.layer_kinds import with_descendants
from fleetx.plan.forward import Forward
from fleetx.plan.job import Job
from fleetx.strategies.fp8.layers import Layer, names

logger = logging.getLogger(__name__)


class Calls:
    """Notices which layers the first batch that trains calls.

    Args:
        layers: those that were to multiply in float8.
        job: says which submodules run as code of their own, in which nobody sees a call.
    """

    def __init__(self, layers: Iterable[Layer], job: Job) -> None:
        self._missing = {layer.path: layer for layer in layers}
        self._job, self._told = job, False

    def note(self, layer: Layer) -> None:
        """A layer is called."""
        if not torch.compiler.is_compiling():
            self._missing.pop(layer.path, None)

    def around(self, plain: Forward) -> Forward:
        """The model's forward, after which those are named that it did not call."""

        def run(*args: Any, **kwargs: Any) -> Any:
            found = plain(*args, **kwargs)
            # Evaluation may take other ways, as that of torch's own transformer layers does.
            if torch.is_grad_enabled() and not torch.compiler.is_compiling() and not self._told:
                self._tell()
            return found

        return run

    def _tell(self) -> None:
        self._told = True
        unseen = with_descendants(self._job.whole)
        paths = [path for path, layer in self._missing.items() if layer.module not in unseen]
        if paths:
            logger.warning(
                "fp8: the first batch did not call %s. Where a model multiplies by the weight of a "
                "layer itself (F.linear(x, layer.weight)), it does so as without float8",
                names(paths),
            )
