"""A worker's sign of life to its servers, by which it also learns whether they live."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from fleetx.ps.wire.channel import PATIENCE, Access
from fleetx.ps.wire.frames import BadFrameError
from fleetx.ps.worker.client import Client

logger = logging.getLogger(__name__)

HEARTBEAT = 1.0
ANSWER_TIMEOUT = 5.0
"""Seconds that a server may take to answer: whatever else it does, nothing is to be waited for."""
SILENCE = PATIENCE / 2


class Heartbeat:
    """A thread for each server, so that a silent one keeps no sign of life from the others."""

    def __init__(
        self,
        endpoints: Sequence[str],
        access: Access,
        silent: Callable[[int], None],
        *,
        answer_timeout: float = ANSWER_TIMEOUT,
        silence: float = SILENCE,
    ) -> None:
        """Begin to beat.

        Args:
            endpoints: of the servers.
            access: how they are reached.
            silent: is told the number of a server that has not answered for a while, again after
                each such while.
            answer_timeout: seconds in which a server must answer.
            silence: how long a while is.
        """
        self._silent, self._silence = silent, silence
        self._stopped = threading.Event()
        hurried = replace(access, patience=HEARTBEAT)
        self._clients = [
            Client([endpoint], hurried, answer_timeout=answer_timeout) for endpoint in endpoints
        ]
        self._threads = [
            threading.Thread(target=self._beat, args=(server,), name="heartbeat", daemon=True)
            for server in range(len(endpoints))
        ]
        for thread in self._threads:
            thread.start()

    def _beat(self, server: int) -> None:
        client, heard = self._clients[server], time.monotonic()
        while not self._stopped.wait(HEARTBEAT):
            try:
                client.call({"method": "heartbeat"})
                heard = time.monotonic()
            except (OSError, RuntimeError, BadFrameError) as error:
                logger.debug("heartbeat: %s", error)
                client.close()
            if time.monotonic() - heard > self._silence:
                heard = time.monotonic()
                self._silent(server)
        client.close()

    def stop(self) -> None:
        """Beat no more."""
        self._stopped.set()
        for client in self._clients:
            client.end()
        for thread in self._threads:
            thread.join()
