"""A dense table with a log."""

import secrets
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

from fleetx.ps.server.changes import Change
from fleetx.ps.server.logged_table import LoggedTable
from fleetx.ps.server.membership import Membership
from fleetx.ps.tables.dense_table import DenseSpec, DenseTable
from fleetx.ps.wire.arrays import Array, Floats
from fleetx.ps.wire.frames import BadFrameError, Flag, Frame, Op
from fleetx.ps.wire.handshake import Claim
from fleetx.ps.wire.pipes import byte_view

_NONE = np.empty(0, np.int64)


class LoggedDenseTable(LoggedTable):
    """One flat array, which pulls and pushes take as a whole."""

    takes = frozenset({Op.READ, Op.WRITE})

    def __init__(
        self, spec: DenseSpec, membership: Membership, folder: Path | None, durable: bool = False
    ) -> None:
        self.table = DenseTable(spec)
        super().__init__(self.table, membership, folder, durable)
        self._life, self._replaced = secrets.token_hex(8), 0

    def replace(self, values: dict[str, Array], updates: int | None = None) -> None:
        """Set all values, past the optimizer: to those of a save, or of another server."""
        with self.changed, self.lost_on_failure():
            self.table.put(values)
            self._replaced += 1
            if updates is not None:
                self.table.updates = updates

    @override
    def brief(self) -> dict[str, Any]:
        with self.changed:
            stamp = f"{self._life}-{self._replaced}-{self.version}"
            return {
                "name": self.spec.name,
                "kind": "dense",
                "filled": self.table.filled,
                "updates": self.version,
                "stamp": stamp,
            }

    def read(self, claim: Claim, frame: Frame, patience: float) -> tuple[Floats, int]:
        """A copy of all values and its version, once the table has come to the one asked for."""
        with self.changed:
            if frame.step > self.version:
                self.await_version(frame.step, patience)
            self.require_intact()
            self.staleness.read(claim.worker, self.version)
            self.pulled += self.table.spec.size
            return self.table.values.copy(), self.version

    @override
    def reply_bytes(self, frame: Frame) -> int:
        return 4 * self.table.spec.size

    @override
    def parsed(self, frame: Frame, body: memoryview) -> Change:
        if frame.count != self.table.spec.size:
            raise BadFrameError(
                f"{frame.count} numbers were pushed to table {self.spec.name!r}, which has "
                f"{self.table.spec.size}"
            )
        values, present = np.frombuffer(body, np.float32, frame.count), None
        if frame.width:
            if frame.width != (blocks := len(self.table.spec.blocks)):
                raise BadFrameError(
                    f"{frame.width} blocks of table {self.spec.name!r}, which has {blocks}, were "
                    "said to have gradients or not"
                )
            present = np.frombuffer(body, np.uint8, frame.width, values.nbytes) != 0
        return Change(_NONE, values, None, present)

    @override
    def without_not_finite(self, frame: Frame, change: Change) -> tuple[Frame, memoryview, Change]:
        """Numbers that are not finite do not move: their gradients are taken for 0."""
        values = np.where(np.isfinite(change.values), change.values, np.float32(0))
        body = byte_view(values)
        if change.present is not None:
            body = memoryview(b"".join((body, byte_view(change.present))))
        return frame, body, change._replace(values=values)

    @override
    def apply(self, frame: Frame, change: Change) -> None:
        if frame.flags & Flag.INITIAL:
            self.table.fill(change.values)
        elif frame.flags & Flag.DELTA:
            self.table.add(change.values)
        else:
            rate = None if frame.rate < 0 else frame.rate
            self.table.push(change.values, rate, change.present)

    @override
    def merged(self, changes: list[Change]) -> Change:
        total = changes[0].values.copy()
        for change in changes[1:]:
            total += change.values
        marks = [change.present for change in changes if change.present is not None]
        # Somebody's gradient is a gradient; of those who have none, it is 0.
        present = np.any(marks, axis=0) if len(marks) == len(changes) else None
        return Change(_NONE, total / np.float32(len(changes)), None, present)
