"""``paddle.fluid.contrib.layers``."""

from fleetx.compat.tables import table

__getattr__, __dir__ = table(
    __name__,
    {
        "paddle.fluid.contrib.layers.nn": (
            "batch_fc fused_elemwise_activation fused_embedding_seq_pool partial_concat "
            "partial_sum shuffle_batch sparse_embedding"
        ),
        "paddle.fluid.layers.kept_boxes": "multiclass_nms2",
        "paddle.fluid.contrib.layers.metric_op": "ctr_metric_bundle",
    },
    modules=["metric_op", "nn"],
)
