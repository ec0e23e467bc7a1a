"""``paddle.fluid.contrib.slim.quantization``."""

from fleetx.compat.tables import table

__getattr__, __dir__ = table(
    __name__,
    {"paddle.fluid.contrib.slim.quantization.quantize_transpiler_v2": "QuantizeTranspilerV2"},
    modules=["quantize_transpiler_v2"],
)
