"""LAMB: the user's Adam gets a learning rate per layer, for very large batches."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Annotated, Any

import torch
from typing_extensions import override

from fleetx.plan import option
from fleetx.plan.contract import Contract, Phase
from fleetx.plan.error import PlanError
from fleetx.plan.job import Job
from fleetx.plan.optimizer_spec import Group, OptimizerSpec
from fleetx.plan.option import AtLeast
from fleetx.plan.strategy import Strategy

REFUSED = {
    "amsgrad": "LAMB keeps no maximum of the second moment",
    "decoupled_weight_decay": "LAMB has a decoupled decay of its own, and both would act; set it "
    "with lamb_configs['lamb_weight_decay']",
    "differentiable": "the update of LAMB cannot be differentiated",
}
"""Option of Adam -> why the rule cannot keep it when it is set."""


class Lamb(Strategy, name="lamb"):
    """Replaces Adam by LAMB; learning rates, betas, eps, L2 decay and groups stay the user's."""

    @dataclass(frozen=True, kw_only=True)
    class Config(option.Config):
        """The decay of the rule, and the parameters that plain Adam moves."""

        lamb_weight_decay: Annotated[float, AtLeast(0)] = 0.01
        """Weight decay inside of the rule."""

        exclude_from_weight_decay: tuple[str, ...] = ()
        """Parts of the names of parameters that get neither decay nor a rate of their own."""

    contract = Contract(
        phase=Phase.RULE, touches=frozenset({"optimizer"}), provides=frozenset({"rule"})
    )
    config: Config

    @override
    def optimizer(self, spec: OptimizerSpec, job: Job) -> OptimizerSpec:
        # Loaded here: the rule pulls in distributed tensors, which jobs without it do not need.
        from fleetx.optim.exclusion import excluded_positions
        from fleetx.optim.lamb import Lamb as Rule

        self._check(spec)
        names = [group.names for group in spec.groups]
        positions = excluded_positions(
            self.config.exclude_from_weight_decay,
            names,
            stages=job.of_all_stages([*chain(*names)]),
            held=job.held(),
            owners=job.owners,
            label=self.config.spelled("exclude_from_weight_decay"),
        )
        groups = tuple(
            Group(names=group.names, options=_adopted(group.options) | {"excluded": at})
            for group, at in zip(spec.groups, positions, strict=True)
        )
        decay = {"lamb_weight_decay": self.config.lamb_weight_decay}
        return replace(spec, cls=Rule, defaults=_adopted(spec.defaults) | decay, groups=groups)

    def _check(self, spec: OptimizerSpec) -> None:
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


def _adopted(options: Mapping[str, Any]) -> dict[str, Any]:
    from fleetx.optim.adoption import adopted

    for name, reason in REFUSED.items():
        if options.get(name):
            raise PlanError(
                f"the optimizer has {name}={options[name]!r}, which strategy.lamb cannot keep: "
                f"{reason}. Leave it out of torch.optim.Adam(...), or set strategy.lamb = False."
            )
    return adopted(options, without=frozenset(REFUSED))
