"""LAMB: the user's Adam gets a learning rate per layer, for very large batches."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch.optim import Optimizer
from typing_extensions import override

from fleetx.plan import option
from fleetx.plan.error import PlanError
from fleetx.plan.optimizer_spec import OptimizerSpec
from fleetx.plan.option import AtLeast
from fleetx.strategies.layerwise.strategy import LayerwiseStrategy


class Lamb(LayerwiseStrategy, name="lamb"):
    """Replaces Adam by LAMB; learning rates, betas, eps, L2 decay and groups stay the user's."""

    @dataclass(frozen=True, kw_only=True)
    class Config(option.Config):
        """The decay of the rule, and the parameters that plain Adam moves."""

        lamb_weight_decay: Annotated[float, AtLeast(0)] = 0.01
        """Weight decay inside of the rule."""

        exclude_from_weight_decay: tuple[str, ...] = ()
        """Parts of the names of parameters that get neither decay nor a rate of their own."""

    replaces = torch.optim.Adam
    refused: ClassVar[Mapping[str, str]] = {
        "amsgrad": "LAMB keeps no maximum of the second moment",
        "decoupled_weight_decay": "LAMB has a decoupled decay of its own, and both would act; set "
        "it with lamb_configs['lamb_weight_decay']",
        "differentiable": "the update of LAMB cannot be differentiated",
    }
    config: Config

    @override
    def rule(self) -> type[Optimizer]:
        from fleetx.strategies.layerwise.lamb_optimizer import Lamb as Rule

        return Rule

    @override
    def refuse(self, spec: OptimizerSpec) -> None:
        if spec.cls is torch.optim.AdamW:
            raise PlanError(
                "strategy.lamb replaces Adam, and the optimizer is AdamW, whose decoupled decay "
                "would act in addition to LAMB's own; use torch.optim.Adam and set the decay with "
                "lamb_configs['lamb_weight_decay']."
            )
        if spec.cls is not torch.optim.Adam:
            raise PlanError(
                f"strategy.lamb replaces Adam, and the optimizer is {spec.cls.__name__}, whose own "
                "rule would be lost; use torch.optim.Adam, or strategy.lars with "
                "torch.optim.SGD(..., momentum=0.9)."
            )
        if self.config.lamb_weight_decay == 0:
            raise PlanError(
                "lamb_configs['lamb_weight_decay'] = 0 leaves nothing of strategy.lamb: a layer "
                "has a rate of its own only where this decay is above 0. Set a small one, such as "
                "1e-9, or strategy.lamb = False."
            )
