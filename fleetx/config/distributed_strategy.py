"""``DistributedStrategy``, the object a user fills in; the stub beside it is generated."""

import copy
import os
from pathlib import Path

from torch import nn
from typing_extensions import override

from fleetx.config.switchboard import Switchboard
from fleetx.expected import PATH, takes
from fleetx.plan.compose import compose
from fleetx.plan.explain import explain


class DistributedStrategy(Switchboard):
    """Switches and options, in pairs such as ``amp`` and ``amp_configs``.

    A flag that is on is in force, or the run stops with a reason before the first step. Types,
    ranges and names are checked when they are assigned; what the flags mean together is checked
    when the model is distributed, or at any time by ``explain``.
    """

    @takes("save_to_prototxt", output=PATH)
    def save_to_prototxt(self, output: str | os.PathLike[str]) -> None:
        """Write what was set by hand as protobuf text, which Paddle's Fleet reads as well."""
        from fleetx.config import prototxt

        Path(output).write_text(prototxt.dump(self.explicit()), encoding="utf-8")

    @takes("load_from_prototxt", pb_file=PATH)
    def load_from_prototxt(self, pb_file: str | os.PathLike[str]) -> None:
        """Set what the file sets, all of it or nothing; everything else keeps its value."""
        from fleetx.config import prototxt

        self._writable()
        trial = copy.deepcopy(self)
        for name, value in prototxt.load(Path(pb_file)).items():
            setattr(trial, name, value)
        vars(self).update(vars(trial))

    def explain(self, model: nn.Module | None = None, *, workers: int = 1) -> str:
        """The plan in words, or ``PlanError`` with the reason why there is none.

        Args:
            model: gives the traffic in bytes.
            workers: the number of workers to plan for.
        """
        if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
            raise ValueError(f"explain() plans for a whole number of workers, got {workers!r}")
        if model is not None and not isinstance(model, nn.Module):
            raise TypeError(f"explain() takes a torch.nn.Module first, got {model!r}")
        return explain(compose(self.request(), workers), model)

    @override
    def __repr__(self) -> str:
        from fleetx.config.table import render

        return render(self)
