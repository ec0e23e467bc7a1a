"""``paddle.nn.layer.norm``: norms."""

# Positions are those of Paddle.
# ruff: noqa: PLR0917

from typing import Any, Self

import torch
from torch import nn
from typing_extensions import override

from fleetx.compat import modes
from fleetx.compat.fills import Number
from fleetx.compat.paddle.fluid.layers import norms
from fleetx.compat.paddle.nn.functional import norm as F
from fleetx.compat.paddle.nn.functional.activation import activated
from fleetx.compat.paddle.nn.functional.conv import channels_back, channels_first
from fleetx.compat.paddle.nn.layer.layers import Layer, stored
from fleetx.compat.parameters import ParamAttr
from fleetx.torch_internals import BatchNormBase

ONE, ZERO = Number(1.0), Number(0.0)


class _BatchNormBase(Layer, BatchNormBase):
    """Batch normalisation, also for torch's converters; statistics are parameters that stay."""

    layouts: tuple[str, ...] = ("NCHW", "NHWC")
    num_batches_tracked = None

    def __init__(
        self,
        num_features: int,
        momentum: float = 0.9,
        epsilon: float = 1e-05,
        weight_attr: Any = None,
        bias_attr: Any = None,
        data_format: str | None = None,
        use_global_stats: bool | None = None,
        name: str | None = None,
        moving_mean_name: str | None = None,
        moving_variance_name: str | None = None,
        dtype: Any = None,
    ) -> None:
        Layer.__init__(self, dtype=dtype)
        self.num_features, self.eps, self.momentum = num_features, epsilon, 1 - momentum
        self.affine = self.track_running_stats = True
        self._use_global_stats, self._data_format = use_global_stats, data_format or "NCHW"
        self._whole: list[Any] = []
        size = [num_features]
        self.weight = self.create_parameter(size, weight_attr, default_initializer=ONE)
        self.bias = self.create_parameter(size, bias_attr, is_bias=True)
        mean = ParamAttr(name=moving_mean_name, trainable=False)
        variance = ParamAttr(name=moving_variance_name, trainable=False)
        self._mean = self.create_parameter(size, mean, default_initializer=ZERO)
        self._variance = self.create_parameter(size, variance, default_initializer=ONE)
        self.train()

    @property
    @override
    def running_mean(self) -> Any:  # type: ignore[override]
        """The mean so far, as torch calls it."""
        return self._mean

    @property
    @override
    def running_var(self) -> Any:  # type: ignore[override]
        """The variance so far, as torch calls it."""
        return self._variance

    @override
    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, local_metadata: Any, *args: Any
    ) -> None:
        # Of this version on, torch expects nothing that is not there.
        local_metadata = {**local_metadata, "version": 2}
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)

    @override
    def _check_input_dim(self, input: Any) -> None:
        return None

    # Synchronising over workers replaces the forward of torch's own norms and no other.
    forward = BatchNormBase.forward

    @override
    def __call__(self, x: Any) -> Any:
        moved = x.dim() > 2 and self._data_format.endswith("C")
        made = self._normalised(channels_first(x, self._data_format) if moved else x)
        return channels_back(made, self._data_format) if moved else made

    def _normalised(self, x: Any) -> Any:
        if modes.is_static():
            return self._recorded()(x)
        return norms.with_biased_variance(self, super().__call__, x)

    @override
    def train(self, mode: bool = True) -> Self:
        """Normalise by a batch, unless the layer was told to use what it knows."""
        return super().train(mode and not self._use_global_stats)

    def _recorded(self) -> Any:
        """A module over the same parameters, as programs keep norms."""
        if not self._whole:
            named = ("weight", "bias", "running_mean", "running_var")
            given = (self.weight, self.bias, self._mean, self._variance)
            found = {name: stored(value) for name, value in zip(named, given, strict=True)}
            self._whole.append(
                norms.BatchNorm(found, self.num_features, self.eps, 1 - float(self.momentum or 0))
            )
        self._whole[0].train(self.training)
        return self._whole[0]


class BatchNorm1D(_BatchNormBase):
    """Batch normalisation of [N, C] or [N, C, L]."""


class BatchNorm2D(_BatchNormBase):
    """Batch normalisation of [N, C, H, W]."""


class BatchNorm3D(_BatchNormBase):
    """Batch normalisation of [N, C, D, H, W]."""


