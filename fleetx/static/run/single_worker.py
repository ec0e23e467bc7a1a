"""Training without other workers: the same engine over a mesh of one."""

from typing import TYPE_CHECKING, Any

import fleetx.strategies  # noqa: F401  (the default drive and carrier are strategies, too)
from fleetx.plan.compose import Request, compose
from fleetx.plan.contract import Phase
from fleetx.plan.error import PlanError
from fleetx.plan.mesh import AXES
from fleetx.plan.strategy import Plan

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_Base: Any = object
if TYPE_CHECKING:
    _Base = DeviceMesh


class LoneMesh(_Base):  # type: ignore[misc]
    """Every axis has one rank, and there is no group: nobody to talk to."""

    def __init__(self) -> None:
        self.mesh_dim_names = AXES

    def __getitem__(self, axis: Any) -> "LoneMesh":
        return self

    def size(self, mesh_dim: Any = None) -> int:
        """One."""
        return 1


def lone_plan(request: Request | None = None) -> Plan:
    """The plan of one worker."""
    return compose(request or Request(), 1)


def without_exchange(request: Request, plan: Plan) -> Plan:
    """The plan in which a worker updates by itself what it otherwise trains with others.

    What computes stays: precision, recomputation, clipping. What exchanges is left out; the rule
    is left out because the optimizer that it made is used as it is.
    """
    spread = [axis for axis in ("pp", "sharding", "tp") if plan.mesh[axis] > 1]
    if spread:
        raise PlanError(
            f"fleet._origin_program trains without exchange, but the parameters are spread over "
            f"workers (axis {', '.join(spread)}), so none can train alone; use fleet.main_program."
        )
    left_out = {Phase.WIRE, Phase.CODEC, Phase.CARRIER, Phase.RULE}
    for strategy in plan.strategies:
        if strategy.contract.phase == Phase.CADENCE:
            raise PlanError(
                f"fleet._origin_program and {strategy.name} would count batches apart from each "
                f"other; turn {strategy.name} off, or use fleet.main_program alone."
            )
    names = [s.name for s in plan.strategies if s.contract.phase in left_out]
    kept = {k: v for k, v in request.strategies.items() if k not in names}
    return lone_plan(Request(strategies=kept, options=request.options))
