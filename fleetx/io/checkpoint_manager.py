"""``fleet.CheckpointManager``: a run that goes on by itself, whoever ended it."""

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fleetx import roles
from fleetx.api import servers, session
from fleetx.api.global_batch import Beginning, GlobalBatch
from fleetx.engine.engine import Engine
from fleetx.expected import FLAG, MAPPING, NUMBER, PATH, WHOLE, expect, takes
from fleetx.io.agreement import together
from fleetx.io.checkpoints import (
    finish_checkpoints,
    load_checkpoint,
    save_checkpoint,
    set_checkpoints_aside,
)
from fleetx.io.files import Folder
from fleetx.io.save_moments import Moments
from fleetx.io.trained import PARTS, Model, Mover, Stateful, trained
from fleetx.plan.error import PlanError
from fleetx.roles import leaving
from fleetx.roles.worker_util import util

logger = logging.getLogger(__name__)

NAME = "run.json"
"""How the run of a folder began, beside its checkpoints."""
SECONDS = 600.0
"""Between two checkpoints, where nobody says how many."""
_NUMBERS = MAPPING.such_as("a dict of plain values by name") | None


class CheckpointManager:
    """Saves a training loop when it is time, and lets it go on after whatever ended it.

    Made right after ``fleet.init()``; ``load`` before the loop, ``step`` at the end of each batch.
    All workers make the same calls.
    """

    @takes(
        "fleet.CheckpointManager",
        folder=PATH,
        seconds=NUMBER | None,
        steps=WHOLE | None,
        keep=WHOLE,
        resume=FLAG,
        shares=WHOLE | None,
    )
    def __init__(
        self,
        folder: Folder,
        *,
        seconds: float | None = None,
        steps: int | None = None,
        keep: int = 1,
        resume: bool = True,
        shares: int | None = None,
    ) -> None:
        """Look at what the folder has, and keep the samples of an update if workers have changed.

        Args:
            folder: where checkpoints are gathered; all workers see the same one.
            seconds: between two checkpoints; 600 by default. ``fleetrun --checkpoint_seconds`` wins
                over it.
            steps: save after every so many updates, too.
            keep: how many of the latest checkpoints stay.
            resume: go on from the latest one. False begins anew and moves those that are there into
                ``folder/earlier-N``; when ``fleetrun`` starts the job again, that goes on all the
                same.
            shares: for how many shares of the data (workers, less those of one pipeline or one
                tensor-parallel group) the batch size is meant; by default as many as there are when
                the run begins.
        """
        roles.identity("CheckpointManager")  # a sentence without fleet.init()
        if servers.has_servers() and shares is not None:
            raise PlanError(
                f"fleet.CheckpointManager(shares={shares}) keeps the samples of an update on "
                "another number of workers, and this job has parameter servers, which update with "
                "what each worker sends; leave shares out."
            )
        self._folder, self._keep, self._steps = Path(folder), keep, steps
        self._seconds = float(leaving.wanted_seconds() or seconds or SECONDS)
        _check(self._seconds, keep, steps=steps, shares=shares)
        self._goes_on = resume or leaving.is_restart()
        if not self._goes_on and (aside := set_checkpoints_aside(folder)):
            logger.warning(
                "%s had checkpoints of an earlier run, which are in %s now; resume=True would have "
                "gone on from them",
                *(folder, aside),
            )
        before = self._began() if self._goes_on else None
        self._batch = GlobalBatch("CheckpointManager", before, shares)
        self._loaded: _Loaded | None = None

    @property
    def updates(self) -> int:
        """Updates of the run, those before it was interrupted included."""
        return 0 if self._loaded is None else self._loaded.updates

    @takes("CheckpointManager.load", parts=PARTS | None)
    def load(
        self,
        model: Model,
        optimizer: Mover,
        *,
        parts: Mapping[str, Stateful] | None = None,
    ) -> dict[str, Any] | None:
        """Take everything back to the latest checkpoint; None where the run begins.

        Args:
            model: what ``distributed_model`` returned, or a program.
            optimizer: what ``distributed_optimizer`` returned, or the executor of the program.
            parts: loaders, schedulers and the like by name, which are saved from now on.

        Returns:
            The numbers that were saved, and "step", the updates that were made, and "workers".
        """
        _refuse_own_pace()
        found = None
        if self._goes_on:
            found = load_checkpoint(self._folder, model, optimizer, parts=parts)
        if session.may_save():
            together(self._note_beginning, first_only=True)
        reached = found["step"] if found else 0
        moments = Moments(self._seconds, self._steps, reached)
        self._loaded = _Loaded(model, optimizer, parts or {}, moments, reached)
        leaving.notice.heed()
        roles.at_stop(leaving.notice.forget)
        return found

    def step(self, numbers: dict[str, Any] | None = None) -> None:
        """A batch is done: save if it is time, and leave if somebody was told to stop.

        A checkpoint is written while training goes on. Between two updates, where gradients wait,
        nothing is saved. When a worker or its launcher got SIGTERM, all workers save, wait until it
        is written, and end with exit code 75.

        Args:
            numbers: plain values by name, which ``load`` returns.
        """
        if numbers is not None:
            expect("CheckpointManager.step", "numbers", numbers, _NUMBERS)
        loaded = self._running("step")
        if not loaded.has_moved():
            return
        verdict = loaded.moments.after(loaded.updates)
        if verdict.save or verdict.leave:
            self._save(loaded, numbers, wait=bool(verdict.leave))
        if verdict.leave:
            sentence = f"{verdict.leave}; saved after update {loaded.updates}"
            if roles.is_first_worker():
                logger.warning(
                    "%s, and all leave (exit code %d)", sentence, leaving.ASKS_FOR_RESTART
                )
            raise leaving.Left(sentence)

    @takes("CheckpointManager.save", numbers=_NUMBERS)
    def save(self, numbers: dict[str, Any] | None = None, *, wait: bool = False) -> None:
        """Save now, whatever the time: at the end of an epoch, for instance.

        Args:
            numbers: plain values by name, which ``load`` returns.
            wait: until it is written.
        """
        self._save(self._running("save"), numbers, wait=wait)

    def _save(self, loaded: "_Loaded", numbers: dict[str, Any] | None, *, wait: bool) -> None:
        if loaded.saved == loaded.updates and not numbers:
            if wait:
                finish_checkpoints()
            return  # it is what was saved last
        save_checkpoint(
            self._folder,
            loaded.model,
            loaded.optimizer,
            step=loaded.updates,
            parts=loaded.parts,
            numbers=numbers,
            keep=self._keep,
            wait=wait or servers.has_servers(),
        )
        loaded.saved = loaded.updates
        loaded.moments.saved()

    def _running(self, call: str) -> "_Loaded":
        if self._loaded is None:
            raise RuntimeError(
                f"CheckpointManager.{call}() was called before load(), which says what is saved; "
                "call load(model, optimizer, parts=...) before the loop."
            )
        return self._loaded

    def _began(self) -> Beginning | None:
        """How the run of this folder began, as worker 0 reads it."""
        try:
            told = json.loads((self._folder / NAME).read_text(encoding="utf-8"))
            mine = [int(told["shares"]), int(told["merge"])]
        except (OSError, ValueError, KeyError, TypeError):
            mine = []
        found = util.all_gather(mine)[0]
        return Beginning(*found) if found else None

    def _note_beginning(self) -> None:
        """Leave it for whoever goes on: whole or not at all."""
        self._folder.mkdir(parents=True, exist_ok=True)
        partial = self._folder / f".{NAME}"
        partial.write_text(json.dumps(asdict(self._batch.beginning())), encoding="utf-8")
        partial.replace(self._folder / NAME)


