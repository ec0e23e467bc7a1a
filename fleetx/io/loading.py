"""Taking a checkpoint back, into the layout that wrote it or into another one."""

import json
import logging
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from fleetx import roles
from fleetx.api.saved_layout import check_named_options, check_rule, told
from fleetx.io import manifest
from fleetx.io.agreement import together
from fleetx.io.files import load_tensors
from fleetx.io.manifest import TENSORS, WORKER, Manifest
from fleetx.io.run_state import RunState
from fleetx.io.training_state import MARK, tree
from fleetx.roles.worker_util import util

logger = logging.getLogger(__name__)

Given = dict[str, Any]


def take(path: Path, state: RunState, summed: Collection[str] = ()) -> tuple[Given, set[str]]:
    """Take weights, optimizer and strategies back; all workers must call it.

    Args:
        path: the checkpoint.
        state: of the run.
        summed: parts whose states add up; under another layout each is a list of those of the
            workers whose places this one takes.

    Returns:
        What is bound to no parameter, of the worker whose place this one takes, and the names of
        the parts in it that mean something here.
    """
    from fleetx.io.saved_tensors import Saved  # loads torch's distributed checkpoint
    from fleetx.io.shards import Stored

    written = together(partial(manifest.read, path))
    assert written is not None
    exactly = _is_same(path, written, state)
    given = together(lambda: _given(path, _whose(written, state, exactly=exactly)))
    assert given is not None
    saved = together(lambda: Saved(Stored(path / TENSORS)))
    assert saved is not None
    together(partial(_check, written, state))
    together(lambda: state.check(saved, given))
    together(lambda: state.take(saved, given, exactly=exactly))
    fitting = set(given["parts"])
    if not exactly and len(set(written.shares)) != state.shares:
        fitting &= written.alike
    if not exactly:
        own = together(lambda: _whole_shares(path, written, state))
        assert own is not None
        for name in given["parts"].keys() & set(summed):
            given["parts"][name] = [kept[name] for kept in own if name in kept]
            fitting.add(name)
        _tell(path, written, state, sorted(set(given["parts"]) - fitting))
    return given, fitting


def _check(written: Manifest, state: RunState) -> None:
    here = state.layout()
    check_rule({"rule": written.rule}, here)
    check_named_options(written.options, state.options())


def _is_same(path: Path, written: Manifest, state: RunState) -> bool:
    """Whether every worker finds its own part again."""
    own = written.workers == roles.worker_num()
    if own:
        layout = _given(path, roles.worker_index())["layout"]
        own = json.loads(layout) == state.layout()
    return all(util.all_gather(own))


def _whose(written: Manifest, state: RunState, *, exactly: bool) -> int:
    """The worker whose random numbers and parts this one goes on with."""
    if exactly:
        return roles.worker_index()
    same = [worker for worker, share in enumerate(written.shares) if share == state.share]
    return same[0] if same else 0


def _whole_shares(path: Path, written: Manifest, state: RunState) -> list[Given]:
    """The parts of the first worker of each share that falls to the share of this one."""
    mine = sorted(set(written.shares))[state.share :: state.shares]
    found: list[Given] = [_given(path, written.shares.index(share))["parts"] for share in mine]
    return found


def _given(path: Path, worker: int) -> Given:
    given: Given = tree(load_tensors(path / WORKER.format(worker)))[""]["run"]
    return given


def _tell(path: Path, written: Manifest, state: RunState, left: list[str]) -> None:
    """One worker says what is not as it would have been."""
    if not roles.is_first_worker():
        return
    parts = ", ".join(map(repr, left))
    logger.warning(
        "%s was written on %s and goes on on %s: random numbers, such as those of dropout, are not "
        "those that would have been drawn there%s",
        path,
        told({"mesh": written.mesh}),
        told(state.layout()),
        f"; {parts} differed from worker to worker and cannot be dealt anew" if left else "",
    )


def weights(path: Path) -> dict[str, Tensor]:
    """The whole weights of a checkpoint under the names of the plain model, without a job."""
    from fleetx.io.saved_tensors import Saved
    from fleetx.io.shards import Stored

    written = manifest.read(path)
    saved = Saved(Stored(path / TENSORS))
    found = saved.whole([name for name in saved.paths if MARK not in name])
    return found | {name: found[first] for name, first in written.tied.items()}
