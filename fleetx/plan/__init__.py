"""Plans: contracts over a record of verbs, composed and checked before the first step."""

import importlib
import sys
import types
from typing import Any


class _CallableRoom(types.ModuleType):
    """``fleet.plan(...)`` is a call, and ``fleetx.plan`` the package of that name: it is both."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return importlib.import_module("fleetx.api.planning").plan(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableRoom
