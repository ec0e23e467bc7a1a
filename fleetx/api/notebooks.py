"""``fleet.launch``: a function on several workers, from a notebook or from any script."""

import contextlib
import importlib
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from fleetx.api import launched_function
from fleetx.api.launched_function import CALL, PATHS, failure_file, result_file
from fleetx.expected import FUNCTION, WHOLE, a, takes

Result = TypeVar("Result")
_WORKERS = WHOLE.such_as("a whole number above 0")
_GPUS = a(str, 'cards such as "0,1", or "none"') | None


_ON = a(str, '"ray"') | None


@takes("fleet.launch", function=FUNCTION, workers=_WORKERS, gpus=_GPUS, on=_ON)
def launch(
    function: Callable[..., Result],
    *args: Any,
    workers: int = 1,
    gpus: str | None = None,
    on: str | None = None,
) -> list[Result]:
    """Run a function on several new workers of this machine or of a cluster, and wait for them.

    Each worker is a process that ``fleetrun`` starts, with nothing of this one but the function,
    what it uses, and its arguments; ``fleet.init(is_collective=True)`` in the function finds the
    others. What worker 0 prints is printed here. Functions of notebook cells will do.

    Args:
        function: what every worker calls.
        args: its arguments, the same for all.
        workers: how many.
        gpus: the cards to use, as ``fleetrun --gpus`` takes them; None is all there are, or the
            CPU; "none" is the CPU. On a cluster: how many cards each worker gets, such as "1".
        on: None is this machine; "ray" is the Ray cluster that this process has connected to
            (``ray.init()``), which chooses the machines.

    Returns:
        What it returned on each worker, in their order.
    """
    if workers < 1:
        raise ValueError(f"fleet.launch() takes as workers a whole number above 0, got {workers}")
    _refuse_inside()
    if on is not None:
        return _on_cluster(function, args, workers, gpus, on)
    with tempfile.TemporaryDirectory(prefix="fleetx-launch-") as name:
        folder = Path(name)
        (folder / CALL).write_bytes(_packed(function, args))
        (folder / PATHS).write_text(json.dumps(sys.path), encoding="utf-8")
        command = [
            *(sys.executable, "-m", "fleetx.launch", "--nproc_per_node", str(workers)),
            *(() if gpus is None else ("--gpus", gpus)),
            *("--log_dir", str(folder / "log"), launched_function.__file__, str(folder)),
        ]
        code, said = _run(command)
        _raise_failure(folder, workers, code, said)
        pickle = _cloudpickle()
        return [pickle.loads(result_file(folder, at).read_bytes()) for at in range(workers)]


def _on_cluster(
    function: Callable[..., Any], args: tuple[Any, ...], workers: int, gpus: str | None, on: str
) -> list[Any]:
    from fleetx.api.ray_workers import launch_on_ray

    if on != "ray":
        raise ValueError(f"fleet.launch() takes as on None or 'ray', got {on!r}")
    each = {None: "0", "none": "0"}.get(gpus, gpus)
    if not str(each).isdigit():
        raise ValueError(
            f"fleet.launch(on='ray') takes as gpus how many cards each worker gets, such as '1', "
            f"got {gpus!r}; Ray chooses which."
        )
    return launch_on_ray(function, args, workers=workers, gpus_per_worker=int(str(each)))


def _refuse_inside() -> None:
    started = getattr(sys.modules["__main__"], "__file__", None)
    if started == launched_function.__file__:
        raise RuntimeError(
            "fleet.launch() was called on a worker that fleet.launch() has started; call it in the "
            "notebook, and only what every worker does in the function."
        )


def _cloudpickle() -> Any:
    try:
        return importlib.import_module("cloudpickle")
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "fleet.launch() sends functions to other processes with the package cloudpickle, which "
            "is not installed: pip install cloudpickle",
            name="cloudpickle",
        ) from None


def _packed(function: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    try:
        packed: bytes = _cloudpickle().dumps((function, args))
    except ModuleNotFoundError:
        raise
    except Exception as error:
        name = getattr(function, "__name__", repr(function))
        raise TypeError(
            f"fleet.launch() cannot send {name}, something it uses, or one of its arguments to "
            f"other processes ({error}); make it inside the function."
        ) from error
    return packed


def _run(command: list[str]) -> tuple[int, list[str]]:
    """Run a job and show what it says; its exit code and its last lines."""
    said: list[str] = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as job:
        assert job.stdout is not None
        try:
            for line in job.stdout:
                sys.stdout.write(line)
                said = [*said[-40:], line]
        except BaseException:  # a kernel that is interrupted
            job.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                job.wait(30)
            job.kill()
            raise
    return job.returncode, said


def _raise_failure(folder: Path, workers: int, code: int, said: list[str]) -> None:
    failed = [at for at in range(workers) if failure_file(folder, at).exists()]
    if not failed:
        if code or not all(result_file(folder, at).exists() for at in range(workers)):
            raise RuntimeError(
                f"the job of fleet.launch() ended with exit code {code}:\n{''.join(said)}"
            )
        return
    # Others may have failed because the first one did.
    first = min(failed, key=lambda at: failure_file(folder, at).stat().st_mtime_ns)
    summary, text, packed = _cloudpickle().loads(failure_file(folder, first).read_bytes())
    cause = None
    with contextlib.suppress(Exception):  # exceptions with a constructor of their own often break
        cause = _cloudpickle().loads(packed)
    raise RuntimeError(
        f"worker {first} of fleet.launch() failed with {summary}\n\nOn that worker:\n{text}"
    ) from cause
