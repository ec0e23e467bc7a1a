"""``paddle.fluid.transpiler.details``."""

import sys
from pathlib import Path
from typing import Any, TextIO

from fleetx.static.record.program import Program


def program_to_code(prog: Any, fout: Any = None, skip_op_callstack: bool = True) -> None:
    """Write the operators of a program, one on each line, to a file or to the screen."""
    text = str(prog.graph) if isinstance(prog, Program) else str(prog)
    if fout is None:
        sys.stdout.write(f"{text}\n")
    elif isinstance(fout, str | Path):
        Path(fout).write_text(text, encoding="utf-8")
    else:
        out: TextIO = fout
        out.write(text)
