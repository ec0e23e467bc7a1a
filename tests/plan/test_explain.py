"""Explanations say what runs, in order, and what it costs."""

from torch import nn

import fleetx.strategies  # noqa: F401
from fleetx.plan.compose import Request, compose
from fleetx.plan.explain import explain
from fleetx.plan.subject import Subject


def test_one_worker_exchanges_nothing() -> None:
    text = explain(compose(Request(), 1))
    assert text.startswith("Plan for 1 worker: pp 1 x dp 1 x sharding 1 x tp 1")
    assert "Nothing is exchanged between workers." in text


def test_data_parallel_names_its_traffic_in_bytes() -> None:
    model = nn.Linear(1023, 256)  # 1,023 x 256 weights and 256 biases: exactly 1 MiB
    text = explain(compose(Request(), 4), Subject(model=model))
    assert "1. drive      eager" in text
    assert "2. carrier    data_parallel" in text
    # A ring all-reduce sends 2 (n - 1) / n of the gradients.
    assert "all-reduce of gradients during the backward of each update, 1.5 MiB sent" in text


def asked(**strategies: dict[str, object]) -> str:
    return explain(compose(Request(strategies=strategies), 4), Subject(model=nn.Linear(1023, 256)))


def test_halved_traffic_names_the_option_that_decided_it() -> None:
    text = asked(fp16_allreduce={})
    assert "768 KiB sent by each rank (fp16_allreduce = True)" in text


def test_meetings_and_groups_of_batches_are_named() -> None:
    text = asked(localsgd={"k_steps": 4}, gradient_merge={"k_steps": 3})
    assert "with k_steps=4" in text
    assert "One update per 3 batches, their gradients averaged" in text
    assert "all-reduce of parameters after every 4 updates, 1.5 MiB sent by each rank" in text
    assert "(localsgd_configs['k_steps'] = 4)" in text
    assert "of gradients during" not in text, "local training exchanges no gradients"


def test_a_narrower_wire_halves_values_but_not_places() -> None:
    wide, narrow = asked(dgc={}), asked(dgc={}, fp16_allreduce={})
    # 1,023 x 256 numbers are large, of which 261 travel to three others; the bias travels whole.
    assert f"{261 * 3 * 8 / 1024:.4g} KiB sent by each rank" in wide
    assert f"{261 * 3 * 6 / 1024:.4g} KiB sent by each rank" in narrow
    assert "all-reduce of gradients of fewer than 16,384 numbers" in wide
    assert "(dgc_configs['sparsity'] ends at 0.999; fp16_allreduce = True)" in narrow
    assert "velocities and what was not sent yet, 1.998 MiB (dgc = True)" in narrow


def test_memory_and_precision_are_said() -> None:
    text = asked(
        recompute={"checkpoints": ("a", "b"), "enable_offload": True},
        amp={"dtype": "bfloat16"},
        clip={"limit": 0.5},
    )
    assert "Of a, b only the inputs are kept for backward, on the host" in text
    assert "Matrix products and convolutions in bfloat16 (amp = True)." in text
    assert "Gradients are limited by global norm at 0.5 (clip_configs)." in text
