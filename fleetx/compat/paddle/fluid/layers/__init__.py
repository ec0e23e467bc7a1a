"""``paddle.fluid.layers``."""

from fleetx.compat.tables import table

__getattr__, __dir__ = table(
    __name__,
    {
        "paddle.fluid.layers.linear": "fc embedding dropout bilinear_tensor_product row_conv",
        "paddle.fluid.layers.images": (
            "conv2d conv3d conv2d_transpose conv3d_transpose pool2d pool3d adaptive_pool2d lrn"
        ),
        "paddle.fluid.layers.norms": (
            "batch_norm layer_norm group_norm instance_norm data_norm inplace_abn spectral_norm"
        ),
        "paddle.fluid.layers.activation": (
            "relu relu6 leaky_relu elu selu swish mish hard_sigmoid hard_swish brelu soft_relu "
            "stanh softmax log_softmax maxout prelu"
        ),
        "paddle.fluid.layers.elementwise": (
            "elementwise_add elementwise_sub elementwise_mul elementwise_div elementwise_max "
            "elementwise_min elementwise_pow elementwise_mod elementwise_floordiv logical_and "
            "logical_or logical_xor logical_not"
        ),
        "paddle.fluid.layers.reduction": (
            "reduce_sum reduce_mean reduce_max reduce_min reduce_prod reduce_all reduce_any mean "
            "sum scale pow clip clip_by_norm matmul mul cos_sim l2_normalize topk label_smooth dot "
            "bmm"
        ),
        "paddle.fluid.layers.manipulation": (
            "reshape squeeze unsqueeze transpose split stack unstack unbind expand expand_as "
            "flatten gather gather_nd scatter scatter_nd_add slice strided_slice shape rank size "
            "pad pad2d one_hot where shard_index unique pixel_shuffle resize_bilinear "
            "resize_nearest"
        ),
        "paddle.fluid.layers.pictures": (
            "image_resize image_resize_short resize_linear resize_trilinear grid_sampler "
            "affine_grid affine_channel shuffle_channel space_to_depth temporal_shift unfold "
            "adaptive_pool3d random_crop"
        ),
        "paddle.fluid.layers.assorted": (
            "crop crop_tensor pad_constant_like multiplex scatter_nd "
            "uniform_random_batch_size_like gaussian_random_batch_size_like sampling_id "
            "add_position_encoding triu mean_iou"
        ),
        "paddle.fluid.layers.loss": (
            "cross_entropy softmax_with_cross_entropy sigmoid_cross_entropy_with_logits "
            "square_error_cost mse_loss log_loss huber_loss smooth_l1 kldiv_loss rank_loss "
            "margin_rank_loss bpr_loss dice_loss npair_loss center_loss"
        ),
        "paddle.fluid.layers.sequence": (
            "sequence_pool sequence_first_step sequence_last_step sequence_softmax "
            "sequence_expand sequence_expand_as sequence_reverse sequence_pad sequence_mask "
            "sequence_conv sequence_unpad sequence_concat sequence_slice sequence_reshape "
            "sequence_enumerate sequence_scatter lod_reset im2sequence"
        ),
        "paddle.fluid.layers.recurrent": (
            "dynamic_lstm dynamic_lstmp dynamic_gru gru_unit lstm_unit lstm"
        ),
        "paddle.fluid.layers.rnn_cells": "RNNCell GRUCell LSTMCell rnn",
        "paddle.fluid.layers.blocks_of_steps": "StaticRNN DynamicRNN",
        "paddle.fluid.layers.decoding": "Decoder BeamSearchDecoder dynamic_decode gather_tree",
        "paddle.fluid.layers.tagging": (
            "linear_chain_crf crf_decoding chunk_eval warpctc ctc_greedy_decoder edit_distance"
        ),
        "paddle.fluid.layers.sampled": (
            "nce continuous_value_model hsigmoid teacher_student_sigmoid_loss "
            "sampled_softmax_with_cross_entropy"
        ),
        "paddle.fluid.layers.searches": "beam_search beam_search_decode",
        "paddle.fluid.layers.ops": (
            "exp tanh atan sqrt rsqrt abs ceil floor cos acos asin sin sinh cosh round reciprocal "
            "square softplus softsign sigmoid logsigmoid tanh_shrink erf log sign gelu softshrink "
            "hard_shrink thresholded_relu cumsum uniform_random gaussian_random"
        ),
        "paddle.fluid.layers.tensor": (
            "cast create_tensor create_parameter create_global_var assign fill_constant "
            "fill_constant_batch_size_like ones zeros ones_like zeros_like range linspace eye diag "
            "sums argmax argmin argsort has_inf has_nan isfinite concat reverse"
        ),
        "paddle.fluid.layers.control_flow": (
            "Switch While IfElse ParallelDo Print increment is_empty cond case switch_case "
            "while_loop create_array array_write array_read array_length less_than less_equal "
            "greater_than greater_equal equal not_equal"
        ),
        "paddle.fluid.layers.boxes": "iou_similarity box_coder prior_box anchor_generator",
        "paddle.fluid.layers.regions": "roi_align roi_pool",
        "paddle.fluid.layers.yolo": "yolo_box yolov3_loss",
        "paddle.fluid.layers.deformed": "deformable_conv",
        "paddle.fluid.layers.kept_boxes": "multiclass_nms",
        "paddle.fluid.layers.matched_boxes": "bipartite_match target_assign",
        "paddle.fluid.layers.ssd": "ssd_loss multi_box_head detection_output",
        "paddle.fluid.layers.learning_rate_scheduler": (
            "exponential_decay natural_exp_decay inverse_time_decay polynomial_decay "
            "piecewise_decay cosine_decay noam_decay linear_lr_warmup autoincreased_step_counter"
        ),
        "paddle.fluid.layers.metric_op": "accuracy auc",
        "paddle.fluid.layers.io": (
            "data py_reader create_py_reader_by_data read_file double_buffer"
        ),
        "paddle.distribution": "Normal Uniform Categorical",
        "paddle.fluid.layers.device": "get_places",
        "paddle.fluid.layers.functions": "py_func",
    },
    modules=[
        "collective",
        "control_flow",
        "detection",
        "device",
        "io",
        "learning_rate_scheduler",
        "loss",
        "metric_op",
        "nn",
        "ops",
        "sequence_lod",
        "tensor",
        "utils",
    ],
)
