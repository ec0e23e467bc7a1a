"""``paddle.fluid``, of 1.6 to 1.8 and as 2.x kept it."""

from fleetx.compat.tables import table

__getattr__, __dir__ = table(
    __name__,
    {
        "modes": "in_dygraph_mode",
        "parameters": "ParamAttr",
    },
    modules=["unique_name"],
)
