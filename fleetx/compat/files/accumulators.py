"""What optimizers keep, under Paddle's names: ``fc_0.w_0_velocity_0``."""

from collections.abc import Iterable, Mapping
from math import log
from typing import Any

import torch
from torch import Tensor

from fleetx import static
from fleetx.io.training_state import MARK
from fleetx.static.run.training import training_of

RATE = "learning_rate_0"
POWERS = ("beta1_pow_acc_0", "beta2_pow_acc_0")
KINDS: tuple[tuple[str, ...], ...] = (
    (),
    ("velocity_0",),
    ("moment1_0", "moment2_0", *POWERS),
    ("moment_0",),
    ("momentum_0", "mean_square_0", "mean_grad_0"),
    ("moment_0", "inf_norm_0", "beta1_pow_acc_0"),
    ("_avg_squared_grad_0", "_avg_squared_update_0"),
    ("squared_0", "linear_0"),
)
"""What each kind of Paddle's optimizers keeps for a parameter."""


def _optimizer(program: static.Program) -> Any:
    training = training_of(program)
    return None if training is None else training.optimizer


def _suffixes(program: static.Program) -> dict[str, str]:
    """What the optimizer keeps -> its name in Paddle, behind that of the parameter."""
    return dict(getattr(_optimizer(program), "accumulators", {}))


def to_paddle(program: static.Program, kept: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state of an optimizer under Paddle's names; what has none there is left out."""
    suffixes, found = _suffixes(program), {}
    options = getattr(_optimizer(program), "options", {})
    for name, value in kept.items():
        parameter, _, key = name.partition(MARK)
        if key in suffixes:
            found[f"{parameter}_{suffixes[key]}"] = value
        elif key == "step" and "betas" in options:
            for beta, power in zip(options["betas"], POWERS, strict=True):
                # Paddle multiplies the power after each step, and begins with beta itself.
                number = torch.tensor([beta ** (float(value) + 1)])
                found[f"{parameter}_{power}"] = number.float()
    if found or _optimizer(program) is not None:
        found[RATE] = torch.tensor([float(options.get("lr", 0.0))])
    return found


def from_paddle(program: static.Program, found: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse: what files have of an optimizer, by the names that it has here."""
    made: dict[str, Tensor] = {}
    betas = getattr(_optimizer(program), "options", {}).get("betas")
    for parameter in program.state.trained():
        for key, suffix in _suffixes(program).items():
            if f"{parameter}_{suffix}" in found:
                made[f"{parameter}{MARK}{key}"] = found[f"{parameter}_{suffix}"]
        power = found.get(f"{parameter}_{POWERS[0]}")
        if power is not None and betas is not None and 0 < float(power) < 1:
            steps = round(log(float(power)) / log(betas[0])) - 1
            made[f"{parameter}{MARK}step"] = torch.tensor(float(max(steps, 0)))
    return made


def names(parameters: Iterable[str]) -> list[list[str]]:
    """Names that files may have beside those of the values, for each kind of optimizer."""
    listed = list(parameters)
    return [[f"{p}_{suffix}" for p in listed for suffix in kind] for kind in KINDS]
