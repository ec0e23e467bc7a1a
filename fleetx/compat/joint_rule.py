"""Several optimizers of torch as one: each moves its own parameters in the same update."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.optim import Optimizer
from typing_extensions import override

from fleetx.api.grad_clip import GradClip
from fleetx.compat.clipping import clip_gradients
from fleetx.plan.error import PlanError

Group = dict[str, Any]


class Joint(Optimizer):
    """Rules that share one state; groups say by ``part`` whose they are."""

    def __init__(
        self,
        params: Sequence[Group],
        rules: Sequence[Optimizer] = (),
        clips: Sequence[GradClip | None] = (),
    ) -> None:
        super().__init__(list(params), {})
        self.rules, self.clips = list(rules), list(clips)
        for rule in self.rules:
            self.state.update(rule.state)
        own = {id(group) for rule in self.rules for group in rule.param_groups}
        if any(id(group) not in own for group in self.param_groups):
            raise PlanError(
                "a program with several minimize() calls has an optimizer for each, and this plan "
                "makes the optimizer anew, by one rule for all parameters; train with one "
                "minimize(), or without strategies that change the update or spread parameters."
            )

    @classmethod
    def of(cls, rules: Sequence[Optimizer], clips: Sequence[GradClip | None]) -> "Joint":
        """Join rules, with the limit of the gradients of each."""
        for number, rule in enumerate(rules):
            for group in rule.param_groups:
                group["part"] = number
        return cls([group for rule in rules for group in rule.param_groups], rules, clips)

    @override
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Let every rule make its step, in the order of the parts."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for number, (rule, clip) in enumerate(zip(self.rules, self.clips, strict=True)):
            # Loading a state replaces groups and state.
            rule.param_groups = [g for g in self.param_groups if g["part"] == number]
            rule.state = self.state
            if clip is not None:
                clip_gradients(clip, [p for g in rule.param_groups for p in g["params"]])
            rule.step()
        return loss
