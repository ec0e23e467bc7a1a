"""``fleet.profile``: where a step goes on the user's own model and batches, without a script."""

import copy
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from fleetx import roles
from fleetx.api.optimizer import DistributedOptimizer
from fleetx.api.session import mesh
from fleetx.api.trials import as_it_was
from fleetx.comm.transfer import to_device
from fleetx.config.distributed_strategy import DistributedStrategy
from fleetx.engine.engine import Engine
from fleetx.expected import CRITERION, FLAG, ITERABLE, PATH, WHOLE, Kind, a, takes
from fleetx.plan.compose import compose
from fleetx.plan.error import PlanError
from fleetx.profiling.measuring import TRACE, Measuring, Wanted
from fleetx.profiling.phases import DATA, Phases
from fleetx.profiling.profile import Profile
from fleetx.profiling.shares import Worker
from fleetx.profiling.tracing import Traced, read
from fleetx.profiling.trying import Batch, Trier, Tries, copied
from fleetx.profiling.watching import Watching

_COUNT = Kind("a whole number above 0", lambda value: WHOLE.fits(value) and value > 0)
_FROM_ZERO = Kind("a whole number from 0 on", lambda value: WHOLE.fits(value) and value >= 0)


@takes(
    "fleet.profile",
    model=a(nn.Module, "a torch.nn.Module"),
    optimizer=Kind(
        "a torch.optim optimizer",
        lambda value: isinstance(value, Optimizer) and not isinstance(value, DistributedOptimizer),
    ),
    strategy=a(DistributedStrategy, "a DistributedStrategy"),
    batches=ITERABLE.such_as("a DataLoader, or a list of pairs of inputs and targets"),
    criterion=CRITERION,
    steps=_COUNT,
    warmup=_FROM_ZERO | None,
    tries=FLAG,
    out=PATH | None,
)
def profile(
    model: nn.Module,
    optimizer: Optimizer,
    strategy: DistributedStrategy,
    batches: Iterable[tuple[Any, Any]],
    *,
    criterion: Callable[[Any, Any], Tensor] = nn.functional.cross_entropy,
    steps: int = 10,
    warmup: int | None = None,
    tries: bool = True,
    out: str | Path | None = None,
) -> Profile:
    """Train a copy of the model for a few steps, and say where their time goes.

    Every worker calls it with its own share of the batches. Neither the model nor the optimizer is
    changed. Print the profile; ``profile.parts``, ``profile.largest`` and ``profile.best`` say the
    same to programs.

    Args:
        model: a module that is not distributed.
        optimizer: the optimizer over its parameters.
        strategy: how the model is trained.
        batches: pairs of inputs and targets; read again from the beginning if they are too few.
        criterion: outputs and targets -> loss.
        steps: how many are timed.
        warmup: how many run before; 3 by default, and 14 on a card.
        tries: try each legal flag on copies of the model, too.
        out: a folder for the table, the pictures and the traces.
    """
    if strategy.auto:
        raise PlanError(
            "fleet.profile() measures one strategy, and strategy.auto = True lets one be chosen; "
            "set strategy.auto = False and the flags that it chose."
        )
    roles.start(is_collective=True)
    wanted = Wanted(steps=steps, warmup=warmup, tries=tries)
    with as_it_was(), tempfile.TemporaryDirectory(prefix="fleetx-profile-") as folder:
        place = Path(folder if out is None else out)
        source, first = _begun(batches)
        run = _Run(model, optimizer, strategy, criterion, wanted, place, first)
        mine = run.measured(chain(source, _endless(batches)))
        found = run.tried() if tries else None
    told = roles.util.all_gather(json.dumps(asdict(mine)))
    made = Profile(workers=[_worker(json.loads(text)) for text in told], tries=found)
    if out is not None and roles.is_first_worker():
        made.save(out)
    return made


class _Run:
    """A copy of the model in training."""

    def __init__(  # noqa: PLR0917 (what the call takes)
        self,
        model: nn.Module,
        optimizer: Optimizer,
        strategy: DistributedStrategy,
        criterion: Callable[[Any, Any], Tensor],
        wanted: Wanted,
        place: Path,
        first: tuple[Any, Any],
    ) -> None:
        self._model, self._strategy, self._wanted = model, strategy, wanted
        self._trace = place / TRACE.format(roles.worker_index())
        plan = compose(strategy.request(), roles.worker_num())
        own, mover = copy.deepcopy((model, optimizer))
        self._batch = Batch()
        self._batch.given(to_device(first, roles.device()))
        self._engine = Engine(
            plan,
            own,
            device=roles.device(),
            mesh=mesh(plan),
            criterion=criterion,
            sample=self._batch.sample,
        )
        self._engine.attach(mover)

    def measured(self, batches: Iterator[tuple[Any, Any]]) -> Worker:
        """Train until all windows are full."""
        watching = Watching(Phases())
        watching.follow(self._engine)
        laps: list[dict[str, float]] = []
        measuring = Measuring(
            self._wanted,
            watching.phases,
            roles.device(),
            self._trace,
            keep=lambda lap: laps.append(dict(lap)),
        )
        try:
            with watching.watch():
                while True:
                    with watching.phases.inside(DATA):
                        batch = _checked(next(batches))
                    self._engine.train_batch(to_device(batch, roles.device()))
                    if not self._engine.holding and measuring.ended():
                        break
        finally:  # whatever goes wrong with a batch, torch's profiler does not go on
            measuring.close()
        traced = read(self._trace)
        on_card = roles.device().type == "cuda"
        return Worker(
            rank=roles.worker_index(), laps=laps, loads=True, traced=traced, on_card=on_card
        )

    def tried(self) -> Tries:
        """What came of trying flags."""
        model = copied(self._model)
        if model is None:
            return Tries(why_not="the model cannot be copied, or came without numbers")
        trier = Trier(model=model, engine=self._engine, strategy=self._strategy, batch=self._batch)
        return trier.run()


def _begun(batches: Iterable[Any]) -> tuple[Iterator[Any], tuple[Any, Any]]:
    """The batches from the first one on, and that one."""
    source = iter(batches)
    first = next(source, None)
    if first is None:
        raise ValueError("fleet.profile() got no batch; give it a loader or a list of pairs.")
    return chain([first], source), _checked(first)


def _endless(batches: Iterable[Any]) -> Iterator[Any]:
    """Once more from the beginning, again and again."""
    while True:
        count = 0
        for batch in batches:
            count += 1
            yield batch
        if not count:
            raise ValueError(
                "fleet.profile() got too few batches, and they cannot be read again; give it a "
                "loader, a list, or more of them."
            )


def _checked(batch: Any) -> tuple[Any, Any]:
    if not isinstance(batch, list | tuple) or len(batch) != 2:
        raise ValueError("fleet.profile() takes batches that are pairs of inputs and targets.")
    return batch[0], batch[1]


def _worker(told: dict[str, Any]) -> Worker:
    traced = None if told["traced"] is None else Traced(**told["traced"])
    return Worker(**{**told, "traced": traced})
