"""``paddle.nn.layer.common``: linear, embedding, dropout and the like."""

# Positions are those of Paddle.
# ruff: noqa: PLR0917

from typing import Any

import torch
from typing_extensions import override

from fleetx.compat import modes
from fleetx.compat.notes import note
from fleetx.compat.paddle.nn.functional import common as F
from fleetx.compat.paddle.nn.layer.layers import Layer
from fleetx.compat.paddle.tensor.manipulation import flatten


class Identity(Layer):
    """Gives what it gets."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    @override
    def forward(self, input: Any) -> Any:
        return input


class Linear(Layer):
    """``x @ weight + bias``, with a weight [in, out]."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        weight_attr: Any = None,
        bias_attr: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__()
        self.weight = self.create_parameter([in_features, out_features], weight_attr)
        self.bias = self.create_parameter([out_features], bias_attr, is_bias=True)
        self.name = name

    @override
    def forward(self, input: Any) -> Any:
        return F.linear(input, self.weight, self.bias)

    @override
    def extra_repr(self) -> str:
        sizes = self.weight.size()
        return f"in_features={sizes[0]}, out_features={sizes[1]}, dtype={self._dtype}"


class Embedding(Layer):
    """A table of rows; that of ``padding_idx`` gives zeros."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        sparse: bool = False,
        weight_attr: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__()
        if sparse:
            note("Embedding(sparse=True)", "gradients have every row here; results are the same.")
        at = padding_idx
        if at is not None and not -num_embeddings <= at < num_embeddings:
            raise ValueError(f"padding_idx={at} is not within {num_embeddings} rows.")
        self._padding_idx = at if at is None or at >= 0 else num_embeddings + at
        self.weight = self.create_parameter([num_embeddings, embedding_dim], weight_attr)
        if self._padding_idx is not None and not modes.is_static():
            with torch.no_grad():
                self.weight[self._padding_idx] = 0.0

    @override
    def forward(self, x: Any) -> Any:
        return F.embedding(x, self.weight, self._padding_idx)


class Dropout(Layer):
    """Numbers dropped in training."""

    def __init__(
        self,
        p: float = 0.5,
        axis: Any = None,
        mode: str = "upscale_in_train",
        name: str | None = None,
    ) -> None:
        super().__init__()
        self.p, self.axis, self.mode = p, axis, mode

    @override
    def forward(self, input: Any) -> Any:
        return F.dropout(input, self.p, self.axis, self.training, self.mode)


class Dropout2D(Layer):
    """Whole channels dropped in training."""

    def __init__(self, p: float = 0.5, data_format: str = "NCHW", name: str | None = None) -> None:
        super().__init__()
        self.p, self.data_format = p, data_format

    @override
    def forward(self, input: Any) -> Any:
        return F.dropout2d(input, self.p, self.training, self.data_format)


class Dropout3D(Layer):
    """Whole channels of volumes dropped in training."""

    def __init__(self, p: float = 0.5, data_format: str = "NCDHW", name: str | None = None) -> None:
        super().__init__()
        self.p, self.data_format = p, data_format

    @override
    def forward(self, input: Any) -> Any:
        return F.dropout3d(input, self.p, self.training, self.data_format)


class AlphaDropout(Layer):
    """Dropout that keeps mean and variance."""

    def __init__(self, p: float = 0.5, name: str | None = None) -> None:
        super().__init__()
        self.p = p

    @override
    def forward(self, input: Any) -> Any:
        return F.alpha_dropout(input, self.p, self.training)


class Flatten(Layer):
    """Axes from one to another as one."""

    def __init__(self, start_axis: int = 1, stop_axis: int = -1) -> None:
        super().__init__()
        self.start_axis, self.stop_axis = start_axis, stop_axis

    @override
    def forward(self, input: Any) -> Any:
        return flatten(input, self.start_axis, self.stop_axis)


class _Pad(Layer):
    """Numbers around space."""

    count = 2
    layout = "NCHW"

    def __init__(
        self,
        padding: Any,
        mode: str = "constant",
        value: float = 0.0,
        data_format: str | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__()
        amounts = [padding] * (2 * self.count) if isinstance(padding, int) else padding
        self._pad, self._mode, self._value = amounts, mode, value
        self._data_format = data_format or self.layout

    @override
    def forward(self, x: Any) -> Any:
        return F.pad(x, self._pad, self._mode, self._value, self._data_format)


class Pad1D(_Pad):
    """Numbers around one axis."""

    count, layout = 1, "NCL"


class Pad2D(_Pad):
    """Numbers around two axes."""


class Pad3D(_Pad):
    """Numbers around three axes."""

    count, layout = 3, "NCDHW"


class ZeroPad2D(Pad2D):
    """Zeros around two axes."""

    def __init__(self, padding: Any, data_format: str = "NCHW", name: str | None = None) -> None:
        super().__init__(padding, "constant", 0.0, data_format)


class CosineSimilarity(Layer):
    """The cosine of the angle between vectors."""

    def __init__(self, axis: int = 1, eps: float = 1e-8) -> None:
        super().__init__()
        self._axis, self._eps = axis, eps

    @override
    def forward(self, x1: Any, x2: Any) -> Any:
        return F.cosine_similarity(x1, x2, self._axis, self._eps)


class Upsample(Layer):
    """Space in another size."""

    def __init__(
        self,
        size: Any = None,
        scale_factor: Any = None,
        mode: str = "nearest",
        align_corners: bool = False,
        align_mode: int = 0,
        data_format: str = "NCHW",
        name: str | None = None,
    ) -> None:
        super().__init__()
        self._given = (size, scale_factor, mode, align_corners, align_mode, data_format)

    @override
    def forward(self, x: Any) -> Any:
        return F.interpolate(x, *self._given)


class Bilinear(Layer):
    """``x1 @ weight @ x2`` for each output."""

    def __init__(
        self,
        in1_features: int,
        in2_features: int,
        out_features: int,
        weight_attr: Any = None,
        bias_attr: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__()
        self.weight = self.create_parameter([out_features, in1_features, in2_features], weight_attr)
        self.bias = self.create_parameter([1, out_features], bias_attr, is_bias=True)

    @override
    def forward(self, x1: Any, x2: Any) -> Any:
        return F.bilinear(x1, x2, self.weight, self.bias)
