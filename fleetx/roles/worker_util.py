"""`fleet.util`: small collectives over the workers, for numbers that are not gradients."""

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from fleetx.expected import a, expect
from fleetx.roles.messages import as_array, decode, encode, gather_bytes
from fleetx.roles.role import Identity
from fleetx.roles.session import world

Array = np.ndarray[Any, Any]

_MODES: dict[str, tuple[dist.ReduceOp.RedOpType, Callable[..., Any]]] = {
    "sum": (dist.ReduceOp.SUM, np.sum),
    "min": (dist.ReduceOp.MIN, np.min),
    "max": (dist.ReduceOp.MAX, np.max),
}
_NATIVE = frozenset(
    np.dtype(name) for name in ("int8", "uint8", "int32", "int64", "float32", "float64")
)
"""What gloo adds itself; the rest is gathered and added here."""


class WorkerUtil:
    """Collectives, file shards and printing over the workers of the job."""

    def all_reduce(self, input: Any, mode: str = "sum", comm_world: str = "worker") -> Array:
        """Reduce numbers over all workers.

        Args:
            input: a number, a list, an array or a tensor; the same shape and type everywhere.
            mode: "sum", "min" or "max".
            comm_world: "worker"; servers take part in no collective.

        Returns:
            An array of the same shape and type; booleans count as int64, bfloat16 as float32.
        """
        _check_world(comm_world)
        expect("fleet.util.all_reduce", "mode", mode, a(str, "a word"))
        if mode not in _MODES:
            raise ValueError(f"mode={mode!r} is not known; use one of {', '.join(_MODES)}")
        array = _countable(as_array(input))
        group = self.meet("util.all_reduce")
        if group is None:
            return array.copy()
        _check_alike(array, mode, group)
        reduce = _reduce if array.dtype in _NATIVE and array.size else _gather_and_reduce
        return reduce(array, mode, group)

    def all_gather(self, input: Any, comm_world: str = "worker") -> list[Any]:
        """Return the values of all workers in their order; they need not be alike.

        Args:
            input: a number, a string, a list or dict of them, an array or a tensor.
            comm_world: "worker"; servers take part in no collective.
        """
        _check_world(comm_world)
        payload = encode(input)
        group = self.meet("util.all_gather")
        said = [payload] if group is None else gather_bytes(payload, group)
        return [decode(data) for data in said]

    def barrier(self, comm_world: str = "worker", *, query: str = "util.barrier") -> None:
        """Wait until every worker is here; `query` names the caller in complaints."""
        _check_world(comm_world)
        group = self.meet(query)
        if group is not None:
            # The count is kept by worker 0, which must not leave before all have read it.
            dist.barrier(group)

    def get_file_shard(self, files: list[str]) -> list[str]:
        """This worker's share of the files: consecutive ones, as even as can be."""
        found = worker_identity("util.get_file_shard")
        return shard(files, found.index, found.worker_num)

    def print_on_rank(self, message: object, rank_id: int) -> None:
        """Print on the worker with this index and nowhere else."""
        found = world("util.print_on_rank").identity
        if not 0 <= rank_id < found.worker_num:
            raise ValueError(
                f"rank_id={rank_id} is no worker; pass a number from 0 to {found.worker_num - 1}"
            )
        if found.is_worker and found.index == rank_id:
            sys.stdout.write(f"{message}\n")
            sys.stdout.flush()

    def meet(self, query: str) -> dist.ProcessGroup | None:
        """Wait for all workers and return their group; None for a worker without peers."""
        found = worker_identity(query)
        if found.worker_num == 1:
            return None
        here = world(query)
        if here.group is None or here.barrier is None:
            raise RuntimeError(
                f"fleet.{query}() needs a group of the {found.worker_num} workers, but "
                f"{found.source} does not say where they meet; pass worker_endpoints=[...] to the "
                "role maker, or set MASTER_ADDR and MASTER_PORT for every worker"
            )
        here.barrier.await_all(f"fleet.{query}()")
        return here.group


util = WorkerUtil()
"""The object behind `fleet.util`."""


def shard(files: list[str], index: int, count: int) -> list[str]:
    """The index-th of count consecutive blocks; the first blocks are one longer if need be."""
    if not isinstance(files, list):
        raise TypeError(
            f"files={files!r} is not a list; pass the list of all files on every worker"
        )
    size, longer = divmod(len(files), count)
    begin = index * size + min(index, longer)
    return files[begin : begin + size + (index < longer)]


def worker_identity(query: str) -> Identity:
    """Who this worker is; a server is told that the call is none of its own."""
    found = world(query).identity
    if not found.is_worker:
        raise RuntimeError(
            f"fleet.{query}() was called on server {found.index}, but only workers take part; "
            "call it where fleet.is_worker() is true"
        )
    return found


def _check_world(comm_world: str) -> None:
    if comm_world == "worker":
        return
    if comm_world in ("server", "all"):
        raise ValueError(
            f"comm_world={comm_world!r} is not supported: servers answer requests and take part in "
            "no collective; use comm_world='worker'"
        )
    raise ValueError(f"comm_world={comm_world!r} is not known; use 'worker'")


def _countable(array: Array) -> Array:
    return array.astype(np.int64) if array.dtype == np.bool_ else array


def _check_alike(array: Array, mode: str, group: dist.ProcessGroup) -> None:
    """Refuse, on every worker, inputs that do not fit each other."""
    own = f"{mode} of {array.dtype} with shape {array.shape}"
    said = [json.loads(data) for data in gather_bytes(json.dumps(own).encode(), group)]
    if len(set(said)) > 1:
        listed = "; ".join(f"worker {index}: {text}" for index, text in enumerate(said))
        raise ValueError(
            f"fleet.util.all_reduce() got inputs that differ ({listed}); "
            "pass the same shape, type and mode on every worker"
        )


def _reduce(array: Array, mode: str, group: dist.ProcessGroup) -> Array:
    # A copy, for the caller's array must not change; at least one axis, for gloo wants a tensor.
    tensor = torch.from_numpy(np.array(array, ndmin=1))
    dist.all_reduce(tensor, op=_MODES[mode][0], group=group)
    return tensor.numpy().reshape(array.shape)


def _gather_and_reduce(array: Array, mode: str, group: dist.ProcessGroup) -> Array:
    arrays = [decode(data) for data in gather_bytes(encode(array), group)]
    return np.asarray(_MODES[mode][1](arrays, axis=0), dtype=array.dtype)
