"""All legal plans for three models, expected and measured, on workers of this machine.

Every plan that `strategy.auto` would consider is run for a few updates, with the same number of
samples in each. What the choice is worth, by what is expected alone and after the tries of
`strategy.auto`: its time against that of the best plan, and against plain data parallel with and
without amp.

    python -m benchmarks.lattice                                  # 2 workers, all models
    python -m benchmarks.lattice --workers 2 4 8 --json benchmarks/lattice.json
    python -m benchmarks.lattice --models mlp --most 20           # a look: 20 plans, evenly chosen
    python -m benchmarks.lattice --seconds 60 --json some.json    # each case for a minute at most
    python -m benchmarks.lattice --table benchmarks/lattice.json  # what was measured before
    python -m benchmarks.lattice --again benchmarks/lattice.json  # the same, reckoned anew

Plans are measured in two rounds (--rounds), the second in the other order; the least time counts.
Ctrl-C or --seconds keep what was measured, and the next run with the same --json goes on from
there. The file also has what the machine was measured to do, and each operator on it: by these,
--again finds what is expected now of plans that were measured then.

On cores that others use, `chrt -f 10 python -m benchmarks.lattice` (root) lets workers come first;
where they are more than the cores, `chrt -r 10`.
"""

import argparse
import json
import logging
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

import fleetx as fleet
from fleetx import roles
from fleetx.api.chores import with_chores
from fleetx.auto.choose import subject_of
from fleetx.auto.clock import OperatorClock
from fleetx.auto.cluster import Cluster, read
from fleetx.auto.estimate import Estimate, estimate
from fleetx.auto.probe import probe
from fleetx.auto.report import switched_on
from fleetx.auto.search import Planned, Search
from fleetx.auto.tries import Candidate, Tries
from fleetx.config.job_options import AutoConfig
from fleetx.plan.accounts import Accounts
from fleetx.plan.compose import compose
from fleetx.plan.subject import Subject
from fleetx.testing import world

WARM, UPDATES, ROUNDS = 1, 4, 2
CPU = torch.device("cpu")
Row = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """A model with one worker's batch."""

    model: Callable[[], nn.Module]
    inputs: Callable[[int], Any]
    targets: Callable[[int], Tensor]
    criterion: Callable[[Any, Tensor], Tensor]
    samples: int


def wide() -> nn.Module:
    """An MLP with wide layers."""
    layers = [layer for _ in range(4) for layer in (nn.Linear(1024, 1024), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(1024, 10))


class Block(nn.Module):
    """Two convolutions and the way past them."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(after), nn.BatchNorm2d(after)])
        self.past = nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Both ways, added."""
        y = functional.relu(self.norms[0](self.first(x)))
        return functional.relu(self.norms[1](self.second(y)) + self.past(x))


def resnet() -> nn.Module:
    """A small ResNet."""
    blocks = [Block(16, 32, 2), Block(32, 32, 1), Block(32, 64, 2), Block(64, 64, 1)]
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 1, 1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)
    )


def transformer() -> nn.Module:
    """A small GPT-2 of transformers."""
    from tests.libraries import transformers

    config = transformers.GPT2Config(
        n_layer=4, n_embd=128, n_head=4, vocab_size=512, n_positions=64, use_cache=False
    )
    made: nn.Module = transformers.GPT2LMHeadModel(config)
    return made


def words(outputs: Any, targets: Tensor) -> Tensor:
    """The loss of a language model."""
    return functional.cross_entropy(outputs.logits.flatten(0, 1), targets.flatten())


JOBS = {
    "mlp": Job(
        wide,
        lambda n: torch.randn(n, 1024),
        lambda n: torch.randint(10, (n,)),
        functional.cross_entropy,
        16,
    ),
    "resnet": Job(
        resnet,
        lambda n: torch.randn(n, 3, 32, 32),
        lambda n: torch.randint(10, (n,)),
        functional.cross_entropy,
        16,
    ),
    "transformer": Job(
        transformer,
        lambda n: {"input_ids": torch.randint(512, (n, 64))},
        lambda n: torch.randint(512, (n, 64)),
        words,
        8,
    ),
}


def took(name: str, settings: Mapping[str, Any], batch: int, merged: int) -> float:
    """Seconds of an update under a plan, on one of its workers."""
    job, strategy = JOBS[name], fleet.DistributedStrategy()
    for flag, value in settings.items():
        setattr(strategy, flag, value)
    logging.disable(logging.INFO)  # init() would set the level of a logger again
    fleet.init(is_collective=True, strategy=strategy)
    torch.manual_seed(0)
    sample = job.inputs(batch)
    model: Any = fleet.distributed_model(job.model(), criterion=job.criterion, sample=sample)
    optimizer = fleet.distributed_optimizer(torch.optim.AdamW(model.parameters(), lr=1e-3))
    data = [sample, job.targets(batch)]
    times = []
    for _ in range(WARM + UPDATES):
        began = time.perf_counter()
        for _ in range(merged):
            model.train_batch(data, optimizer)
        times.append(time.perf_counter() - began)
    roles.stop()
    return min(times[WARM:])