class _Loaded:
    """What is saved, and how far it is."""

    def __init__(
        self,
        model: Model,
        optimizer: Mover,
        parts: Mapping[str, Stateful],
        moments: Moments,
        reached: int,
    ) -> None:
        self.model, self.optimizer, self.parts, self.moments = model, optimizer, parts, moments
        self._engine: Engine = trained("CheckpointManager.load", model, optimizer).state.engine
        self._before = reached - self._engine.updates
        self._seen = self.saved = reached

    @property
    def updates(self) -> int:
        """Of the run."""
        return self._before + self._engine.updates

    def has_moved(self) -> bool:
        """Whether an update was made since this was asked last."""
        moved = self.updates > self._seen
        self._seen = self.updates
        return moved


def _refuse_own_pace() -> None:
    """Workers save after the same update, which those of asynchronous jobs never make."""
    if servers.has_servers() and session.current("CheckpointManager").strategy.a_sync:
        raise PlanError(
            "CheckpointManager.load() has to know after which update all workers save, and with "
            "strategy.a_sync each of them updates the servers at its own pace; set strategy.a_sync "
            "to False, or call fleetx.io.save_checkpoint() where all workers meet, as after an "
            "epoch."
        )


def _check(seconds: float, keep: int, **counts: int | None) -> None:
    if seconds <= 0:
        raise ValueError(
            f"fleet.CheckpointManager(seconds={seconds:g}) would do nothing but save; set the "
            "seconds between two checkpoints, such as 600."
        )
    for name, count in {"keep": keep, **counts}.items():
        if count is not None and count < 1:
            raise ValueError(f"fleet.CheckpointManager({name}={count}) names none; set 1 or more.")
