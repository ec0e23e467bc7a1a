"""A folder of checkpoints: whenever a process dies, those that have a name are complete."""

import re
import shutil
from pathlib import Path

from fleetx.folders import put_in_place

NAME = re.compile(r"\.?checkpoint-(\d+)(\.previous)?")
HIDDEN = ".checkpoint-*"
"""What is being written, replaced or removed; nothing of it is needed once a save has ended."""


def target(folder: Path, step: int) -> Path:
    """The name of a complete checkpoint."""
    return folder / f"checkpoint-{step}"


def unfinished(target: Path) -> Path:
    """Where it is written."""
    return target.with_name(f".{target.name}")


def step_of(path: Path) -> int:
    """The number in the name of a checkpoint."""
    match = NAME.fullmatch(path.name)
    return int(match[1]) if match else -1


def found(folder: Path) -> list[Path]:
    """The complete checkpoints, the latest one last.

    One that was about to be replaced when the run died stands in for its successor.
    """
    replaced = {step_of(path): path for path in folder.glob(f"{HIDDEN}.previous")}
    named = {step_of(path): path for path in folder.glob("checkpoint-*[0-9]")}
    every = {step: path for step, path in (replaced | named).items() if step >= 0}
    return [every[step] for step in sorted(every)]


def install(target: Path) -> None:
    """Give what was written its name; what had the name before goes only after that."""
    previous = target.with_name(f".{target.name}.previous")
    put_in_place(unfinished(target), target, old=previous)


def prune(latest: Path, keep: int) -> None:
    """Leave ``latest`` and those before it, ``keep`` in all."""
    folder = latest.parent
    others = [path for path in found(folder) if path != latest]
    kept = others[max(0, len(others) - keep + 1) :]
    for old in others:
        if old not in kept and not old.name.startswith("."):
            # It loses its name first: half of it must not look like a whole one.
            shutil.rmtree(unfinished(old), ignore_errors=True)
            old.rename(unfinished(old))
    for rest in folder.glob(HIDDEN):
        if rest not in kept:
            shutil.rmtree(rest, ignore_errors=True)


def set_aside(folder: Path, after: int = -1) -> Path | None:
    """Move checkpoints with a step above ``after`` into ``folder/earlier-N``; None if none has.

    They belong to another run than the one that writes to the folder now.
    """
    strange = [path for path in found(folder) if step_of(path) > after]
    if not strange:
        return None
    number = 1
    while (aside := folder / f"earlier-{number}").exists():
        number += 1
    aside.mkdir()
    for path in strange:
        path.rename(target(aside, step_of(path)))
    return aside
