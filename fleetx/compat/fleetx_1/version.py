"""``fleetx.version``."""

fleetx_version = "1.0.0"
fleetx_full_version = "1.0.0"
