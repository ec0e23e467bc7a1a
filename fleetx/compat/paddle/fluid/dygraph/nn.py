"""``paddle.fluid.dygraph.nn``: layers with the arguments of Paddle 1."""

# Positions are those of Paddle.
# ruff: noqa: PLR0917

import math
from typing import Any

import torch
from typing_extensions import override

from fleetx.compat.fills import Bell, Number
from fleetx.compat.notes import note
from fleetx.compat.paddle.nn.functional import common, pooling
from fleetx.compat.paddle.nn.functional import conv as convs
from fleetx.compat.paddle.nn.functional.activation import activated, prelu
from fleetx.compat.paddle.nn.layer import norm
from fleetx.compat.paddle.nn.layer.layers import Layer
from fleetx.compat.paddle.nn.layer.norm import BatchNorm

__all__ = [
    "FC",
    "BatchNorm",
    "Conv2D",
    "Conv2DTranspose",
    "Dropout",
    "Embedding",
    "GroupNorm",
    "LayerNorm",
    "Linear",
    "PRelu",
    "Pool2D",
]


class _Unscoped:
    """Refuses the name with which layers of Paddle 1.6 began."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], str):
            raise TypeError(
                f"{cls.__name__}({args[0]!r}, ...) begins with a name_scope, as in Paddle 1.6; "
                "leave it out, as 1.7 did, and give the sizes of inputs that 1.7 asks for."
            )
        return super().__new__(cls)


def _engine(use_cudnn: bool) -> None:
    if not use_cudnn:
        note("use_cudnn=False", "torch chooses its kernels; results are the same.")


class Conv2D(_Unscoped, Layer):
    """A convolution over two axes."""

    def __init__(
        self,
        num_channels: int,
        num_filters: int,
        filter_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int | None = None,
        param_attr: Any = None,
        bias_attr: Any = None,
        use_cudnn: bool = True,
        act: str | None = None,
        dtype: Any = "float32",
        data_format: str = "NCHW",
    ) -> None:
        super().__init__(dtype=dtype)
        _engine(use_cudnn)
        kernel, groups = common.several(filter_size, 2), groups or 1
        self._options = (stride, padding, dilation, groups, data_format)
        self._act = act
        std = math.sqrt(2.0 / (math.prod(kernel) * num_channels))
        self.weight = self.create_parameter(
            [num_filters, num_channels // groups, *kernel],
            param_attr,
            default_initializer=Bell(0.0, std),
        )
        self.bias = self.create_parameter([num_filters], bias_attr, is_bias=True)

    @override
    def forward(self, input: Any) -> Any:
        return activated(convs.conv2d(input, self.weight, self.bias, *self._options), self._act)


class Conv2DTranspose(_Unscoped, Layer):
    """A convolution over two axes, the other way."""

    def __init__(
        self,
        num_channels: int,
        num_filters: int,
        filter_size: Any,
        output_size: Any = None,
        padding: Any = 0,
        stride: Any = 1,
        dilation: Any = 1,
        groups: int | None = None,
        param_attr: Any = None,
        bias_attr: Any = None,
        use_cudnn: bool = True,
        act: str | None = None,
        dtype: Any = "float32",
    ) -> None:
        super().__init__(dtype=dtype)
        _engine(use_cudnn)
        kernel, groups = common.several(filter_size, 2), groups or 1
        self._options = (stride, padding, 0, groups, dilation)
        self._act, self._output_size = act, output_size
        self.weight = self.create_parameter(
            [num_channels, num_filters // groups, *kernel], param_attr
        )
        self.bias = self.create_parameter([num_filters], bias_attr, is_bias=True)

    @override
    def forward(self, input: Any) -> Any:
        given = (input, self.weight, self.bias, *self._options)
        return activated(convs.transposed(2, *given, self._output_size, "NCHW"), self._act)


class Pool2D(_Unscoped, Layer):
    """Largest numbers or means of windows."""

    def __init__(
        self,
        pool_size: Any = -1,
        pool_type: str = "max",
        pool_stride: Any = 1,
        pool_padding: Any = 0,
        global_pooling: bool = False,
        use_cudnn: bool = True,
        ceil_mode: bool = False,
        exclusive: bool = True,
        data_format: str = "NCHW",
    ) -> None:
        super().__init__()
        if pool_type not in {"max", "avg"}:
            raise ValueError(f"Pool2D(pool_type={pool_type!r}): 'max' or 'avg'.")
        _engine(use_cudnn)
        self._type, self._whole, self._data_format = pool_type, global_pooling, data_format
        self._window = (pool_size, pool_stride, pool_padding)
        self._ceil_mode, self._exclusive = ceil_mode, exclusive

    @override
    def forward(self, input: Any) -> Any:
        if self._whole:
            name = f"adaptive_{self._type}_pool2d"
            return getattr(pooling, name)(input, 1)
        options: dict[str, Any] = {"ceil_mode": self._ceil_mode, "data_format": self._data_format}
        if self._type == "max":
            return pooling.max_pool2d(input, *self._window, **options)
        return pooling.avg_pool2d(input, *self._window, exclusive=self._exclusive, **options)


class Linear(Layer):
    """``x @ weight + bias``."""

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        param_attr: Any = None,
        bias_attr: Any = None,
        act: str | None = None,
        dtype: Any = "float32",
    ) -> None:
        super().__init__(dtype=dtype)
        self._act = act
        self.weight = self.create_parameter([input_dim, output_dim], param_attr)
        self.bias = self.create_parameter([output_dim], bias_attr, is_bias=True)

    @override
    def forward(self, input: Any) -> Any:
        return activated(common.linear(input, self.weight, self.bias), self._act)


class FC(Layer):
    """A linear layer that learns its input's size from the first input, as 1.5 had it."""

    def __init__(
        self,
        name_scope: str | None,
        size: int,
        num_flatten_dims: int = 1,
        param_attr: Any = None,
        bias_attr: Any = None,
        act: str | None = None,
        is_test: bool = False,
        dtype: Any = "float32",
    ) -> None:
        super().__init__(name_scope or "fc", dtype)
        self._size, self._lead, self._act = size, num_flatten_dims, act
        self._attrs = (param_attr, bias_attr)
        self.weight: Any = None

    @override
    def forward(self, input: Any) -> Any:
        flat = torch.flatten(input, self._lead)
        if self.weight is None:
            self.weight = self.create_parameter([flat.size(-1), self._size], self._attrs[0])
            self.bias = self.create_parameter([self._size], self._attrs[1], is_bias=True)
        return activated(common.linear(flat, self.weight, self.bias), self._act)


