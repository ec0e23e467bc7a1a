"""First values of parameters: what Paddle's initializers do, as functions that fill a tensor."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override


class Initializer:
    """Fills a tensor in place when it is called with one."""

    def fill(self, tensor: Tensor) -> None:
        """Give a tensor its first numbers."""
        raise NotImplementedError

    @torch.no_grad()
    def __call__(self, param: Any, block: Any = None) -> Any:
        """Fill a parameter; the block, which Paddle's take too, is not needed."""
        self.fill(param)
        return param


class Number(Initializer):
    """One number everywhere."""

    def __init__(self, value: float = 0.0) -> None:
        self.value = value

    @override
    def fill(self, tensor: Tensor) -> None:
        """Give a tensor its first numbers."""
        tensor.fill_(self.value)


class Bell(Initializer):
    """Drawn from a normal distribution, which may be cut at two deviations."""

    def __init__(self, mean: float, std: float, *, cut: bool = False, seed: int = 0) -> None:
        self.mean, self.std, self.cut, self.seed = mean, std, cut, seed

    @override
    def fill(self, tensor: Tensor) -> None:
        """Give a tensor its first numbers."""
        source = generator(self.seed)
        if self.cut:
            low, high = self.mean - 2 * self.std, self.mean + 2 * self.std
            nn.init.trunc_normal_(tensor, self.mean, self.std, low, high, generator=source)
        else:
            tensor.normal_(self.mean, self.std, generator=source)


class Even(Initializer):
    """Drawn evenly between two numbers."""

    def __init__(self, low: float, high: float, seed: int = 0) -> None:
        self.low, self.high, self.seed = low, high, seed

    @override
    def fill(self, tensor: Tensor) -> None:
        """Give a tensor its first numbers."""
        tensor.uniform_(self.low, self.high, generator=generator(self.seed))


class ByFans(Initializer):
    """Spread by how many numbers go into and come out of one."""

    def __init__(
        self, fan_in: float | None, fan_out: float | None, *, uniform: bool, seed: int = 0
    ) -> None:
        self.fan_in, self.fan_out, self.uniform, self.seed = fan_in, fan_out, uniform, seed

    def deviation(self, fan_in: float, fan_out: float) -> float:
        """The standard deviation for these fans."""
        raise NotImplementedError

    def of_shape(self, shape: Sequence[int]) -> Even | Bell:
        """What it is for a parameter of these sizes."""
        fans = fans_of(shape)
        fan_in = fans[0] if self.fan_in is None else self.fan_in
        fan_out = fans[1] if self.fan_out is None else self.fan_out
        std = self.deviation(fan_in, fan_out)
        if self.uniform:
            return Even(-math.sqrt(3) * std, math.sqrt(3) * std, self.seed)
        return Bell(0.0, std, seed=self.seed)

    @override
    def fill(self, tensor: Tensor) -> None:
        """Give a tensor its first numbers."""
        self.of_shape(list(tensor.shape)).fill(tensor)


class XavierFill(ByFans):
    """By both fans."""

    @override
    def deviation(self, fan_in: float, fan_out: float) -> float:
        """The standard deviation for these fans."""
        return math.sqrt(2.0 / (fan_in + fan_out))


class KaimingFill(ByFans):
    """By what goes in."""

    gain = math.sqrt(2.0)

    @override
    def deviation(self, fan_in: float, fan_out: float) -> float:
        """The standard deviation for these fans."""
        return self.gain / math.sqrt(fan_in)


class Values(Initializer):
    """These numbers."""

    def __init__(self, value: Any) -> None:
        self.value = value

    @override
    def fill(self, tensor: Tensor) -> None:
        """Give a tensor its first numbers."""
        given = self.value
        known = given.detach() if isinstance(given, Tensor) else torch.as_tensor(np.asarray(given))
        if known.numel() != tensor.numel():
            raise ValueError(
                f"an initializer has numbers of shape {list(known.shape)} for a parameter of "
                f"{list(tensor.shape)}; give as many as the parameter has."
            )
        tensor.copy_(known.reshape(tuple(tensor.shape)))


class BilinearFill(Initializer):
    """The weights with which a transposed convolution enlarges images smoothly."""

    @override
    def fill(self, tensor: Tensor) -> None:
        """Give a tensor its first numbers."""
        shape = list(tensor.shape)
        if len(shape) != 4 or shape[2] != shape[3]:
            raise ValueError(
                f"Bilinear() fills square filters [out, in, k, k], but the parameter is {shape}; "
                "give another initializer."
            )
        side = shape[3]
        half = math.ceil(side / 2.0)
        centre = (2 * half - 1 - half % 2) / (2.0 * half)
        line = 1 - (torch.arange(side, dtype=torch.float64) / half - centre).abs()
        tensor.copy_((line[:, None] * line[None, :]).expand(shape))


def fans_of(shape: Sequence[int]) -> tuple[float, float]:
    """Numbers that go in and come out: [in, out] for two sizes, [out, in, …] for filters."""
    if len(shape) < 2:
        only = float(shape[0]) if shape else 1.0
        return only, only
    if len(shape) == 2:
        return float(shape[0]), float(shape[1])
    field = math.prod(shape[2:])
    return float(shape[1] * field), float(shape[0] * field)


def generator(seed: int) -> torch.Generator | None:
    """Random numbers of their own for a seed; 0 shares the ones of the process."""
    return torch.Generator().manual_seed(int(seed)) if seed else None
