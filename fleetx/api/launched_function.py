"""What a worker of ``fleet.launch`` runs: it calls the function and leaves what came of it.

``fleetrun`` runs this file as a script; it loads what the function needs, and nothing else.
"""

import contextlib
import json
import os
import sys
import traceback
from pathlib import Path

CALL, PATHS = "call", "paths.json"
"""The files with the function and its arguments, and with the folders of modules that it uses."""


def result_file(folder: Path, worker: int) -> Path:
    """Where a worker leaves what the function returned."""
    return folder / f"result.{worker}"


def failure_file(folder: Path, worker: int) -> Path:
    """Where it leaves what the function raised."""
    return folder / f"failure.{worker}"


def _write(path: Path, content: bytes) -> None:
    """All of the file or nothing."""
    partial = path.with_suffix(f"{path.suffix}.partial")
    partial.write_bytes(content)
    os.replace(partial, path)


def _packed_error(error: BaseException) -> bytes:
    import cloudpickle

    summary = "".join(traceback.format_exception_only(error)).strip()
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    text = "".join(traceback.format_exception(error.with_traceback(trace)))
    packed = b""
    with contextlib.suppress(Exception):
        packed = cloudpickle.dumps(error.with_traceback(None))
    content: bytes = cloudpickle.dumps((summary, text, packed))
    return content


def run(folder: Path) -> None:
    """Call the function; an exception of it is left for whoever waits, and ends this worker."""
    sys.path[:] = json.loads((folder / PATHS).read_text(encoding="utf-8"))
    import cloudpickle

    from fleetx.roles.detection import detect

    worker = detect(is_collective=True).identity().index
    try:
        function, args = cloudpickle.loads((folder / CALL).read_bytes())
        result = cloudpickle.dumps(function(*args))
    except BaseException as error:
        _write(failure_file(folder, worker), _packed_error(error))
        raise
    _write(result_file(folder, worker), result)


if __name__ == "__main__":
    run(Path(sys.argv[1]))
