"""Layers that make their module where a script uses them; ``fleetx.static.nn`` is their door."""
