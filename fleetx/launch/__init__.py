"""The `fleetrun` command: who runs where, starting it, watching it, stopping it."""

from fleetx.callable_rooms import let_call

let_call(__name__, "fleetx.api.notebooks", "launch")
