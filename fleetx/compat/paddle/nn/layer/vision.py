"""``paddle.nn.layer.vision``: functions of images, and of pairs, as layers."""

from typing import Any

from typing_extensions import override

from fleetx.compat.paddle.nn.functional import common, distance, vision
from fleetx.compat.paddle.nn.layer.called import Called
from fleetx.compat.paddle.nn.layer.layers import Layer
from fleetx.compat.paddle.tensor.pieces import unflatten


class PixelShuffle(Called):
    """Channels as squares of pixels."""

    function = vision.pixel_shuffle
    options = ("upscale_factor", "data_format")
    needed = 1


class PixelUnshuffle(Called):
    """Squares of pixels as channels."""

    function = vision.pixel_unshuffle
    options = ("downscale_factor", "data_format")
    needed = 1


class ChannelShuffle(Called):
    """Channels of groups by turns."""

    function = vision.channel_shuffle
    options = ("groups", "data_format")
    needed = 1


class Fold(Called):
    """Windows put together to images."""

    function = vision.fold
    options = ("output_sizes", "kernel_sizes", "dilations", "paddings", "strides")
    needed = 2


class Unfold(Called):
    """Windows of images."""

    function = common.unfold
    options = ("kernel_sizes", "dilations", "paddings", "strides")
    needed = 1


class Unflatten(Called):
    """One axis as several."""

    function = unflatten
    options = ("axis", "shape")
    needed = 2


class PairwiseDistance(Called):
    """How far vectors are from each other."""

    function = distance.pairwise_distance
    options = ("p", "epsilon", "keepdim")


class UpsamplingNearest2D(Layer):
    """Larger images, of squares of equal pixels."""

    mode, corners = "nearest", False

    def __init__(
        self,
        size: Any = None,
        scale_factor: Any = None,
        data_format: str = "NCHW",
        name: str | None = None,
    ) -> None:
        super().__init__()
        self.size, self.scale_factor, self.data_format = size, scale_factor, data_format

    @override
    def forward(self, x: Any) -> Any:
        return common.interpolate(
            x,
            size=self.size,
            scale_factor=self.scale_factor,
            mode=self.mode,
            align_corners=self.corners,
            data_format=self.data_format,
        )


class UpsamplingBilinear2D(UpsamplingNearest2D):
    """Larger images, smoothly."""

    mode, corners = "bilinear", True
