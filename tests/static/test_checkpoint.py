"""``torch.utils.checkpoint`` inside of a model: replayed in backward as eager code replays it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from fleetx import static
from fleetx.static import ProgramError
from tests.static.training import assert_same_training, classify, rows


def block() -> nn.Sequential:
    """Draws numbers and counts its batches."""
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.3), nn.Tanh())


class Net(nn.Module):
    """Two blocks, and how they are called."""

    def __init__(self, use: Callable[["Net", Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.one, self.two, self.use = nn.Linear(4, 4), block(), block(), use

    def both(self, x: Tensor) -> Tensor:
        return self.two(self.one(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.use(self, self.first(x))


def nested(net: Net, x: Tensor, reentrant: bool) -> Tensor:
    def outer(y: Tensor) -> Tensor:
        return checkpoint(net.two, checkpoint(net.one, y, use_reentrant=reentrant) + y.mean())

    return checkpoint(outer, x, use_reentrant=reentrant)


def captured(net: Net, x: Tensor, reentrant: bool) -> Tensor:
    scale = net.two(x).mean()
    scale = scale.detach() if reentrant else scale  # torch itself goes back through it twice
    return checkpoint(lambda y: net.one(y) * scale, x, use_reentrant=reentrant)


def under_autocast(net: Net, x: Tensor, reentrant: bool) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return checkpoint(net.both, x, use_reentrant=reentrant).float()


def without_gradients(net: Net, x: Tensor, reentrant: bool) -> Tensor:
    with torch.no_grad():
        fixed = checkpoint(net.one, x, use_reentrant=reentrant)
    return net.two(x) + fixed


def marked(net: Net, x: Tensor, reentrant: bool) -> Tensor:
    """An argument that is not used lets gradients into a function without others."""
    mark = torch.ones(1, requires_grad=True)
    return checkpoint(lambda y, _: net.both(y), x.detach(), mark * x[0, 0], use_reentrant=reentrant)


USES: dict[str, Callable[[Net, Tensor, bool], Tensor]] = {
    "a block": lambda net, x, reentrant: checkpoint(net.one, x, use_reentrant=reentrant),
    "two": lambda net, x, reentrant: checkpoint(
        net.two, checkpoint(net.one, x, use_reentrant=reentrant) + x, use_reentrant=reentrant
    ),
    "a method": lambda net, x, reentrant: checkpoint(net.both, x, use_reentrant=reentrant),
    "with its own random numbers": lambda net, x, reentrant: checkpoint(
        lambda y: net.one(y) * torch.rand(4), x, use_reentrant=reentrant, preserve_rng_state=True
    ),
    "nested": nested,
    "captured": captured,
    "under autocast": under_autocast,
    "without gradients": without_gradients,
    "marked": marked,
}


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", USES)
def test_a_checkpoint_is_replayed_as_in_eager_code(name: str, reentrant: bool) -> None:
    torch.manual_seed(0)
    net = Net(lambda net, x: USES[name](net, x, reentrant))
    assert_same_training(net, classify, rows())
    torch.autocast_increment_nesting()
    assert torch.autocast_decrement_nesting() == 0, "a replay that ends early leaves nothing open"


def recorded(net: Net) -> tuple[static.Program, static.Program, Any]:
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup):
        x, y = static.data("x", [None, 4]), static.data("y", [None], "int64")
        middle = net(x)
        cost = F.cross_entropy(middle, y)
        static.minimize(static.Optimizer(torch.optim.SGD, lr=0.1), cost)
    return main, startup, cost


def test_values_inside_can_be_fetched_and_tests_replay_nothing() -> None:
    net = Net(lambda net, x: checkpoint(net.both, x, use_reentrant=False))
    main, startup, cost = recorded(net)
    inner = next(n.name for n in main.graph.nodes if n.target == "net_0.one.1")
    exe, feed = static.Executor(static.CPUPlace()), rows(1)[0]
    exe.run(startup)
    (found,) = exe.run(main, feed, [inner])
    assert found.shape == (6, 4)
    counted = int(net.one[1].num_batches_tracked)  # type: ignore[arg-type]
    assert counted == 2
    exe.run(main.clone(for_test=True), feed, [cost])
    assert int(net.one[1].num_batches_tracked) == counted  # type: ignore[arg-type]


def test_a_buffer_that_is_assigned_is_refused_and_one_that_is_written_is_not() -> None:
    class Counting(nn.Module):
        def __init__(self, assigns: bool) -> None:
            super().__init__()
            self.assigns = assigns
            self.register_buffer("mean", torch.zeros(4))
            self.mean: Tensor
            self.layer = nn.Linear(4, 4)

        def moved(self, x: Tensor) -> Tensor:
            if self.assigns:
                self.mean = 0.5 * self.mean + x.detach().mean(0)
            else:
                self.mean.mul_(0.5).add_(x.detach().mean(0))
            return torch.tanh(self.layer(x))

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.moved, x, use_reentrant=False)

    assert_same_training(Counting(assigns=False), classify, rows())
    with pytest.raises(
        ProgramError, match=r"test_checkpoint\.py:\d+: checkpoint.*the buffer 'mean' of a"
    ):
        Counting(assigns=True)(static.data("x", [None, 4]))
