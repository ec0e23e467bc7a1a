"""One model of every family of torchvision, timm and transformers: bitwise what a plain loop does.

Families are found in the libraries, so that a new release brings its new ones. Which of them train
in eager mode with the few numbers that are given here is found out by training them; the others are
skipped with the reason.
"""

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fleetx import static
from tests.libraries import timm, torchvision, transformers
from tests.static.training import Feeds, by_hand, by_program

pytestmark = pytest.mark.rare

LARGEST = 100_000_000
"""Parameters of a model that is still tried."""
TINY: dict[str, Any] = {
    "hidden_size": 32,
    "d_model": 32,
    "n_embd": 32,
    "embed_dim": 32,
    "num_hidden_layers": 2,
    "num_layers": 2,
    "n_layer": 2,
    "n_layers": 2,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_heads": 2,
    "n_head": 2,
    "n_heads": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "intermediate_size": 48,
    "d_ff": 48,
    "ffn_dim": 48,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "vocab_size": 50,
    "pad_token_id": 0,
    "image_size": 32,
    "max_position_embeddings": 64,
}
"""What configurations of transformers call their sizes; each takes those that it has."""
OTHERWISE = {
    "transformers ibert": "decides by numbers",
    "transformers jetmoe": "decides by numbers",
    "transformers longformer": "decides by numbers",
    "transformers olmo_hybrid": "has a path for compilers that rounds otherwise",
}
"""Models that are not expected to be equal, and why."""


def squared(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    found = model(x)
    while not isinstance(found, Tensor):
        values = list(found.values()) if hasattr(found, "values") else list(found)
        found = next(value for value in values if isinstance(value, Tensor | tuple | list))
    return (found.float() ** 2).mean()


def pictures(size: int) -> Feeds:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 3, size, size), dtype=np.float32)
    return [{"x": x, "y": rng.integers(0, 2, 2)}]


def tokens() -> Feeds:
    rng = np.random.default_rng(0)
    return [{"x": rng.integers(3, 50, (2, 8)), "y": rng.integers(0, 2, 2)}]


def of_torchvision(name: str) -> tuple[nn.Module, Feeds]:
    options = {"weights_backbone": None} if "weights_backbone" in _arguments(name) else {}
    model = torchvision.models.get_model(name, weights=None, **options)
    size = {"inception_v3": 96, "maxvit_t": 224, "swin_t": 64, "vit_b_16": 224}.get(name, 64)
    return model, pictures(size)


def _arguments(name: str) -> str:
    return "weights_backbone" if "segmentation" in _module(name) else ""


def _module(name: str) -> str:
    return str(torchvision.models.get_model_builder(name).__module__)


def of_timm(name: str) -> tuple[nn.Module, Feeds]:
    try:
        return timm.create_model(name, img_size=64, num_classes=4), pictures(64)
    except TypeError:  # it takes every size
        return timm.create_model(name, num_classes=4), pictures(64)


def of_transformers(kind: str) -> tuple[nn.Module, Feeds]:
    auto = transformers.models.auto
    config_class = auto.configuration_auto.CONFIG_MAPPING[kind]
    known = set(config_class().to_dict())
    config = config_class(**{key: value for key, value in TINY.items() if key in known})
    model = transformers.AutoModel.from_config(config)
    feeds = tokens() if model.main_input_name in {"input_ids", "input"} else pictures(32)
    return model, feeds


def first_of_each(names: list[str], family: Any) -> list[str]:
    found: dict[str, str] = {}
    for name in names:
        found.setdefault(family(name), name)
    return sorted(found.values())


def families() -> Iterator[str]:
    vision = torchvision.models.list_models(module=torchvision.models)
    vision += torchvision.models.list_models(module=torchvision.models.segmentation)
    small = sorted(vision, key=lambda name: ("small" not in name, "18" not in name, name))
    yield from (f"torchvision {name}" for name in first_of_each(small, _module))
    words = ("atto", "femto", "pico", "nano", "xxs", "tiny", "_xs", "_18", "_s", "small")
    models = sorted(
        timm.list_models(), key=lambda name: (not any(w in name for w in words), len(name), name)
    )
    entry = timm.models.model_entrypoint
    yield from (f"timm {n}" for n in first_of_each(models, lambda n: entry(n).__module__))
    yield from (f"transformers {kind}" for kind in sorted(_kinds()))


def _kinds() -> set[str]:
    auto = transformers.models.auto.modeling_auto
    listed = (
        auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
        auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
    )
    known = set(auto.MODEL_MAPPING_NAMES)
    return {kind for names in listed for kind in names} & known


MAKERS = {"torchvision": of_torchvision, "timm": of_timm, "transformers": of_transformers}


def trained_by_hand(family: str) -> tuple[nn.Module, Feeds, nn.Module, list[float]]:
    """A model as it begins, its feeds, and what a plain loop makes of it."""
    library, name = family.split()
    torch.manual_seed(0)
    try:
        with torch.device("meta"):  # before memory is needed for it
            size = sum(p.numel() for p in MAKERS[library](name)[0].parameters())
        if size > LARGEST:
            pytest.skip(f"has {size / 1e6:.0f} million parameters")
        model, feeds = MAKERS[library](name)
        model.train()
        with torch.no_grad():  # some make layers at their first call, with random numbers
            squared(model, *(torch.from_numpy(value) for value in feeds[0].values()))
        twin = copy.deepcopy(model)
        losses = by_hand(twin, squared, feeds)
    except Exception as error:
        pytest.skip(f"eager mode does not train it: {type(error).__name__}: {str(error)[:80]}")
    if not np.isfinite(losses).all():
        pytest.skip("eager mode makes it infinite")
    return model, feeds, twin, losses


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    # Looking for all of them takes a while, which only those spend who run them.
    found = list(families()) if metafunc.config.getoption("--all") else []
    metafunc.parametrize("family", found)


def test_a_family_is_recorded_as_it_is(family: str) -> None:
    model, feeds, twin, losses = trained_by_hand(family)
    try:
        same = by_program(model, squared, feeds) == losses and _same(model, twin)
    except static.ProgramError:
        assert family in OTHERWISE
    else:
        assert same != (family in OTHERWISE)


def _same(model: nn.Module, twin: nn.Module) -> bool:
    pairs = zip(model.state_dict().values(), twin.state_dict().values(), strict=True)
    return all(torch.equal(ours, theirs) for ours, theirs in pairs)
