"""A word for scripts whose hooks see a share of a gradient: ``p.register_hook(limit)``."""

import logging

from torch import nn

from fleetx.torch_internals import has_tensor_hooks

logger = logging.getLogger(__name__)


class OwnHooks:
    """Looks once, at the end of the first batch.

    Args:
        model: whose parameters may have hooks.
        share: what such a hook sees.
        speaks: whether this worker says it.
    """

    def __init__(self, model: nn.Module, share: str, *, speaks: bool = True) -> None:
        self._model, self._share, self._looked = model, share, not speaks

    def tell(self) -> None:
        """Name a parameter with a hook."""
        if self._looked:
            return
        self._looked = True
        hooked = (n for n, p in self._model.named_parameters() if has_tensor_hooks(p))
        if (name := next(hooked, None)) is not None:
            logger.warning(
                "%r has a hook of register_hook(), which sees the gradient of %s: what it "
                "multiplies or masks is right, and limits, signs and norms are of that share "
                "alone. Change p.grad before the update instead, where it is whole",
                *(name, self._share),
            )
