"""Gradients that a forward hides, in stages 1 and 2.

From a forward to its backward the modules show gathered weights, which have no gradients: who
clears those by hand meanwhile, or limits them, would find nothing to do. So gathered weights get
what stands for the gradients of their parts. It can be cleared, which clears those, and not be
read.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from fleetx.comm import stand_in
from fleetx.comm.gradient_hooks import hook_gradient
from fleetx.comm.held_gradients import sharded
from fleetx.comm.nested import tensors
from fleetx.plan.step import Step
from fleetx.torch_internals import (
    FsdpRecord,
    current_backward,
    fsdp_kept,
    fsdp_owner,
    fsdp_records,
    fsdp_whole,
    is_fsdp,
    parameters_of,
)


class HiddenGradients:
    """Keeps gathered weights and the gradients of their parts together."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._units = [*sharded(model)]
        self._shown: list[tuple[FsdpRecord, Tensor]] = []
        """What stands for gradients now, and the gathered weights that show it."""
        self._hooks: list[RemovableHandle] = []
        self._depth = 0
        self._awaited = False
        """Whether a backward may come that reads gathered weights."""
        model.register_forward_pre_hook(self._enter)
        for unit in self._units:
            unit.register_forward_hook(self._leave, always_call=unit is model)

    def _enter(self, module: nn.Module, args: Any) -> None:
        if not self._depth and current_backward() < 0:
            self.take_off()
        self._depth += 1

    def _leave(self, module: nn.Module, args: Any, outputs: Any) -> None:
        """The model was called, or a unit of it by itself."""
        self._depth -= module is self._model
        # A replay is a part of its backward.
        if self._depth or current_backward() >= 0 or not is_fsdp(module):
            return
        self.take_off()
        units = self._units if module is self._model else [module]
        hiding = [record for unit in units for record in fsdp_records(unit) if _hides(record)]
        if torch.is_grad_enabled():
            self._awaited = True
        elif not self._awaited and (hiding or module.training):
            # Nobody needs gathered weights any more, and an average of them may follow.
            self._give_back()
            return
        self._show(hiding)
        # Before a backward adds to them, wherever it enters; and before FSDP takes them for true.
        entered = [tensor for tensor in tensors(outputs) if tensor.requires_grad]
        entered += [p for p in self._model.parameters() if hiding and p.requires_grad]
        self._hooks += [hook_gradient(tensor, self._entered) for tensor in entered]

    def _show(self, hiding: list[FsdpRecord]) -> None:
        for record in hiding:
            whole = fsdp_whole(record)
            assert whole is not None, "it hides its part"
            if whole.grad is None:
                stand_in.show(whole)
                self._shown.append((record, whole))

    def _entered(self, gradient: Tensor) -> None:
        self._awaited = False
        self.take_off()

    def take_off(self) -> None:
        """Let what was done to the stand-ins be done to the gradients."""
        shown, self._shown = self._shown, []
        hooks, self._hooks = self._hooks, []
        for hook in hooks:
            hook.remove()
        for record, whole in shown:
            kept = fsdp_kept(record)
            if stand_in.is_gone(whole):
                kept.grad = None
            elif stand_in.is_zeroed(whole) and kept.grad is not None:
                kept.grad.zero_()
            stand_in.take_off(whole)

    def _give_back(self) -> None:
        for unit in self._units:
            unit.reshard()

    def uncover(self) -> None:
        """Before gradients are used: the model shows the parts, which have them."""
        self.take_off()
        if any(_hides(record) for unit in self._units for record in fsdp_records(unit)):
            self._give_back()


def _hides(record: FsdpRecord) -> bool:
    """Whether gathered weights are in the place of a part that has a gradient."""
    owner, name = fsdp_owner(record)
    return fsdp_kept(record).grad is not None and (
        parameters_of(owner).get(name) is fsdp_whole(record)
    )


def uncovered(step: Step, hidden: HiddenGradients) -> Step:
    """Whoever uses gradients finds them."""

    def ready(due: bool) -> bool:
        hidden.uncover()
        return step.ready(due)

    def update() -> bool:
        hidden.uncover()
        return step.update()

    def resume() -> None:
        hidden.take_off()  # a backward follows, for which weights stay gathered
        step.resume()

    return replace(step, ready=ready, resume=resume, update=update)
