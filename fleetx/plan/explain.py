"""A plan in words: what runs in which order, what ranks send, what they keep, and why."""

from collections.abc import Iterator
from math import prod

from typing_extensions import override

from fleetx.plan.accounts import Accounts, Needs
from fleetx.plan.exchange import Exchange
from fleetx.plan.mesh import in_words
from fleetx.plan.strategy import Plan, Strategy
from fleetx.plan.subject import Subject


class Explanation(str):
    """A plan in words, which is what it prints as, and in numbers for every rank."""

    accounts: Accounts

    def __new__(cls, text: str, accounts: Accounts) -> "Explanation":
        """The words, and where the numbers come from."""
        made = super().__new__(cls, text)
        made.accounts = accounts
        return made

    @override
    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        """In another process it is the words alone; numbers are found where the model is."""
        return str, (str(self),)

    @property
    def workers(self) -> int:
        """How many ranks the plan has."""
        return self.accounts.workers

    def rank(self, number: int) -> Needs:
        """What one rank holds and sends, in bytes."""
        return self.accounts[number]

    @property
    def ranks(self) -> tuple[Needs, ...]:
        """What each rank holds and sends."""
        return tuple(self.accounts[number] for number in range(self.workers))

    @property
    def largest(self) -> Needs:
        """The rank that holds the most."""
        return max(_stages(self.accounts), key=lambda needs: needs.total)


def explain(plan: Plan, subject: Subject | None = None, unknown: str = "") -> Explanation:
    """The plan as a table; with a model, traffic and memory are given in bytes.

    Args:
        plan: what is explained.
        subject: what it is made for.
        unknown: why nothing is known of a model that was given.
    """
    accounts = Accounts(plan, subject or Subject())
    lines = (
        _head(plan),
        f"  {_batch(plan)}",
        *_rows(plan),
        *(f"  {line}" for line in at_rest(plan)),
        *_remarks(plan, accounts.subject),
        *_traffic(accounts),
        *_memory(accounts),
        *([f"  Not known: {unknown}."] if unknown else []),
    )
    return Explanation("\n".join(lines), accounts)


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


def _remarks(plan: Plan, subject: Subject) -> Iterator[str]:
    for strategy in plan.strategies:
        if not _rests(strategy, plan):
            found = () if subject.model is None else strategy.found(subject)
            yield from (f"  {remark}" for remark in (*strategy.remarks(), *found))


def _stages(accounts: Accounts) -> list[Needs]:
    """The rank of each stage that holds the most: the first of those that differ otherwise."""
    stages = accounts.plan.mesh["pp"]
    return [accounts[stage * accounts.workers // stages] for stage in range(stages)]


def _traffic(accounts: Accounts) -> Iterator[str]:
    found: dict[tuple[str, str, str], list[Exchange]] = {}
    for needs in _stages(accounts):
        for one in needs.exchanges:
            found.setdefault((one.collective, one.what, one.when), []).append(one)
    if not found:
        yield "  Nothing is exchanged between workers."
        return
    yield "  Exchanged:"
    for (collective, what, when), exchanges in found.items():
        most = max(exchanges, key=lambda one: one.sent_bytes)
        told = accounts.subject.model is not None and most.sent_bytes
        same = len({one.sent_bytes for one in exchanges}) == 1
        size = f", {'' if same else 'up to '}{_bytes(most.sent_bytes)} sent by each rank"
        text = f"{collective} of {what} {when}{size if told else ''}"
        yield f"    {text}{_because(most.decided_by)}"


def _memory(accounts: Accounts) -> Iterator[str]:
    needs = _stages(accounts)
    if accounts.subject.model is not None:
        yield "  Held by a rank:"
        yield from _table(accounts, needs)
    kept = list(dict.fromkeys((one.what, one.decided_by) for n in needs for one in n.extra))
    if kept:
        yield "  Kept on each rank, besides parameters, gradients and the optimizer's own state:"
    for what, decided_by in kept:
        sizes = [one.kept_bytes for n in needs for one in n.extra if one.what == what]
        yield f"    {what}, {_bytes(max(sizes))}{_because(decided_by)}"
    for line in dict.fromkeys(line for n in needs for line in n.unknown):
        yield f"  Not known: {line}."


_COLUMNS = ("ranks", "parameters", "gradients", "state", "activations", "besides", "together")


def _table(accounts: Accounts, stages: list[Needs]) -> Iterator[str]:
    each = accounts.workers // len(stages)
    rows = [_row(needs) for needs in stages]
    if len(set(rows)) == 1:
        rows, each = rows[:1], accounts.workers
    names = [_ranks(at * each, (at + 1) * each - 1) for at in range(len(rows))]
    lines = [_COLUMNS, *((name, *row) for name, row in zip(names, rows, strict=True))]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        yield f"    {line[0].ljust(widths[0])}  {'  '.join(cells)}"


def _ranks(first: int, last: int) -> str:
    return str(first) if first == last else f"{first} to {last}"


def _row(needs: Needs) -> tuple[str, ...]:
    besides = needs.buffers + sum(one.kept_bytes for one in needs.extra)
    numbers = (
        *(needs.parameters, needs.gradients, needs.state, needs.activations),
        *(besides, needs.total),
    )
    return tuple("?" if number is None else _bytes(number) for number in numbers)


def _because(option: str) -> str:
    return f" ({option})" if option else ""


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"
