"""Programs as bytes: ``serialize_to_string``, ``parse_from_string`` and their like."""

import hashlib
import tempfile
from pathlib import Path
from typing import Any

from fleetx import static
from fleetx.compat import models
from fleetx.compat.files import model_files, tensors
from fleetx.compat.programs import Program, ours
from fleetx.io.values import put, values
from fleetx.record.error import ProgramError

_written: dict[str, static.Program] = {}
"""Programs whose text this process wrote, as they were then."""

_BEFORE = b"fleetx program "


def written(program: static.Program) -> bytes:
    """A program as text, which this process can make a program of again.

    Operators of a program are functions, and those of a script's own have no file that another
    process could read; ``save_inference_model`` writes models for that.
    """
    text = str(program).encode()
    mark = hashlib.sha256(text + str(id(program.state)).encode()).hexdigest()
    _written[mark] = program.clone()
    _written[mark].objective = program.objective
    return _BEFORE + mark.encode() + b"\n" + text


def parsed(binary: bytes) -> Program:
    """The program of a text of this process, or of a saved model."""
    if binary.startswith(_BEFORE):
        mark = binary[len(_BEFORE) :].partition(b"\n")[0].decode()
        if mark not in _written:
            raise ProgramError(
                "Program.parse_from_string(): this is the text of a program of another process, "
                "which holds no functions; pass models between processes with "
                "fluid.io.save_inference_model(), weights with fluid.io.save_persistables()."
            )
        made = ours(_written[mark].clone())
        made.objective = _written[mark].objective
        return made
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / models.MODEL
        path.write_bytes(binary)
        if not model_files.is_model(path):
            raise ProgramError(
                "Program.parse_from_string(): a program that Paddle wrote to a file names kernels "
                "of its own executor, which are not here; build the network with the code that "
                "wrote it and load its weights with fluid.io.load_persistables()."
            )
        program, _, _ = models.load_inference_model(folder, static.Executor())
    found: Program = program
    return found


def serialize_program(feed_vars: Any, fetch_vars: Any, **options: Any) -> bytes:
    """What leads from the feeds to the fetches, as the bytes of a model."""
    with tempfile.TemporaryDirectory() as folder:
        prefix = Path(folder) / "model"
        models.save_2(str(prefix), feed_vars, fetch_vars, static.Executor(), **options)
        return prefix.with_name("model.pdmodel").read_bytes()


def serialize_persistables(feed_vars: Any, fetch_vars: Any, executor: Any, **options: Any) -> bytes:
    """The weights of that, as the bytes of Paddle's one file for all."""
    with tempfile.TemporaryDirectory() as folder:
        prefix = Path(folder) / "model"
        models.save_2(str(prefix), feed_vars, fetch_vars, executor, **options)
        return prefix.with_name("model.pdiparams").read_bytes()


def deserialize_program(data: bytes) -> Program:
    """The program of ``serialize_program``."""
    return parsed(data)


def deserialize_persistables(program: Any, data: bytes, executor: Any) -> None:
    """Give a program the weights of ``serialize_persistables``."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weights"
        path.write_bytes(data)
        found = tensors.read_all(path)
    known = {name.removeprefix("model."): name for name in values(program)}
    names = sorted(known)
    if len(names) != len(found):
        raise ProgramError(
            f"deserialize_persistables(): {len(found)} tensors for a program that keeps "
            f"{len(names)}; both must be of the same model."
        )
    put(program, {known[n]: value for n, value in zip(names, found, strict=True)})


def save_to_file(path: str, content: bytes) -> None:
    """Write bytes."""
    if not isinstance(content, bytes):
        raise ValueError(f"save_to_file() writes bytes, got {type(content).__name__}.")
    Path(path).write_bytes(content)


def load_from_file(path: str) -> bytes:
    """Read bytes."""
    return Path(path).read_bytes()
