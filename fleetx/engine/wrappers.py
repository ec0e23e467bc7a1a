"""Modules that exchange between workers by themselves, and must not come into a plan."""

from torch import nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.nn.parallel import DataParallel, DistributedDataParallel

from fleetx.plan.error import PlanError

WRAPPERS: tuple[type, ...] = (DataParallel, DistributedDataParallel, FullyShardedDataParallel)
"""They hold the user's model as ``module``."""


def refuse_wrapped(model: nn.Module) -> None:
    """Complain of a model that is distributed already, by torch: gradients would count twice."""
    for name, part in model.named_modules():
        where = f"its submodule {name!r}" if name else "it"
        if isinstance(part, WRAPPERS):
            raise PlanError(
                "fleet.distributed_model() got a model that exchanges gradients by itself: "
                f"{where} is a {type(part).__name__}, and both would do it. Pass the plain module "
                f"and leave {type(part).__name__} out; strategies such as sharding do the same."
            )
        if isinstance(part, FSDPModule):
            raise PlanError(
                f"fleet.distributed_model() got a model that is spread over workers already: "
                f"fully_shard() was called on {where}. Pass the plain module, and set "
                "strategy.sharding = True."
            )
