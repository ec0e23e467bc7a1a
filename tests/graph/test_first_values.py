"""Modules fill their own tensors, one module at a time, as their constructors would."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fleetx.graph.first_values import FirstValues
from tests.libraries import timm, torchvision, transformers

CPU = torch.device("cpu")
SMALL: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


def language(config: Any) -> nn.Module:
    model: nn.Module = transformers.AutoModelForCausalLM.from_config(config)
    return model


def gpt2() -> nn.Module:
    ids = {"bos_token_id": 1, "eos_token_id": 1}
    return language(transformers.GPT2Config(vocab_size=128, n_embd=64, n_layer=2, n_head=4, **ids))


def vit() -> nn.Module:
    sizes = {name: value for name, value in SMALL.items() if name != "vocab_size"}
    config = transformers.ViTConfig(image_size=32, patch_size=8, **sizes)
    model: nn.Module = transformers.AutoModelForImageClassification.from_config(config)
    return model


def mixtral() -> nn.Module:
    return language(transformers.MixtralConfig(num_key_value_heads=2, num_local_experts=4, **SMALL))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "llama": lambda: language(transformers.LlamaConfig(**SMALL)),
    "gpt2": gpt2,
    "bert": lambda: transformers.AutoModelForMaskedLM.from_config(transformers.BertConfig(**SMALL)),
    "vit": vit,
    "mixtral": mixtral,
    "qwen2": lambda: language(transformers.Qwen2Config(num_key_value_heads=2, **SMALL)),
    "gemma": lambda: language(transformers.GemmaConfig(head_dim=16, **SMALL)),
    "timm vit": lambda: timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2),
    "timm resnet": lambda: timm.create_model("resnet18", num_classes=100),
    "torch": lambda: nn.Transformer(64, 4, 2, 2, 128, batch_first=True),
}
FEW = ("llama", "gpt2", "bert", "vit", "timm vit", "torch")


def values(make: Callable[[], nn.Module], seed: int = 5) -> tuple[dict[str, Tensor], list[str]]:
    with torch.device("meta"):
        first = FirstValues(make())
    made = [first.make(group, seed, CPU) for group in first.groups]
    found = {name: value for one in made for name, value in one.values.items()}
    return found, [name for one in made for name in one.left_out]


def compare(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(4)
    plain = make().requires_grad_(False)
    found, left_out = values(make)
    assert left_out == []
    parameters, buffers = dict(plain.named_parameters()), dict(plain.named_buffers())
    assert found.keys() == parameters.keys() | buffers.keys(), "tied weights are made once"
    assert all(torch.equal(found[name], buffer) for name, buffer in buffers.items())
    for name, parameter in parameters.items():
        assert found[name].dtype is parameter.dtype
        # Means and spreads of what was drawn, by how far such numbers are apart by chance.
        spread, chance = float(parameter.std(correction=0)), parameter.numel() ** -0.5
        assert abs(float(found[name].std(correction=0)) - spread) <= 5 * chance * spread, name
        away = abs(float(found[name].mean() - parameter.mean()))
        assert away <= 8 * chance * spread, name


@pytest.mark.parametrize("name", FEW)
def test_models_begin_as_if_they_were_made_with_numbers(name: str) -> None:
    compare(MODELS[name])


@pytest.mark.rare
@pytest.mark.parametrize("name", sorted(MODELS.keys() - set(FEW)))
def test_more_models_begin_as_if_they_were_made_with_numbers(name: str) -> None:
    compare(MODELS[name])


def test_a_seed_and_names_decide() -> None:
    one, _ = values(MODELS["torch"])
    again, _ = values(MODELS["torch"])
    other, _ = values(MODELS["torch"], seed=6)
    name = "encoder.layers.0.linear1.weight"
    assert all(torch.equal(one[key], again[key]) for key in one)
    assert not torch.equal(one[name], other[name])
    assert not torch.equal(one[name], one["encoder.layers.1.linear1.weight"])


class Applied(nn.Module):
    """As many small language models are written."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.head = nn.Embedding(50, 8), nn.LayerNorm(8), nn.Linear(8, 50)
        self.head.weight = self.embed.weight
        self.apply(self._init_weights)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.constant_(module.weight, 3.0)
        if isinstance(module, nn.Linear):
            module.bias.data.fill_(4.0)


def test_what_a_model_applies_comes_after_what_layers_do() -> None:
    found, left_out = values(Applied)
    assert left_out == []
    means = {name: float(value.mean()) for name, value in found.items()}
    assert means == {"embed.weight": 3.0, "norm.weight": 1.0, "norm.bias": 0.0, "head.bias": 4.0}


class Forgetful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.register_buffer("count", torch.zeros(1, dtype=torch.int64))
        self.inner = nn.Linear(2, 2)
        self.partly = nn.Parameter(torch.ones(4))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.partly[:2])


def test_what_nobody_fills_is_named() -> None:
    found, left_out = values(Forgetful)
    assert left_out == ["scale", "partly", "count"], "also where a part was written to"
    assert found["inner.weight"].isfinite().all()


def test_constructors_that_fill_tensors_themselves_are_named() -> None:
    with torch.device("meta"):
        resnet = torchvision.models.resnet18()
    assert FirstValues(resnet).lost() == [("ResNet", "constant_")]
    with torch.device("meta"):
        assert FirstValues(gpt2()).lost() == [], "the model has a function for all of them"


def test_the_model_itself_is_left_alone() -> None:
    with torch.device("meta"):
        model = Applied()
    before = copy.copy(dict(model.named_parameters(remove_duplicate=False)))
    first = FirstValues(model)
    for group in first.groups:
        first.make(group, 1, CPU)
    assert all(p is before[n] for n, p in model.named_parameters(remove_duplicate=False))
