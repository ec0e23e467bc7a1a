"""fp16 all-reduce: gradients travel in half precision and are used in their own."""

from itertools import chain

import torch
from torch import nn
from typing_extensions import override

from fleetx.plan.contract import Contract, Phase
from fleetx.plan.error import PlanError
from fleetx.plan.exchange import Exchange
from fleetx.plan.job import Job
from fleetx.plan.share import Share
from fleetx.plan.strategy import Strategy


class FP16AllReduce(Strategy, name="fp16_allreduce"):
    """Sets the format of the wire, which whoever reduces float32 gradients obeys."""

    contract = Contract(
        phase=Phase.WIRE,
        touches=frozenset({"wire"}),
        tolerance=1e-2,
        requires=frozenset({"gradient_exchange"}),
        partners=("dp", "sharding"),
    )

    @override
    def model(self, model: nn.Module, job: Job) -> nn.Module:
        here = sorted({str(p.dtype) for p in model.parameters() if p.requires_grad})
        formats = set(chain(*job.of_all_stages(here)))
        if formats and str(torch.float32) not in formats:
            found = ", ".join(sorted(formats))
            raise PlanError(
                "strategy.fp16_allreduce = True sends float32 gradients in half precision, and "
                f"this model has none ({found}); set strategy.fp16_allreduce = False, or pass the "
                "model in float32."
            )
        job.wire = torch.float16
        return model

    @override
    def exchanges(self, known: tuple[Exchange, ...], share: Share) -> tuple[Exchange, ...]:
        return tuple(exchange.in_halves("fp16_allreduce = True") for exchange in known)
