"""``paddle.fluid.contrib``."""

from fleetx.compat.tables import table

__getattr__, __dir__ = table(
    __name__,
    {
        "paddle.fluid.contrib.memory_usage_calc": "memory_usage",
        "paddle.fluid.contrib.reader": "distributed_batch_reader",
        "paddle.fluid.contrib.mixed_precision.decorator": "decorate",
        "paddle.fluid.contrib.op_frequence": "op_freq_statistic",
        "paddle.fluid.contrib.utils": "HDFSClient",
        "paddle.fluid.contrib.layers": (
            "batch_fc ctr_metric_bundle fused_elemwise_activation fused_embedding_seq_pool "
            "multiclass_nms2 partial_concat partial_sum shuffle_batch"
        ),
    },
    modules=[
        *["layers", "memory_usage_calc", "mixed_precision"],
        *["op_frequence", "reader", "slim", "utils"],
    ],
)
