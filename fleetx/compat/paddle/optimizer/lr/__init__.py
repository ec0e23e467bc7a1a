"""``paddle.optimizer.lr``: learning rates that a script moves on with ``step()``."""

from fleetx.compat.paddle.optimizer.lr.cycles import (
    CosineAnnealingDecay,
    CosineAnnealingWarmRestarts,
    CyclicLR,
    OneCycleLR,
)
from fleetx.compat.paddle.optimizer.lr.decays import (
    ExponentialDecay,
    InverseTimeDecay,
    LambdaDecay,
    LinearLR,
    LinearWarmup,
    MultiplicativeDecay,
    MultiStepDecay,
    NaturalExpDecay,
    NoamDecay,
    PiecewiseDecay,
    PolynomialDecay,
    StepDecay,
)
from fleetx.compat.paddle.optimizer.lr.plateau import (
    ReduceOnPlateau,
)
from fleetx.compat.paddle.optimizer.lr.scheduler import (
    LRScheduler,
)

__all__ = [
    "CosineAnnealingDecay",
    "CosineAnnealingWarmRestarts",
    "CyclicLR",
    "ExponentialDecay",
    "InverseTimeDecay",
    "LRScheduler",
    "LambdaDecay",
    "LinearLR",
    "LinearWarmup",
    "MultiStepDecay",
    "MultiplicativeDecay",
    "NaturalExpDecay",
    "NoamDecay",
    "OneCycleLR",
    "PiecewiseDecay",
    "PolynomialDecay",
    "ReduceOnPlateau",
    "StepDecay",
]
