"""The process from which ranks are forked: it imports torch once and keeps a single thread.

Why not the forkserver of ``multiprocessing``: an interpreter has one, which a test that uses it
itself would share; what it loads ahead is fixed when it starts, and here ranks teach the server
which modules the next ones need; and its children outlive a parent that is killed.
"""

import contextlib
import ctypes
import gc
import os
import pickle
import signal
import socket
import sys
import time
import traceback
from multiprocessing.connection import Connection

from fleetx.testing.rank import Channels, be_rank
from fleetx.testing.sources import preload

FILES_PER_RANK = 3  # connection, output, traceback
_HEARTBEAT = 1.0  # seconds between two looks at whether the parent is alive
_LAST_WORDS = 2.0  # seconds a rank has to write down where it hangs
_PR_SET_PDEATHSIG = 1


def main(control: int) -> None:
    """Serve the parent over the socket `control` until the parent closes it or dies."""
    _set_environment()
    connection, parent = Connection(control), os.getppid()
    ranks: set[int] = set()
    while (request := _receive(connection, parent)) is not None:
        verb, *arguments = pickle.loads(request)
        answer: list[int] | dict[int, int]
        if verb == "start":
            answer = _start(connection, *arguments)
            ranks.update(answer)
        else:
            pids, dump = arguments
            answer = _stop(ranks & set(pids), dump)
            ranks -= set(pids)
        connection.send_bytes(pickle.dumps(answer))
    _stop(ranks, dump=False)


def _set_environment() -> None:
    # Threads do not survive a fork, and the locks they hold do. Nothing that is imported here
    # may start one; numpy's BLAS would.
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"
    # Without this, gloo asks the resolver for the machine's name, which may be slow or wrong.
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    # Ranks are processes of one machine that exchange through the host: a card would only be
    # fought over, and what a test proves must not depend on whether there is one.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def _receive(connection: Connection, parent: int) -> bytes | None:
    """The next request, or None when the parent is gone."""
    try:
        while not connection.poll(_HEARTBEAT):
            # Children that the parent forked may hold the socket open after its death.
            if os.getppid() != parent:
                return None
        return connection.recv_bytes()
    except (EOFError, OSError):
        return None


def _start(
    connection: Connection, size: int, arguments: list[str], path: list[str], modules: list[str]
) -> list[int]:
    """Fork `size` ranks around the files that follow on the socket."""
    channels = [Channels(*_receive_files(connection)) for _ in range(size)]
    sys.argv[:], sys.path[:] = arguments, path
    preload(["torch.distributed", *modules])
    gc.freeze()  # ranks look for garbage between calls, and need not look through torch
    # All ranks inherit the port of the store before any of them runs, so nobody can lose it.
    listener = socket.create_server(("127.0.0.1", 0), backlog=4 * size)
    pids = []
    for rank in range(size):
        if (pid := os.fork()) == 0:
            connection.close()
            _run_rank(rank, channels, listener)
        pids.append(pid)
    listener.close()
    for channel in channels:
        channel.close()
    return pids


def _receive_files(connection: Connection) -> list[int]:
    with socket.socket(fileno=os.dup(connection.fileno())) as control:
        return socket.recv_fds(control, 1, FILES_PER_RANK)[1]


def _run_rank(rank: int, channels: list[Channels], listener: socket.socket) -> None:
    """The life of a forked rank; never returns into the code of the fork server."""
    try:
        os.setpgid(0, 0)
        _die_with_parent()
        for other, channel in enumerate(channels):
            if other != rank:
                channel.close()
        be_rank(rank, len(channels), channels[rank], listener)
    except BaseException:
        traceback.print_exc()  # the parent shows what the rank wrote
        sys.stderr.flush()
    finally:
        os._exit(1)


def _die_with_parent() -> None:
    # Python has no word for it. The kernel goes by the thread that forked, not by the process, and
    # the server has one thread only. If it fails, the closed connection ends the rank all the same.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _stop(pids: set[int], dump: bool) -> dict[int, int]:
    """End ranks and what they started; returns how each of them ended.

    SIGABRT makes faulthandler write the tracebacks of all threads, whatever they wait for.
    """
    for pid in pids:
        _signal(pid, signal.SIGABRT if dump else signal.SIGKILL)
        _signal(pid, signal.SIGCONT)  # the kept ones rest, and hear nothing else until then
    deadline = time.monotonic() + _LAST_WORDS
    while not all(_has_ended(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.002)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    return {pid: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids}


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _has_ended(pid: int) -> bool:
    # WNOWAIT keeps the dead process in the table, and with it the number of its process group.
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
