"""``paddle.nn.utils``."""

from fleetx.compat.tables import table

__getattr__, __dir__ = table(
    __name__,
    {
        "paddle.nn.utils.weight_norm_hook": "weight_norm remove_weight_norm",
        "paddle.nn.utils.transform_parameters": "parameters_to_vector vector_to_parameters",
        "paddle.nn.utils.clip_grad": "clip_grad_norm_ clip_grad_value_",
    },
    modules=["weight_norm_hook", "transform_parameters", "clip_grad"],
)
