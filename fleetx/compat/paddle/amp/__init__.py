"""``paddle.amp``: mixed precision of eager scripts."""

from fleetx.compat.tables import table

__getattr__, __dir__ = table(
    __name__,
    {
        "paddle.amp.casting": (
            "auto_cast decorate amp_guard is_float16_supported is_bfloat16_supported"
        ),
        "paddle.amp.grad_scaler": "GradScaler AmpScaler",
    },
    modules=["grad_scaler"],
)
