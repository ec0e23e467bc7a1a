"""Mixed precision on models that nobody here wrote: outputs keep their type, in float32."""

from typing import Any

import torch

import fleetx as fleet
from fleetx.testing import world
from tests.libraries import transformers


def small(kind: str) -> Any:
    common = {"vocab_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 16}
    if kind == "bert":
        config = transformers.BertConfig(**common, intermediate_size=16, num_labels=3)
        return transformers.BertForSequenceClassification(config)
    config = transformers.GPT2Config(
        vocab_size=32, n_positions=8, n_embd=16, n_layer=1, n_head=2, use_cache=False
    )
    return transformers.GPT2LMHeadModel(config)


@world(1, timeout=600)
def test_outputs_of_transformers_leave_in_float32() -> None:
    strategy = fleet.DistributedStrategy()
    strategy.amp = True
    fleet.init(is_collective=True, strategy=strategy)
    ids = torch.arange(16).view(2, 8)
    for kind, labels in (("bert", torch.tensor([0, 2])), ("gpt2", ids)):
        plain = small(kind)
        usual = type(plain(input_ids=ids, labels=labels))
        model: Any = fleet.distributed_model(plain)
        optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        found = model(input_ids=ids, labels=labels, output_hidden_states=True)
        assert type(found) is usual
        seen = [found.loss, found.logits, found["logits"], *found.hidden_states]
        assert {tensor.dtype for tensor in seen} == {torch.float32}
        optimizer.backward(found.loss)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        assert 0 < norm < 100, "the gradients are true ones"
        optimizer.step()
