"""``model.train_batch``, ``model.eval_batch`` and ``model.zero_grad``, whatever the plan."""

from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler
from typing_extensions import override

from fleetx.api.optimizer import DistributedOptimizer
from fleetx.comm.held_gradients import clear_kept
from fleetx.comm.nested import mapped
from fleetx.engine.engine import Engine
from fleetx.expected import a, expect
from fleetx.plan.error import PlanError

_OPTIMIZER = a(DistributedOptimizer, "what fleet.distributed_optimizer() returned")
_SCHEDULER = a(LRScheduler, "a scheduler of torch.optim.lr_scheduler")


def give_batch_calls(model: nn.Module, engine: Engine) -> None:
    """Add the two calls to the module, unless its class has them, and let zero_grad hold back."""
    for call in (TrainBatch, EvalBatch):
        if not hasattr(type(model), call.name):
            vars(model)[call.name] = call(engine)
    vars(model)["zero_grad"] = ZeroGrad(model, engine)


class _BatchCall:
    """A call that belongs to one job; copies of the module get one that explains itself."""

    name: str

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def _ready(self) -> Engine:
        if self._engine.step is None:
            raise RuntimeError(
                f"model.{self.name}() was called before its optimizer was distributed; call "
                "optimizer = fleet.distributed_optimizer(optimizer) first."
            )
        return self._engine

    def _moved(self, data: Any) -> tuple[Any, Any]:
        if not isinstance(data, (tuple, list)) or len(data) != 2:
            kind = type(data).__name__
            raise ValueError(
                f"model.{self.name}() takes one pair (inputs, targets), got a {kind}; put several "
                "inputs into a tuple or a dict of their own."
            )
        device = self._engine.job.device
        inputs, targets = mapped(lambda tensor: tensor.to(device), tuple(data))
        return inputs, targets

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return _Stray, (self.name,)


class TrainBatch(_BatchCall):
    """Forward, backward and, when one is due, the update for one batch."""

    name = "train_batch"

    def __call__(
        self,
        data: Any,
        optimizer: DistributedOptimizer | None = None,
        lr_scheduler: LRScheduler | None = None,
    ) -> Tensor:
        """Train on one pair of inputs and targets; the mean loss is returned on every rank.

        Args:
            data: inputs and targets of this worker's batch; ranks that share a replica of the
                model (a pipeline, a tensor-parallel group) give the same one.
            optimizer: the model's distributed optimizer, for scripts that name it; it is known.
            lr_scheduler: stepped when the parameters have moved.
        """
        engine = self._ready()
        if optimizer is not None:
            expect("model.train_batch", "optimizer", optimizer, _OPTIMIZER)
        if lr_scheduler is not None:
            expect("model.train_batch", "lr_scheduler", lr_scheduler, _SCHEDULER)
        if optimizer is not None and not optimizer.steers(engine):
            raise ValueError(
                "model.train_batch() got an optimizer that moves another model; pass what "
                "fleet.distributed_optimizer() returned for this one, or leave it out."
            )
        before = engine.updates
        loss = engine.train_batch(self._moved(data))
        if lr_scheduler is not None and engine.updates > before:
            # Schedulers warn of a step() that they did not see; the plan's update goes past it.
            vars(lr_scheduler.optimizer)["_opt_called"] = True
            lr_scheduler.step()
        return loss


class EvalBatch(_BatchCall):
    """The loss or the outputs for one batch, without gradients and in evaluation mode."""

    name = "eval_batch"

    def __call__(self, data: Any, compute_loss: bool = True) -> Any:
        """Evaluate one pair of inputs and targets; every rank gets the result.

        Args:
            data: as for ``train_batch``.
            compute_loss: return the loss; False returns the outputs of the model.
        """
        engine = self._ready()
        inputs, targets = self._moved(data)
        outputs = engine.eval_batch(inputs)
        if not compute_loss:
            return outputs
        if engine.job.criterion is None:
            raise PlanError(
                "model.eval_batch() computes the loss, but no criterion is known; call "
                "fleet.distributed_model(model, criterion=...), or eval_batch(data, "
                "compute_loss=False) for the outputs."
            )
        with torch.no_grad():
            return engine.job.criterion(outputs, targets)


class ZeroGrad:
    """``model.zero_grad()`` that leaves alone what waits for an update, as the optimizer's does."""

    def __init__(self, model: nn.Module, engine: Engine) -> None:
        self._model, self._engine = model, engine

    def __call__(self, set_to_none: bool = True) -> None:
        """Clear the gradients, unless they still wait for an update to come."""
        if not self._engine.holding:
            type(self._model).zero_grad(self._model, set_to_none=set_to_none)
            clear_kept(self._model, set_to_none=set_to_none)
            self._engine.cleared()

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return _method_of_class, (self._model,)


def _method_of_class(model: nn.Module) -> Any:
    return MethodType(type(model).zero_grad, model)


class _Stray:
    """What a copy of a distributed module has instead: it belongs to no job."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(
            f"{self._name}() was called on a copy of a distributed model, which belongs to no job; "
            "call fleet.distributed_model() on the copy first."
        )
