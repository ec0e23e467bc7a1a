"""A kept pool of gloo processes that runs a function on every rank, for tests."""

from fleetx.testing.worlds import World, world

__all__ = ["World", "world"]
