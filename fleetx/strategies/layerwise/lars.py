"""LARS: the user's momentum gets a learning rate per layer, for very large batches."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch.optim import Optimizer
from typing_extensions import override

from fleetx.plan import option
from fleetx.plan.error import PlanError
from fleetx.plan.optimizer_spec import OptimizerSpec
from fleetx.plan.option import Above, AtLeast
from fleetx.strategies.layerwise.strategy import LayerwiseStrategy


class Lars(LayerwiseStrategy, name="lars"):
    """Replaces SGD by LARS; learning rates, momentum, L2 decay and groups stay the user's."""

    @dataclass(frozen=True, kw_only=True)
    class Config(option.Config):
        """The numbers of the rule, and the parameters that plain momentum moves."""

        lars_coeff: Annotated[float, Above(0)] = 0.001
        """The trust coefficient: how far a step may go, in parts of the norm of the weights."""

        lars_weight_decay: Annotated[float, AtLeast(0)] = 0.0005
        """Weight decay inside of the rule."""

        epsilon: Annotated[float, AtLeast(0)] = 0.0
        """Added to the denominator of the ratio."""

        exclude_from_weight_decay: tuple[str, ...] = ()
        """Parts of the names of parameters that get neither decay nor a rate of their own."""

    replaces = torch.optim.SGD
    refused: ClassVar[Mapping[str, str]] = {
        "nesterov": "LARS has no look-ahead",
        "dampening": "LARS scales a step by the layer's own rate and by nothing else",
        "differentiable": "the update of LARS cannot be differentiated",
    }
    config: Config

    @override
    def rule(self) -> type[Optimizer]:
        from fleetx.strategies.layerwise.lars_optimizer import Lars as Rule

        return Rule

    @override
    def refuse(self, spec: OptimizerSpec) -> None:
        if spec.cls is not torch.optim.SGD:
            raise PlanError(
                f"strategy.lars replaces SGD with momentum, and the optimizer is "
                f"{spec.cls.__name__}, whose own rule would be lost; use "
                "torch.optim.SGD(..., momentum=0.9), or strategy.lamb with torch.optim.Adam."
            )
        if self.config.lars_weight_decay == 0:
            raise PlanError(
                "lars_configs['lars_weight_decay'] = 0 leaves nothing of strategy.lars: a layer "
                "has a rate of its own only where this decay is above 0. Set a small one, such as "
                "1e-9, or strategy.lars = False."
            )
