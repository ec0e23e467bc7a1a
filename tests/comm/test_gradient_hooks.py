"""Hooks on gradients of what a model returns."""

import torch
from torch import Tensor, nn

from fleetx.comm.gradient_hooks import hook_gradient


class Kept(nn.Module):
    """Leaves the first position as it is: a write through a view, into a view."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.layer(x)
        made[:, :1] = x[:, :1]
        return made


def test_a_view_that_was_written_to_is_hooked() -> None:
    model, seen = Kept(), list[Tensor]()
    found = model(torch.ones(2, 3, 4))
    hook_gradient(found, seen.append).remove()
    handle = hook_gradient(found, seen.append)
    found.sum().backward()
    assert torch.equal(seen[0], torch.ones(2, 3, 4))
    assert len(seen) == 1
    handle.remove()
    assert model.layer.bias.grad is not None
    assert torch.equal(model.layer.bias.grad, torch.full((4,), 4.0))
