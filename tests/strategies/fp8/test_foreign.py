"""Models of transformers, which nobody here wrote, train in float8 as in float32."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fleetx import DistributedStrategy
from fleetx.engine.engine import Engine
from fleetx.plan.compose import compose
from fleetx.static.run.single_worker import LoneMesh
from tests.rotation import rotating
from tests.strategies.fp8.stand_in import device_is_allowed, multiplied

WORDS, LENGTH = 64, 16
SIZES = {"vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}


def llama() -> nn.Module:
    from tests.libraries import transformers

    config = transformers.LlamaConfig(**SIZES, intermediate_size=64, use_cache=False)
    made: nn.Module = transformers.LlamaForCausalLM(config)
    return made


def bert() -> nn.Module:
    from tests.libraries import transformers

    config = transformers.BertConfig(**SIZES, intermediate_size=64, hidden_dropout_prob=0.0)
    made: nn.Module = transformers.BertForMaskedLM(config)
    return made


def gpt2() -> nn.Module:
    """Tied, and made of ``Conv1D``, whose weights lie the other way round."""
    from tests.libraries import transformers

    sizes: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": LENGTH}
    drops = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    ends = {"use_cache": False, "bos_token_id": 0, "eos_token_id": 0}
    config = transformers.GPT2Config(vocab_size=WORDS, **sizes, **drops, **ends)
    made: nn.Module = transformers.GPT2LMHeadModel(config)
    return made


MODELS = {"llama": (llama, 2 * 7), "bert": (bert, 2 * 6), "gpt2": (gpt2, 2 * 4)}
"""Each with its linear layers in blocks; the first of them and the head stay as they are."""


def test_layers_whose_weights_the_model_takes_itself_are_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """BEiT of timm adds the biases of queries and values by itself, and calls no ``qkv``."""
    from tests.libraries import timm

    sizes = {"embed_dim": 32, "num_heads": 2, "depth": 2, "img_size": 32, "num_classes": 16}
    model = timm.create_model("beit_base_patch16_224", **sizes)
    running, images = engine(model, {"fp8": True}, F.cross_entropy), torch.randn(2, 3, 32, 32)
    with multiplied() as products:
        for _ in range(2):
            running.train_batch((images, torch.tensor([0, 1])))
    assert len(products) == 2 * 3 * 6
    said = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    (found,) = [text for text in said if text.startswith("fp8:")]
    assert "the first batch did not call blocks.1.attn.qkv." in found


def test_evaluation_before_training_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """torch's own transformer layers call none of their parts then."""
    inner = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
    model = nn.Sequential(nn.Linear(32, 32), inner, nn.Linear(32, 16))
    running, x = engine(model, {"fp8": True}, lambda found, _: found.sum()), torch.randn(2, 4, 32)
    with torch.no_grad(), multiplied() as products:
        model.eval()(x)
    assert not products
    model.train()
    with multiplied() as products:
        running.train_batch((x, torch.zeros(2)))
    assert len(products) == 3 * 2
    assert "did not call" not in caplog.text


def criterion(outputs: Any, tokens: Tensor) -> Tensor:
    return F.cross_entropy(outputs.logits.flatten(0, 1), tokens.flatten())


def engine(model: nn.Module, settings: dict[str, Any], criterion: Any) -> Engine:
    strategy = DistributedStrategy()
    for name, value in settings.items():
        setattr(strategy, name, value)
    with device_is_allowed():
        made = Engine(
            compose(strategy.request(), 1),
            model,
            device=torch.device("cpu"),
            mesh=LoneMesh(),
            criterion=criterion,
        )
    made.attach(torch.optim.AdamW(model.parameters(), lr=1e-2))
    return made


def trained(model: nn.Module, settings: dict[str, Any]) -> list[float]:
    running = engine(model, settings, criterion)
    generator = torch.Generator().manual_seed(1)
    drawn = [torch.randint(0, WORDS, (4, LENGTH), generator=generator) for _ in range(8)]
    return [float(running.train_batch((tokens, tokens))) for tokens in drawn]


@pytest.mark.parametrize("name", rotating([*MODELS], 12))
def test_a_model_of_another_library(name: str) -> None:
    make, layers = MODELS[name]
    torch.manual_seed(0)
    model = make()
    usual = trained(model, {})
    torch.manual_seed(0)
    model = make()
    with multiplied() as products:
        losses = trained(model, {"fp8": True})
    dense = [m for m in model.modules() if isinstance(m, nn.Linear)]
    assert len(products) >= 8 * 3 * (layers - 1), [*map(type, dense)]
    assert losses == pytest.approx(usual, rel=0.05)
    assert losses[-1] < losses[0]
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())
