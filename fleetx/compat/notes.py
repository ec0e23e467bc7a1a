"""Settings that tuned Paddle's own executor and change no result: said once, never in the way."""

import logging

_log = logging.getLogger("fleetx")
_said: set[str] = set()


def note(setting: str, why: str) -> None:
    """Say once in this process that a setting has nothing to set here."""
    if setting not in _said:
        _said.add(setting)
        _log.warning("%s: %s", setting, why)
