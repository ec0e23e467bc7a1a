"""``paddle.fluid.regularizer``."""

from fleetx.compat.paddle import regularizer


class L1DecayRegularizer(regularizer.L1Decay):
    """``regularization_coeff`` times the sign of each number."""

    def __init__(self, regularization_coeff: float = 0.0) -> None:
        super().__init__(regularization_coeff)


class L2DecayRegularizer(regularizer.L2Decay):
    """``regularization_coeff`` times the number itself."""

    def __init__(self, regularization_coeff: float = 0.0) -> None:
        super().__init__(regularization_coeff)


L1Decay = L1DecayRegularizer
L2Decay = L2DecayRegularizer
