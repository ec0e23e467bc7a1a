"""The process from which programs are forked: it loads what they need and keeps one thread."""

import atexit
import contextlib
import fcntl
import importlib
import io
import json
import os
import pkgutil
import random
import runpy
import selectors
import signal
import socket
import sys
import tempfile
import threading
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

MODULES = (
    "torch",
    "torch._dynamo",
    "torch.distributed.elastic.agent.server.local_elastic_agent",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "cv2",
)
NOT_LOADED = (
    *("__main__", "runner", "mlserver_runtime", "stub", "composition", "probe"),
    *("chaos.processes", "chaos.with_dense"),  # which fill tables, for processes of their own
)


class Server:
    """Forks a process for each client, passes its exit status on, and ends it with its client."""

    def __init__(self, control: int, address: str, executable: str) -> None:
        self._executable = executable
        self._path = [entry for entry in sys.path[1:] if entry not in _python_path(os.environ)]
        self._control = socket.socket(fileno=control)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address)
        self._listener.listen(64)
        self._ended, self._wakes = socket.socketpair()
        for end in (self._ended, self._wakes):
            end.setblocking(False)
        signal.set_wakeup_fd(self._wakes.fileno())
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        self._clients: dict[int, socket.socket] = {}
        self._files = selectors.DefaultSelector()
        for file in (self._control, self._listener, self._ended):
            self._files.register(file, selectors.EVENT_READ)

    def serve(self) -> None:
        """Until the process that started this one closes its end."""
        self._control.send(b"!")
        while True:
            for key, _ in self._files.select():
                if key.fileobj is self._control:
                    return self._end_all()
                if key.fileobj is self._listener:
                    self._begin(self._listener.accept()[0])
                elif key.fileobj is self._ended:
                    self._ended.recv(4096)
                    self._collect()
                else:
                    self._lose(key.data)

    def _begin(self, client: socket.socket) -> None:
        try:
            files, text = _request(client)
        except OSError:
            client.close()  # it was killed before it had asked
            return
        assert len(os.listdir("/proc/self/task")) == 1, "a thread would be lost in the fork"
        if (pid := os.fork()) == 0:
            for file in (self._control, self._listener, client, *self._clients.values()):
                file.close()
            become(json.loads(text), files, self._path, self._executable)
        for number in files:
            os.close(number)
        self._clients[pid] = client
        self._files.register(client, selectors.EVENT_READ, pid)
        with contextlib.suppress(OSError):
            client.sendall(pid.to_bytes(8, "big"))

    def _collect(self) -> None:
        while self._clients:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            code = os.waitstatus_to_exitcode(status)
            if client := self._clients.pop(pid, None):
                self._files.unregister(client)
                with contextlib.suppress(OSError):
                    client.sendall(code.to_bytes(8, "big", signed=True))
                client.close()

    def _lose(self, pid: int) -> None:
        """The client was killed, so its program is."""
        if pid not in self._clients:  # it has ended just before, in the same round of events
            return
        self._files.unregister(self._clients[pid])
        self._clients.pop(pid).close()
        _kill(pid)
        os.waitpid(pid, 0)

    def _end_all(self) -> None:
        signal.set_wakeup_fd(-1)  # the socket goes before the last of them has ended
        for pid in self._clients:
            _kill(pid)


def _request(client: socket.socket) -> tuple[list[int], bytes]:
    head, files, _, _ = socket.recv_fds(client, 8, 250)
    text, part = b"", head
    while part and len(text) < int.from_bytes(head, "big"):
        part = client.recv(1 << 20)
        text += part
    if not part:
        for number in files:
            os.close(number)
        raise ConnectionResetError("it has ended in the middle")
    return files, text


def _kill(pid: int) -> None:
    """A program with all that it has started; one that is just forked has no group of its own."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)


def become(request: dict[str, Any], files: list[int], path: list[str], executable: str) -> NoReturn:
    """Turn this fork into what python would be with those arguments."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in request["ignored"]:  # where the program began, not where this server did
        signal.signal(number, signal.SIG_IGN)
    _take_files(files, request["files"])
    os.chdir(request["folder"])
    environment = request["environment"]
    if "FLEETX_LAUNCHER_PID" in environment:  # a worker checks that its launcher still lives
        environment["FLEETX_LAUNCHER_PID"] = str(os.getppid())
    os.environ.clear()
    os.environ.update(environment)
    _open_streams(request["unbuffered"])
    _forget_the_past(environment)
    sys.executable = executable
    program = request["program"]
    folder = {"-c": "", "-m": os.getcwd()}.get(program[0]) or str(Path(program[0]).resolve().parent)
    sys.path[:] = [folder, *_python_path(environment), *path]
    code = _run_to_its_end(program)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)  # taking apart all that was loaded would copy most of it


def _run_to_its_end(program: list[str]) -> int:
    try:
        _run(program)
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return (stop.code or 0) & 0xFF
        print(stop.code, file=sys.stderr)
        return 1
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename in _OURS:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        return 1
    return 0


_OURS = (__file__, "<frozen runpy>")


def _run(program: list[str]) -> None:
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=__builtins__, __spec__=None)
    if program[0] == "-m":
        sys.argv = program[1:]
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
        return
    sys.modules["__main__"] = main
    if program[0] == "-c":
        sys.argv = ["-c", *program[2:]]
        code = compile(program[1], "<string>", "exec", dont_inherit=True)
    else:
        sys.argv = program
        main.__file__ = program[0]
        code = compile(Path(program[0]).read_bytes(), program[0], "exec", dont_inherit=True)
    exec(code, main.__dict__)


def _take_files(received: list[int], wanted: list[int]) -> None:
    # First out of the way of each other, then to their numbers.
    free = max([*wanted, *received]) + 1
    moved = [fcntl.fcntl(number, fcntl.F_DUPFD, free) for number in received]
    for number in received:
        os.close(number)
    for source, number in zip(moved, wanted, strict=True):
        os.dup2(source, number)
        os.close(source)


def _open_streams(unbuffered: bool) -> None:
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    buffer = 0 if unbuffered else -1
    streams = [open(number, "wb", buffer, closefd=False) for number in (1, 2)]  # noqa: SIM115
    out, errors = (io.TextIOWrapper(stream, write_through=unbuffered) for stream in streams)
    out.reconfigure(line_buffering=os.isatty(1))
    errors.reconfigure(line_buffering=True, errors="backslashreplace")
    sys.stdout, sys.stderr = out, errors


def _forget_the_past(environment: dict[str, str]) -> None:
    """What a process draws or decides when it starts."""
    import numpy as np
    import torch

    random.seed()
    np.random.seed()
    tempfile.tempdir = None  # importing torch has looked for one already
    threads = environment.get("OMP_NUM_THREADS")
    torch.set_num_threads(int(threads) if threads else os.cpu_count() or 1)


def _python_path(environment: Mapping[str, str]) -> list[str]:
    entries = environment.get("PYTHONPATH", "").split(os.pathsep)
    return [os.path.abspath(entry) for entry in entries if entry]


def _load() -> None:
    import fleetx

    names = list(MODULES)
    for module in pkgutil.walk_packages(fleetx.__path__, "fleetx."):
        if not module.name.endswith(NOT_LOADED) and not module.name.startswith("fleetx.testing"):
            names.append(module.name)
    for name in names:
        with contextlib.suppress(ImportError):  # of packages that are not installed
            importlib.import_module(name)


if __name__ == "__main__":
    sys.path.insert(1, str(Path(__file__).parents[2]))
    _load()
    Server(int(sys.argv[1]), sys.argv[2], sys.argv[3]).serve()
