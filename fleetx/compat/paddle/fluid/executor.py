"""``paddle.fluid.executor``."""

from fleetx.compat.running import Executor, as_numpy
from fleetx.compat.scopes import global_scope, scope_guard
from fleetx.static import FetchHandler

__all__ = ["Executor", "FetchHandler", "as_numpy", "global_scope", "scope_guard"]
