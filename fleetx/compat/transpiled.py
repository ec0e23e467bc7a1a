"""Jobs with servers whose roles a script knows by itself: each process says when it has one."""

import atexit
from collections.abc import Callable
from dataclasses import dataclass

import fleetx
from fleetx import roles
from fleetx.compat.programs import Program
from fleetx.compat.role_makers import UserDefinedRoleMaker
from fleetx.near_names import near_names

_workers: list["ServerJob"] = []
"""Those that this process has begun as a worker."""


class ServerProgram(Program):
    """What a server runs: an executor serves until the last worker has stopped."""

    def serve(self) -> None:
        """Serve."""
        fleetx.init_server()
        fleetx.run_server()


@dataclass(frozen=True)
class ServerJob:
    """Workers and servers, as a script described them."""

    worker: int
    endpoints: list[str]
    workers: int
    spread: Callable[[], None]
    """Gives the program of this process to the job."""

    def begin_worker(self) -> None:
        """Be a worker, and meet the servers."""
        if _workers:
            return
        self._begin(self.worker, roles.Role.WORKER)
        fleetx.init_worker()
        _workers.append(self)
        atexit.register(stop)

    def begin_server(self, endpoint: str) -> ServerProgram:
        """Be the server of this address."""
        if endpoint not in self.endpoints:
            near = near_names(endpoint, self.endpoints, most=1)
            hint = f"; the nearest is {near[0]}" if near else ""
            raise ValueError(
                f"{endpoint!r} is none of the servers {self.endpoints} that transpile() was given"
                f"{hint}."
            )
        self._begin(self.endpoints.index(endpoint), roles.Role.SERVER)
        return ServerProgram()

    def _begin(self, number: int, role: roles.Role) -> None:
        if not self.endpoints:
            raise ValueError(
                "transpile() was given no pservers, and config.mode is 'pserver'; name them as "
                "'host:port,host:port', or set config.mode = 'nccl2'."
            )
        if not roles.started():
            fleetx.init(
                UserDefinedRoleMaker(
                    current_id=number,
                    role=role,
                    worker_num=self.workers,
                    server_endpoints=self.endpoints,
                )
            )
        self.spread()


def stop() -> None:
    """Part from the servers, if this process met them so."""
    if _workers:
        _workers.clear()
        atexit.unregister(stop)
        fleetx.stop_worker()
