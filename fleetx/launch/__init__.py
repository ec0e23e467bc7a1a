"""The `fleetrun` command: who runs where, starting it, watching it, stopping it."""
