"""Which cards there are and which of them this job uses, found without importing torch."""

import importlib.util
import os
import re
import runpy
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from fleetx.launch.addresses import split_list
from fleetx.launch.errors import LaunchError


def choose(
    gpus: str | None, nproc: int | None, environ: Mapping[str, str]
) -> tuple[tuple[str, ...], int]:
    """The cards, as `CUDA_VISIBLE_DEVICES` spells them, and the number of processes."""
    if is_none(gpus):
        return (), nproc or 1
    there = visible(environ)
    if gpus is None:
        return _automatic(there, nproc)
    cards = split_list(gpus, "--gpus")
    missing = [card for card in cards if card not in there]
    if missing:
        raise LaunchError(_missing(gpus, missing, there, environ))
    if nproc is not None and (nproc > len(cards) or len(cards) % nproc):
        raise LaunchError(
            f"--nproc_per_node {nproc} does not divide the {len(cards)} cards of --gpus {gpus}; "
            f"set it to {len(cards)} or leave it out"
        )
    return cards, nproc or len(cards)


def is_none(gpus: str | None) -> bool:
    """True when the user wants no card, even where there are some."""
    return gpus is not None and gpus.lower() in ("", "none", "cpu")


def _automatic(there: tuple[str, ...], nproc: int | None) -> tuple[tuple[str, ...], int]:
    if not there:
        return (), nproc or 1
    if nproc is not None and nproc > len(there):
        raise LaunchError(
            f"--nproc_per_node {nproc} is more than the {len(there)} cards of this machine, and "
            "two processes do not share one; lower it, or add --gpus none to run on CPU"
        )
    return there[: nproc or len(there)], nproc or len(there)


def _missing(
    gpus: str, missing: list[str], there: tuple[str, ...], environ: Mapping[str, str]
) -> str:
    limit = environ.get("CUDA_VISIBLE_DEVICES")
    why = f"CUDA_VISIBLE_DEVICES is {limit!r} and " if limit is not None else ""
    if there:
        return (
            f"--gpus {gpus} asks for card {missing[0]}, but {why}this machine shows only "
            f"{','.join(there)}; choose among those"
        )
    return (
        f"--gpus {gpus} asks for card {missing[0]}, but {why}torch can use no card here; "
        "use --gpus none to run on CPU, and --nproc_per_node for more than one process"
    )


def here() -> int:
    """How many cards fleetrun would use on this machine."""
    return len(visible(os.environ))


def visible(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Cards a process of this machine would see."""
    listed = environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return tuple(str(index) for index in range(count()))
    if not listed.strip():
        return ()
    there = count()
    cards: list[str] = []
    for card in (item.strip() for item in listed.split(",")):
        if (card.isdigit() and int(card) >= there) or card.startswith("-") or not there:
            break  # CUDA itself ends the list at the first entry that does not exist
        cards.append(card)
    return tuple(cards)


def count() -> int:
    """Number of cards that the installed torch could drive."""
    return hardware() if _torch_drives_cards() else 0


def hardware() -> int:
    """Number of cards in this machine, whatever the installed torch can do with them."""
    folder = Path("/proc/driver/nvidia/gpus")
    if folder.is_dir():
        return len(list(folder.iterdir()))
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return 0
    try:
        run = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return len(re.findall(r"^GPU \d+:", run.stdout, flags=re.MULTILINE))


def _torch_drives_cards() -> bool:
    """Reads torch's version file alone, because importing torch takes two seconds."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return False
    file = Path(next(iter(spec.submodule_search_locations))) / "version.py"
    if not file.is_file():
        return True
    version = runpy.run_path(str(file))
    return bool(version.get("cuda") or version.get("hip"))
