"""Gradients of earlier batches, which wait for the update that they are for."""

import logging

from torch import Tensor, nn

from fleetx.comm.held_gradients import all_waiting
from fleetx.comm.stand_in import is_zeroed
from fleetx.torch_internals import version_of

logger = logging.getLogger(__name__)


class Waiting:
    """Remembers them between two batches of one update, and looks whether they are still there."""

    def __init__(self) -> None:
        self._noted: dict[str, tuple[Tensor, int]] = {}
        self._shown: dict[str, tuple[Tensor, int]] = {}
        """After the last backward of a batch that no update follows."""
        self._told = False

    def show(self, model: nn.Module) -> None:
        """A backward is over, and the script may change what it brought."""
        self._shown = _noted(model)

    def note(self, model: nn.Module) -> None:
        """A batch is over, and no update follows."""
        self._noted, shown, self._shown = _noted(model), self._shown, {}
        pairs = ((now, shown[name]) for name, now in self._noted.items() if name in shown)
        if not self._told and any(now is old and at != was for (now, at), (old, was) in pairs):
            self._told = True
            logger.warning(
                "the script changes gradients, as clip_grad_norm_ does, in a batch that ends in no "
                "update: that changes what batches have added up so far, on several workers what "
                "each of them has, and not the gradient of the update. To limit that one, set "
                "strategy.clip = True and take the call out"
            )

    def forget(self) -> None:
        """An update has used them, or others were loaded."""
        self._noted.clear()

    def check(self, model: nn.Module) -> None:
        """Before a backward adds to them: complain of those that were cleared or changed."""
        if not self._noted:
            return
        noted, now = dict(self._noted), all_waiting(model)
        self.forget()  # the complaint is made once
        zeroed = {name for name, parameter in model.named_parameters() if is_zeroed(parameter)}
        for name, (held, version) in noted.items():
            gone = name not in now or name in zeroed
            if gone or (now[name] is held and version_of(held) != version):
                raise RuntimeError(
                    f"the gradient of {name!r} was cleared or changed by hand between two batches "
                    "of one update, and this plan lets the gradients of all its batches add up: "
                    "those of earlier ones would be lost. Leave out p.grad = None, p.grad.zero_() "
                    "and zero_grad() of submodules; optimizer.zero_grad() and model.zero_grad() "
                    "leave alone what waits."
                )


def _noted(model: nn.Module) -> dict[str, tuple[Tensor, int]]:
    return {name: (held, version_of(held)) for name, held in all_waiting(model).items()}
