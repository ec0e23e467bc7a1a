"""How workers tell each other something: before the process group exists, and through it."""

import json
import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from fleetx.roles.environment import Environment
from fleetx.roles.role import Identity
from fleetx.roles.stores import Store

_PATIENCE = 300


def patience() -> timedelta:
    """How long a worker waits for the others to come: FLEETX_TIMEOUT seconds, 300 by default."""
    return timedelta(seconds=Environment(os.environ).number("FLEETX_TIMEOUT", _PATIENCE))


def _seconds() -> int:
    return int(patience().total_seconds())


def through_store(store: Store, topic: str, found: Identity, fact: Any) -> list[Any]:
    """Return the facts of all workers, in their order; waits for the last of them."""
    keys = [f"{topic}/{index}" for index in range(found.worker_num)]
    store.set(keys[found.index], json.dumps(fact))
    try:
        return [json.loads(said) for said in store.multi_get(keys)]
    except dist.DistStoreError as error:
        raise RuntimeError(_who_is_missing(store, keys)) from error


def _who_is_missing(store: Store, keys: list[str]) -> str:
    missing = [str(index) for index, key in enumerate(keys) if not store.check([key])]
    return (
        f"fleet.init() waited {_seconds()} s, but of {len(keys)} workers these did not "
        f"come: {', '.join(missing)}; look at their logs, or set FLEETX_TIMEOUT (seconds) if they "
        "start slowly"
    )


def through_group(payload: bytes, group: dist.ProcessGroup) -> list[bytes]:
    """Return the bytes of all members of a gloo group, in their order."""
    size = dist.get_world_size(group)
    lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(size)]
    dist.all_gather(lengths, torch.tensor([len(payload)]), group=group)
    longest = max(int(length) for length in lengths)
    # Gloo gathers equal shapes only; one more byte keeps an empty payload from an empty tensor.
    padded = torch.frombuffer(
        bytearray(payload.ljust(longest + 1, b"\0")), dtype=torch.uint8
    ).clone()
    blocks = [torch.empty_like(padded) for _ in range(size)]
    dist.all_gather(blocks, padded, group=group)
    return [
        block.numpy().tobytes()[: int(length)]
        for block, length in zip(blocks, lengths, strict=True)
    ]
