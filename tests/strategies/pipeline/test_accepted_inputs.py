"""Batches give the arguments that a model was cut with, no other and no fewer."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fleetx.strategies.pipeline.accepted_inputs import Accepted
from fleetx.strategies.pipeline.micro_batches import bound

X, MASK = torch.ones(2, 3), torch.ones(2, 1)


class Net(nn.Module):
    def forward(
        self, x: Tensor, mask: Tensor | None = None, *more: Tensor, causal: bool = False
    ) -> Tensor:
        return x


def test_defaults_may_be_left_out_or_given_as_they_are() -> None:
    accepted = Accepted(Net())
    assert not accepted.given
    for inputs in ({"x": X}, {"x": X, "mask": None, "causal": False, "more": ()}):
        accepted.check(inputs)


def test_what_a_sample_gives_is_an_input() -> None:
    accepted = Accepted(Net(), {"x": X, "mask": MASK, "causal": False})
    assert accepted.given == {"mask"}
    accepted.check({"x": X, "mask": MASK})
    assert Accepted(Net(), {"x": X, "mask": {"rows": MASK}}).given == {"mask"}


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"mask": MASK}, r"sample=inputs\) with inputs that hold 'mask'"),
        ({"mask": [MASK]}, "would change nothing"),
        ({"causal": True}, r"'causal' = True, and the model was cut with False, its default"),
        ({"causal": 0}, "'causal' = 0"),
        ({"more": (MASK,)}, r"\*args or \*\*kwargs take \('more'\)"),
    ],
)
def test_what_the_stages_would_not_notice_is_refused(inputs: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Accepted(Net()).check({"x": X, **inputs})


@pytest.mark.parametrize("inputs", [{"x": X}, {"x": X, "mask": None}])
def test_what_the_sample_had_must_be_there(inputs: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="give it in every batch"):
        Accepted(Net(), {"x": X, "mask": MASK}).check(inputs)


def test_what_else_a_sample_gives_takes_the_place_of_a_default() -> None:
    accepted = Accepted(Net(), {"x": X, "causal": True})
    accepted.check({"x": X, "causal": True})
    accepted.check({"x": X})
    with pytest.raises(ValueError, match="'causal' = False, and the model was cut with True"):
        accepted.check({"x": X, "causal": False})
    with pytest.raises(ValueError, match=r"\*args or \*\*kwargs take \('more'\)"):
        Accepted(Net(), {"x": X, "more": (MASK,)})


class Masked(nn.Module):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return x * mask


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        (X, "missing a required argument: 'mask'"),
        ({"x": X}, "missing a required argument: 'mask'"),
        ((X, MASK, MASK), "too many positional arguments"),
    ],
)
def test_inputs_that_are_not_the_arguments_of_the_forward_are_told(
    inputs: Any, reason: str
) -> None:
    with pytest.raises(TypeError, match=rf"of Masked, which takes \(x, mask\): {reason}") as told:
        bound(Masked(), inputs)
    assert "a dict of them by their names" in str(told.value)
    assert bound(Masked(), (X, MASK)) == {"x": X, "mask": MASK}
