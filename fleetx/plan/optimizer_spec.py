"""An optimizer described by parameter names, so that it can be built after the layout is known."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from fleetx.plan.error import PlanError


@dataclass(frozen=True, kw_only=True)
class Group:
    """One parameter group: the names of its parameters and its options."""

    names: tuple[str, ...]
    options: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class OptimizerSpec:
    """Class, defaults and groups of an optimizer; strategies change it with ``replace``."""

    cls: type[Optimizer]
    defaults: Mapping[str, Any]
    groups: tuple[Group, ...]

    @classmethod
    def describe(cls, optimizer: Optimizer, names: Mapping[Tensor, str]) -> "OptimizerSpec":
        """Describe ``optimizer`` by the names that ``names`` gives to its parameters."""
        groups = tuple(
            Group(
                names=tuple(_name(parameter, names) for parameter in group["params"]),
                options={key: value for key, value in group.items() if key != "params"},
            )
            for group in optimizer.param_groups
        )
        return cls(cls=type(optimizer), defaults=dict(optimizer.defaults), groups=groups)

    def build(self, parameters: Mapping[str, Parameter]) -> Optimizer:
        """Make the optimizer over those of its parameters that this rank holds."""
        groups = [
            {
                "params": [parameters[name] for name in group.names if name in parameters],
                **group.options,
            }
            for group in self.groups
        ]
        accepted = inspect.signature(self.cls).parameters
        kept = {key: value for key, value in self.defaults.items() if key in accepted}
        return self.cls(groups, **kept)


def _name(parameter: Tensor, names: Mapping[Tensor, str]) -> str:
    if parameter not in names:
        raise PlanError(
            f"the optimizer holds a parameter of shape {list(parameter.shape)} that is not the "
            "model's, so it would never be exchanged between workers; give the optimizer "
            "parameters of the module that is passed to fleet.distributed_model()."
        )
    return names[parameter]
