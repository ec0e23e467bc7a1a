"""The blocks of the documents that fleetx is built after, as they stand there."""

import re
import textwrap
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parents[3] / "shared" / "documents"
"""Beside the repository, where they are developed together; a clone has none."""

FENCED = re.compile(r"^[ ]*```[ ]*(\w+)\n(.*?)^[ ]*```", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"^([ ]*)\.\. code-block::[ ]*(\w+)\n((?:\1[ ]+.*\n|[ ]*\n)+)", re.MULTILINE)
LANGUAGES = {"python": "python", "py": "python", "shell": "shell", "sh": "shell"}


@dataclass(frozen=True)
class Block:
    """Some lines of a document."""

    language: str
    text: str


@cache
def blocks(document: int) -> list[Block]:
    """The blocks of a document, in their order."""
    (file,) = FOLDER.glob(f"{document:03}_*.txt")
    # A page that ends in a block has no line behind it.
    text = file.read_text(encoding="utf-8") + "\n"
    found = [(m.start(), m[1], m[2]) for m in FENCED.finditer(text)]
    found += [(m.start(), m[2], textwrap.dedent(m[3])) for m in INDENTED.finditer(text)]
    return [Block(LANGUAGES[kind], body) for _, kind, body in sorted(found) if kind in LANGUAGES]


def python_blocks(document: int) -> list[str]:
    """Those that a document says are Python."""
    return [block.text for block in blocks(document) if block.language == "python"]


def shell_blocks(document: int) -> list[str]:
    """Those that are commands, whatever a document says."""
    everything = [block for block in blocks(document) if block.language == "shell"]
    called = [b for b in blocks(document) if b.language == "python" and b.text[:8] == "fleetrun"]
    return [block.text for block in [*called, *everything]]
