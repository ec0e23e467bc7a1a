"""``….parameter_server.pslib``: the servers of another library, in its words."""

from fleetx.compat.tables import table

__getattr__, __dir__ = table(
    __name__,
    {"paddle.fluid.incubate.fleet.parameter_server.pslib.pslib_fleet": "fleet PSLib"},
)
