"""Models of transformers, timm and torchvision: bitwise what they do in a plain loop."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fleetx import static
from tests.libraries import timm, torchvision, transformers
from tests.rotation import rotating
from tests.static.training import Feeds, assert_same_training

SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "vocab_size": 50,
}


def words() -> Feeds:
    rng = np.random.default_rng(0)
    return [{"x": rng.integers(3, 50, (2, 7)), "y": rng.integers(0, 2, 2)}]


def images() -> Feeds:
    rng = np.random.default_rng(0)
    return [
        {"x": rng.standard_normal((2, 3, 32, 32), dtype=np.float32), "y": rng.integers(0, 2, 2)}
    ]


def sound() -> Feeds:
    rng = np.random.default_rng(0)
    return [{"x": rng.standard_normal((2, 200), dtype=np.float32), "y": rng.integers(0, 2, 2)}]


def opt() -> nn.Module:
    """Leaves layers out by chance, with a chance of 0."""
    options = {k: v for k, v in SMALL.items() if k != "intermediate_size"}
    config = transformers.OPTConfig(**options, ffn_dim=48, word_embed_proj_dim=32)
    return transformers.OPTForCausalLM(config)


def falcon() -> nn.Module:
    """Reads weight.T."""
    options = {k: v for k, v in SMALL.items() if k != "intermediate_size"}
    return transformers.FalconForCausalLM(transformers.FalconConfig(**options))


def wavlm() -> nn.Module:
    """Sets requires_grad of its input, has a weight_norm, draws numbers that it does not use."""
    config = transformers.WavLMConfig(
        **SMALL,
        conv_dim=[16, 16],
        conv_kernel=[10, 3],
        conv_stride=[5, 2],
        num_conv_pos_embeddings=8,
        num_conv_pos_embedding_groups=2,
        mask_time_prob=0.0,
        layerdrop=0.0,
    )
    return transformers.WavLMModel(config)


def bert() -> nn.Module:
    """Replays its layers."""
    model = transformers.BertModel(transformers.BertConfig(**SMALL))
    model.gradient_checkpointing_enable()
    return model


def densenet() -> nn.Module:
    """Replays its layers, batch norms among them."""
    return torchvision.models.DenseNet(8, (2, 2), 8, num_classes=10, memory_efficient=True)


def googlenet() -> nn.Module:
    """Has heads that count batches and draw random numbers, whether or not a loss uses them."""
    return torchvision.models.GoogLeNet(num_classes=10, init_weights=False)


def vit() -> nn.Module:
    """Replays its blocks."""
    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, depth=2, num_classes=10, drop_rate=0.1
    )
    model.set_grad_checkpointing()
    return model


def squared(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    found = model(x)
    out = found if isinstance(found, Tensor) else found[0]
    return (out.float() ** 2).mean()


MODELS: dict[Callable[[], nn.Module], Callable[[], Feeds]] = {
    opt: words,
    falcon: words,
    wavlm: sound,
    bert: words,
    densenet: images,
    googlenet: images,
    vit: images,
}


@pytest.mark.parametrize("make", rotating(list(MODELS), 2), ids=lambda make: make.__name__)
def test_a_model_of_others_is_recorded_as_it_is(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    assert_same_training(make().train(), squared, MODELS[make]())


def test_a_choice_by_numbers_is_refused_where_it_is_made() -> None:
    options = {k: v for k, v in SMALL.items() if k != "intermediate_size"}
    config = transformers.OPTConfig(**options, ffn_dim=48, word_embed_proj_dim=32, layerdrop=0.5)
    model = transformers.OPTForCausalLM(config).train()
    with pytest.raises(static.ProgramError, match=r"modeling_opt\.py:\d+: __bool__ needs the num"):
        model(static.data("x", [None, 7], "int64"))
