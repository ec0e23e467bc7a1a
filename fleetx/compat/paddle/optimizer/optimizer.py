"""The optimizers of ``paddle.optimizer``, with the arguments of Paddle 2."""

from collections.abc import Callable
from typing import Any

from fleetx.compat import made_optimizers as made
from fleetx.compat.made_optimizers import idle
from fleetx.compat.optimizers import Optimizer

__all__ = [
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Lamb",
    "Momentum",
    "Optimizer",
    "RMSProp",
]


def _common(parameters: Any, weight_decay: Any, grad_clip: Any, name: str | None) -> dict[str, Any]:
    return {
        "parameters": parameters,
        "regularization": weight_decay,
        "grad_clip": grad_clip,
        "name": name,
    }


class SGD(made.SGD):
    """``p -= lr * g``."""

    def __init__(  # noqa: PLR0917 (the order of Paddle)
        self,
        learning_rate: Any = 0.001,
        parameters: Any = None,
        weight_decay: Any = None,
        grad_clip: Any = None,
        multi_precision: bool = False,
        name: str | None = None,
    ) -> None:
        idle(multi_precision=multi_precision)
        super().__init__(learning_rate, **_common(parameters, weight_decay, grad_clip, name))


class Momentum(made.Momentum):
    """``v = momentum * v + g; p -= lr * v``."""

    def __init__(  # noqa: PLR0917 (the order of Paddle)
        self,
        learning_rate: Any = 0.001,
        momentum: float = 0.9,
        parameters: Any = None,
        use_nesterov: bool = False,
        weight_decay: Any = None,
        grad_clip: Any = None,
        multi_precision: bool = False,
        rescale_grad: float = 1.0,
        use_multi_tensor: bool = False,
        name: str | None = None,
    ) -> None:
        idle(multi_precision=multi_precision, use_multi_tensor=use_multi_tensor)
        super().__init__(
            learning_rate,
            momentum,
            use_nesterov=use_nesterov,
            rescale_grad=rescale_grad,
            **_common(parameters, weight_decay, grad_clip, name),
        )


class Adam(made.Adam):
    """Adam, with the L2 regularisation in the gradient."""

    def __init__(  # noqa: PLR0917 (the order of Paddle)
        self,
        learning_rate: Any = 0.001,
        beta1: Any = 0.9,
        beta2: Any = 0.999,
        epsilon: Any = 1e-8,
        parameters: Any = None,
        weight_decay: Any = None,
        grad_clip: Any = None,
        lazy_mode: bool = False,
        multi_precision: bool = False,
        use_multi_tensor: bool = False,
        name: str | None = None,
    ) -> None:
        idle(multi_precision=multi_precision, use_multi_tensor=use_multi_tensor)
        common = _common(parameters, weight_decay, grad_clip, name)
        super().__init__(learning_rate, beta1, beta2, epsilon, lazy_mode=lazy_mode, **common)


class AdamW(made.AdamW):
    """Adam that shrinks parameters by ``lr * weight_decay`` before each step."""

    def __init__(  # noqa: PLR0917 (the order of Paddle)
        self,
        learning_rate: Any = 0.001,
        beta1: Any = 0.9,
        beta2: Any = 0.999,
        epsilon: Any = 1e-8,
        parameters: Any = None,
        weight_decay: Any = 0.01,
        lr_ratio: Callable[[Any], float] | None = None,
        apply_decay_param_fun: Callable[[str], bool] | None = None,
        grad_clip: Any = None,
        lazy_mode: bool = False,
        multi_precision: bool = False,
        name: str | None = None,
    ) -> None:
        idle(multi_precision=multi_precision)
        super().__init__(
            learning_rate,
            beta1,
            beta2,
            epsilon,
            weight_decay=weight_decay,
            lr_ratio=lr_ratio,
            apply_decay_param_fun=apply_decay_param_fun,
            lazy_mode=lazy_mode,
            **_common(parameters, None, grad_clip, name),
        )


class Adamax(made.Adamax):
    """Adam with the largest gradient instead of the mean square."""

    def __init__(  # noqa: PLR0917 (the order of Paddle)
        self,
        learning_rate: Any = 0.001,
        beta1: Any = 0.9,
        beta2: Any = 0.999,
        epsilon: float = 1e-8,
        parameters: Any = None,
        weight_decay: Any = None,
        grad_clip: Any = None,
        name: str | None = None,
    ) -> None:
        common = _common(parameters, weight_decay, grad_clip, name)
        super().__init__(learning_rate, beta1, beta2, epsilon, **common)


class Adagrad(made.Adagrad):
    """``m += g^2; p -= lr * g / (sqrt(m) + epsilon)``."""

    def __init__(  # noqa: PLR0917 (the order of Paddle)
        self,
        learning_rate: Any,
        epsilon: float = 1e-6,
        parameters: Any = None,
        weight_decay: Any = None,
        grad_clip: Any = None,
        name: str | None = None,
        initial_accumulator_value: float = 0.0,
    ) -> None:
        super().__init__(
            learning_rate,
            epsilon,
            initial_accumulator_value=initial_accumulator_value,
            **_common(parameters, weight_decay, grad_clip, name),
        )


class Adadelta(made.Adadelta):
    """Adagrad whose rate follows the size of the updates."""

    def __init__(  # noqa: PLR0917 (the order of Paddle)
        self,
        learning_rate: Any = 0.001,
        epsilon: float = 1e-6,
        rho: float = 0.95,
        parameters: Any = None,
        weight_decay: Any = None,
        grad_clip: Any = None,
        name: str | None = None,
    ) -> None:
        common = _common(parameters, weight_decay, grad_clip, name)
        super().__init__(learning_rate, epsilon, rho, **common)


class RMSProp(made.RMSProp):
    """Momentum of gradients divided by the root of their mean square."""

    def __init__(  # noqa: PLR0917 (the order of Paddle)
        self,
        learning_rate: Any,
        rho: float = 0.95,
        epsilon: float = 1e-6,
        momentum: float = 0.0,
        centered: bool = False,
        parameters: Any = None,
        weight_decay: Any = None,
        grad_clip: Any = None,
        name: str | None = None,
    ) -> None:
        common = _common(parameters, weight_decay, grad_clip, name)
        super().__init__(learning_rate, rho, epsilon, momentum, centered, **common)


class Lamb(made.Lamb):
    """Adam whose step is scaled, per tensor, to the norm of the weights."""

    def __init__(  # noqa: PLR0917 (the order of Paddle)
        self,
        learning_rate: Any = 0.001,
        lamb_weight_decay: float = 0.01,
        beta1: Any = 0.9,
        beta2: Any = 0.999,
        epsilon: float = 1e-6,
        parameters: Any = None,
        grad_clip: Any = None,
        exclude_from_weight_decay_fn: Callable[[Any], bool] | None = None,
        multi_precision: bool = False,
        always_adapt: bool = False,
        name: str | None = None,
    ) -> None:
        idle(multi_precision=multi_precision)
        super().__init__(
            learning_rate,
            lamb_weight_decay,
            beta1,
            beta2,
            epsilon,
            exclude_from_weight_decay_fn=exclude_from_weight_decay_fn,
            always_adapt=always_adapt,
            **_common(parameters, None, grad_clip, name),
        )
