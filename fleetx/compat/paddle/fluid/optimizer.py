"""``paddle.fluid.optimizer``: the optimizers with the arguments of Paddle 1, and what wraps one."""

from collections.abc import Callable, Sequence
from typing import Any

from fleetx.compat import made_optimizers as made
from fleetx.compat.averages import ExponentialMovingAverage, ModelAverage
from fleetx.compat.optimizers import Optimizer
from fleetx.compat.wrapped_optimizers import (
    GradientMergeOptimizer,
    LookaheadOptimizer,
    PipelineOptimizer,
    RecomputeOptimizer,
)


def _common(
    parameter_list: Any, regularization: Any, grad_clip: Any, name: str | None
) -> dict[str, Any]:
    return {
        "parameters": parameter_list,
        "regularization": regularization,
        "grad_clip": grad_clip,
        "name": name,
    }


class SGDOptimizer(made.SGD):
    """``p -= lr * g``."""

    def __init__(
        self,
        learning_rate: Any,
        parameter_list: Any = None,
        regularization: Any = None,
        grad_clip: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__(learning_rate, **_common(parameter_list, regularization, grad_clip, name))


class MomentumOptimizer(made.Momentum):
    """``v = momentum * v + g; p -= lr * v``."""

    def __init__(  # noqa: PLR0917 (the order of Paddle)
        self,
        learning_rate: Any,
        momentum: float,
        parameter_list: Any = None,
        use_nesterov: bool = False,
        regularization: Any = None,
        grad_clip: Any = None,
        name: str | None = None,
    ) -> None:
        common = _common(parameter_list, regularization, grad_clip, name)
        super().__init__(learning_rate, momentum, use_nesterov=use_nesterov, **common)


class DGCMomentumOptimizer(made.DGCMomentum):
    """Momentum that sends few numbers of each gradient, in a job of several workers."""

    def __init__(  # noqa: PLR0917 (the order of Paddle)
        self,
        learning_rate: Any,
        momentum: float,
        rampup_begin_step: int,
        rampup_step: int = 1,
        sparsity: Sequence[float] = (0.999,),
        parameter_list: Any = None,
        use_nesterov: bool = False,
        num_trainers: int | None = None,
        regularization: Any = None,
        grad_clip: Any = None,
        name: str | None = None,
        local_grad_clip_norm: float | None = None,
    ) -> None:
        if local_grad_clip_norm is not None:
            raise ValueError(
                f"DGCMomentumOptimizer(local_grad_clip_norm={local_grad_clip_norm}) limits "
                "gradients before workers exchange them, which is not done here; pass "
                "grad_clip=fluid.clip.GradientClipByNorm(...), which limits what they sum up to."
            )
        super().__init__(
            learning_rate,
            momentum,
            rampup_begin_step,
            rampup_step,
            sparsity,
            use_nesterov=use_nesterov,
            **_common(parameter_list, regularization, grad_clip, name),
        )


class LarsMomentumOptimizer(made.LarsMomentum):
    """Momentum whose rate is scaled, per tensor, by the ratio of the norms."""

    def __init__(  # noqa: PLR0917 (the order of Paddle)
        self,
        learning_rate: Any,
        momentum: float,
        lars_coeff: float = 0.001,
        lars_weight_decay: float = 0.0005,
        parameter_list: Any = None,
        regularization: Any = None,
        grad_clip: Any = None,
        name: str | None = None,
        exclude_from_weight_decay: Sequence[str] | None = None,
        epsilon: float = 0.0,
    ) -> None:
        super().__init__(
            learning_rate,
            momentum,
            lars_coeff,
            lars_weight_decay,
            exclude_from_weight_decay=exclude_from_weight_decay,
            epsilon=epsilon,
            **_common(parameter_list, regularization, grad_clip, name),
        )


class AdagradOptimizer(made.Adagrad):
    """``m += g^2; p -= lr * g / (sqrt(m) + epsilon)``."""

    def __init__(  # noqa: PLR0917 (the order of Paddle)
        self,
        learning_rate: Any,
        epsilon: float = 1e-6,
        parameter_list: Any = None,
        regularization: Any = None,
        grad_clip: Any = None,
        name: str | None = None,
        initial_accumulator_value: float = 0.0,
    ) -> None:
        super().__init__(
            learning_rate,
            epsilon,
            initial_accumulator_value=initial_accumulator_value,
            **_common(parameter_list, regularization, grad_clip, name),
        )


class AdamOptimizer(made.Adam):
    """Adam, with the L2 regularisation in the gradient."""

    def __init__(  # noqa: PLR0917 (the order of Paddle)
        self,
        learning_rate: Any = 0.001,
        beta1: Any = 0.9,
        beta2: Any = 0.999,
        epsilon: Any = 1e-8,
        parameter_list: Any = None,
        regularization: Any = None,
        grad_clip: Any = None,
        name: str | None = None,
        lazy_mode: bool = False,
    ) -> None:
        common = _common(parameter_list, regularization, grad_clip, name)
        super().__init__(learning_rate, beta1, beta2, epsilon, lazy_mode=lazy_mode, **common)


class AdamaxOptimizer(made.Adamax):
    """Adam with the largest gradient instead of the mean square."""

    def __init__(  # noqa: PLR0917 (the order of Paddle)
        self,
        learning_rate: Any = 0.001,
        beta1: Any = 0.9,
        beta2: Any = 0.999,
        epsilon: float = 1e-8,
        parameter_list: Any = None,
        regularization: Any = None,
        grad_clip: Any = None,
        name: str | None = None,
    ) -> None:
        common = _common(parameter_list, regularization, grad_clip, name)
        super().__init__(learning_rate, beta1, beta2, epsilon, **common)


class DecayedAdagradOptimizer(made.DecayedAdagrad):
    """Adagrad that forgets old squares."""

    def __init__(  # noqa: PLR0917 (the order of Paddle)
        self,
        learning_rate: Any,
        decay: float = 0.95,
        epsilon: float = 1e-6,
        parameter_list: Any = None,
        regularization: Any = None,
        grad_clip: Any = None,
        name: str | None = None,
    ) -> None:
        common = _common(parameter_list, regularization, grad_clip, name)
        super().__init__(learning_rate, decay, epsilon, **common)


class AdadeltaOptimizer(made.Adadelta):
    """Adagrad whose rate follows the size of the updates."""

    def __init__(  # noqa: PLR0917 (the order of Paddle)
        self,
        learning_rate: Any,
        epsilon: float = 1e-6,
        rho: float = 0.95,
        parameter_list: Any = None,
        regularization: Any = None,
        grad_clip: Any = None,
        name: str | None = None,
    ) -> None:
        common = _common(parameter_list, regularization, grad_clip, name)
        super().__init__(learning_rate, epsilon, rho, **common)


class RMSPropOptimizer(made.RMSProp):
    """Momentum of gradients divided by the root of their mean square."""

    def __init__(  # noqa: PLR0917 (the order of Paddle)
        self,
        learning_rate: Any,
        rho: float = 0.95,
        epsilon: float = 1e-6,
        momentum: float = 0.0,
        centered: bool = False,
        parameter_list: Any = None,
        regularization: Any = None,
        grad_clip: Any = None,
        name: str | None = None,
    ) -> None:
        common = _common(parameter_list, regularization, grad_clip, name)
        super().__init__(learning_rate, rho, epsilon, momentum, centered, **common)


class FtrlOptimizer(made.Ftrl):
    """Follow the regularised leader."""

    def __init__(  # noqa: PLR0917 (the order of Paddle)
        self,
        learning_rate: Any,
        l1: float = 0.0,
        l2: float = 0.0,
        lr_power: float = -0.5,
        parameter_list: Any = None,
        regularization: Any = None,
        grad_clip: Any = None,
        name: str | None = None,
    ) -> None:
        common = _common(parameter_list, regularization, grad_clip, name)
        super().__init__(learning_rate, l1, l2, lr_power, **common)


class LambOptimizer(made.Lamb):
    """Adam whose step is scaled, per tensor, to the norm of the weights."""

    def __init__(  # noqa: PLR0917 (the order of Paddle)
        self,
        learning_rate: Any = 0.001,
        lamb_weight_decay: float = 0.01,
        beta1: Any = 0.9,
        beta2: Any = 0.999,
        epsilon: float = 1e-6,
        parameter_list: Any = None,
        regularization: Any = None,
        grad_clip: Any = None,
        exclude_from_weight_decay_fn: Callable[[Any], bool] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(
            learning_rate,
            lamb_weight_decay,
            beta1,
            beta2,
            epsilon,
            exclude_from_weight_decay_fn=exclude_from_weight_decay_fn,
            **_common(parameter_list, regularization, grad_clip, name),
        )


class DpsgdOptimizer:
    """Differentially private SGD; it does not exist here."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(
            "fluid.optimizer.Dpsgd adds noise to gradients for privacy, which fleetx has no rule "
            "for; use SGD with grad_clip, or a library such as opacus."
        )


SGD = SGDOptimizer
Momentum = MomentumOptimizer
Adagrad = AdagradOptimizer
Adam = AdamOptimizer
Adamax = AdamaxOptimizer
DecayedAdagrad = DecayedAdagradOptimizer
Adadelta = AdadeltaOptimizer
RMSProp = RMSPropOptimizer
Ftrl = FtrlOptimizer
Lamb = LambOptimizer
LarsMomentum = LarsMomentumOptimizer
Dpsgd = DpsgdOptimizer

__all__ = [
    "SGD",
    "Adadelta",
    "AdadeltaOptimizer",
    "Adagrad",
    "AdagradOptimizer",
    "Adam",
    "AdamOptimizer",
    "Adamax",
    "AdamaxOptimizer",
    "DGCMomentumOptimizer",
    "DecayedAdagrad",
    "DecayedAdagradOptimizer",
    "Dpsgd",
    "DpsgdOptimizer",
    "ExponentialMovingAverage",
    "Ftrl",
    "FtrlOptimizer",
    "GradientMergeOptimizer",
    "Lamb",
    "LambOptimizer",
    "LarsMomentum",
    "LarsMomentumOptimizer",
    "LookaheadOptimizer",
    "ModelAverage",
    "Momentum",
    "MomentumOptimizer",
    "Optimizer",
    "PipelineOptimizer",
    "RMSProp",
    "RMSPropOptimizer",
    "RecomputeOptimizer",
    "SGDOptimizer",
]
