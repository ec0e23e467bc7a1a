"""What is trained: an MLP with wide layers, and a GPT-2 of transformers."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

TOKENS, LENGTH = 1024, 8


@dataclass(frozen=True)
class Model:
    """A model that computes little for what it has to exchange, and a batch for it."""

    made: Callable[[], nn.Module]
    batch: Callable[[], tuple[Any, Tensor]]

    @staticmethod
    def criterion(outputs: Any, targets: Tensor) -> Tensor:
        """The loss of logits, or of an answer of transformers that has them."""
        outputs = getattr(outputs, "logits", outputs)
        return F.cross_entropy(outputs.flatten(0, -2), targets.flatten())

    @staticmethod
    def optimizer(model: nn.Module) -> torch.optim.Optimizer:
        """What dgc can correct the momentum of."""
        return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def _mlp() -> nn.Module:
    widths = (512, 1024, 1024, 512)
    layers = [nn.Sequential(nn.Linear(a, b), nn.ReLU()) for a, b in pairwise(widths)]
    return nn.Sequential(*layers, nn.Linear(512, 16))


def _numbers() -> tuple[Any, Tensor]:
    return torch.randn(8, 512), torch.randint(0, 16, (8,))


def _gpt2() -> nn.Module:
    from tests.libraries import transformers

    config = transformers.GPT2Config(
        vocab_size=TOKENS,
        n_positions=LENGTH,
        n_embd=256,
        n_layer=2,
        n_head=4,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    model: nn.Module = transformers.GPT2LMHeadModel(config)
    return model


def _words() -> tuple[Any, Tensor]:
    tokens = torch.randint(0, TOKENS, (1, LENGTH))
    return {"input_ids": tokens}, tokens


MODELS = {"mlp": Model(_mlp, _numbers), "gpt2": Model(_gpt2, _words)}
