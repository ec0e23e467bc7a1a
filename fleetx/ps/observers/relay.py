"""Serves the copies of a follower, over the same wire, to whoever follows in turn."""

import contextlib
import signal
import threading
from types import TracebackType
from typing import Any

from fleetx.ps.observers.follower import Follower
from fleetx.ps.server import metrics_page
from fleetx.ps.server.server import Server
from fleetx.roles import secrets
from fleetx.roles.addresses import join_endpoint


class Relay:
    """A listening server for each server that is followed; nobody can change anything through it.

    So many inference processes ask the relay, and the servers that train are asked once.
    """

    def __init__(
        self, follower: Follower, host: str, port: int, *, metrics_port: int | None = None
    ) -> None:
        """Describe it; ``with`` begins to serve.

        Args:
            follower: whose copies.
            host: to listen on.
            port: of the first server's copy; the others have the next ones. 0 for free ones.
            metrics_port: for figures; None for none.
        """
        self._follower, self._host, self._metrics_port = follower, host, metrics_port
        wanted = [f"{host}:{max(1, port)}"]
        token, tls = secrets.job_token(wanted), secrets.server_tls()
        self._servers = [
            Server((host, port and port + number), copy.handler, token, tls=tls)
            for number, copy in enumerate(follower.copies)
        ]
        self._threads = [
            threading.Thread(target=server.run, name="relay", daemon=True)
            for server in self._servers
        ]
        self._open = contextlib.ExitStack()
        self.figures = ""
        """Where Prometheus finds them; empty if nowhere."""
        self._stopped = threading.Event()

    @property
    def endpoints(self) -> list[str]:
        """Where the copies are served."""
        ports = [int(server.server_address[1]) for server in self._servers]
        return [join_endpoint(self._host, port) for port in ports]

    def report(self) -> dict[str, Any]:
        """What a person may want to know of all copies together."""
        reports = [copy.handler.report() for copy in self._follower.copies]
        tables: dict[str, Any] = {}
        for server, report in zip(self._follower.endpoints, reports, strict=True):
            tables |= {f"{name}@{server}": each for name, each in report["tables"].items()}
        return reports[0] | {"tables": tables, "age": self._follower.age}

    def __enter__(self) -> "Relay":
        if self._metrics_port is not None:
            page = metrics_page.served(self._host, self._metrics_port, self.report)
            port = self._open.enter_context(page)
            self.figures = f"http://{join_endpoint(self._host, port)}/metrics"
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for server in self._servers:
            server.handler.membership.ended.set()
        for thread in self._threads:
            thread.join()
        for server in self._servers:
            server.server_close()
        self._open.close()

    def run(self) -> None:
        """Serve until the process is told to stop."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._stopped.set())
        self._stopped.wait()
