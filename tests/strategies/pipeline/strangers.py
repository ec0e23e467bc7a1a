"""Models of other libraries, as small as they come, with inputs, and where to cut them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tests.libraries import timm, torchvision
from tests.libraries import transformers as hf

WORDS, WIDTH, SAMPLES, LENGTH = 50, 32, 16, 8


@dataclass(frozen=True)
class Stranger:
    """A model that nobody here wrote."""

    make: Callable[[], nn.Module]
    inputs: Callable[[], dict[str, Tensor]]
    blocks: tuple[str, ...]
    """Submodules that may begin a stage: the second, third and fourth of four."""


def _drawn(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _tokens(seed: int = 1) -> Tensor:
    return torch.randint(3, WORDS, (SAMPLES, LENGTH), generator=_drawn(seed))


def _text() -> dict[str, Tensor]:
    """Samples of two lengths, the shorter ones filled up."""
    mask = torch.ones(SAMPLES, LENGTH, dtype=torch.long)
    mask[::2, LENGTH - 2 :] = 0
    return {"input_ids": _tokens(), "attention_mask": mask}


def _pictures(name: str) -> Callable[[], dict[str, Tensor]]:
    return lambda: {name: torch.randn(SAMPLES, 3, 32, 32, generator=_drawn(2))}


def _sound() -> dict[str, Tensor]:
    heard = torch.randn(SAMPLES, 8, 40, generator=_drawn(2))
    return {"input_features": heard, "decoder_input_ids": _tokens(3)}


def _pairs() -> dict[str, Tensor]:
    return {**_text(), "decoder_input_ids": _tokens(3)}


def _sizes(**more: Any) -> dict[str, Any]:
    return {
        "vocab_size": WORDS,
        "hidden_size": WIDTH,
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
        "intermediate_size": 48,
        "max_position_embeddings": 64,
        "pad_token_id": 0,
        **more,
    }


def _decoder(**more: Any) -> dict[str, Any]:
    return _sizes(num_key_value_heads=2, bos_token_id=1, eos_token_id=2, **more)


_STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def _gpt2() -> nn.Module:
    sizes: dict[str, Any] = {"n_embd": WIDTH, "n_layer": 4, "n_head": 2, "n_positions": 64}
    still = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    words = {"vocab_size": WORDS, "bos_token_id": 1, "eos_token_id": 2}
    return hf.GPT2LMHeadModel(hf.GPT2Config(**sizes, **still, **words))


def _t5() -> nn.Module:
    sizes = {"d_model": WIDTH, "d_kv": 16, "d_ff": 48, "num_heads": 2, "vocab_size": WORDS}
    more = {"dropout_rate": 0.0, "decoder_start_token_id": 0}
    return hf.T5ForConditionalGeneration(
        hf.T5Config(**sizes, **more, num_layers=2, num_decoder_layers=2)
    )


def _whisper() -> nn.Module:
    sides: dict[str, Any] = {}
    for side in ("encoder", "decoder"):
        sides |= {f"{side}_layers": 2, f"{side}_attention_heads": 2, f"{side}_ffn_dim": 48}
    words = {"vocab_size": WORDS, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = hf.WhisperConfig(
        **sides,
        **words,
        d_model=WIDTH,
        max_source_positions=20,
        max_target_positions=20,
        num_mel_bins=8,
        dropout=0.0,
        decoder_start_token_id=1,
    )
    return hf.WhisperForConditionalGeneration(config)


def _vit() -> nn.Module:
    sizes = {k: v for k, v in _sizes(**_STILL).items() if k in hf.ViTConfig().to_dict()}
    return hf.ViTForImageClassification(
        hf.ViTConfig(**sizes, image_size=32, patch_size=8, num_labels=10)
    )


def _layers(path: str) -> tuple[str, ...]:
    return tuple(f"{path}{number}" for number in (1, 2, 3))


STRANGERS = {
    "gpt2": Stranger(_gpt2, _text, _layers("transformer.h.")),
    "llama": Stranger(
        lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**_decoder())), _text, _layers("model.layers.")
    ),
    "qwen2": Stranger(
        lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**_decoder(tie_word_embeddings=True))),
        _text,
        _layers("model.layers."),
    ),
    "gemma": Stranger(
        lambda: hf.GemmaForCausalLM(hf.GemmaConfig(**_decoder(head_dim=16))),
        _text,
        _layers("model.layers."),
    ),
    "mixtral": Stranger(
        lambda: hf.MixtralForCausalLM(hf.MixtralConfig(**_decoder(num_local_experts=4))),
        _text,
        _layers("model.layers."),
    ),
    "bert": Stranger(
        lambda: hf.BertForMaskedLM(hf.BertConfig(**_sizes(**_STILL))),
        _text,
        _layers("bert.encoder.layer."),
    ),
    "t5": Stranger(_t5, _pairs, ("encoder.block.1", "decoder.block.0", "decoder.block.1")),
    "whisper": Stranger(
        _whisper,
        _sound,
        ("model.encoder.layers.1", "model.decoder.layers.0", "model.decoder.layers.1"),
    ),
    "vit": Stranger(_vit, _pictures("pixel_values"), _layers("vit.layers.")),
    "torchvision vit": Stranger(
        lambda: torchvision.models.VisionTransformer(32, 8, 4, 2, WIDTH, 48, num_classes=10),
        _pictures("x"),
        _layers("encoder.layers.encoder_layer_"),
    ),
    "timm vit": Stranger(
        lambda: timm.models.VisionTransformer(
            img_size=32, patch_size=8, embed_dim=WIDTH, depth=4, num_heads=2, num_classes=10
        ),
        _pictures("x"),
        _layers("blocks."),
    ),
}


def built(name: str, seed: int = 0) -> nn.Module:
    """The model, the same for every rank."""
    torch.manual_seed(seed)
    return STRANGERS[name].make()


def loss(outputs: Any, targets: Tensor) -> Tensor:
    """Of logits, whatever they come in."""
    logits = outputs if isinstance(outputs, Tensor) else outputs.logits
    return nn.functional.cross_entropy(logits.flatten(0, -2).float(), targets.flatten())


def batch(name: str) -> tuple[dict[str, Tensor], Tensor]:
    """Inputs and targets, the same at every call."""
    inputs = STRANGERS[name].inputs()
    words = any(value.dtype == torch.long for value in inputs.values())
    shape = (SAMPLES, LENGTH) if words else (SAMPLES,)
    return inputs, torch.randint(0, 10, shape, generator=_drawn(4))
