"""The most memory at once, as expected before a step and as torch's tracker sees it in one."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed._tools.mem_tracker import MemTracker
from torch.nn import functional
from torch.optim import Adam

import fleetx as fleet
from fleetx.auto.estimate import estimate
from fleetx.engine.engine import Engine
from fleetx.plan.accounts import Accounts
from fleetx.plan.backward_memory import as_it_begins, as_it_begins_beside_outputs
from fleetx.plan.compose import compose
from fleetx.plan.subject import Subject
from fleetx.static.run.single_worker import LoneMesh
from tests.auto.test_search import cluster
from tests.libraries import torchvision, transformers

WORDS, LENGTH = 4000, 32


def gpt() -> nn.Module:
    """Whose head has many more words than its blocks have numbers: the loss needs the most."""
    config = transformers.GPT2Config(
        n_layer=2,
        n_embd=32,
        n_head=2,
        vocab_size=WORDS,
        n_positions=LENGTH,
        use_cache=False,
        attn_implementation="eager",
    )
    model: nn.Module = transformers.GPT2LMHeadModel(config)
    return model


def resnet() -> nn.Module:
    """Whose first values are the largest, and whose gradients come when all others are gone."""
    model: nn.Module = torchvision.models.resnet18(num_classes=10)
    return model


def wide() -> nn.Module:
    """Whose gradients are as large as all that waits for the backward."""
    layers = [nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(8)]
    return nn.Sequential(*layers, nn.Linear(256, 10))


def of_words(outputs: Any, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs.logits.flatten(0, 1), targets.flatten())


@pytest.mark.parametrize(
    ("model", "sample", "targets", "criterion"),
    [
        pytest.param(
            gpt,
            {"input_ids": torch.zeros(8, LENGTH, dtype=torch.long)},
            torch.zeros(8, LENGTH, dtype=torch.long),
            of_words,
            id="gpt2",
        ),
        pytest.param(
            resnet,
            torch.zeros(16, 3, 64, 64),
            torch.zeros(16, dtype=torch.long),
            functional.cross_entropy,
            id="resnet18",
            marks=pytest.mark.rare,
        ),
        pytest.param(
            wide,
            torch.zeros(256, 256),
            torch.zeros(256, dtype=torch.long),
            functional.cross_entropy,
            id="wide layers",
        ),
    ],
)
def test_the_worst_moment_of_a_step(
    model: Callable[[], nn.Module], sample: Any, targets: Tensor, criterion: Any
) -> None:
    made = model()
    optimizer = Adam(made.parameters())
    subject = Subject(
        model=made, optimizer=optimizer, sample=sample, targets=targets, criterion=criterion
    )
    plan = compose(fleet.DistributedStrategy().request(), 1)
    expected = estimate(Accounts(plan, subject), cluster(devices_per_node=1)).memory

    mesh, device = LoneMesh(), torch.device("cpu")
    engine = Engine(plan, made, device=device, mesh=mesh, criterion=criterion)
    moving = engine.attach(optimizer)
    engine.train_batch((sample, targets))  # makes the optimizer's state
    tracker = MemTracker()
    tracker.track_external(made, moving)
    with tracker:
        engine.train_batch((sample, targets))
    peak = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    assert expected == pytest.approx(peak, rel=0.05)


def test_outputs_stay_where_a_schedule_keeps_them() -> None:
    made = nn.Linear(8, 4000)
    subject = Subject(
        model=made,
        sample=torch.zeros(64, 8),
        targets=torch.zeros(64, dtype=torch.long),
        criterion=functional.cross_entropy,
    )
    trace = Accounts(compose(fleet.DistributedStrategy().request(), 1), subject).share(0).trace
    assert trace is not None
    scores = 64 * 4000 * 4
    # Gradients of scores and of their logarithms, which alone wait for the backward.
    assert as_it_begins(trace) == pytest.approx(2 * scores, rel=0.01)
    assert as_it_begins_beside_outputs(trace) == pytest.approx(3 * scores, rel=0.01)


def test_a_captured_step_reads_a_copy_of_the_batch() -> None:
    made, sample = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)), torch.zeros(4096, 8)
    targets = torch.zeros(4096, dtype=torch.long)
    subject = Subject(
        model=made,
        optimizer=Adam(made.parameters()),
        sample=sample,
        targets=targets,
        criterion=functional.cross_entropy,
    )
    found = []
    for captured in (False, True):
        strategy = fleet.DistributedStrategy()
        strategy.cuda_graph = captured
        plan = compose(strategy.request(), 1)
        found.append(estimate(Accounts(plan, subject), cluster(devices_per_node=1)))
    plain, captured_one = found
    assert captured_one.memory - plain.memory == sample.nbytes + targets.nbytes
    assert "batch" not in plain.held, "backward keeps it, and it counts once"
