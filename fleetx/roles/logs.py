"""Where fleetx's log lines go when the script has not said so."""

import logging

from fleetx.roles.role import Identity

_root = logging.getLogger("fleetx")


def attach(found: Identity) -> logging.Handler | None:
    """Send the lines of "fleetx" to stderr, unless the script has set up logging itself."""
    if _root.handlers or logging.getLogger().handlers:
        return None
    handler = logging.StreamHandler()
    handler.setFormatter(
        logging.Formatter(f"%(asctime)s %(levelname)s [{found.noun} {found.index}] %(message)s")
    )
    _root.addHandler(handler)
    # One process speaks for all; the others are heard when something is wrong.
    _root.setLevel(logging.INFO if found.index == 0 else logging.WARNING)
    return handler


def detach(handler: logging.Handler | None) -> None:
    """Undo `attach`."""
    if handler is not None:
        _root.removeHandler(handler)
        _root.setLevel(logging.NOTSET)
