"""Processes of the pool of tests, in which ``import paddle`` finds fleetx."""

from collections.abc import Iterator
from contextlib import contextmanager

from fleetx import roles, static
from fleetx.compat import imports, modes, parameters, unique_names


@contextmanager
def served() -> Iterator[None]:
    """The old modules in a process of the pool, for one script."""
    static.reset()
    modes.forget()
    before = unique_names.switch()
    imports.install()
    try:
        with parameters.scope_of_its_own():
            yield
    finally:
        if roles.started():
            roles.stop()
        imports.uninstall()
        unique_names.switch(before)
        modes.forget()
        static.reset()
