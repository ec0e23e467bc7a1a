"""``paddle.nn.functional``: functions of layers, over weights that are given."""

from fleetx.compat.tables import table

__getattr__, __dir__ = table(
    __name__,
    {
        "paddle.nn.functional.activation": (
            "relu relu_ relu6 gelu sigmoid tanh tanh_ softmax softmax_ log_softmax leaky_relu elu "
            "selu silu swish mish hardswish hardsigmoid hardtanh softplus softsign log_sigmoid "
            "prelu glu celu hardshrink softshrink tanhshrink thresholded_relu maxout rrelu "
            "gumbel_softmax elu_ leaky_relu_ hardtanh_ thresholded_relu_"
        ),
        "paddle.nn.functional.common": (
            "linear dropout dropout2d dropout3d zeropad2d alpha_dropout pad interpolate upsample "
            "cosine_similarity label_smooth one_hot embedding unfold bilinear pixel_shuffle "
            "sequence_mask"
        ),
        "paddle.nn.functional.conv": (
            "conv1d conv2d conv3d conv1d_transpose conv2d_transpose conv3d_transpose"
        ),
        "paddle.nn.functional.loss": (
            "softmax_with_cross_entropy cross_entropy nll_loss mse_loss square_error_cost l1_loss "
            "smooth_l1_loss log_loss binary_cross_entropy binary_cross_entropy_with_logits kl_div "
            "margin_ranking_loss sigmoid_focal_loss ctc_loss cosine_embedding_loss dice_loss "
            "gaussian_nll_loss poisson_nll_loss hinge_embedding_loss multi_label_soft_margin_loss "
            "multi_margin_loss soft_margin_loss npair_loss triplet_margin_loss "
            "triplet_margin_with_distance_loss"
        ),
        "paddle.nn.functional.margins": "margin_cross_entropy class_center_sample",
        "paddle.nn.functional.vision": (
            "affine_grid grid_sample pixel_unshuffle channel_shuffle fold temporal_shift"
        ),
        "paddle.nn.functional.distance": "pairwise_distance scaled_dot_product_attention",
        "paddle.tensor.pieces": "diag_embed",
        "paddle.fluid.layers.decoding": "gather_tree",
        "paddle.nn.functional.norm": (
            "normalize layer_norm batch_norm instance_norm group_norm local_response_norm"
        ),
        "paddle.nn.functional.pooling": (
            "max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d "
            "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d "
            "adaptive_max_pool2d adaptive_max_pool3d"
        ),
    },
    modules=[
        *["activation", "common", "conv", "input", "loss", "norm", "pooling"],
        *["distance", "vision"],
    ],
)
