"""Damages the state that a dead server left, and looks whether anybody would notice."""

import logging
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from fleetx.chaos.tally import Tally
from fleetx.ps.server.membership import Membership
from fleetx.ps.server.request_handler import RequestHandler
from fleetx.ps.tables.checksums import DamagedError
from fleetx.ps.wire.frames import Frame, Op

NEEDLESS = "history"
"""A file that only names what followers have copied: without it they copy everything anew."""


def examine(folder: Path, scratch: Path, times: int, seed: int, told: Any) -> None:
    """Damage copies of a state, one after the other, and begin with each; sends a tally.

    Args:
        folder: the state of a server that is dead.
        scratch: where copies are made.
        times: how many of them are damaged.
        seed: of chance.
        told: is sent the tally.
    """
    logging.getLogger("fleetx").setLevel(logging.ERROR)
    chance, tally = random.Random(seed), Tally()
    right = _held(_copied(folder, scratch))
    for _ in range(times):
        copy = _copied(folder, scratch)
        what = _damaged(copy, chance)
        tally.damages += 1
        try:
            found = _held(copy)
        except DamagedError as error:
            tally.noticed += str(copy) in str(error)
            tally.silent += str(copy) not in str(error)
            continue
        if found != right:
            tally.silent += 1
            tally.failures.append(f"{what} and the server began with other numbers")
    shutil.rmtree(scratch, ignore_errors=True)
    told.send(tally)


def _copied(folder: Path, target: Path) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    return Path(shutil.copytree(folder, target))


def _damaged(folder: Path, chance: random.Random) -> str:
    """Turn a bit over that means something, or remove a file; what it was."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    path = chance.choice([path for path in files if path.name != NEEDLESS])
    if chance.random() < 0.2:
        path.unlink()
        return f"{path.name} was removed"
    data = bytearray(path.read_bytes())
    used = int(np.flatnonzero(np.frombuffer(bytes(data), np.uint8)).max(initial=0)) + 1
    at, bit = chance.randrange(used), chance.randrange(8)
    data[at] ^= 1 << bit
    path.write_bytes(bytes(data))
    return f"bit {bit} of byte {at} of {path.name} was turned over"


def _held(folder: Path) -> Any:
    """All numbers with which a server would begin."""
    handler = RequestHandler(Membership(8), folder=folder)
    tables = [*handler.figures()]  # some may be missing, if it died before they were made
    part = handler.sparse(Frame(Op.PULL, 0)).table.part(0, 0) if "t" in tables else None
    rows = dict(zip(part.ids.tolist(), part.weights.tolist(), strict=True)) if part else {}
    dense = handler.dense(Frame(Op.READ, 1)).table.values.tolist() if "d" in tables else []
    return tables, rows, dense
