"""Every legal set of flags about exchanges, what each sends, and the limit that a link sets."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

import fleetx as fleet
from benchmarks.exchanges.links import LINKS
from benchmarks.exchanges.models import Model
from fleetx.plan.compose import compose
from fleetx.plan.error import PlanError
from fleetx.plan.exchange import Exchange

Settings = Mapping[str, Any]

FLAGS: dict[str, dict[str, Settings]] = {
    "fp16_allreduce": {"fp16_allreduce": {}},
    "dgc": {"dgc": {}},
    "localsgd": {"localsgd": {"k_steps": 2}},
    "adaptive_localsgd": {"adaptive_localsgd": {}},
    "gradient_merge": {"gradient_merge": {"k_steps": 2}},
    "sharding": {f"sharding {stage}": {"stage": stage} for stage in (1, 2, 3)},
}
"""Flag -> its variants and their options: a set has at most one variant of each."""

HIERARCHICAL = "hierarchical"
"""An option of the job and no flag of its own; blocks of two neighbours."""

PLAIN = "plain"

BUCKETS = {"fuse_grad_size_in_MB": 2}
"""Small as the models are, so that some are under way while others are made; where it is read."""


@dataclass(frozen=True)
class Flags:
    """A set of flags that may train together."""

    names: tuple[str, ...]
    settings: Settings

    @property
    def name(self) -> str:
        """What tables call it."""
        return " + ".join(self.names) or PLAIN


def variants() -> dict[str, tuple[str, Settings]]:
    """Every variant: its name -> the flag, and what to set."""
    found: dict[str, tuple[str, Settings]] = {}
    for flag, kinds in FLAGS.items():
        for name, options in kinds.items():
            found[name] = flag, {flag: True} | ({f"{flag}_configs": options} if options else {})
    two_level = {"use_hierarchical_allreduce": True, "hierarchical_allreduce_inter_nranks": 2}
    return found | {HIERARCHICAL: (HIERARCHICAL, two_level)}


def strategy_of(settings: Settings) -> fleet.DistributedStrategy:
    """The strategy with these things set."""
    strategy = fleet.DistributedStrategy()
    for name, value in settings.items():
        setattr(strategy, name, value)
    return strategy


def refusal(settings: Settings, workers: int) -> str:
    """Why the project itself refuses this; empty if it trains."""
    try:
        plan = compose(strategy_of(settings).request(), workers)
    except PlanError as error:
        return str(error)
    return "; ".join(f"{name} rests: {why}" for name, why in plan.resting.items())


def legal(workers: int, most: int = 2) -> Iterator[Flags]:
    """Plain data parallel, every flag, and every set of up to ``most`` that trains."""
    known = variants()
    for count in range(most + 1):
        for names in itertools.combinations(known, count):
            flags = {known[name][0] for name in names}
            settings = {key: value for name in names for key, value in known[name][1].items()}
            if len(flags) == count and not refusal(settings, workers):
                cut = settings | BUCKETS
                yield Flags(names, settings if refusal(cut, workers) else cut)


@dataclass(frozen=True)
class Traffic:
    """What one rank sends for each update, by ``explain()``."""

    sent: float
    """Bytes, where what happens as often as the run decides happens once."""
    each_time: float
    """Bytes each time of what happens as often as the run decides."""
    beside: float
    """The part of a step beside which it may travel: the last of the batches of an update, if
    nothing is sent before it."""
    lines: tuple[str, ...]
    """Each exchange in words."""


def traffic(flags: Flags, model: Model, workers: int) -> Traffic:
    """Of the rank that sends the most."""
    with torch.device("meta"):
        module = model.made()
    explained = strategy_of(flags.settings).explain(module, workers=workers)
    needs = max(explained.ranks, key=lambda rank: rank.sent)
    assert not needs.unknown, needs.unknown
    batches = explained.accounts.run.batches
    is_last = all((one.times or 1) <= 1 for one in needs.exchanges)
    return Traffic(
        sent=sum(_per_update(one) for one in needs.exchanges),
        each_time=sum(one.sent_bytes for one in needs.exchanges if one.times is None),
        beside=1 / batches if is_last else 1.0,
        lines=tuple(_in_words(one) for one in needs.exchanges),
    )


def _per_update(one: Exchange) -> float:
    return one.sent_bytes if one.times is None else one.sent_bytes * one.times


def _in_words(one: Exchange) -> str:
    times = "?" if one.times is None else f"{one.times:g}"
    return f"{one.collective} of {one.what}: {one.sent_bytes} bytes x {times}"


def limit(free: float, sent: float, link: str, beside: float = 1.0) -> float:
    """Seconds below which no step can be.

    It is neither shorter than the same step with the same flags where links have no rate, nor than
    its bytes take on the link beside what is computed meanwhile. The step without rate holds the
    arithmetic of codecs, and what the processor has to do for an exchange.

    Args:
        free: seconds of the step where links have no rate.
        sent: bytes for each update.
        link: what carries them.
        beside: the part of the step beside which they may travel.
    """
    if not (rate := LINKS[link]):
        return free
    return (1 - beside) * free + max(beside * free, 8 * sent / rate)
