"""What every worker really executes: the user's script, with its death reported.

It runs by path, before and without any other import of the library, and imports nothing heavy.
"""

import atexit
import faulthandler
import importlib.util
import json
import os
import runpy
import signal
import sys
import time
import traceback
import types
from pathlib import Path
from typing import Any, NoReturn

DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux


class Terminated(SystemExit):
    """The launcher has told this process to stop: `finally` and exit handlers still run."""


def main() -> NoReturn:
    """Runs `[-m] name args...` as `python` would."""
    os.dup2(1, 2)  # one log, in the order in which things were written
    faulthandler.enable()  # a crash in native code leaves the Python stacks in the log
    _die_with_launcher()
    reporter = _start_reporter()
    end_bars = _beside("progress_bars").install()
    atexit.register(end_bars)
    arguments = sys.argv[1:]
    module = arguments[0] == "-m"
    owner = os.getpid()
    sys.argv = arguments[1:] if module else arguments
    _end_in_order()
    try:
        try:
            if module:
                _run_module(sys.argv[0])
            else:
                _run_script(sys.argv[0])
        finally:
            _end_at_once()
    except Terminated:
        _told_to_stop.append(owner)
        raise
    except SystemExit as stop:
        if os.getpid() == owner:
            said = getattr(stop, "sentence", f"SystemExit: {stop.code}")
            _record(said, _exit_code(stop.code))
        raise
    except BaseException as error:
        code = 130 if isinstance(error, KeyboardInterrupt) else 1
        if os.getpid() == owner:  # not a forked child that fell through
            reporter.fail(error)
            _record(f"{type(error).__name__}: {error}", code)
        own = _without_runner(error.__traceback__)
        end_bars()  # else the traceback stands behind one
        sys.excepthook(type(error), error.with_traceback(own), own)
        sys.exit(code)
    sys.exit(0)


class _Silent:
    """Stands in for a reporter where no launcher listens."""

    def fail(self, error: BaseException) -> None:
        """Tell nobody."""


def _start_reporter() -> Any:
    """Lets a thread tell the launcher what this process does, until its very end."""
    if (reporter := _beside("reporter").start()) is None:
        return _Silent()
    atexit.register(reporter.finish)  # the first to be registered is the last to be called
    return reporter


def _beside(name: str) -> Any:
    """A module that lies beside this file, loaded by its path."""
    path = Path(__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"fleetx_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_told_to_stop: list[int] = []


def _end_in_order() -> None:
    """Turns SIGTERM into an exception; a script that wants another handler sets its own."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        atexit.register(_die_of_the_signal)  # the first to be registered is the last to be called
        signal.signal(signal.SIGTERM, _terminate)
        os.register_at_fork(after_in_child=_end_at_once)  # a child ends as its parent expects


def _end_at_once() -> None:
    if signal.getsignal(signal.SIGTERM) is _terminate:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _terminate(number: int, _frame: types.FrameType | None) -> NoReturn:
    _end_at_once()  # told twice, it goes
    raise Terminated(128 + number)


def _die_of_the_signal() -> None:
    """Ends with the status that everybody expects of a process that got SIGTERM."""
    if os.getpid() in _told_to_stop:
        os.kill(os.getpid(), signal.SIGTERM)


def _run_script(name: str) -> None:
    # A module of its own, left in place: pickling, spawned children and exit handlers of the
    # script find it as `__main__` for as long as the process lives.
    _first_on_path(Path(name).resolve().parent)
    path = os.path.abspath(name)  # as python does: the script may change its folder
    code = compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)
    script = types.ModuleType("__main__")
    script.__dict__.update(__file__=path, __spec__=None, __builtins__=__builtins__)
    sys.modules["__main__"] = script
    exec(code, script.__dict__)


def _run_module(name: str) -> None:
    _first_on_path(Path.cwd())
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _first_on_path(folder: Path) -> None:
    if not sys.flags.safe_path:  # with it, python has not put our own folder there either
        sys.path[0] = str(folder)


def _die_with_launcher() -> None:
    """Asks Linux to kill this process when the launcher is gone, even by `kill -9`."""
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
    if os.environ.get("FLEETX_LAUNCHER_PID") != str(os.getppid()):
        sys.exit(1)  # it was gone before we asked


def _exit_code(code: object) -> int:
    if code is None:
        return 0
    return code & 0xFF if isinstance(code, int) else 1


def _record(message: str, code: int) -> None:
    """Writes torch's error file, with the exact time and the exit code added."""
    target = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not target or code == 0:
        return
    now = time.time()
    extra = {
        "py_callstack": traceback.format_exc(),
        "timestamp": str(int(now)),
        "time": now,
        "exit_code": code,
    }
    record = {"message": {"message": message, "extraInfo": extra}}
    partial = f"{target}.partial"
    try:
        Path(partial).write_text(json.dumps(record), encoding="utf-8")
        os.replace(partial, target)
    except OSError:
        pass  # the log still has the traceback


def _without_runner(trace: types.TracebackType | None) -> types.TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename in (
        __file__,
        runpy.__file__,
        "<frozen runpy>",
    ):
        trace = trace.tb_next
    return trace


if __name__ == "__main__":
    main()
