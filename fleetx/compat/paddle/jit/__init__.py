"""``paddle.jit``: layers as programs."""

from fleetx.compat.tables import table

__getattr__, __dir__ = table(
    __name__,
    {
        "paddle.jit.api": "to_static save load not_to_static TranslatedLayer ProgramTranslator",
        "paddle.jit.traced": "TracedLayer",
        "paddle.static.input": "InputSpec",
    },
    modules=["api"],
)
