"""Runs an old script as if ``paddle`` were installed."""

import os
import runpy
import sys
from collections.abc import Mapping, Sequence

import torch

from fleetx.compat import imports, old_names, old_numbers

CARD = "FLAGS_selected_gpus"
HASH_SEED = "PYTHONHASHSEED"
"""Scripts of Python 2 days number features by ``hash()``, which must agree between workers."""


def run(script: str, args: Sequence[str], *, module: bool = False) -> None:
    """Run a script, or a module by its name, in this process, with its own ``sys.argv``."""
    _settle_hashes()
    _name_a_card()
    imports.install()
    old_names.install_for_pictures()
    if module:
        sys.argv = [script, *args]
        runpy.run_module(script, run_name="__main__", alter_sys=True)
        return
    sys.argv = [script, *args]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    old_numbers.install(sys.path[0])
    old_numbers.run(script)


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables with which another process runs old scripts."""
    return {**imports.environment(environ), HASH_SEED: environ.get(HASH_SEED, "0")}


def _settle_hashes() -> None:
    """Begin again with one seed, if this process drew its own and is one of several workers."""
    several = int(os.environ.get("PADDLE_TRAINERS_NUM", "1")) > 1
    if several and os.environ.get(HASH_SEED, "random") == "random":
        os.environ[HASH_SEED] = "0"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _name_a_card() -> None:
    """Scripts ask for the number of their card whether or not there is one."""
    if CARD not in os.environ and not torch.cuda.is_available():
        os.environ[CARD] = "0"
