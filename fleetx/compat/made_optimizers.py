"""Each optimizer once, whatever Paddle of which year called it and its arguments."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from fleetx.compat import rules
from fleetx.compat.decays import Decays, decay_of
from fleetx.compat.notes import note
from fleetx.compat.optimizers import Optimizer
from fleetx.optim.lamb import Lamb as LambRule
from fleetx.optim.lars import Lars as LarsRule


def idle(**given: Any) -> None:
    """Say once that settings of kernels of Paddle have nothing to set here."""
    reasons = {
        "multi_precision": "parameters are kept in single precision by amp itself",
        "use_multi_tensor": "build_strategy.fuse_all_optimizer_ops joins updates here",
    }
    for name, value in given.items():
        if value:
            note(name, reasons[name])


def numbers(owner: str, **given: Any) -> list[float]:
    """Numbers that Paddle also took as variables."""
    for name, value in given.items():
        if isinstance(value, Tensor) and value.numel() != 1:
            raise TypeError(f"{owner}({name}=...) is one number, got {value!r}")
        if not isinstance(value, int | float | Tensor):
            raise TypeError(f"{owner}({name}=...) is a number, got {value!r}")
    return [float(value) for value in given.values()]


class SGD(Optimizer):
    """``p -= lr * g``."""

    def __init__(self, learning_rate: Any, **common: Any) -> None:
        super().__init__(torch.optim.SGD, learning_rate, **common)


class Momentum(Optimizer):
    """``v = momentum * v + g; p -= lr * v``."""

    accumulators: ClassVar = {"momentum_buffer": "velocity_0"}

    def __init__(
        self,
        learning_rate: Any,
        momentum: float,
        *,
        use_nesterov: bool = False,
        rescale_grad: float = 1.0,
        **common: Any,
    ) -> None:
        if rescale_grad != 1.0:
            raise ValueError(
                f"Momentum(rescale_grad={rescale_grad}) multiplies gradients, which is not done "
                "here; multiply the loss instead."
            )
        (factor,) = numbers("Momentum", momentum=momentum)
        options: dict[str, Any] = {"momentum": factor, "nesterov": bool(use_nesterov)}
        super().__init__(torch.optim.SGD, learning_rate, **options, **common)


class Adam(Optimizer):
    """Adam, with the L2 regularisation in the gradient."""

    rule: ClassVar[type[torch.optim.Optimizer]] = torch.optim.Adam
    accumulators: ClassVar = {"exp_avg": "moment1_0", "exp_avg_sq": "moment2_0"}

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta1: Any = 0.9,
        beta2: Any = 0.999,
        epsilon: Any = 1e-8,
        *,
        lazy_mode: bool = False,
        **common: Any,
    ) -> None:
        first, second, eps = numbers("Adam", beta1=beta1, beta2=beta2, epsilon=epsilon)
        self._lazy = lazy_mode
        super().__init__(self.rule, learning_rate, betas=(first, second), eps=eps, **common)

    @override
    def group_options(self, parameter: nn.Parameter) -> dict[str, Any]:
        return {"lazy_mode": True} if self._lazy else {}


class AdamW(Adam):
    """Adam that shrinks parameters by ``lr * weight_decay`` before each step."""

    rule = torch.optim.AdamW

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta1: Any = 0.9,
        beta2: Any = 0.999,
        epsilon: Any = 1e-8,
        *,
        weight_decay: Any = 0.01,
        lr_ratio: Callable[[Any], float] | None = None,
        apply_decay_param_fun: Callable[[str], bool] | None = None,
        **common: Any,
    ) -> None:
        (self._coefficient,) = numbers("AdamW", weight_decay=weight_decay)
        self._ratio, self._chosen = lr_ratio, apply_decay_param_fun
        common["weight_decay"] = self._coefficient
        super().__init__(learning_rate, beta1, beta2, epsilon, **common)

    @override
    def decays(self, parameter: nn.Parameter) -> Decays:
        return Decays()

    @override
    def _scale(self, parameter: nn.Parameter) -> float:
        ratio = 1.0 if self._ratio is None else float(self._ratio(named(parameter)))
        return super()._scale(parameter) * ratio

    @override
    def group_options(self, parameter: nn.Parameter) -> dict[str, Any]:
        own = self._own_options.get(id(parameter), {})
        decay = float(own.get("weight_decay", self._coefficient))
        if self._chosen is not None and not self._chosen(named(parameter).name):
            decay = 0.0
        made = Decays.of(decay_of(getattr(parameter, "regularizer", None))).options("l2_decay")
        return made | super().group_options(parameter) | {"weight_decay": decay}


class Adamax(Optimizer):
    """Adam with the largest gradient instead of the mean square."""

    accumulators: ClassVar = {"moment": "moment_0", "inf_norm": "inf_norm_0"}
    powers: ClassVar[int] = 1

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta1: Any = 0.9,
        beta2: Any = 0.999,
        epsilon: float = 1e-8,
        **common: Any,
    ) -> None:
        first, second, eps = numbers("Adamax", beta1=beta1, beta2=beta2, epsilon=epsilon)
        super().__init__(rules.Adamax, learning_rate, betas=(first, second), eps=eps, **common)


class Adagrad(Optimizer):
    """``m += g^2; p -= lr * g / (sqrt(m) + epsilon)``."""

    accumulators: ClassVar = {"sum": "moment_0"}

    def __init__(
        self,
        learning_rate: Any,
        epsilon: float = 1e-6,
        *,
        initial_accumulator_value: float = 0.0,
        **common: Any,
    ) -> None:
        options: dict[str, Any] = {
            "eps": epsilon,
            "initial_accumulator_value": initial_accumulator_value,
        }
        super().__init__(torch.optim.Adagrad, learning_rate, **options, **common)


class DecayedAdagrad(Optimizer):
    """Adagrad that forgets old squares."""

    accumulators: ClassVar = {"moment": "moment_0"}

    def __init__(
        self, learning_rate: Any, decay: float = 0.95, epsilon: float = 1e-6, **common: Any
    ) -> None:
        super().__init__(rules.DecayedAdagrad, learning_rate, decay=decay, eps=epsilon, **common)


class Adadelta(Optimizer):
    """Adagrad whose rate follows the size of the updates."""

    accumulators: ClassVar = {
        name: f"{name}_0" for name in ("_avg_squared_grad", "_avg_squared_update")
    }

    def __init__(
        self, learning_rate: Any = 0.001, epsilon: float = 1e-6, rho: float = 0.95, **common: Any
    ) -> None:
        super().__init__(rules.Adadelta, learning_rate, eps=epsilon, rho=rho, **common)


class RMSProp(Optimizer):
    """Momentum of gradients divided by the root of their mean square."""

    accumulators: ClassVar = {
        name: f"{name}_0" for name in ("mean_square", "mean_grad", "momentum")
    }

    def __init__(
        self,
        learning_rate: Any,
        rho: float = 0.95,
        epsilon: float = 1e-6,
        momentum: float = 0.0,
        centered: bool = False,
        **common: Any,
    ) -> None:
        options: dict[str, Any] = {
            "rho": rho,
            "eps": epsilon,
            "momentum": momentum,
            "centered": centered,
        }
        super().__init__(rules.RMSProp, learning_rate, **options, **common)


class Ftrl(Optimizer):
    """Follow the regularised leader."""

    accumulators: ClassVar = {"squared": "squared_0", "linear": "linear_0"}

    def __init__(
        self,
        learning_rate: Any,
        l1: float = 0.0,
        l2: float = 0.0,
        lr_power: float = -0.5,
        **common: Any,
    ) -> None:
        super().__init__(rules.Ftrl, learning_rate, l1=l1, l2=l2, lr_power=lr_power, **common)


class Lamb(Optimizer):
    """Adam whose step is scaled, per tensor, to the norm of the weights."""

    accumulators: ClassVar = {"exp_avg": "moment1_0", "exp_avg_sq": "moment2_0"}

    def __init__(
        self,
        learning_rate: Any = 0.001,
        lamb_weight_decay: float = 0.01,
        beta1: Any = 0.9,
        beta2: Any = 0.999,
        epsilon: float = 1e-6,
        *,
        exclude_from_weight_decay_fn: Callable[[Any], bool] | None = None,
        always_adapt: bool = False,
        **common: Any,
    ) -> None:
        if always_adapt:
            raise ValueError(
                "Lamb(always_adapt=True) scales steps of parameters without decay, too, which is "
                "not done here; leave it out, or give them a small lamb_weight_decay."
            )
        first, second = numbers("Lamb", beta1=beta1, beta2=beta2)
        self._excluded = exclude_from_weight_decay_fn
        options: dict[str, Any] = {"betas": (first, second), "eps": epsilon}
        common["lamb_weight_decay"] = lamb_weight_decay
        super().__init__(LambRule, learning_rate, **options, **common)

    @override
    def group_options(self, parameter: nn.Parameter) -> dict[str, Any]:
        left_out = self._excluded is not None and self._excluded(named(parameter))
        return {"lamb_weight_decay": 0.0} if left_out else {}


class LarsMomentum(Optimizer):
    """Momentum whose rate is scaled, per tensor, by the ratio of the norms."""

    accumulators: ClassVar = {"velocity": "velocity_0"}

    def __init__(
        self,
        learning_rate: Any,
        momentum: float,
        lars_coeff: float = 0.001,
        lars_weight_decay: float = 0.0005,
        *,
        exclude_from_weight_decay: Sequence[str] | None = None,
        epsilon: float = 0.0,
        **common: Any,
    ) -> None:
        self._excluded = tuple(exclude_from_weight_decay or ())
        options: dict[str, Any] = {
            "momentum": momentum,
            "lars_coeff": lars_coeff,
            "epsilon": epsilon,
        }
        common["lars_weight_decay"] = lars_weight_decay
        super().__init__(LarsRule, learning_rate, **options, **common)

    @override
    def group_options(self, parameter: nn.Parameter) -> dict[str, Any]:
        left_out = any(part in named(parameter).name for part in self._excluded)
        return {"lars_weight_decay": 0.0} if left_out else {}


class DGCMomentum(Momentum):
    """Momentum that sends few numbers of each gradient; alone it is plain momentum."""

    def __init__(
        self,
        learning_rate: Any,
        momentum: float,
        rampup_begin_step: int,
        rampup_step: int = 1,
        sparsity: Sequence[float] = (0.999,),
        **common: Any,
    ) -> None:
        self.dgc = {
            "rampup_begin_step": int(rampup_begin_step),
            "rampup_step": int(rampup_step),
            "sparsity": [float(level) for level in sparsity],
        }
        super().__init__(learning_rate, momentum, **common)


class Named:
    """A parameter as functions of scripts look at it: by its name."""

    def __init__(self, parameter: nn.Parameter) -> None:
        self.name = str(getattr(parameter, "paddle_name", ""))
        self.shape = list(parameter.shape)
        self.parameter = parameter


def named(parameter: nn.Parameter) -> Named:
    """What the functions of a script are asked about."""
    return Named(parameter)
