"""Which submodules of models of others are their blocks."""

import pytest
import torch
from torch import nn

from fleetx.graph.repeated_blocks import repeated_blocks
from tests.libraries import timm, torchvision, transformers


@pytest.mark.parametrize(
    ("make", "count", "first"),
    [
        (torchvision.models.resnet50, 16, "layer1.0"),
        (torchvision.models.vit_b_16, 12, "encoder.layers.encoder_layer_0"),
        (lambda: timm.create_model("convnext_tiny"), 18, "stages.0.blocks.0"),
        (
            lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=3)),
            3,
            "transformer.h.0",
        ),
        (
            lambda: transformers.T5ForConditionalGeneration(transformers.T5Config(num_layers=2)),
            4,
            "encoder.block.0",
        ),
    ],
)
def test_models_of_libraries(make: object, count: int, first: str) -> None:
    assert callable(make)
    with torch.device("meta"):
        found = repeated_blocks(make())
    assert (len(found), found[0]) == (count, first)


def test_a_model_without_blocks_has_none() -> None:
    assert repeated_blocks(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))) == ()