class BatchNorm(_BatchNormBase):
    """Batch normalisation as Paddle 1 spelled it."""

    def __init__(
        self,
        num_channels: int,
        act: str | None = None,
        is_test: bool = False,
        momentum: float = 0.9,
        epsilon: float = 1e-05,
        param_attr: Any = None,
        bias_attr: Any = None,
        dtype: Any = "float32",
        data_layout: str = "NCHW",
        in_place: bool = False,
        moving_mean_name: str | None = None,
        moving_variance_name: str | None = None,
        do_model_average_for_mean_and_var: bool = True,
        use_global_stats: bool = False,
        trainable_statistics: bool = False,
    ) -> None:
        super().__init__(
            num_channels,
            momentum,
            epsilon,
            param_attr,
            bias_attr,
            data_layout,
            use_global_stats or is_test,
            None,
            moving_mean_name,
            moving_variance_name,
            dtype,
        )
        if trainable_statistics:
            raise ValueError(
                "BatchNorm(trainable_statistics=True) would use a batch's statistics in "
                "evaluation; call layer.train() there instead."
            )
        self._act = act

    @override
    def __call__(self, input: Any) -> Any:
        return activated(super().__call__(input), self._act)


class SyncBatchNorm(_BatchNormBase):
    """Batch normalisation over all workers."""

    @override
    def _normalised(self, x: Any) -> Any:
        if modes.is_static() or not (self.training and torch.distributed.is_initialized()):
            return super()._normalised(x)
        if not x.is_cuda:
            raise ValueError(
                "SyncBatchNorm computes over workers on cards only; use BatchNorm2D on the CPU."
            )
        if not self._whole:
            self._whole.append(nn.SyncBatchNorm.convert_sync_batchnorm(self))
        self._whole[0].train()
        return nn.Module.__call__(self._whole[0], x)

    @classmethod
    def convert_sync_batchnorm(cls, layer: Any) -> Any:
        """The layer, with all its batch norms over all workers."""
        for name, child in list(layer.named_children()):
            if isinstance(child, _BatchNormBase):
                child.__class__ = type(cls.__name__, (cls, type(child)), {})
            else:
                setattr(layer, name, cls.convert_sync_batchnorm(child))
        return layer


class LayerNorm(Layer):
    """Mean 0 and variance 1 over the last axes."""

    def __init__(
        self,
        normalized_shape: Any,
        epsilon: float = 1e-05,
        weight_attr: Any = None,
        bias_attr: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__()
        given = [normalized_shape] if isinstance(normalized_shape, int) else normalized_shape
        self._normalized_shape, self._epsilon = [int(size) for size in given], epsilon
        size = [int(torch.Size(self._normalized_shape).numel())]
        self.weight = self.create_parameter(size, weight_attr, default_initializer=ONE)
        self.bias = self.create_parameter(size, bias_attr, is_bias=True)

    @override
    def forward(self, input: Any) -> Any:
        shape = self._normalized_shape
        return F.layer_norm(input, shape, self.weight, self.bias, self._epsilon)


class GroupNorm(Layer):
    """Mean 0 and variance 1 over groups of channels."""

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        epsilon: float = 1e-05,
        weight_attr: Any = None,
        bias_attr: Any = None,
        data_format: str = "NCHW",
        name: str | None = None,
    ) -> None:
        super().__init__()
        self._num_groups, self._epsilon, self._data_format = num_groups, epsilon, data_format
        self.weight = self.create_parameter([num_channels], weight_attr, default_initializer=ONE)
        self.bias = self.create_parameter([num_channels], bias_attr, is_bias=True)

    @override
    def forward(self, input: Any) -> Any:
        return F.group_norm(
            input, self._num_groups, self._epsilon, self.weight, self.bias, self._data_format
        )


class InstanceNorm2D(Layer):
    """Mean 0 and variance 1 over the space of each channel of each sample."""

    def __init__(
        self,
        num_features: int,
        epsilon: float = 1e-05,
        momentum: float = 0.9,
        weight_attr: Any = None,
        bias_attr: Any = None,
        data_format: str = "NCHW",
        name: str | None = None,
    ) -> None:
        super().__init__()
        self._epsilon = epsilon
        self.scale = self.create_parameter([num_features], weight_attr, default_initializer=ONE)
        self.bias = self.create_parameter([num_features], bias_attr, is_bias=True)

    @override
    def forward(self, input: Any) -> Any:
        return F.instance_norm(input, weight=self.scale, bias=self.bias, eps=self._epsilon)


InstanceNorm1D = InstanceNorm3D = InstanceNorm2D


class LocalResponseNorm(Layer):
    """Divided by the numbers of neighbouring channels."""

    def __init__(
        self,
        size: int,
        alpha: float = 0.0001,
        beta: float = 0.75,
        k: float = 1.0,
        data_format: str = "NCHW",
        name: str | None = None,
    ) -> None:
        super().__init__()
        self._given = (size, alpha, beta, k)

    @override
    def forward(self, input: Any) -> Any:
        return F.local_response_norm(input, *self._given)
