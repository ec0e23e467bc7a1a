"""``DistributedStrategy``, the object a user fills in; the stub beside it is generated."""

import copy
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from typing_extensions import override

from fleetx.config.switchboard import Switchboard
from fleetx.expected import PATH, takes
from fleetx.plan.compose import compose
from fleetx.plan.explain import Explanation, explain
from fleetx.plan.forward_hook import is_laid_out
from fleetx.plan.subject import Subject

_TOO_LATE = (
    "traffic and memory in bytes, for the model is laid out over workers already, which hold parts "
    "of it; explain() it before fleet.distributed_model()"
)


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

    def explain(
        self,
        model: nn.Module | None = None,
        *,
        workers: int = 1,
        optimizer: Optimizer | None = None,
        sample: Any = None,
        criterion: Callable[[Any, Any], Any] | None = None,
        targets: Any = None,
        device: torch.device | str | None = None,
    ) -> Explanation:
        """The plan in words and in numbers, or ``PlanError`` with the reason why there is none.

        Nothing runs and nothing is allocated: the model may be on the meta device, and the workers
        need not exist.

        Args:
            model: gives traffic, parameters and gradients in bytes.
            workers: the number of workers to plan for.
            optimizer: of this model; gives its state.
            sample: inputs of one worker's batch; gives activations, and what pipelines and tensor
                parallel send.
            criterion: outputs and targets -> loss, which keeps activations, too.
            targets: those of the sample.
            device: where workers compute; that of the model if it has numbers, else the CPU.
        """
        if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
            raise ValueError(f"explain() plans for a whole number of workers, got {workers!r}")
        if model is not None and not isinstance(model, nn.Module):
            raise TypeError(f"explain() takes a torch.nn.Module first, got {model!r}")
        if model is None and (optimizer is not None or sample is not None):
            raise ValueError(
                "explain() was given an optimizer or a sample and no model, to which both belong; "
                "give it as the first argument."
            )
        if optimizer is not None and not isinstance(optimizer, Optimizer):
            raise TypeError(f"explain() takes a torch.optim.Optimizer, got {optimizer!r}")
        plan = compose(self.request(), workers)
        if model is not None and is_laid_out(model):
            return explain(plan, unknown=_TOO_LATE)
        subject = Subject(
            model=model,
            optimizer=optimizer,
            sample=sample,
            criterion=criterion,
            targets=targets,
            device=_device(model, device),
        )
        return explain(plan, subject)

    @override
    def __repr__(self) -> str:
        from fleetx.config.table import render

        return render(self)


def _device(model: nn.Module | None, given: torch.device | str | None) -> torch.device:
    if given is not None:
        return torch.device(given)
    first = next(model.parameters(), None) if model is not None else None
    return torch.device("cpu") if first is None or first.is_meta else first.device
