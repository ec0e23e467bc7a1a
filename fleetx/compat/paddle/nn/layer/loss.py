"""``paddle.nn.layer.loss``: losses as layers."""

# Positions are those of Paddle.
# ruff: noqa: PLR0917

from typing import Any

from typing_extensions import override

from fleetx.compat.paddle.nn.functional import loss as F
from fleetx.compat.paddle.nn.layer.called import Called
from fleetx.compat.paddle.nn.layer.layers import Layer


class CrossEntropyLoss(Layer):
    """The loss of logits, or of probabilities, by labels."""

    def __init__(
        self,
        weight: Any = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        soft_label: bool = False,
        axis: int = -1,
        use_softmax: bool = True,
        label_smoothing: float = 0.0,
        name: str | None = None,
    ) -> None:
        super().__init__()
        self._given = {
            "weight": weight,
            "ignore_index": ignore_index,
            "reduction": reduction,
            "soft_label": soft_label,
            "axis": axis,
            "use_softmax": use_softmax,
            "label_smoothing": label_smoothing,
        }

    @override
    def forward(self, input: Any, label: Any) -> Any:
        return F.cross_entropy(input, label, **self._given)


class MSELoss(Layer):
    """Squares of differences."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = reduction

    @override
    def forward(self, input: Any, label: Any) -> Any:
        return F.mse_loss(input, label, self.reduction)


class L1Loss(Layer):
    """Sizes of differences."""

    def __init__(self, reduction: str = "mean", name: str | None = None) -> None:
        super().__init__()
        self.reduction = reduction

    @override
    def forward(self, input: Any, label: Any) -> Any:
        return F.l1_loss(input, label, self.reduction)


class SmoothL1Loss(Layer):
    """Squares of small differences, sizes of large ones."""

    def __init__(
        self, reduction: str = "mean", delta: float = 1.0, name: str | None = None
    ) -> None:
        super().__init__()
        self.reduction, self.delta = reduction, delta

    @override
    def forward(self, input: Any, label: Any) -> Any:
        return F.smooth_l1_loss(input, label, self.reduction, self.delta)


class NLLLoss(Layer):
    """The loss of logarithms of probabilities by labels."""

    def __init__(
        self,
        weight: Any = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        name: str | None = None,
    ) -> None:
        super().__init__()
        self._given = (weight, ignore_index, reduction)

    @override
    def forward(self, input: Any, label: Any) -> Any:
        return F.nll_loss(input, label, *self._given)


class BCELoss(Layer):
    """The loss of probabilities by 0 or 1."""

    def __init__(
        self, weight: Any = None, reduction: str = "mean", name: str | None = None
    ) -> None:
        super().__init__()
        self._given = (weight, reduction)

    @override
    def forward(self, input: Any, label: Any) -> Any:
        return F.binary_cross_entropy(input, label, *self._given)


class BCEWithLogitsLoss(Layer):
    """The loss of logits by 0 or 1."""

    def __init__(
        self,
        weight: Any = None,
        reduction: str = "mean",
        pos_weight: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__()
        self._given = (weight, reduction, pos_weight)

    @override
    def forward(self, logit: Any, label: Any) -> Any:
        return F.binary_cross_entropy_with_logits(logit, label, *self._given)


class KLDivLoss(Layer):
    """How far a distribution is from another."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = reduction

    @override
    def forward(self, input: Any, label: Any) -> Any:
        return F.kl_div(input, label, self.reduction)


class MarginRankingLoss(Layer):
    """How much the order of pairs is wrong."""

    def __init__(
        self, margin: float = 0.0, reduction: str = "mean", name: str | None = None
    ) -> None:
        super().__init__()
        self._given = (margin, reduction)

    @override
    def forward(self, input: Any, other: Any, label: Any) -> Any:
        return F.margin_ranking_loss(input, other, label, *self._given)


class CTCLoss(Layer):
    """The loss of sequences without alignment."""

    def __init__(self, blank: int = 0, reduction: str = "mean") -> None:
        super().__init__()
        self._given = (blank, reduction)

    @override
    def forward(
        self,
        log_probs: Any,
        labels: Any,
        input_lengths: Any,
        label_lengths: Any,
        norm_by_times: bool = False,
    ) -> Any:
        return F.ctc_loss(
            log_probs, labels, input_lengths, label_lengths, *self._given, norm_by_times
        )


class CosineEmbeddingLoss(Called):
    """Whether directions are alike."""

    function = F.cosine_embedding_loss
    options = ("margin", "reduction")


class GaussianNLLLoss(Called):
    """The loss of a mean and a variance."""

    function = F.gaussian_nll_loss
    options = ("full", "epsilon", "reduction")


class PoissonNLLLoss(Called):
    """The loss of counts."""

    function = F.poisson_nll_loss
    options = ("log_input", "full", "epsilon", "reduction")


class HingeEmbeddingLoss(Called):
    """Distances, by labels of 1 and -1."""

    function = F.hinge_embedding_loss
    options = ("margin", "reduction")


class MultiLabelSoftMarginLoss(Called):
    """The loss of several labels each."""

    function = F.multi_label_soft_margin_loss
    options = ("weight", "reduction")


class MultiMarginLoss(Called):
    """How much the label is ahead of the other classes."""

    function = F.multi_margin_loss
    options = ("p", "margin", "weight", "reduction")


class SoftMarginLoss(Called):
    """The logistic loss."""

    function = F.soft_margin_loss
    options = ("reduction",)


class TripletMarginLoss(Called):
    """How much nearer one is than another."""

    function = F.triplet_margin_loss
    options = ("margin", "p", "epsilon", "swap", "reduction")


class TripletMarginWithDistanceLoss(Called):
    """The same, by a distance of your own."""

    function = F.triplet_margin_with_distance_loss
    options = ("distance_function", "margin", "swap", "reduction")
