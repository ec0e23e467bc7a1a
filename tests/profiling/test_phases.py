"""Every way to write a loop has its phases, by a clock that ticks whenever it is asked."""

from collections.abc import Callable
from itertools import count

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import fleetx as fleet
from fleetx.api.session import engines
from fleetx.profiling.phases import Phases
from fleetx.profiling.watching import Watching
from fleetx.testing import world


class Recorded(Phases):
    """Keeps the order of what was entered."""

    def __init__(self) -> None:
        ticks = count()
        super().__init__(lambda: float(next(ticks)))
        self.entered: list[str] = []

    def enter(self, phase: str) -> None:
        super().enter(phase)
        if not self.entered or self.entered[-1] != phase:
            self.entered.append(phase)


def seen(loop: Callable[[], None], model: nn.Module) -> list[str]:
    phases = Recorded()
    watching = Watching(phases)
    (engine,) = engines()
    watching.follow(engine)
    with watching.watch():
        loop()
    before = list(phases.entered)
    torch.ones(1, requires_grad=True).sum().backward()
    assert phases.entered == before, "nothing is followed any more"
    lap = phases.lap()
    assert all(lap[name] > 0 for name in {*before} - {before[-1]})
    return before


def loops(kind: str) -> list[str]:
    fleet.init(is_collective=True)
    plain = nn.Linear(4, 1)
    model = fleet.distributed_model(plain, criterion=nn.functional.mse_loss)
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    data = DataLoader(TensorDataset(torch.ones(2, 4), torch.ones(2, 1)), batch_size=2)

    def own() -> None:
        for inputs, targets in data:
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    def minimized() -> None:
        optimizer.minimize(model(torch.ones(2, 4)).sum())

    def driven() -> None:
        model.train_batch((torch.ones(2, 4), torch.ones(2, 1)))

    def penalised() -> None:
        inputs = torch.ones(2, 4, requires_grad=True)
        outputs = model(inputs)
        (slope,) = torch.autograd.grad(outputs.sum(), inputs, create_graph=True)
        optimizer.minimize(outputs.sum() + slope.norm())

    def evaluated() -> None:
        with torch.no_grad():
            model(torch.ones(2, 4))
        minimized()

    def replayed() -> None:
        inputs = torch.ones(2, 4, requires_grad=True)
        inner = checkpoint(lambda x: x.exp(), inputs, use_reentrant=True)
        optimizer.minimize(model(inner).sum())

    loops = (own, minimized, driven, penalised, evaluated, replayed)
    found = {loop.__name__: loop for loop in loops}
    return seen(found[kind], model)


STEP = ["forward", "backward", "script", "update", "between"]


def test_loops() -> None:
    def entered(kind: str) -> list[str]:
        (found,) = world(1).run(loops, kind)
        return list(found)

    assert entered("minimized") == STEP
    assert entered("driven") == ["forward", "backward", "update", "between"]
    assert entered("evaluated") == STEP
    assert entered("replayed") == STEP
    assert entered("penalised") == ["forward", "backward", "forward", *STEP[1:]]
    data = ["data", "script", "data", "script"]  # it begins to read, and reads
    after = ["data", "between"]  # the loader says that there is no more
    assert entered("own") == [*data, *STEP, *after]


def test_threads_that_help_change_nothing() -> None:
    import threading

    phases = Recorded()
    thread = threading.Thread(target=phases.enter, args=("forward",))
    thread.start()
    thread.join()
    assert phases.now == "script"
