"""``paddle.nn.functional``: functions of layers, over weights that are given."""

from fleetx.compat.tables import table

__getattr__, __dir__ = table(
    __name__,
    {
        "paddle.nn.functional.activation": (
            "relu relu_ relu6 gelu sigmoid tanh tanh_ softmax softmax_ log_softmax leaky_relu elu "
            "selu silu swish mish hardswish hardsigmoid hardtanh softplus softsign log_sigmoid "
            "prelu glu"
        ),
        "paddle.nn.functional.common": (
            "linear dropout dropout2d alpha_dropout pad interpolate upsample cosine_similarity "
            "label_smooth one_hot embedding unfold bilinear pixel_shuffle sequence_mask"
        ),
        "paddle.nn.functional.conv": ("conv1d conv2d conv3d conv1d_transpose conv2d_transpose"),
        "paddle.nn.functional.loss": (
            "softmax_with_cross_entropy cross_entropy nll_loss mse_loss square_error_cost l1_loss "
            "smooth_l1_loss log_loss binary_cross_entropy binary_cross_entropy_with_logits kl_div "
            "margin_ranking_loss sigmoid_focal_loss ctc_loss"
        ),
        "paddle.nn.functional.norm": (
            "normalize layer_norm batch_norm instance_norm group_norm local_response_norm"
        ),
        "paddle.nn.functional.pooling": (
            "max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d "
            "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d "
            "adaptive_max_pool2d"
        ),
    },
    modules=["activation", "common", "conv", "input", "loss", "norm", "pooling"],
)