@dataclass
class Kept:
    """What was measured, as it lies in the file."""

    rows: list[Row]
    machines: dict[str, Any]
    """Number of workers -> what the machine does with so many."""
    operators: dict[str, Any]
    """Model and number of workers -> what operators take."""

    @staticmethod
    def of(file: Path | None) -> "Kept":
        """What is in the file, or nothing."""
        if file is None or not file.exists():
            return Kept([], {}, {})
        found = json.loads(file.read_text())
        return Kept(found, {}, {}) if isinstance(found, list) else Kept(**found)

    def save(self, file: Path | None) -> None:
        """Write it down."""
        if file is not None:
            file.write_text(json.dumps(vars(self), indent=1))


def machine(workers: int) -> dict[str, Any]:
    """What this machine does with so many workers, all of which call it."""
    logging.disable(logging.INFO)
    fleet.init(is_collective=True)
    found = with_chores(probe(CPU, workers_here=workers))
    roles.stop()
    return asdict(found)


def expected(name: str, measured: dict[str, Any]) -> tuple[list[Row], dict[str, Any]]:
    """All legal plans, the fastest first, and what operators take; the first worker says it."""
    if dist.get_rank() != 0:
        return [], {}
    cluster = read(measured, "the machine")
    subject = subject_for(name, cluster)
    search = Search(subject=subject, cluster=cluster, given=fleet.DistributedStrategy())
    rows = [_row(name, cluster.workers, search, planned) for planned in search.best(1_000_000)]
    assert isinstance(subject.clock, OperatorClock)
    return rows, dict(subject.clock.known)


def subject_for(name: str, cluster: Cluster) -> Subject:
    """One of the models, its optimizer and one worker's batch."""
    job = JOBS[name]
    model = job.model()
    return subject_of(
        model,
        sample=job.inputs(job.samples),
        optimizer=torch.optim.AdamW(model.parameters()),
        criterion=job.criterion,
        targets=job.targets(job.samples),
        clock=OperatorClock(CPU, cluster.device, calls_models=True),
    )


def again(kept: Kept) -> list[Row]:
    """The rows with what is expected of them now, of cases whose machine is known."""
    subjects: dict[str, tuple[Subject, Cluster]] = {}
    found = []
    for row in kept.rows:
        case = f"{row['model']} {row['workers']}"
        if case not in kept.operators:
            continue
        if case not in subjects:
            cluster = read(kept.machines[str(row["workers"])], "the machine")
            subject = subject_for(row["model"], cluster)
            assert isinstance(subject.clock, OperatorClock)
            subject.clock.known.update({k: tuple(v) for k, v in kept.operators[case].items()})
            subjects[case] = subject, cluster
        found.append({**row, "expected": _reckoned(row, *subjects[case]).seconds})
    return found


def _reckoned(row: Row, subject: Subject, cluster: Cluster) -> Estimate:
    strategy = fleet.DistributedStrategy()
    for flag, value in row["settings"].items():
        setattr(strategy, flag, value)
    plan = compose(strategy.request(), row["workers"])
    return estimate(Accounts(plan, subject.with_samples(row["batch"])), cluster)


def rows_of(name: str, workers: int, most: int | None, kept: Kept) -> list[Row]:
    """What is expected of each plan; of very many, some that are evenly chosen."""
    if str(workers) not in kept.machines:
        kept.machines[str(workers)] = world(workers, timeout=600).run(machine, workers)[0]
    measured = kept.machines[str(workers)]
    rows, operators = world(workers, timeout=600).run(expected, name, measured)[0]
    kept.operators[f"{name} {workers}"] = operators
    rows[0]["chosen"] = True
    if most is None or len(rows) <= most:
        return rows
    step = len(rows) / most
    picked = {round(at * step) for at in range(most)}
    return [row for at, row in enumerate(rows) if at in picked or row["plain"]]


def _row(name: str, workers: int, search: Search, planned: Planned) -> Row:
    strategy = search.strategy(planned.choice)
    merge = strategy.gradient_merge_configs["k_steps"] if strategy.gradient_merge else 1
    flags = switched_on(strategy)
    return {
        "model": name,
        "workers": workers,
        "settings": strategy.explicit(),
        "batch": planned.batch,
        "merged": int(merge),
        "expected": planned.estimate.seconds,
        "memory": planned.estimate.memory,
        "chosen": False,
        "plain": planned.plan.mesh["dp"] == workers and set(flags) <= {"amp"},
    }


