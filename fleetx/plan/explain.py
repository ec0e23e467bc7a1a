"""A plan in words: what runs in which order, what ranks send, what they keep, and why."""

from collections.abc import Iterator
from math import prod

from torch import nn

from fleetx.plan.exchange import Exchange
from fleetx.plan.mesh import in_words
from fleetx.plan.strategy import Plan, Strategy


def explain(plan: Plan, model: nn.Module | None = None) -> str:
    """The plan as a table; with a model, traffic and memory are given in bytes."""
    trained = [p for p in model.parameters() if p.requires_grad] if model is not None else []
    weights = sum(p.numel() * p.element_size() for p in trained)
    known = model is not None
    return "\n".join(
        (
            _head(plan),
            f"  {_batch(plan)}",
            *_rows(plan),
            *(f"  {line}" for line in at_rest(plan)),
            *_remarks(plan),
            *_traffic(plan, weights, known),
            *_memory(plan, weights, known),
        )
    )


def _head(plan: Plan) -> str:
    workers = prod(plan.mesh.values())
    return f"Plan for {workers} worker{'s' * (workers != 1)}: {in_words(plan.mesh)}"


def at_rest(plan: Plan) -> list[str]:
    """The flags that are on and have nothing to do in this job, one sentence for each reason."""
    flags: dict[str, list[str]] = {}
    for name, why in plan.resting.items():
        flags.setdefault(why, []).append(name)
    return [f"At rest: {', '.join(names)}, because {why}." for why, names in flags.items()]


def _batch(plan: Plan) -> str:
    """The global batch, the gradient of whose mean every update follows."""
    known: dict[str, int] = {}
    for strategy in plan.strategies:
        known |= strategy.batch()
    shares, merged = plan.mesh["dp"] * plan.mesh["sharding"], known.get("batches", 1)
    parts = ["one worker's batch"]
    if shares > 1:
        axes = [f"{axis} {plan.mesh[axis]}" for axis in ("dp", "sharding") if plan.mesh[axis] > 1]
        parts.append(f"{shares} shares of the data ({' x '.join(axes)})")
    if merged > 1:
        parts.append(f"{merged} batches per update")
    micro = ""
    if "micro_batch" in known:
        micro = f"; each batch runs in micro-batches of {known['micro_batch']}"
    elif "micro_batches" in known:
        micro = f"; each batch runs in {known['micro_batches']} micro-batches"
    return f"Global batch: {' x '.join(parts)}{micro}."


def _rests(strategy: Strategy, plan: Plan) -> bool:
    return f"strategy.{strategy.name}" in plan.resting


def _rows(plan: Plan) -> Iterator[str]:
    for number, strategy in enumerate(plan.strategies, 1):
        phase = strategy.contract.phase.name.lower()
        touches = ", ".join(sorted(strategy.contract.touches)) or "nothing"
        effect = "is at rest" if _rests(strategy, plan) else f"changes {touches}"
        yield f"  {number}. {phase:<10} {strategy.name:<18} {effect}"
        normal = type(strategy.config)()
        values = strategy.config.values().items()
        given = [f"{name}={value!r}" for name, value in values if value != getattr(normal, name)]
        if given:
            yield f"{'':16}with {', '.join(given)}"


def _remarks(plan: Plan) -> Iterator[str]:
    for strategy in plan.strategies:
        for remark in () if _rests(strategy, plan) else strategy.remarks():
            yield f"  {remark}"


def _traffic(plan: Plan, weights: int, known: bool) -> Iterator[str]:
    exchanges: tuple[Exchange, ...] = ()
    for strategy in reversed(plan.strategies):
        exchanges = strategy.exchanges(exchanges, weights, plan.mesh)
    if not exchanges:
        yield "  Nothing is exchanged between workers."
        return
    yield "  Exchanged:"
    for exchange in exchanges:
        told = known and exchange.sent_bytes
        size = f", {_bytes(exchange.sent_bytes)} sent by each rank" if told else ""
        what = f"{exchange.collective} of {exchange.what} {exchange.when}"
        yield f"    {what}{size}{_because(exchange.decided_by)}"


def _memory(plan: Plan, weights: int, known: bool) -> Iterator[str]:
    kept = [m for strategy in plan.strategies for m in strategy.memory(weights, plan.mesh)]
    if kept:
        yield "  Kept on each rank, besides parameters, gradients and the optimizer's own state:"
    for memory in kept:
        size = f", {_bytes(memory.kept_bytes)}" if known else ""
        yield f"    {memory.what}{size}{_because(memory.decided_by)}"


def _because(option: str) -> str:
    return f" ({option})" if option else ""


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"
