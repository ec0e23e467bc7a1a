"""Jobs with servers whose roles a script knows by itself: each process says when it has one."""

import atexit
from collections.abc import Callable
from dataclasses import dataclass

import fleetx
from fleetx import roles
from fleetx.compat.programs import Program
from fleetx.compat.role_makers import UserDefinedRoleMaker
from fleetx.near_names import near_names
from fleetx.ps.worker.worker import running

_met: list[str] = []
"""What let this process meet servers, where the script did not say so itself."""


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
        if _met:
            return
        self._begin(self.worker, roles.Role.WORKER)
        _meet("get_trainer_program()")

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


def meet_at_a_batch() -> None:
    """Let a worker of servers meet them now, if it has not: Paddle's could train without a word."""
    if not roles.started() or running() is not None:
        return
    found = roles.identity()
    if found.is_worker and not found.is_collective and found.server_endpoints:
        _meet("a batch")


def _meet(why: str) -> None:
    fleetx.init_worker()
    _met.append(why)
    atexit.register(stop)


def stop() -> None:
    """Part from the servers, if this process met them so."""
    if _met:
        _met.clear()
        atexit.unregister(stop)
        fleetx.stop_worker()
