"""An optimizer described by parameter names, so that it can be built after the layout is known."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from fleetx.plan.error import PlanError

_HOOKS = (
    "_optimizer_step_pre_hooks",
    "_optimizer_step_post_hooks",
    "_optimizer_state_dict_pre_hooks",
    "_optimizer_state_dict_post_hooks",
    "_optimizer_load_state_dict_pre_hooks",
    "_optimizer_load_state_dict_post_hooks",
)
"""Where torch keeps the hooks of an optimizer."""


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

    @property
    def accepted(self) -> dict[str, Any]:
        """Those of the defaults that its constructor takes."""
        known = inspect.signature(self.cls).parameters
        return {key: value for key, value in self.defaults.items() if key in known}

    def build(self, parameters: Mapping[str, Parameter], given: Optimizer) -> Optimizer:
        """Make the optimizer over those of its parameters that this rank holds.

        Args:
            parameters: What this rank holds.
            given: The optimizer that was described, whose hooks move over.
        """
        groups = [
            {
                "params": [parameters[name] for name in group.names if name in parameters],
                **group.options,
            }
            for group in self.groups
        ]
        kept = self.accepted
        if self.cls is type(given):
            kept |= _own_arguments(given)
        built = self.cls(groups, **kept)
        for hooks in _HOOKS:
            # The same table, so that handles which remove a hook go on doing so.
            setattr(built, hooks, getattr(given, hooks))
        return built


def _own_arguments(optimizer: Optimizer) -> dict[str, Any]:
    """Arguments of a user's class that torch does not keep among the defaults."""
    _, *accepted = inspect.signature(type(optimizer)).parameters.values()
    named = [a.name for a in accepted if a.kind not in (a.VAR_POSITIONAL, a.VAR_KEYWORD)]
    own = [name for name in named if name not in optimizer.defaults]
    for name in own:
        if not hasattr(optimizer, name):
            raise PlanError(
                f"the {type(optimizer).__name__} has to be made anew over the parameters as they "
                f"are laid out here, and its argument {name!r} is not known any more; make the "
                "optimizer after fleet.distributed_model(), from the parameters of the model that "
                f"it returned, or let the class keep the argument as self.{name}."
            )
    return {name: getattr(optimizer, name) for name in own}


def _name(parameter: Tensor, names: Mapping[Tensor, str]) -> str:
    if parameter not in names:
        raise PlanError(
            f"the optimizer holds a parameter of shape {list(parameter.shape)} that is not the "
            "model's, so it would never be exchanged between workers; give the optimizer "
            "parameters of the module that is passed to fleet.distributed_model(). Two models have "
            "an optimizer each, or are submodules of one whose forward calls both."
        )
    return names[parameter]
