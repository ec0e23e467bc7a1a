"""A plan in words: what runs, in which order, and what it makes the ranks exchange."""

from collections.abc import Iterator

from torch import nn

from fleetx.plan.compose import Plan


def explain(plan: Plan, model: nn.Module | None = None) -> str:
    """The plan as a table; with a model, traffic is given in bytes."""
    weights = sum(p.numel() * p.element_size() for p in model.parameters()) if model else 0
    return "\n".join((_head(plan), *_rows(plan), *_traffic(plan, weights, model is not None)))


def _head(plan: Plan) -> str:
    workers = 1
    for size in plan.mesh.values():
        workers *= size
    shape = " x ".join(f"{axis} {size}" for axis, size in plan.mesh.items())
    return f"Plan for {workers} worker{'s' * (workers != 1)}: {shape}"


def _rows(plan: Plan) -> Iterator[str]:
    for number, strategy in enumerate(plan.strategies, 1):
        phase = strategy.contract.phase.name.lower()
        touches = ", ".join(sorted(strategy.contract.touches)) or "nothing"
        yield f"  {number}. {phase:<10} {strategy.name:<18} changes {touches}"
        given = {
            name: value
            for name, value in strategy.config.values().items()
            if value != getattr(type(strategy.config)(), name)
        }
        if given:
            yield f"{'':16}{', '.join(f'{name}={value!r}' for name, value in given.items())}"


def _traffic(plan: Plan, weights: int, known: bool) -> Iterator[str]:
    exchanges = [e for s in plan.strategies for e in s.exchanges(weights, plan.mesh)]
    if not exchanges:
        yield "  Nothing is exchanged between workers."
        return
    yield "  Exchanged:"
    for exchange in exchanges:
        size = f", {_bytes(exchange.sent_bytes)} sent by each rank" if known else ""
        yield f"    {exchange.collective} of {exchange.what} {exchange.when}{size}"


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"
