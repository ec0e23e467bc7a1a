"""How a push moves dense parameters: torch's optimizers over one flat array, in one pass each.

The optimizers themselves make a dozen calls, each of which costs more than a small array takes.
State bears the names that torch gives it, so that saves are those of torch's optimizers.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop
from typing_extensions import override

from fleetx.ps.wire.arrays import Array, Floats

OPTIMIZERS: dict[str, type[Optimizer]] = {
    cls.__name__: cls for cls in (SGD, Adagrad, Adam, AdamW, RMSprop)
}
"""Those that move each number by itself, so that it does not matter how parameters are cut."""

State = dict[str, Array]


class DenseRule(ABC):
    """One of torch's optimizers with its options."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options
        self._sign = -1.0 if options["maximize"] else 1.0
        self._decay = float(options["weight_decay"])

    def first_state(self, values: Floats) -> State:
        """What there is before the first update."""
        return {}

    @abstractmethod
    def move(
        self, kernels: ModuleType, values: Floats, gradients: Floats, state: State, rate: float
    ) -> None:
        """One update at this learning rate; what state lacks begins with it."""


class _Sgd(DenseRule):
    @override
    def move(
        self, kernels: ModuleType, values: Floats, gradients: Floats, state: State, rate: float
    ) -> None:
        momentum, fresh, buffer = float(self._options["momentum"]), 1.0, values
        if momentum:
            if "momentum_buffer" in state:
                fresh = 1.0 - float(self._options["dampening"])
            buffer = _kept(state, "momentum_buffer", values)
        nesterov, more = bool(self._options["nesterov"]), (self._sign, self._decay)
        kernels.dense_sgd(values, gradients, buffer, rate, momentum, fresh, *more, nesterov)


class _Adagrad(DenseRule):
    @override
    def first_state(self, values: Floats) -> State:
        begin = np.float32(self._options["initial_accumulator_value"])
        return {"step": np.zeros((), np.float32), "sum": np.full_like(values, begin)}

    @override
    def move(
        self, kernels: ModuleType, values: Floats, gradients: Floats, state: State, rate: float
    ) -> None:
        before = _counted(state) - 1
        rate /= 1 + before * float(self._options["lr_decay"])
        eps, more = float(self._options["eps"]), (self._sign, self._decay)
        kernels.dense_adagrad(values, gradients, _kept(state, "sum", values), rate, eps, *more)


class _Adam(DenseRule):
    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self._first, self._second = (float(beta) for beta in options["betas"])
        self._eps, self._amsgrad = float(options["eps"]), bool(options["amsgrad"])
        self._decoupled = bool(options.get("decoupled_weight_decay", False))
        """Whether weights decay by themselves, past the moments."""

    @override
    def move(
        self, kernels: ModuleType, values: Floats, gradients: Floats, state: State, rate: float
    ) -> None:
        step = _counted(state)
        kept, decay = (1 - rate * self._decay, 0.0) if self._decoupled else (1.0, self._decay)
        mean, square = _kept(state, "exp_avg", values), _kept(state, "exp_avg_sq", values)
        kernels.dense_adam(
            values,
            gradients,
            mean,
            square,
            _kept(state, "max_exp_avg_sq", values) if self._amsgrad else square,
            rate / (1 - self._first**step),
            math.sqrt(1 - self._second**step),
            self._first,
            self._second,
            self._eps,
            self._sign,
            decay,
            kept,
            self._amsgrad,
        )


class _AdamW(_Adam):
    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self._decoupled = True


class _RmsProp(DenseRule):
    @override
    def move(
        self, kernels: ModuleType, values: Floats, gradients: Floats, state: State, rate: float
    ) -> None:
        _counted(state)
        momentum, centered = float(self._options["momentum"]), bool(self._options["centered"])
        kernels.dense_rmsprop(
            values,
            gradients,
            _kept(state, "square_avg", values),
            _kept(state, "grad_avg", values) if centered else values,
            _kept(state, "momentum_buffer", values) if momentum else values,
            rate,
            float(self._options["alpha"]),
            float(self._options["eps"]),
            momentum,
            self._sign,
            self._decay,
            centered,
        )


_RULES: dict[str, type[DenseRule]] = {
    "SGD": _Sgd,
    "Adagrad": _Adagrad,
    "Adam": _Adam,
    "AdamW": _AdamW,
    "RMSprop": _RmsProp,
}


def dense_rule(optimizer: str, options: Mapping[str, Any]) -> DenseRule:
    """The rule of an optimizer; torch says what it thinks of the options, and adds the others."""
    given = {name: tuple(v) if isinstance(v, list) else v for name, v in options.items()}
    make: Any = OPTIMIZERS[optimizer]
    full = make([torch.nn.Parameter(torch.zeros(0))], **given).param_groups[0]
    return _RULES[optimizer](full)


def _counted(state: State) -> float:
    """The number of the update that is made now."""
    if "step" not in state:
        state["step"] = np.zeros((), np.float32)
    step = float(state["step"]) + 1
    state["step"].fill(step)  # to add to an array of one number takes ten times as long
    return step


def _kept(state: State, name: str, like: Floats) -> Floats:
    """An array of the state, zeros before the first update."""
    found = state.get(name)
    if found is None:
        found = state[name] = np.zeros_like(like)
    return found
