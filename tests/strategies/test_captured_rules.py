"""Rules whose steps can be recorded ask the device for nothing, with spread parameters, too."""

import importlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, optim
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from fleetx import PlanError
from fleetx.plan.plain_step import plain_step
from fleetx.plan.recorded import Recorded
from fleetx.spread.other_rules import computed_whole
from fleetx.strategies.cuda_graph.captured import captured_form
from fleetx.testing import world
from fleetx.torch_internals import TorchDispatchMode

aten: Any = torch.ops.aten
RULES: tuple[tuple[type[optim.Optimizer], dict[str, Any]], ...] = (
    (optim.ASGD, {}),
    (optim.Adadelta, {"weight_decay": 0.1}),
    (optim.Adam, {"amsgrad": True}),
    (optim.AdamW, {}),
    (optim.Adamax, {}),
    (optim.NAdam, {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    (optim.RAdam, {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    (optim.RMSprop, {}),
    (optim.RMSprop, {"momentum": 0.9, "centered": True}),
    (optim.Rprop, {}),
)


class Asked(TorchDispatchMode):
    """Counts the numbers that somebody asks the device for."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.count += func.overloadpacket in {aten._local_scalar_dense, aten.nonzero}
        return func(*args, **kwargs or {})


@contextmanager
def as_on_a_card() -> Iterator[None]:
    """Let rules take their capturable form here."""
    with ExitStack() as stack:
        for cls, _ in RULES:
            module = importlib.import_module(cls.__module__)
            if hasattr(module, "_get_capturable_supported_devices"):
                devices = patch.object(
                    module, "_get_capturable_supported_devices", lambda *_, **__: ["cpu"]
                )
                stack.enter_context(devices)
        yield


def moved(cls: Any, parameters: list[Tensor], gradients: list[Tensor], **options: Any) -> int:
    """How many numbers the last of three steps asked for."""
    optimizer = cls(parameters, **options)
    for _ in range(3):
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.clone()
        with Asked() as asked:
            optimizer.step()
    return asked.count


@world(1)
def test_rules_whose_parameters_are_spread_ask_for_no_number() -> None:
    """Rates are on the device while a step is recorded, so that schedules can change them."""
    mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("sharding",))
    numbers = torch.Generator().manual_seed(0)
    values, gradients = (
        [torch.randn(shape, generator=numbers) for shape in ((6, 4), (5,))] for _ in range(2)
    )
    for cls, options in RULES:
        ours: list[Tensor] = [distribute_tensor(v.clone(), mesh, [Shard(0)]) for v in values]
        given: list[Tensor] = [distribute_tensor(g, mesh, [Shard(0)]) for g in gradients]
        form = captured_form(cls, spread=True)
        with as_on_a_card():
            asked = moved(cls, ours, given, lr=torch.tensor(0.01), **options, **form)
        plain = [value.clone() for value in values]
        moved(cls, plain, gradients, lr=0.01, **options)
        assert asked == 0, cls
        for one, other in zip(ours, plain, strict=True):
            whole: Any = one
            torch.testing.assert_close(whole.full_tensor(), other, rtol=1e-4, atol=1e-6)


@world(1)
def test_a_rule_that_draws_cannot_be_recorded_where_workers_must_agree() -> None:
    """They agree through the host: a recording would break off in torch's words."""
    mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("sharding",))
    with (
        computed_whole(mesh),
        patch("fleetx.spread.same_numbers.recording", lambda device: True),
        pytest.raises(RuntimeError, match="a rule draws random numbers, and the workers"),
    ):
        torch.rand(2)


class Waiting(optim.Optimizer):
    """Does what no graph can hold."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")


@world(1)
def test_what_ends_a_recording_is_not_blamed_on_cut_parameters() -> None:
    mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("sharding",))
    parameter = distribute_tensor(torch.ones(2), mesh, [Shard(0)]).requires_grad_()
    job: Any = SimpleNamespace(optimizer=Waiting([parameter]), recorded=None)
    with pytest.raises(PlanError, match="Waiting cannot update parameters that are cut"):
        plain_step(job).update()
    job.recorded = Recorded()
    with pytest.raises(RuntimeError, match=r"^operation not permitted"):
        plain_step(job).update()
