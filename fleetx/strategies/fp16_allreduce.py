"""fp16 all-reduce: gradients travel in half precision and are used in their own."""

from dataclasses import replace

import torch
from typing_extensions import override

from fleetx.plan.contract import Contract, Phase
from fleetx.plan.job import Job
from fleetx.plan.step import Step
from fleetx.plan.strategy import Strategy


class FP16AllReduce(Strategy, name="fp16_allreduce"):
    """Sets the format of the wire, which whoever reduces gradients obeys."""

    contract = Contract(
        phase=Phase.WIRE,
        touches=frozenset({"wire"}),
        requires=frozenset({"gradient_exchange"}),
    )

    @override
    def step(self, step: Step, job: Job) -> Step:
        return replace(step, wire=torch.float16)
