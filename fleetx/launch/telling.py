"""What the launcher of a machine passes on of its processes, into a file beside their logs."""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from fleetx.launch import console
from fleetx.launch.cluster import Process, World
from fleetx.launch.logs import keep_earlier
from fleetx.launch.reporter import AFTER, FILE
from fleetx.launch.seen import Verdict
from fleetx.launch.watch_file import WatchFile, name_of

LOOK = 0.5
LONGEST = 4000
"""Characters of a warning that are kept; with many stacks it may have more."""
PASSED_ON = ("doing", "batches", "calls", "ended", "updates", "place", "meeting")
"""Of what a process tells of itself; its figures are passed on as they are."""


class Telling:
    """Writes while the job runs; leaving it tells how the job ended.

    Args:
        folder: where the logs are.
        script: what runs, for people.
    """

    def __init__(self, folder: Path, script: str) -> None:
        self._folder, self._script = folder, script
        self._file: WatchFile | None = None
        self._files: dict[Process, Path] = {}
        self._attempt, self._host = 0, ""
        self._looked = 0.0
        self._facts: Mapping[str, Any] = {}
        self._verdict: Verdict | None = None
        self._code: int | None = None

    @staticmethod
    def variables(file: Path) -> dict[str, str]:
        """What a process must know that tells of itself, without being asked if it stands still."""
        return {FILE: str(file), AFTER: "inf"}

    def begin(self, world: World, files: Sequence[Path], attempt: int, host: str) -> None:
        """An attempt begins, of these processes of this machine, which tell in these files."""
        path = self._folder / name_of(world.node_rank)
        self._close()
        if attempt == 0:
            keep_earlier(path)
        self._file = WatchFile(path)
        self._files = dict(zip(world.local, files, strict=True))
        self._attempt, self._host = attempt, host
        self._looked, self._facts, self._verdict = 0.0, {}, None
        self._file.write(
            "job",
            attempt=attempt,
            script=self._script,
            host=host,
            node=world.node_rank,
            nodes=world.nnodes,
            workers=len(world.workers),
            servers=len(world.servers),
        )

    def look(
        self, codes: Mapping[int, int | None], verdict: Verdict | None = None, *, now: bool = False
    ) -> None:
        """Pass on what the processes have told since, if it is time, or must be now.

        Args:
            codes: how processes ended, by their places on this machine.
            verdict: who keeps others waiting.
            now: whether or not it is time.
        """
        at = time.monotonic()
        if self._file is None or (at - self._looked < LOOK and not now):
            return
        self._looked = at
        told: dict[str, dict[str, Any]] = {"TRAINER": {}, "PSERVER": {}}
        for index, (process, file) in enumerate(self._files.items()):
            told[process.role][str(process.rank)] = self._told(file, codes.get(index), at)
        self._file.write(
            "ranks",
            attempt=self._attempt,
            host=self._host,
            ranks=told["TRAINER"],
            servers=told["PSERVER"],
        )
        self._pass_on(verdict)

    def _told(self, file: Path, code: int | None, at: float) -> dict[str, Any]:
        try:
            told: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            passed_on = {name: told[name] for name in PASSED_ON if told.get(name, "") != ""}
            passed_on |= {"state": told["state"], "still": round(at - float(told["still"]), 1)}
        except (OSError, ValueError, KeyError, TypeError):
            told, passed_on = {}, {"state": "starting"}  # it has told nothing yet
        if (facts := told.get("facts")) and not self._facts and self._file is not None:
            self._facts = facts
            self._file.write("facts", attempt=self._attempt, **facts)
        if code is not None:
            passed_on |= {"state": "ended" if code == 0 else "failed", "code": code}
        figures: dict[str, Any] = told.get("figures", {})
        return passed_on | figures

    def _pass_on(self, verdict: Verdict | None) -> None:
        """Who is stuck, when that changes."""
        known = self._verdict and (self._verdict.culprits, self._verdict.waiting)
        if known == (verdict and (verdict.culprits, verdict.waiting)):
            return
        self._verdict = verdict
        found = vars(verdict) if verdict is not None else {}
        assert self._file is not None
        self._file.write("stuck", attempt=self._attempt, **found)

    def _said(self, text: str) -> None:
        if self._file is not None:
            self._file.write("said", attempt=self._attempt, text=text[:LONGEST])

    def ended_with(self, code: int) -> int:
        """The job has come to its end with this code, which is given back."""
        self._code = code
        return code

    def __enter__(self) -> "Telling":
        console.heard.append(self._said)
        return self

    def __exit__(
        self, _kind: object, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        code = getattr(error, "code", 1) if error is not None else self._code
        if self._file is not None:
            self._file.write("end", attempt=self._attempt, code=code)
        console.heard.remove(self._said)
        self._close()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None
