"""``paddle``: what scripts of 1.6 to 2.4 find at the top."""

from fleetx.compat.tables import table

__version__ = "2.4.2"

__getattr__, __dir__ = table(
    __name__,
    {
        "modes": "enable_static disable_static in_dynamic_mode",
        "parameters": "ParamAttr",
    },
    modules=["fluid"],
)
