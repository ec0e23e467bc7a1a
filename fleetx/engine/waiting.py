"""Gradients of earlier batches, which wait for the update that they are for."""

from torch import Tensor, nn

from fleetx.comm.held_gradients import all_waiting
from fleetx.comm.stand_in import is_zeroed
from fleetx.torch_internals import version_of


class Waiting:
    """Remembers them between two batches of one update, and looks whether they are still there."""

    def __init__(self) -> None:
        self._noted: dict[str, tuple[Tensor, int]] = {}

    def note(self, model: nn.Module) -> None:
        """A batch is over, and no update follows."""
        self._noted = {name: (held, version_of(held)) for name, held in all_waiting(model).items()}

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
