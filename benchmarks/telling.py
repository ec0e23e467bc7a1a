"""What it costs a worker to tell its launcher what it does, as a share of a step of 5 ms.

Three parts: the words of the engine in every step, the figures that are fetched at the end of a
batch at most twice a second, and the thread that looks twice a second and writes a small file. All
are measured as time of the processor, on one process with a group.

python benchmarks/telling.py
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

import fleetx as fleet
from fleetx.api import session
from fleetx.api.told_figures import ToldFigures
from fleetx.engine.engine import Engine
from fleetx.launch.reporter import BEAT, Reporter
from fleetx.roles import activity

STEP = 5e-3
"""Seconds of the step against which it is held."""


def words() -> None:
    """What the engine says in the step of a usual loop."""
    activity.call()
    activity.begin_batch()
    activity.enter("in backward")
    activity.enter("in the update")
    activity.end_batch(True)


def figures_of_a_step() -> Callable[[], None]:
    """What looks at every batch of a model, and fetches something of it twice a second."""
    fleet.init(is_collective=True)
    model = fleet.distributed_model(torch.nn.Linear(8, 2))
    fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    engine: Engine = session.engines()[0]
    ToldFigures().begin(engine)  # the last to be called, whoever else looks
    batch, loss = (torch.zeros(4, 8),), torch.zeros(())

    def look() -> None:
        engine.given_batch[-1](engine, batch)
        engine.finished[-1](engine, loss)

    return look


def per_call(function: Callable[[], None], calls: int, rounds: int) -> float:
    """Seconds of the processor that one call takes: the median of some rounds."""
    found = []
    for _ in range(rounds):
        began = time.thread_time()
        for _ in range(calls):
            function()
        found.append((time.thread_time() - began) / calls)
    return statistics.median(found)


def main() -> None:
    """Measure both and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=21)
    rounds = parser.parse_args().rounds
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    figures = figures_of_a_step()
    with tempfile.TemporaryDirectory() as folder:
        reporter = Reporter(str(Path(folder) / "activity"), after=3.0)

        def beat() -> None:
            activity.begin_batch()  # so that it goes on
            reporter.beat()

        said, told = per_call(words, 1000, rounds), per_call(beat, 50, rounds)
        found = per_call(figures, 1000, rounds)
    share = (said + found) / STEP + told / BEAT
    print(f"words of the engine   {said * 1e6:6.2f} us a step    {said / STEP:.4%}")
    print(f"figures of a batch    {found * 1e6:6.2f} us a step    {found / STEP:.4%}")
    print(f"looking and writing   {told * 1e6:6.2f} us, 2 a s    {told / BEAT:.4%}")
    print(f"together              {share:.4%} of a step of 5 ms (at most 0.2 %)")


if __name__ == "__main__":
    main()
