"""Torch's own functions are replaced while a program is recorded, and at no other time."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import stateless
from torch.utils import checkpoint
from typing_extensions import override

from fleetx import static


def torch_functions() -> tuple[Any, ...]:
    return (
        nn.Module.__call__,
        torch.autograd.Function.__dict__["apply"],
        stateless._functional_call,
        checkpoint._checkpoint_without_reentrant_generator,
    )


ORIGINAL = torch_functions()
BATCH = {"x": np.ones((3, 4), np.float32)}


def is_original() -> bool:
    return all(now is then for now, then in zip(torch_functions(), ORIGINAL, strict=True))


def is_replaced() -> bool:
    return not any(now is then for now, then in zip(torch_functions(), ORIGINAL, strict=True))


def after_a_run() -> tuple[static.Executor, Tensor, Tensor]:
    """A script without a guard that has run its program."""
    x = static.data("x", [None, 4])
    out = static.nn.fc(x, 2)
    assert is_replaced()
    exe = static.Executor("cpu")
    exe.run(static.default_startup_program())
    assert is_original()
    exe.run(feed=BATCH, fetch_list=[out])
    assert is_original()
    return exe, x, out


def test_under_a_guard() -> None:
    with static.program_guard(static.Program(), static.Program()):
        x = static.data("x", [None, 4])
        assert is_replaced()
        static.Executor("cpu").run(static.Program())
        assert is_replaced(), "a guard says itself when it is through"
        nn.Linear(4, 2)(x)
    assert is_original()


def test_without_a_guard_until_a_run() -> None:
    after_a_run()


def test_until_a_run_under_a_guard_in_between() -> None:
    static.data("x", [None, 4])
    with static.program_guard(static.Program(), static.Program()):
        static.Executor("cpu").run(static.Program())
        assert is_replaced()
    assert is_original()


def test_a_run_while_a_call_is_recorded() -> None:
    class Runs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)

        @override
        def forward(self, x: Tensor) -> Tensor:
            static.Executor("cpu").run(static.Program())
            out: Tensor = self.layer(x)
            return out

    Runs()(static.data("x", [None, 4]))
    nodes = static.default_main_program().graph.nodes
    assert [node.op for node in nodes] == ["placeholder", "call_module"]
    assert is_original()


def test_until_values_are_saved(tmp_path: Path) -> None:
    exe, x, _ = after_a_run()
    out = static.nn.fc(x, 2)
    assert is_replaced()
    static.save(static.default_main_program(), tmp_path / "values")
    assert is_original()
    exe.run(static.default_startup_program())
    more = out + 1
    assert is_replaced()
    static.save_inference_model(exe, tmp_path / "model", ["x"], [more])
    assert is_original()


def test_until_a_data_set_is_gone_through() -> None:
    exe, x, _ = after_a_run()
    loss = static.nn.fc(x, 1).mean()
    static.Optimizer(torch.optim.SGD, lr=0.1).minimize(loss)
    exe.run(static.default_startup_program())
    static.data("unused", [None])
    assert is_replaced()
    assert exe.train_from_dataset(dataset=[]) == 0
    assert is_original()


def test_layers_of_static_record_again() -> None:
    exe, x, _ = after_a_run()
    out = static.nn.fc(x, 3)
    assert is_replaced()
    assert isinstance(nn.ReLU()(out), static.Variable), "modules are seen again, too"
    exe.run(static.default_startup_program())
    (found,) = exe.run(feed=BATCH, fetch_list=[out])
    assert found.shape == (3, 3)
    assert is_original()


def test_functions_of_torch_record_again() -> None:
    exe, _, out = after_a_run()
    doubled = torch.relu(out) * 2
    assert is_replaced()
    plain, found = exe.run(feed=BATCH, fetch_list=[out, doubled])
    assert np.allclose(found, np.maximum(plain, 0) * 2)
    assert is_original()


def test_questions_record_nothing() -> None:
    _, _, out = after_a_run()
    assert out.shape[-1] == 2
    assert out.dim() == 2
    assert out.dtype is torch.float32
    assert is_original()


class Twice(torch.autograd.Function):
    @staticmethod
    @override
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    @override
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * 2


class Doubles(nn.Module):
    @override
    def forward(self, x: Tensor) -> Tensor:
        assert x.dim() == 2  # a question comes first and is no matter
        return x * 2


def checkpointed(x: Tensor) -> Any:
    return checkpoint.checkpoint(lambda x: x * 2, x, use_reentrant=False)


MISSED: list[tuple[Callable[[Tensor], Any], str]] = [
    (nn.Linear(4, 2), "a module"),
    (Doubles(), "a module"),
    (nn.Sequential(Doubles()), "a module"),
    (Twice.apply, "an autograd function"),
    (checkpointed, "a checkpoint"),
]


@pytest.mark.parametrize(("call", "what"), MISSED)
def test_a_call_whose_beginning_was_missed(call: Callable[[Tensor], Any], what: str) -> None:
    _, x, _ = after_a_run()
    recorded = len(static.default_main_program().graph.nodes)
    expected = (
        rf"test_interception.py:\d+: {what} was called with a variable.* after Executor.run\(\).*"
        r"Record it under static.program_guard\(program, startup\), or before the first run."
    )
    with pytest.raises(static.ProgramError, match=expected):
        call(x)
    assert len(static.default_main_program().graph.nodes) == recorded
    assert is_original()


@pytest.mark.parametrize(("call", "what"), MISSED)
def test_the_same_under_a_guard(call: Callable[[Tensor], Any], what: str) -> None:
    exe, x, _ = after_a_run()
    with static.program_guard(static.default_main_program()):
        found = call(x)
    assert isinstance(found, static.Variable), what
    assert is_original()
    exe.run(static.default_startup_program())
    exe.run(feed=BATCH, fetch_list=[found])


def test_the_line_is_that_of_the_outermost_call() -> None:
    _, x, _ = after_a_run()
    with pytest.raises(static.ProgramError) as error:
        nn.Sequential(Doubles())(x)
    line = int(str(error.value).split(":")[1])
    source = Path(__file__).read_text().splitlines()
    assert source[line - 1].strip() == "nn.Sequential(Doubles())(x)"


def test_reset_forgets_what_was_suspended() -> None:
    _, _, out = after_a_run()
    static.reset()
    out + 1
    assert is_original()