class Embedding(_Unscoped, Layer):
    """A table of rows; indices may have a last axis of size 1."""

    def __init__(
        self,
        size: Any,
        is_sparse: bool = False,
        is_distributed: bool = False,
        padding_idx: int | None = None,
        param_attr: Any = None,
        dtype: Any = "float32",
    ) -> None:
        super().__init__(dtype=dtype)
        if is_sparse or is_distributed:
            note("Embedding(is_sparse=True)", "gradients have every row; results are the same.")
        self._size, self._padding_idx = list(size), padding_idx
        self.weight = self.create_parameter(self._size, param_attr)

    @override
    def forward(self, input: Any) -> Any:
        return common.embedding(input, self.weight, self._padding_idx)


class LayerNorm(_Unscoped, norm.LayerNorm):
    """Mean 0 and variance 1 over the last axes."""

    def __init__(
        self,
        normalized_shape: Any,
        scale: bool = True,
        shift: bool = True,
        epsilon: float = 1e-05,
        param_attr: Any = None,
        bias_attr: Any = None,
        act: str | None = None,
        dtype: Any = "float32",
    ) -> None:
        super().__init__(
            normalized_shape,
            epsilon,
            param_attr if scale else False,
            bias_attr if shift else False,
        )
        self._act = act

    @override
    def forward(self, input: Any) -> Any:
        return activated(super().forward(input), self._act)


class GroupNorm(_Unscoped, norm.GroupNorm):
    """Mean 0 and variance 1 over groups of channels."""

    def __init__(
        self,
        channels: int,
        groups: int,
        epsilon: float = 1e-05,
        param_attr: Any = None,
        bias_attr: Any = None,
        act: str | None = None,
        data_layout: str = "NCHW",
        dtype: Any = "float32",
    ) -> None:
        super().__init__(groups, channels, epsilon, param_attr, bias_attr, data_layout)
        self._act = act

    @override
    def forward(self, input: Any) -> Any:
        return activated(super().forward(input), self._act)


class Dropout(Layer):
    """Numbers dropped in training."""

    def __init__(
        self,
        p: float = 0.5,
        seed: int | None = None,
        dropout_implementation: str = "downgrade_in_infer",
        is_test: bool = False,
    ) -> None:
        super().__init__()
        if seed:
            note("Dropout(seed=…)", "numbers are drawn from the process's own, see paddle.seed().")
        self._p, self._mode, self._is_test = p, dropout_implementation, is_test

    @override
    def forward(self, input: Any) -> Any:
        training = self.training and not self._is_test
        return common.dropout(input, self._p, training=training, mode=self._mode)


class PRelu(Layer):
    """A learnt slope below 0: one, or one for each channel."""

    def __init__(
        self,
        mode: str,
        channel: int | None = None,
        input_shape: Any = None,
        param_attr: Any = None,
        dtype: Any = "float32",
    ) -> None:
        super().__init__(dtype=dtype)
        if mode not in {"all", "channel"}:
            raise ValueError(f"PRelu(mode={mode!r}) is not here; 'all' or 'channel'.")
        count = 1 if mode == "all" else int(channel or 1)
        self.weight = self.create_parameter([count], param_attr, default_initializer=Number(1.0))

    @override
    def forward(self, input: Any) -> Any:
        return prelu(input, self.weight)
