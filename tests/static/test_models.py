"""Whole models, recorded and trained: bitwise what the same model does in a plain loop."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.rotation import by_turns
from tests.static.models import Lstm, ResNet, Transformer, WideDeep
from tests.static.training import assert_same_training, images, words


def classify(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


@by_turns(1, of=3)
def test_resnet50() -> None:
    torch.manual_seed(0)
    assert_same_training(ResNet(), classify, images(2, size=32, batch=2))


def test_a_transformer_with_dropout() -> None:
    torch.manual_seed(0)
    assert_same_training(Transformer(), classify, words(4))


def test_an_lstm() -> None:
    torch.manual_seed(0)
    assert_same_training(Lstm(), classify, words(4))


def test_a_wide_and_deep_model() -> None:
    def loss(model: nn.Module, ids: Tensor, clicks: Tensor) -> Tensor:
        return F.binary_cross_entropy(model(ids), clicks.float())

    torch.manual_seed(0)
    assert_same_training(WideDeep(), loss, words(4, length=5, classes=2))