def measure(rows: list[Row], keep: Callable[[], None], seconds: float, rounds: int) -> None:
    """Run what was not run yet, in so many rounds, for so long."""
    until = time.monotonic() + seconds
    for number in range(rounds):
        for at, row in enumerate(_spread(rows) if number % 2 == 0 else _spread(rows)[::-1]):
            if len(row.setdefault("measured", [])) > number:
                continue
            if time.monotonic() > until:
                break
            print(
                f"{row['model']} on {row['workers']}: {number + 1}. {at + 1}/{len(rows)}",
                end="\r",
                flush=True,
            )
            row["measured"].append(_run(row))
            keep()
    print()


def _spread(rows: list[Row]) -> list[Row]:
    """What was chosen, plain ones, then others, so that any beginning is an even sample."""
    first = [row for row in rows if row["chosen"] or row["plain"]]
    rest = [row for row in rows if row not in first]
    step = 1 << max(len(rest) - 1, 0).bit_length()
    order: dict[int, Row] = {}
    while step:
        order.update({at: rest[at] for at in range(0, len(rest), step) if at not in order})
        step //= 2
    return [*first, *order.values()]


def _run(row: Row) -> float | None:
    """The slowest worker's time; None for a plan that fails, which is a mistake and is shown."""
    arguments = row["model"], row["settings"], row["batch"], row["merged"]
    try:
        return max(world(row["workers"], timeout=120).run(took, *arguments))
    except Exception as error:
        print(f"\nFAILED {row['settings']}: {type(error).__name__}: {str(error)[:300]}")
        return None


def table(rows: list[Row]) -> None:
    """What the choices were worth."""
    print(f"{'model':12} workers  plans  expected/best  tried/best  tried/plain  rank corr.  error")
    for name, workers in dict.fromkeys((row["model"], row["workers"]) for row in rows):
        group = [row for row in rows if (row["model"], row["workers"]) == (name, workers)]
        ran = [(row, min(row["measured"])) for row in group if _is_measured(row)]
        if len(ran) < 3:
            continue
        best = min(time for _, time in ran)
        chosen = next((time for row, time in ran if row["chosen"]), float("nan"))
        tried = _tried(ran)
        plain = min((time for row, time in ran if row["plain"]), default=float("nan"))
        errors = [abs(row["expected"] / time - 1) for row, time in ran]
        order = statistics.correlation(
            _ranks([row["expected"] for row, _ in ran]), _ranks([time for _, time in ran])
        )
        print(
            f"{name:12} {workers:7}  {len(ran):5}  {chosen / best:13.3f}  {tried / best:10.3f}  "
            f"{tried / plain:11.3f}  {order:10.2f}  {statistics.mean(errors):5.0%}"
        )


def _tried(ran: list[tuple[Row, float]]) -> float:
    """What the plan takes that `strategy.auto` chooses after its tries."""
    tries = Tries([candidate(row) for row, _ in ran])
    for _ in range(min(AutoConfig().trials, len(ran))):
        at = tries.next()
        assert at is not None
        tries.took[at] = ran[at][1]
    return tries.took[tries.best]


def candidate(row: Row) -> Candidate:
    """A plan of the table as `strategy.auto` would look at it."""
    degrees = row["settings"].get("hybrid_configs", {})
    spread = ((axis.removesuffix("_degree"), ranks) for axis, ranks in degrees.items() if ranks > 1)
    flags = {flag for flag, value in row["settings"].items() if value is True}
    return Candidate(frozenset(flags), frozenset(spread), row["expected"])


def _ranks(values: list[float]) -> list[float]:
    """The place of each value; equal ones share theirs."""
    ordered = sorted(values)
    return [(ordered.index(v) + len(ordered) - ordered[::-1].index(v) - 1) / 2 for v in values]


def _is_measured(row: Row) -> bool:
    return bool(row.get("measured")) and None not in row["measured"]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", nargs="+", type=int, default=[2])
    parser.add_argument("--models", nargs="+", choices=JOBS, default=[*JOBS])
    parser.add_argument("--most", type=int, help="plans of each case (default: all)")
    parser.add_argument("--json", type=Path, help="where figures are kept")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of each case")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="of each case, at most")
    parser.add_argument("--table", type=Path, help="print what is kept, and measure nothing")
    parser.add_argument("--again", type=Path, help="the same, with what is expected now")
    options = parser.parse_args()
    if options.table or options.again:
        table(Kept.of(options.table).rows if options.table else again(Kept.of(options.again)))
        return
    kept = Kept.of(options.json)
    for workers in options.workers:
        for name in options.models:
            rows = [row for row in kept.rows if (row["model"], row["workers"]) == (name, workers)]
            if not rows:
                rows = rows_of(name, workers, options.most, kept)
                kept.rows += rows
            measure(rows, partial(kept.save, options.json), options.seconds, options.rounds)
    table(kept.rows)


if __name__ == "__main__":
    main()
