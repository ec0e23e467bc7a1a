"""Hooks on the gradients of variables run at every backward pass; what cannot be says so."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fleetx import static
from fleetx.static import ProgramError

ROWS = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))


def build(hook: Callable[[Tensor], Tensor | None]) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))

    def cost(x: Tensor) -> Tensor:
        hidden = model[:2](x)
        hidden.register_hook(hook)
        return model[2](hidden).mean()

    loss = cost(static.data("x", [None, 4]))
    return model, loss, cost(ROWS)


def test_a_hook_sees_and_changes_the_gradient() -> None:
    seen: list[Tensor] = []

    def halve(gradient: Tensor) -> Tensor:
        seen.append(gradient)
        return gradient / 2

    model, loss, eager = build(halve)
    eager.backward()
    expected = [p - 0.1 * p.grad for p in model.parameters() if p.grad is not None]
    (theirs,) = seen
    seen.clear()
    model.zero_grad()
    static.Optimizer(torch.optim.SGD, lr=0.1).minimize(loss)
    exe = static.Executor(static.CPUPlace())
    exe.run(static.default_startup_program())
    exe.run(feed={"x": ROWS}, fetch_list=[loss])
    assert len(seen) == 1
    assert torch.equal(seen[0], theirs)
    for ours, other in zip(model.parameters(), expected, strict=True):
        assert torch.equal(ours, other)
    test = static.default_main_program().clone(for_test=True)
    exe.run(test, {"x": ROWS}, [loss])
    assert len(seen) == 1


def test_a_hook_can_be_taken_away() -> None:
    layer, seen = nn.Linear(4, 4), list[Tensor]()
    hidden = layer(static.data("x", [None, 4]))
    handle = hidden.register_hook(seen.append)
    ((_, gradient), *_) = static.append_backward(hidden.sum())
    exe = static.Executor(static.CPUPlace())
    (first,) = exe.run(feed={"x": ROWS}, fetch_list=[gradient])
    assert len(seen) == 1
    handle.remove()
    (second,) = exe.run(feed={"x": ROWS}, fetch_list=[gradient])
    assert len(seen) == 1
    assert np.array_equal(first, second)


def test_hooks_on_parameters_are_called() -> None:
    layer, seen = nn.Linear(4, 4), []
    layer.weight.register_hook(lambda _: seen.append("tensor"))
    loss = layer(static.data("x", [None, 4])).sum()
    main = static.default_main_program()
    weight: Tensor = main.var("linear_0.weight")
    weight.register_hook(lambda _: seen.append("variable"))
    layer.weight.register_post_accumulate_grad_hook(lambda _: seen.append("after"))
    static.Optimizer(torch.optim.SGD, lr=0.1).minimize(loss)
    exe = static.Executor(static.CPUPlace())
    for _ in range(2):
        exe.run(feed={"x": ROWS}, fetch_list=[loss])
    assert seen == ["tensor", "variable", "after"] * 2


def test_a_hook_where_no_gradient_comes_is_refused() -> None:
    x = static.data("x", [None, 4])
    with pytest.raises(ProgramError, match=r"hooks.py:\d+: .*no gradient reaches"):
        x.register_hook(print)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    "ask",
    [
        lambda hidden: hidden.retain_grad(),
        lambda hidden: hidden.grad,
        lambda hidden: hidden.register_post_accumulate_grad_hook(print),
    ],
)
def test_asking_for_a_gradient_that_has_no_numbers_is_refused(
    ask: Callable[[Tensor], object],
) -> None:
    hidden = nn.Linear(4, 4)(static.data("x", [None, 4]))
    with pytest.raises(ProgramError, match=r"hooks.py:\d+: .*static\.gradients"):
        ask(hidden)
