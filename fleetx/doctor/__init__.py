"""``fleetx doctor``: whether this machine can run a distributed job, and what to do if not."""
