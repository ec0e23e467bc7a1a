"""Loops of language people: models and schedulers of transformers."""

import tempfile
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import fleetx as fleet
from fleetx.testing import world
from tests.habits.both import BATCH, STEPS, Here, same


def gpt(**options: Any) -> Any:
    from tests.libraries import transformers  # here: it takes seconds, and only ranks need it

    none = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "use_cache": False}
    size = {"vocab_size": 32, "n_positions": 8, "n_embd": 16, "n_layer": 2, "n_head": 2}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**size, **none, **options))


def bert() -> Any:
    from tests.libraries import transformers

    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    size = {"vocab_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 16}
    config = transformers.BertConfig(**size, **none, intermediate_size=16, num_labels=3)
    return transformers.BertForSequenceClassification(config)


def sentences(here: Here, labelled: bool = False) -> Any:
    """As loaders of transformers give them: dicts of tensors."""
    generator = torch.Generator().manual_seed(7)
    for _ in range(STEPS):
        ids = torch.randint(0, 32, (BATCH, 8), generator=generator)
        classes = torch.randint(0, 3, (BATCH,), generator=generator)
        batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        yield here.share({**batch, "labels": classes if labelled else ids})


def grouped(model: Any) -> list[dict[str, Any]]:
    """Without weight decay for biases and norms, as everybody copies it."""
    spared = ("bias", "ln_", "LayerNorm")
    named = list(model.named_parameters())
    return [
        {"params": [p for n, p in named if not any(s in n for s in spared)], "weight_decay": 0.1},
        {"params": [p for n, p in named if any(s in n for s in spared)], "weight_decay": 0.0},
    ]


def causal(checkpointing: str, here: Here) -> nn.Module:
    """Tied weights, groups, warmup, clipping; gradients are accumulated over two batches.

    The gradient of a key's bias is rounding alone, which a smaller eps would make an update of.
    """
    from tests.libraries import transformers

    plain = gpt()
    if checkpointing == "before":
        plain.gradient_checkpointing_enable()
    model = here.model(plain)
    if checkpointing == "after":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    optimizer = here.optimizer(torch.optim.AdamW(grouped(model), lr=0.01, eps=1e-3))
    schedule = transformers.get_cosine_schedule_with_warmup(optimizer, 1, STEPS)
    for at, batch in enumerate(sentences(here)):
        outputs = model(**batch)
        (outputs.loss / 2).backward()
        if at % 2:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    assert model.lm_head.weight is model.transformer.wte.weight
    return model


def classifier(here: Here) -> nn.Module:
    """A loss of its own beside the one in the output, a linear schedule, one worker that looks."""
    from tests.libraries import transformers

    model = here.model(bert())
    optimizer = here.optimizer(torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-3))
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, 2, 2 * STEPS)
    for batch in sentences(here, labelled=True):
        outputs = model(**batch, output_hidden_states=True)
        loss = outputs["loss"] + 0.01 * outputs.hidden_states[-1].pow(2).mean()
        loss.backward()
        optimizer.step()
        schedule.step()
        model.zero_grad()
        if not here.distributed or fleet.is_first_worker():
            model.eval()
            with torch.no_grad():
                assert model(input_ids=batch["input_ids"]).logits.shape[-1] == 3
            model.train()
    return model


def embeddings_frozen(here: Here) -> nn.Module:
    plain = bert()
    for parameter in plain.bert.embeddings.parameters():
        parameter.requires_grad = False
    model = here.model(plain)
    trained = filter(lambda p: p.requires_grad, model.parameters())
    optimizer = here.optimizer(torch.optim.SGD(trained, lr=0.1, momentum=0.9))
    for batch in sentences(here, labelled=True):
        optimizer.zero_grad()
        loss, logits, *_ = model(**batch, return_dict=False)
        assert logits.shape == (len(batch["labels"]), 3)
        loss.backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("workers", [1, 2])
def test_transformers(workers: int) -> None:
    kept = [partial(causal, when) for when in ("never", "before", "after")]
    for loop in (*kept, classifier, embeddings_frozen):
        world(workers, timeout=300).run(same, loop)


@world(2, timeout=300)
def test_words_that_are_added_too_late_are_named() -> None:
    fleet.init(is_collective=True)
    model = fleet.distributed_model(gpt())
    model.resize_token_embeddings(40, mean_resizing=False)
    batch = next(sentences(Here(distributed=True)))
    with pytest.raises(RuntimeError, match=r"'transformer\.wte\.weight' had the shape \[32, 16\]"):
        model(**batch)


@world(2, timeout=300)
def test_one_worker_saves_and_writes_text_alone() -> None:
    from tests.libraries import transformers

    fleet.init(is_collective=True)
    model = fleet.distributed_model(gpt())
    if not fleet.is_first_worker():
        return
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        twin = transformers.GPT2LMHeadModel.from_pretrained(folder)
    torch.testing.assert_close(dict(twin.state_dict()), dict(model.state_dict()))
    ids = torch.ones(1, 2, dtype=torch.long)
    assert model.generate(ids, max_new_tokens=2, pad_token_id=0).shape == (1, 4)
