"""What a forked rank does: join the group, run what it is sent, answer."""

import faulthandler
import os
import resource
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

from fleetx.testing import shipping
from fleetx.testing.reset import Reset
from fleetx.testing.sources import shared_modules

_GROUP_TIMEOUT = timedelta(minutes=10)  # the pool's own limit comes first
_names: list[str] = []
"""Empty, or in a rank what to call it; what a rank forks inherits that."""


@dataclass(frozen=True, slots=True)
class Channels:
    """The file descriptors through which a rank speaks."""

    connection: int
    output: int
    traceback: int

    def close(self) -> None:
        """Close all of them."""
        for descriptor in (self.connection, self.output, self.traceback):
            os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Reply:
    """What came of one call on one rank."""

    result: Any = None
    error: BaseException | None = None
    """The exception itself, where it survives pickling."""

    summary: str = ""
    """Its last line, for when it does not."""

    traceback: str = ""
    failed_at: float | None = None
    groups: int | None = None
    """How many groups were ever made here: ranks must agree to make the next; None: no group."""

    loaded: Sequence[str] = ()
    """Modules that later ranks had better have from birth."""


def refuse_inside_a_rank(call: str) -> None:
    """Complain if this process is a rank or was forked by one."""
    if _names:
        raise RuntimeError(
            f"{call} was called inside {_names[0]}, and ranks do not start ranks: each of them "
            "loads the script again and would start the next. In a script, put the call under "
            '`if __name__ == "__main__":`; in a function that runs on the ranks, leave it out.'
        )


def be_rank(rank: int, size: int, channels: Channels, listener: socket.socket) -> None:
    """Serve calls until the parent hangs up."""
    _names.append(f"rank {rank} of {size}")
    connection = _settle(channels)
    _join(rank, size, listener)
    reset = Reset()
    connection.send_bytes(b"ready")
    while True:
        try:
            request = connection.recv_bytes()
        except EOFError:
            os._exit(0)
        reset.settle()
        connection.send_bytes(_serve(request, reset))


def _settle(channels: Channels) -> Connection:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # an aborted rank leaves no core file
    faulthandler.enable(open(channels.traceback, "wb", buffering=0))  # noqa: SIM115
    for stream in (1, 2):
        os.dup2(channels.output, stream)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    connection = Connection(channels.connection)
    # Data loader workers must not hold the line open after their rank has died.
    os.register_at_fork(after_in_child=connection.close)
    return connection


def _join(rank: int, size: int, listener: socket.socket) -> None:
    import torch
    from torch import distributed as dist
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    torch.set_num_threads(1)
    host, port = listener.getsockname()
    _tell_environment(rank, size, host, port)
    if rank == 0:
        descriptor = listener.detach()
        store = TCPStore(host, port, size, True, _GROUP_TIMEOUT, False, master_listen_fd=descriptor)
    else:
        listener.close()
        store = TCPStore(host, port, size, False, _GROUP_TIMEOUT, False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=_GROUP_TIMEOUT)


def _tell_environment(rank: int, size: int, host: str, port: int) -> None:
    """What a launcher would have set."""
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(size),
        LOCAL_WORLD_SIZE=str(size),
        MASTER_ADDR=host,
        MASTER_PORT=str(port),
    )


def _serve(request: bytes, reset: Reset) -> bytes:
    known = len(sys.modules)
    reply = _call(request)
    try:
        groups = reset()
    except Exception as error:
        reply, groups = _failure(error), None
    sys.stdout.flush()
    sys.stderr.flush()
    if reply.failed_at is not None:
        return shipping.dumps(reply)
    try:
        return shipping.dumps(Reply(reply.result, groups=groups, loaded=_loaded(known)))
    except Exception as error:
        return shipping.dumps(_failure(error))


def _call(request: bytes) -> Reply:
    try:
        function, args, kwargs = shipping.loads(request, share_path=True)
        return Reply(function(*args, **kwargs))
    except BaseException as error:  # sys.exit and pytest.skip are news for the parent too
        return _failure(error)


def _loaded(known: int) -> list[str]:
    return shared_modules() if len(sys.modules) > known else []


def _failure(error: BaseException) -> Reply:
    now = time.monotonic()
    return Reply(
        error=error if _survives(error) else None,
        summary="".join(traceback.format_exception_only(error)).strip(),
        traceback="".join(traceback.format_exception(_without_us(error))),
        failed_at=now,
    )


def _without_us(error: BaseException) -> BaseException:
    """The exception with the frames of this file taken off its traceback."""
    frames = error.__traceback__
    while frames and frames.tb_next and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    return error.with_traceback(frames)


def _survives(error: BaseException) -> bool:
    """Whether pickling keeps the exception; those with a constructor of their own often break."""
    try:
        return type(shipping.loads(shipping.dumps(error))) is type(error)
    except Exception:
        return False
