"""``paddle.regularizer``: what is added to the gradients of parameters."""

from dataclasses import dataclass


@dataclass(frozen=True)
class L1Decay:
    """``coeff`` times the sign of each number."""

    coeff: float = 0.0


@dataclass(frozen=True)
class L2Decay:
    """``coeff`` times the number itself."""

    coeff: float = 0.0


Decay = L1Decay | L2Decay
