"""Every switch is in force, or refused, for models that nobody here wrote; some at each commit."""

from dataclasses import replace
from typing import Any

import pytest

from tests.promise.answers import SWITCHES, Answer, changes, refused
from tests.promise.test_workers import ANSWERS, complaint, run
from tests.rotation import rotating

OWN: dict[str, dict[str, Answer]] = {
    "gpt2": {
        "pipeline": changes(
            "held", {"pipeline_configs": {"split": ("transformer.h.1",), "accumulate_steps": 2}}
        ),
        "recompute": changes("calls", {"recompute_configs": {"checkpoints": ("transformer.h.1",)}}),
        "sync_batch_norm": refused("the model has no BatchNorm layer"),
        "tensor_parallel": changes("held", {"tensor_parallel_configs": {"plan": "transformer"}}),
    },
    "shufflenet": {
        "dgc": refused("would compress nothing"),
        "pipeline": changes(
            "held", {"pipeline_configs": {"split": ("stage3",), "accumulate_steps": 2}}
        ),
        "recompute": changes("calls", {"recompute_configs": {"checkpoints": ("stage3",)}}),
        "tensor_parallel": refused(
            "cuts nothing of", {"tensor_parallel_configs": {"plan": "transformer"}}
        ),
    },
}
"""Where parts have other names than those of the toys, and what such a model cannot have."""


def answer(model: str, name: str) -> Answer:
    """How to see a switch at this model."""
    known: Any = OWN[model].get(name, SWITCHES[name])
    return replace(known, model=model)


PARTS = [(model, part) for part in (0, 1) for model in OWN]


@pytest.mark.parametrize("chosen", rotating(PARTS, 4))
def test_every_switch_does_something_or_is_refused(
    chosen: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, part = chosen
    names = [name for name in sorted(SWITCHES) if name != "cuda_graph"][part::2]
    for name in names:
        monkeypatch.setitem(ANSWERS, name, answer(model, name))
    run(2, names)
    assert [found for name in names if (found := complaint(name))] == []
