"""``fleet`` of Paddle 2, which also trains modules."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from typing_extensions import override

import fleetx
from fleetx import roles
from fleetx.api import session
from fleetx.compat import modes
from fleetx.compat.distribution import DistributedOptimizer, innermost
from fleetx.compat.fleet_strategies import DistributedStrategy
from fleetx.compat.fleets import Fleet
from fleetx.compat.hybrid import HybridCommunicateGroup, degrees, hybrid_group
from fleetx.compat.notes import note
from fleetx.compat.paddle.distributed.parallel import DataParallel, same_start
from fleetx.compat.pipelines import PipelineLayer, PipelineModel


class Fleet2(Fleet):
    """One job: programs and modules, with or without servers."""

    _collective = False

    @override
    def init(
        self,
        role_maker: Any = None,
        is_collective: bool | None = None,
        strategy: Any = None,
        **idle: Any,
    ) -> "Fleet2":
        """Learn who this process is, and meet the others."""
        super().init(role_maker, is_collective, _whole_layers(strategy), **idle)
        return self

    @override
    def distributed_optimizer(self, optimizer: Any, strategy: Any = None) -> Any:
        """Give an optimizer to all workers; layers that are cut by hand keep theirs."""
        inner = innermost(optimizer)
        if inner.eager and roles.started() and _cut_by_hand():
            inner.norm_group = hybrid_group().get_model_parallel_group()
            self._latest = DistributedOptimizer(inner, inner)
            return self._latest
        return super().distributed_optimizer(optimizer, _whole_layers(strategy))

    def distributed_model(self, model: nn.Module) -> Any:
        """Let all workers train a module together."""
        if isinstance(model, PipelineLayer):
            return PipelineModel(model, self)
        if _cut_by_hand():
            return _hybrid(model)
        return fleetx.distributed_model(model)

    def distributed_scaler(self, scaler: Any) -> Any:
        """The same, which skips a step on all workers if it does so on one."""
        return scaler.among_all()

    def get_hybrid_communicate_group(self) -> HybridCommunicateGroup:
        """The place of this worker along the axes of the job."""
        return hybrid_group()

    @property
    def _hcg(self) -> HybridCommunicateGroup:
        return hybrid_group()

    # The calls of the optimizer, for scripts that train with the fleet object.

    def step(self) -> None:
        """Move the parameters."""
        self._optimizer("step").step()

    def clear_grad(self) -> None:
        """Forget the gradients."""
        self._optimizer("clear_grad").clear_grad()

    def get_lr(self) -> float:
        """The learning rate in force."""
        return float(self._optimizer("get_lr").get_lr())

    def set_lr(self, value: float) -> None:
        """Set the learning rate by hand."""
        self._optimizer("set_lr").set_lr(value)

    def state_dict(self) -> dict[str, Any]:
        """The state of the optimizer."""
        found: dict[str, Any] = self._optimizer("state_dict").state_dict()
        return found

    def set_state_dict(self, state_dict: Mapping[str, Tensor]) -> None:
        """Take back the state of the optimizer."""
        self._optimizer("set_state_dict").set_state_dict(state_dict)

    def amp_init(self, place: Any = None, **_: Any) -> None:
        """Nothing to do: copies in half precision are made when they are used."""


def _cut_by_hand() -> bool:
    """Whether workers hold parts of layers that the script made so."""
    return session.begun() and roles.identity().is_collective and degrees()["tp"] > 1


def _whole_layers(strategy: Any) -> Any:
    """In programs layers stay whole: workers that would share one compute the same."""
    if not isinstance(strategy, DistributedStrategy) or not modes.is_static():
        return strategy
    if strategy.tensor_parallel or strategy.hybrid_configs["mp_degree"] > 1:
        note(
            "strategy.tensor_parallel",
            "layers of programs are whole on every worker, which "
            "gives the same results and saves no memory.",
        )
        strategy.tensor_parallel = False
        strategy.hybrid_configs = {"mp_degree": 1, "dp_degree": -1}
    return strategy


def _hybrid(model: nn.Module) -> Any:
    made = degrees()
    if made["pp"] > 1 or made["sharding"] > 1:
        raise NotImplementedError(
            f"strategy.hybrid_configs cuts layers by hand (mp {made['tp']}) and the model over "
            f"workers as well (pp {made['pp']}, sharding {made['sharding']}); leave one of them "
            "at 1: strategy.tensor_parallel cuts plain layers beside a pipeline."
        )
    group = hybrid_group()
    model.to(roles.device())
    same_start(model, group.get_model_parallel_group())
    return DataParallel(model, group=group.get_data_parallel_group())


fleet = Fleet2()
