"""LARS: the user's momentum gets a learning rate per layer, for very large batches."""

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
from fleetx.plan.option import Above, AtLeast
from fleetx.plan.strategy import Strategy

REFUSED = {
    "nesterov": "LARS has no look-ahead",
    "dampening": "LARS scales a step by the layer's own rate and by nothing else",
    "differentiable": "the update of LARS cannot be differentiated",
}
"""Option of SGD -> why the rule cannot keep it when it is set."""


class Lars(Strategy, name="lars"):
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

    contract = Contract(
        phase=Phase.RULE, touches=frozenset({"optimizer"}), provides=frozenset({"rule"})
    )
    config: Config

    @override
    def optimizer(self, spec: OptimizerSpec, job: Job) -> OptimizerSpec:
        # Loaded here: the rule pulls in distributed tensors, which jobs without it do not need.
        from fleetx.optim.exclusion import excluded_positions
        from fleetx.optim.lars import Lars as Rule

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
        numbers = self.config.values()
        del numbers["exclude_from_weight_decay"]
        return replace(spec, cls=Rule, defaults=_adopted(spec.defaults) | numbers, groups=groups)

    def _check(self, spec: OptimizerSpec) -> None:
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


def _adopted(options: Mapping[str, Any]) -> dict[str, Any]:
    from fleetx.optim.adoption import adopted

    for name, reason in REFUSED.items():
        if options.get(name):
            raise PlanError(
                f"the optimizer has {name}={options[name]!r}, which strategy.lars cannot keep: "
                f"{reason}. Leave it out of torch.optim.SGD(...), or set strategy.lars = False."
            )
    return adopted(options, without=frozenset(REFUSED))
