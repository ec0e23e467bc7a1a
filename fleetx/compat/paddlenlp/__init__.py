"""``paddlenlp``: the few names that Fleet scripts use."""

from fleetx.compat.tables import table

__version__ = "2.0.0"

__getattr__, __dir__ = table(__name__, {}, modules=["data", "datasets"])
