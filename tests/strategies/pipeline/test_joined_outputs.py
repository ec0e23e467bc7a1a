"""Outputs of micro-batches are joined where they have one row per sample."""

from typing import Any

import pytest
import torch

from fleetx.strategies.pipeline.joined_outputs import grows, joined


def outputs(kind: str, samples: int) -> Any:
    rows = torch.arange(samples * 3.0).view(samples, 3)
    return {
        "rows": rows,
        "tree": {"y": (rows, None), "name": "a"},
        "nothing": None,
        "mean": {"y": rows, "mean": rows.mean()},
        "transposed": rows.t(),
        "pairs": rows @ rows.t(),
        "constant": torch.ones(3, 2),
        "length": (rows, samples),
        "other": rows if samples % 2 else [rows],
    }[kind]


@pytest.mark.parametrize("kind", ["rows", "tree", "nothing"])
def test_one_row_per_sample(kind: str) -> None:
    assert grows(outputs(kind, 3), 3, outputs(kind, 4), 4)


@pytest.mark.parametrize("kind", ["mean", "transposed", "pairs", "constant", "length", "other"])
@pytest.mark.parametrize("samples", [1, 2, 3])
def test_everything_else(kind: str, samples: int) -> None:
    # Three classes, and two to three samples: one number alone could not tell them apart.
    assert not grows(outputs(kind, samples), samples, outputs(kind, samples + 1), samples + 1)


def test_joined_in_their_order() -> None:
    whole: dict[str, Any] = {"y": torch.arange(6.0).view(6, 1), "name": "a"}
    parts = [{"y": part, "name": "a"} for part in whole["y"].chunk(3)]
    torch.testing.assert_close(joined(parts)["y"], whole["y"], rtol=0, atol=0)
    assert joined(parts)["name"] == "a"
