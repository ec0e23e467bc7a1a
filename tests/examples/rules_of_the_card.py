"""What the stand-in for a card refuses and allows; test_on_a_card.py runs it in its own process.

It teaches torch a new kind of device for as long as a process lives.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.card import NAME, card, place


@pytest.fixture
def there() -> Iterator[torch.device]:
    with card() as device:
        yield device


def test_the_stand_in_refuses_mixed_places(there: torch.device) -> None:
    here, away = torch.ones(3), torch.ones(3).to(there)
    assert (away.device, away.is_cpu, here.is_cpu) == (there, False, True)
    calls: list[Callable[[], Any]] = [
        lambda: here + away,
        lambda: torch.cat([here, away]),
        lambda: nn.Linear(3, 1).to(there)(here),
        lambda: torch.equal(here, away),
        lambda: here[away.long()],
        lambda: here.add_(away),
        lambda: torch.where(away > 0, away, here),
        lambda: nn.functional.mse_loss(away, torch.zeros(3)),
        lambda: away + torch.from_numpy(np.ones(3, np.float32)),
        lambda: away @ torch.eye(3),
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match="at least two devices, card:0 and cpu"):
            call()
    with pytest.raises(TypeError, match="can't convert card:0"):
        away.numpy()
    with pytest.raises(TypeError, match="can't convert card:0"):
        np.asarray(away)


def test_the_stand_in_allows_what_cards_allow(there: torch.device) -> None:
    here, away = torch.ones(3), torch.ones(3).to(there)
    given = [
        away + torch.tensor(2.0),
        away[torch.tensor([0, 1])],
        torch.zeros_like(away),
        away.new_zeros(2),
        torch.zeros(2, device=there),
        away.to(torch.float64),
        here.to(away),
        away.clone().copy_(here),
        away.view(3, 1).sum(0),
    ]
    assert {place(tensor) for tensor in given} == {NAME}
    assert {place(tensor) for tensor in (away.cpu(), away.to("cpu"), here.clone())} == {"cpu"}
    assert away.cpu().numpy().tolist() == away.tolist() == [1, 1, 1]


def test_gradients_and_their_hooks_are_on_the_card(there: torch.device) -> None:
    model, seen = nn.Linear(3, 1).to(there), list[torch.device]()
    model.weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.device))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 3, device=there)).sum().backward()
    optimizer.step()
    assert seen == [there]
    held = [v for state in optimizer.state.values() for v in state.values() if v.dim()]
    assert {place(tensor) for tensor in [model.weight, *held]} == {NAME}
    assert isinstance(model.weight.grad, Tensor)
    assert place(model.weight.grad) == NAME
