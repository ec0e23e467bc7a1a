"""The fleet of pslib: the same servers, and words of its own."""

from typing import Any

import fleetx
from fleetx.compat.fleets import Fleet
from fleetx.compat.notes import note


class PSLib(Fleet):
    """Workers and servers; workers do not wait for each other."""

    _collective = False

    def _set_client_communication_config(
        self, request_timeout_ms: int, connect_timeout_ms: int, max_retry: int
    ) -> None:
        """Noted: patience with servers is set by fleetrun."""
        note("fleet._set_client_communication_config()", "servers are waited for as it is.")

    def set_pull_local_thread_num(self, thread_num: int) -> None:
        """Noted: threads are chosen here."""
        note("fleet.set_pull_local_thread_num()", "threads are chosen here.")

    def shrink_sparse_table(self, threshold: int = 30) -> None:
        """Drop rows that were not used for long."""
        fleetx.shrink(threshold)

    def save_cache_model(self, executor: Any, dirname: str, main_program: Any = None) -> int:
        """Refused: there is no cache beside the tables."""
        raise NotImplementedError(
            "fleet.save_cache_model() saves rows that are used often, and servers keep no such "
            "list; save what is shown and clicked often with fleet.save_persistables(executor, "
            "dirname, mode=2) and ShowClickEntry(base_threshold=...), or follow the servers."
        )


fleet = PSLib()
