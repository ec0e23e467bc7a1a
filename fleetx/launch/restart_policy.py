"""Deaths that a parameter-server job survives: killed servers come back, killed workers do not."""

from collections.abc import Callable, Mapping

from fleetx.launch.cluster import Process, World
from fleetx.launch.console import warn
from fleetx.launch.failure import signal_name

SERVER_RESTARTS = 3
"""How often one server may be killed before the job is given up."""


class RestartPolicy:
    """Only processes that were killed count; one whose script failed ends the job as ever."""

    def __init__(self, world: World, lose: Callable[[], int]) -> None:
        """`lose` counts a killed worker and says how many there are on all machines."""
        self._world, self._lose = world, lose
        self._restarts = dict.fromkeys(range(len(world.local)), 0)
        self._lost: dict[int, bool] = {}
        """Killed workers, and whether the job survives them."""

    def to_restart(self, codes: Mapping[int, int | None]) -> list[int]:
        """Servers that were killed and may be started again, which is told to the user."""
        found = []
        for index, code in codes.items():
            process = self._world.local[index]
            if process.role != "PSERVER" or code is None or code >= 0:
                continue
            if self._restarts[index] < SERVER_RESTARTS:
                self._restarts[index] += 1
                found.append(index)
                warn(
                    f"{process.title} was killed by {signal_name(-code)} and is started again "
                    f"({self._restarts[index]} of {SERVER_RESTARTS}); its tables come back from "
                    "its log"
                )
        return found

    def survived(self, codes: Mapping[int, int | None]) -> dict[int, int | None]:
        """The codes, with a killed worker counted as one that is done, unless it was the last."""
        told = dict(codes)
        for index, code in codes.items():
            process = self._world.local[index]
            if process.role != "TRAINER" or code is None or code >= 0:
                continue
            if index not in self._lost:
                self._lost[index] = self._lose() < len(self._world.workers)
                self._tell(process, code, survived=self._lost[index])
            if self._lost[index]:
                told[index] = 0
        return told

    def _tell(self, process: Process, code: int, *, survived: bool) -> None:
        if survived:
            warn(
                f"{process.title} was killed by {signal_name(-code)}; the servers tell the other "
                "workers, which go on without it if they do not wait for each other"
            )
