"""Undo in a rank what one call may leave behind for the next."""

import functools
import gc
import os
import random
import sys
from typing import Any

SEED = 0
_ROUNDS = 10
"""So often what is kept out of searches grows before all of it is searched, which is dear."""


class Reset:
    """Restores the state found when it was made; calling it tells the state of the groups."""

    def __init__(self) -> None:
        import torch
        from torch import distributed as dist

        self._group = dist.group.WORLD
        self._environment = dict(os.environ)
        self._folder = os.getcwd()
        self._threads = torch.get_num_threads()
        self._mkldnn = torch.backends.mkldnn.enabled
        self._loaded = len(sys.modules)  # those from birth are kept out by the fork server
        self._rounds = 0
        self()

    def settle(self) -> None:
        """Before a call: keep modules that were loaded out of every later search for garbage.

        Not right after a call, of which something may still be held that shall be found later.
        What was held when modules were loaded gets its chance at some rounds: a group among it
        would keep its threads for good. Not at each of them: that search goes through all of torch,
        whose pages the rank would no longer share with the others.
        """
        if len(sys.modules) > self._loaded:
            self._rounds += 1
            if self._rounds % _ROUNDS == 0:
                gc.unfreeze()
            gc.collect()
            gc.freeze()
            self._loaded = len(sys.modules)

    def __call__(self) -> int | None:
        """Reset everything; how many groups were ever made, None if the default one is gone."""
        _stop_fleetx()
        groups = self._reset_groups()
        self._reset_process()
        self._reset_torch()
        return groups

    def _reset_process(self) -> None:
        if os.environ != self._environment:
            os.environ.clear()
            os.environ.update(self._environment)
        os.chdir(self._folder)
        random.seed(SEED)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(SEED)

    def _reset_torch(self) -> None:
        import torch

        torch.manual_seed(SEED)
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
        torch.set_grad_enabled(True)
        # Torch itself switches oneDNN off for good where that cannot multiply, as in bfloat16 on
        # some ARM processors, and adds up in another order from then on.
        torch.backends.mkldnn.enabled = self._mkldnn
        if torch.are_deterministic_algorithms_enabled():  # the setter imports the compiler
            torch.use_deterministic_algorithms(False)
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)

    def _reset_groups(self) -> int | None:
        from torch import distributed as dist

        from fleetx.torch_internals import groups_made, process_groups

        if not dist.is_initialized() or dist.group.WORLD is not self._group:
            return None
        extra = [group for group in process_groups() if group is not self._group]
        for group in extra:
            dist.destroy_process_group(group)
        if extra:
            _forget_meshes()
            # Models and their hooks are cycles that hold groups, and each group has three threads,
            # one of which wakes up a hundred times a second.
            del extra
            gc.collect()
        return groups_made()


def _stop_fleetx() -> None:
    roles = sys.modules.get("fleetx.roles")
    if roles is not None and (stop := getattr(roles, "stop", None)):
        stop()
    if "fleetx.static.record.current" in sys.modules:
        sys.modules["fleetx.static.record.current"].reset()


def _forget_meshes() -> None:
    """Empty DTensor's caches: they hold meshes, and meshes hold groups that no longer exist."""
    if "torch.distributed.tensor" not in sys.modules:
        return
    from fleetx.torch_internals import forget_sharding_plans

    for cached in _cached_functions("torch.distributed.tensor", len(sys.modules)):
        cached.cache_clear()
    forget_sharding_plans()


@functools.lru_cache(maxsize=1)
def _cached_functions(package: str, loaded: int) -> list[Any]:
    """Functions and methods of a package that remember what they returned.

    Args:
        package: its name.
        loaded: how many modules there are: with a new one they are looked for again.
    """
    modules = [value for name, value in sys.modules.items() if name.startswith(package)]
    owners = [value for module in modules for value in vars(module).values()]
    classes = [owner for owner in owners if isinstance(owner, type)]
    values = [value for owner in (*modules, *classes) for value in vars(owner).values()]
    functions = (getattr(value, "__func__", value) for value in values)  # of a class method
    return [found for found in functions if isinstance(found, functools._lru_cache_wrapper)]
