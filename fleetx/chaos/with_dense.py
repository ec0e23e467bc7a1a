"""Imported, before processes are forked, for what torch loads with its first optimizer."""

from fleetx.chaos.processes import warm_up_dense

warm_up_dense()
