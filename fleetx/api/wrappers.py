"""Modules that exchange between workers by themselves, and must not come into a plan."""

import sys

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from fleetx.plan.error import PlanError


def refuse_wrapped(model: nn.Module) -> None:
    """Complain of a model that is distributed already, by torch: gradients would count twice."""
    # They hold the user's model as ``module``.
    wrappers = DataParallel, DistributedDataParallel, *of_fsdp("FullyShardedDataParallel")
    spread = of_fsdp("FSDPModule")
    for name, part in model.named_modules():
        where = f"its submodule {name!r}" if name else "it"
        if isinstance(part, wrappers):
            raise PlanError(
                "fleet.distributed_model() got a model that exchanges gradients by itself: "
                f"{where} is a {type(part).__name__}, and both would do it. Pass the plain module "
                f"and leave {type(part).__name__} out; strategies such as sharding do the same."
            )
        if isinstance(part, spread):
            raise PlanError(
                f"fleet.distributed_model() got a model that is spread over workers already: "
                f"fully_shard() was called on {where}. Pass the plain module, and set "
                "strategy.sharding = True."
            )


def of_fsdp(name: str) -> tuple[type, ...]:
    """A class of torch.distributed.fsdp, if somebody has loaded that, which takes half a second.

    What nobody has loaded is in nobody's model.
    """
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return () if fsdp is None else (getattr(fsdp, name),)
