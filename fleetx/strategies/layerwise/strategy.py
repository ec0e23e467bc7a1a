"""What the strategies LARS and LAMB have in common: they replace one optimizer of torch."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from typing import Any, ClassVar

from torch.optim import Optimizer
from typing_extensions import override

from fleetx.plan.contract import Contract, Phase
from fleetx.plan.error import PlanError
from fleetx.plan.job import Job
from fleetx.plan.optimizer_spec import Group, OptimizerSpec
from fleetx.plan.strategy import Strategy

SPEED = frozenset({"foreach", "fused", "capturable"})
"""Options of torch's optimizers that say how to compute and not what."""


class LayerwiseStrategy(Strategy, name=None):
    """Replaces an optimizer by a rule with one rate per layer; its groups stay the user's."""

    replaces: ClassVar[type[Optimizer]]
    """The optimizer of torch whose place the rule takes."""

    refused: ClassVar[Mapping[str, str]]
    """Option of that optimizer -> why the rule cannot keep it when it is set."""

    contract = Contract(
        phase=Phase.RULE, touches=frozenset({"optimizer"}), provides=frozenset({"rule"})
    )
    config: Any
    """The numbers of the rule, which become its defaults, and ``exclude_from_weight_decay``."""

    @abstractmethod
    def rule(self) -> type[Optimizer]:
        """The optimizer that takes its place.

        Loaded on demand: rules pull in distributed tensors, which other jobs do not need.
        """

    @abstractmethod
    def refuse(self, spec: OptimizerSpec) -> None:
        """Stop where the rule cannot replace the optimizer or would change nothing."""

    @override
    def optimizer(self, spec: OptimizerSpec, job: Job) -> OptimizerSpec:
        from fleetx.strategies.layerwise.exclusion import excluded_positions

        self.refuse(spec)
        self._refuse_complex(spec, job)
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
            Group(names=group.names, options=self._adopted(group.options) | {"excluded": at})
            for group, at in zip(spec.groups, positions, strict=True)
        )
        numbers = self.config.values()
        del numbers["exclude_from_weight_decay"]
        defaults = self._adopted(spec.defaults) | numbers
        return replace(spec, cls=self.rule(), defaults=defaults, groups=groups)

    def _refuse_complex(self, spec: OptimizerSpec, job: Job) -> None:
        held = dict(job.model.named_parameters(remove_duplicate=False))
        for name in chain.from_iterable(group.names for group in spec.groups):
            if name in held and held[name].is_complex():
                raise PlanError(
                    f"strategy.{self.name} = True gives each layer a rate by norms of real "
                    f"numbers, and {name!r} is complex; keep it as "
                    "nn.Parameter(torch.view_as_real(...)), which the forward reads by "
                    f"torch.view_as_complex, or set strategy.{self.name} = False."
                )

    def _adopted(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options of a group, those of other code (such as schedulers) included.

        ``fused=False`` and ``foreach=True`` both ask for torch's list operations and become
        ``fused=False``; anything else leaves the choice to the rule.
        """
        for name, reason in self.refused.items():
            if options.get(name):
                raise PlanError(
                    f"the optimizer has {name}={options[name]!r}, which strategy.{self.name} "
                    f"cannot keep: {reason}. Leave it out of torch.optim."
                    f"{self.replaces.__name__}(...), or set strategy.{self.name} = False."
                )
        kept = {key: options[key] for key in options.keys() - self.refused.keys() - SPEED}
        listed = options.get("fused") is False or options.get("foreach") is True
        return kept | {"fused": False if listed else None}
