"""What exchanges of an update take, and what of them computing hides."""

from collections.abc import Sequence
from math import ceil, prod

from fleetx.auto.cluster import Cluster, Link
from fleetx.plan.accounts import Accounts, Needs
from fleetx.plan.exchange import Exchange
from fleetx.plan.mesh import AXES

BUCKET = 32e6
"""Bytes that collectives of many tensors send at once."""


def exchanges(
    needs: Sequence[Needs], accounts: Accounts, cluster: Cluster, backward: float
) -> tuple[float, float]:
    """Seconds of all exchanges of the busiest rank, and what of them nothing hides."""
    worst = (0.0, 0.0)
    for one in needs:
        beside, alone, busy, least = 0.0, 0.0, 0.0, 0.0
        for exchange in one.exchanges:
            link = _link(exchange, accounts, cluster)
            seconds = _exchange_seconds(exchange, accounts, link)
            if exchange.beside:
                busy += seconds * link.busy
                beside += seconds * (1 - link.busy)
                least += seconds * (1 - link.busy) / _in_turn(exchange)
            else:
                alone += seconds
        exposed = alone + busy + max(least, beside - backward)
        worst = max(worst, (exposed, beside + busy + alone))
    exposed, every = worst
    return every, exposed


def _pieces(exchange: Exchange) -> int:
    return exchange.pieces or max(1, ceil(exchange.moved_bytes / BUCKET))


def _in_turn(exchange: Exchange) -> float:
    """How many pieces travel one after the other while a rank computes: nothing hides one of them.

    The first that a forward needs, or the last that a backward makes; stages of a pipeline go on
    with other micro-batches meanwhile.
    """
    return max(1.0, exchange.times or 1) if exchange.collective == "send" else _pieces(exchange)


def _link(exchange: Exchange, accounts: Accounts, cluster: Cluster) -> Link:
    mesh = accounts.plan.mesh
    ranks, stride = 1, 1
    for at, axis in enumerate(AXES):
        if axis in exchange.axis.split(" x "):
            ranks *= mesh[axis]
            stride = prod(mesh[inner] for inner in AXES[at + 1 :])
    return cluster.link(ranks, stride)


def _exchange_seconds(exchange: Exchange, accounts: Accounts, link: Link) -> float:
    if exchange.times is None:
        return 0.0
    mesh = accounts.plan.mesh
    ranks = prod(mesh[axis] for axis in exchange.axis.split(" x ") if axis in mesh)
    hops = {"all-reduce": 2 * (ranks - 1), "send": 1}.get(exchange.collective, ranks - 1)
    messages = hops * _pieces(exchange)
    return exchange.times * link.seconds(exchange.sent_bytes, messages, exchange.collective)
