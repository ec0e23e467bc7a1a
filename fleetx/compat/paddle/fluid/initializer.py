"""``paddle.fluid.initializer``."""

from typing import Any

from fleetx.compat.fills import (
    Bell,
    BilinearFill,
    Even,
    Initializer,
    KaimingFill,
    Number,
    Values,
    XavierFill,
)
from fleetx.compat.notes import note

__all__ = [
    "MSRA",
    "Bilinear",
    "BilinearInitializer",
    "Constant",
    "ConstantInitializer",
    "Initializer",
    "MSRAInitializer",
    "Normal",
    "NormalInitializer",
    "NumpyArrayInitializer",
    "TruncatedNormal",
    "TruncatedNormalInitializer",
    "Uniform",
    "UniformInitializer",
    "Xavier",
    "XavierInitializer",
    "force_init_on_cpu",
    "init_on_cpu",
    "set_global_initializer",
]


class ConstantInitializer(Number):
    """One number everywhere."""

    def __init__(self, value: float = 0.0, force_cpu: bool = False) -> None:
        super().__init__(value)
        if force_cpu:
            note("force_cpu", "parameters are filled where they live")


class UniformInitializer(Even):
    """Drawn evenly between two numbers."""

    def __init__(  # noqa: PLR0917
        self,
        low: float = -1.0,
        high: float = 1.0,
        seed: int = 0,
        diag_num: int = 0,
        diag_step: int = 0,
        diag_val: float = 1.0,
    ) -> None:
        super().__init__(low, high, seed)
        if diag_num:
            raise ValueError(
                "Uniform(diag_num=...) sets a diagonal, which is not covered; fill the parameter "
                "with NumpyArrayInitializer instead."
            )


class NormalInitializer(Bell):
    """Drawn from a normal distribution."""

    def __init__(self, loc: float = 0.0, scale: float = 1.0, seed: int = 0) -> None:
        super().__init__(loc, scale, seed=seed)


class TruncatedNormalInitializer(Bell):
    """Drawn from a normal distribution that ends at two deviations."""

    def __init__(self, loc: float = 0.0, scale: float = 1.0, seed: int = 0) -> None:
        super().__init__(loc, scale, cut=True, seed=seed)


class XavierInitializer(XavierFill):
    """By what goes in and comes out."""

    def __init__(
        self,
        uniform: bool = True,
        fan_in: float | None = None,
        fan_out: float | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(fan_in, fan_out, uniform=uniform, seed=seed)


class MSRAInitializer(KaimingFill):
    """By what goes in, for layers before a ReLU."""

    def __init__(self, uniform: bool = True, fan_in: float | None = None, seed: int = 0) -> None:
        super().__init__(fan_in, None, uniform=uniform, seed=seed)


class BilinearInitializer(BilinearFill):
    """Enlarges images smoothly."""


class NumpyArrayInitializer(Values):
    """The numbers of an array."""


def set_global_initializer(weight_init: Any, bias_init: Any = None) -> None:
    """Refused: the defaults of layers are Paddle's."""
    if weight_init is not None or bias_init is not None:
        raise NotImplementedError(
            "set_global_initializer() would change every layer's default; give "
            "ParamAttr(initializer=...) to the layers instead."
        )


def force_init_on_cpu() -> bool:
    """Parameters are filled where they live."""
    return False


class init_on_cpu:
    """Parameters are filled where they live, so that this changes nothing."""

    def __enter__(self) -> None:
        note("init_on_cpu", "parameters are filled where they live")

    def __exit__(self, *error: object) -> None:
        return None


Constant = ConstantInitializer
Uniform = UniformInitializer
Normal = NormalInitializer
TruncatedNormal = TruncatedNormalInitializer
Xavier = XavierInitializer
MSRA = MSRAInitializer
Bilinear = BilinearInitializer
