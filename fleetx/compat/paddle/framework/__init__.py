"""``paddle.framework``."""

from fleetx.compat.tables import table

__getattr__, __dir__ = table(
    __name__,
    {
        "parameters": "ParamAttr",
        "modes": "in_dynamic_mode in_dygraph_mode",
        "default_dtype": "get_default_dtype set_default_dtype",
        "objects": "save load",
        "places": "CPUPlace CUDAPlace CUDAPinnedPlace",
        "paddle.autograd": "no_grad grad",
        "paddle.fluid.framework": "Variable",
        "paddle.fluid.tuning": "set_flags",
        "paddle.tensor.random": "seed",
    },
    modules=["random"],
)
