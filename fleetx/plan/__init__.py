"""Plans: contracts over a record of verbs, composed and checked before the first step."""

from fleetx.callable_rooms import let_call

let_call(__name__, "fleetx.api.planning", "plan")
