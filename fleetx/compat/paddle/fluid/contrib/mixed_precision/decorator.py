"""``decorate``: an optimizer that trains in half precision."""

from typing import Any

from typing_extensions import override

from fleetx.compat.fleet_strategies import scaling
from fleetx.compat.paddle.fluid.contrib.mixed_precision.fp16_lists import AutoMixedPrecisionLists
from fleetx.compat.wrapped_optimizers import WrappedOptimizer


class OptimizerWithMixedPrecision(WrappedOptimizer):
    """An optimizer under ``strategy.amp``."""

    def __init__(self, optimizer: Any, options: dict[str, Any]) -> None:
        super().__init__(optimizer)
        self._options = options

    @override
    def own(self) -> dict[str, dict[str, Any]]:
        return {"amp": dict(self._options)}

    def amp_init(
        self,
        place: Any = None,
        scope: Any = None,
        test_program: Any = None,
        use_fp16_test: bool = False,
    ) -> None:
        """Nothing to do: copies in half precision are made when they are used."""


def decorate(  # noqa: PLR0917 (the order of Paddle)
    optimizer: Any,
    amp_lists: AutoMixedPrecisionLists | None = None,
    init_loss_scaling: float = 2**15,
    incr_every_n_steps: int = 1000,
    decr_every_n_nan_or_inf: int = 2,
    incr_ratio: float = 2.0,
    decr_ratio: float = 0.8,
    use_dynamic_loss_scaling: bool = True,
    use_pure_fp16: bool = False,
    use_fp16_guard: bool | None = None,
    use_bf16: bool = False,
) -> OptimizerWithMixedPrecision:
    """The optimizer, in half precision where that loses nothing, with a scaled loss."""
    options: dict[str, Any] = {
        "init_loss_scaling": float(init_loss_scaling),
        "use_dynamic_loss_scaling": bool(use_dynamic_loss_scaling),
    }
    if use_dynamic_loss_scaling:  # a fixed scale has no use for them, and Paddle's defaults differ
        options |= {
            "incr_every_n_steps": int(incr_every_n_steps),
            "decr_every_n_nan_or_inf": int(decr_every_n_nan_or_inf),
            "incr_ratio": float(incr_ratio),
            "decr_ratio": float(decr_ratio),
        }
    options |= {} if amp_lists is None else amp_lists.options()
    if use_pure_fp16:
        options["use_pure_fp16"] = True
        options["use_fp16_guard"] = use_fp16_guard is not False
    if use_bf16:
        options["dtype"] = "bfloat16"
    return OptimizerWithMixedPrecision(optimizer, scaling(options))
