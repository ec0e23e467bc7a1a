"""Optimizers around another one: most are a strategy of fleetx."""

from collections.abc import Sequence
from typing import Any

from typing_extensions import override

from fleetx.compat.distribution import DistributedOptimizer, alone, asked_by, innermost
from fleetx.compat.fleet_strategies import names_of
from fleetx.compat.notes import note
from fleetx.compat.slow_weights import SlowWeights
from fleetx.record.variable import Variable


class WrappedOptimizer:
    """An optimizer, and a strategy that it trains under."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        innermost(self)  # refuses what is none
        self._alone: DistributedOptimizer | None = None

    def own(self) -> dict[str, dict[str, Any]]:
        """The strategies of this wrapper alone."""
        return {}

    def strategies(self) -> dict[str, dict[str, Any]]:
        """Those, and what is inside asks for."""
        return {**asked_by(self._optimizer), **self.own()}

    def _trained(self) -> Any:
        if self._alone is None:
            self._alone = alone(self)
        return self._alone

    def minimize(
        self,
        loss: Any,
        startup_program: Any = None,
        parameter_list: Any = None,
        no_grad_set: Any = None,
        **old: Any,
    ) -> Any:
        """Let every run of the loss's program end in an update."""
        if not isinstance(loss, Variable):
            return innermost(self).minimize(loss)
        trained = self._trained()
        return trained.minimize(loss, startup_program, parameter_list, no_grad_set, **old)

    def backward(self, loss: Any, *args: Any, **kwargs: Any) -> Any:
        """First half of ``minimize``."""
        return self._trained().backward(loss, *args, **kwargs)

    def apply_gradients(self, params_grads: Any) -> Any:
        """Second half of ``minimize``."""
        return self._trained().apply_gradients(params_grads)

    def apply_optimize(self, loss: Any, startup_program: Any, params_grads: Any) -> Any:
        """The same, by its name in Paddle 1."""
        return self.apply_gradients(params_grads)

    def get_loss_scaling(self) -> Any:
        """The scale of the loss, to fetch."""
        return self._trained().get_loss_scaling()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_optimizer":
            raise AttributeError(name)
        return getattr(self._optimizer, name)


class RecomputeOptimizer(WrappedOptimizer):
    """Keeps few results of the forward pass, and computes the others again."""

    def __init__(self, optimizer: Any) -> None:
        super().__init__(optimizer)
        self._checkpoints: list[str] = []

    def _set_checkpoints(self, checkpoints: Sequence[Any]) -> None:
        self._checkpoints = names_of(checkpoints)

    @override
    def own(self) -> dict[str, dict[str, Any]]:
        """Recompute, between the checkpoints."""
        if not self._checkpoints:
            raise ValueError(
                "RecomputeOptimizer keeps what _set_checkpoints() names, and it was not called; "
                "call optimizer._set_checkpoints([variables]) before minimize()."
            )
        return {"recompute": {"checkpoints": self._checkpoints}}


class GradientMergeOptimizer(WrappedOptimizer):
    """Adds gradients of several batches up before an update."""

    def __init__(self, inner_optimizer: Any, k_steps: int = 1, avg: bool = True) -> None:
        super().__init__(inner_optimizer)
        self._options = {"k_steps": int(k_steps), "avg": bool(avg)}

    @override
    def own(self) -> dict[str, dict[str, Any]]:
        """Gradient merge."""
        return {"gradient_merge": dict(self._options)}


class PipelineOptimizer(WrappedOptimizer):
    """Cuts the program by its ``device_guard`` over workers, and batches into small ones."""

    def __init__(
        self, optimizer: Any, num_microbatches: int = 1, start_cpu_core_id: int = 0, **old: Any
    ) -> None:
        super().__init__(optimizer)
        if old:
            raise TypeError(
                f"PipelineOptimizer({', '.join(old)}) is of Paddle 1.6, where threads of one "
                "process were the stages; name the stages with fluid.device_guard() instead."
            )
        if start_cpu_core_id:
            note("PipelineOptimizer(start_cpu_core_id)", "cores are dealt out by fleetrun.")
        self._batches = int(num_microbatches)

    @override
    def own(self) -> dict[str, dict[str, Any]]:
        """A pipeline."""
        return {"pipeline": {"accumulate_steps": self._batches}}


class LookaheadOptimizer(WrappedOptimizer):
    """Slow weights behind the fast ones of an optimizer, which meet after every ``k`` updates.

    They begin at the values that the first update finds, loaded ones included.
    """

    after_first = False

    def __init__(
        self, inner_optimizer: Any, alpha: float = 0.5, k: int = 5, name: str | None = None
    ) -> None:
        super().__init__(inner_optimizer)
        self.inner_optimizer, self.alpha, self.k = inner_optimizer, alpha, k
        innermost(self).look_ahead(SlowWeights(alpha, k, after_first=self.after_first))

    @override
    def _trained(self) -> Any:
        """The inner one, and what that asks for: slow weights are no strategy."""
        return self._optimizer


class LookAhead(LookaheadOptimizer):
    """The same as Paddle 2 has it: slow weights begin where the first update ends."""

    after_first = True
