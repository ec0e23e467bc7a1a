"""``paddle.incubate``."""

from fleetx.compat.tables import table

__getattr__, __dir__ = table(
    __name__,
    {
        "averages": "ModelAverage",
        "wrapped_optimizers": "LookAhead",
        "paddle.incubate.operators": (
            "graph_send_recv identity_loss segment_max segment_mean segment_min segment_sum "
            "softmax_mask_fuse softmax_mask_fuse_upper_triangle"
        ),
    },
    modules=["nn", "optimizer"],
)
