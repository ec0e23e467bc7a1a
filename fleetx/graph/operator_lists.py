"""Operators by the names that users write: torch's and Paddle's, one table."""

from collections.abc import Iterable, Sequence

from fleetx.near_names import near_names

_PRODUCTS = "linear matmul mm bmm mv addmm addmv baddbmm addbmm __rmatmul__ einsum chain_matmul"

_TABLE = {
    # What users write | the names that the functions and methods of torch carry.
    "linear fc": "linear",
    "matmul matmul_v2 mul": _PRODUCTS,  # Paddle's mul is a matrix product; see multiply
    "mm": "mm",
    "bmm": "bmm",
    "mv": "mv",
    "addmm": "addmm",
    "baddbmm": "baddbmm",
    "einsum": "einsum",
    "bilinear": "bilinear",
    "scaled_dot_product_attention fused_attention": "scaled_dot_product_attention",
    "conv1d": "conv1d",
    "conv2d depthwise_conv2d": "conv2d",
    "conv3d": "conv3d",
    "conv_transpose1d": "conv_transpose1d",
    "conv_transpose2d conv2d_transpose": "conv_transpose2d",
    "conv_transpose3d conv3d_transpose": "conv_transpose3d",
    "lstm": "lstm lstm_cell",
    "gru": "gru gru_cell",
    "rnn": "rnn_tanh rnn_relu rnn_tanh_cell rnn_relu_cell lstm lstm_cell gru gru_cell",
    "embedding lookup_table lookup_table_v2": "embedding embedding_bag",
    "batch_norm sync_batch_norm": "batch_norm native_batch_norm",
    "instance_norm": "instance_norm",
    "layer_norm": "layer_norm native_layer_norm",
    "group_norm": "group_norm native_group_norm",
    "rms_norm": "rms_norm",
    "normalize": "normalize",
    "norm p_norm pnorm frobenius_norm": "norm frobenius_norm linalg_norm linalg_vector_norm",
    "dist": "dist",
    "cdist": "cdist",
    "cosine_similarity cos_sim": "cosine_similarity",
    "softmax": "softmax special_softmax",
    "softmin": "softmin",
    "log_softmax": "log_softmax special_log_softmax",
    "softplus": "softplus",
    "logsumexp": "logsumexp",
    "cross_entropy softmax_with_cross_entropy cross_entropy2": "cross_entropy cross_entropy_loss",
    "nll_loss": "nll_loss nll_loss_nd",
    "mse_loss square_error_cost": "mse_loss",
    "l1_loss": "l1_loss",
    "smooth_l1_loss huber_loss": "smooth_l1_loss huber_loss",
    "kl_div kldiv_loss": "kl_div",
    "binary_cross_entropy bce_loss log_loss": "binary_cross_entropy",
    "binary_cross_entropy_with_logits sigmoid_cross_entropy_with_logits": (
        "binary_cross_entropy_with_logits"
    ),
    "relu": "relu",
    "relu6": "relu6",
    "leaky_relu": "leaky_relu",
    "elu": "elu",
    "gelu": "gelu",
    "silu swish": "silu",
    "mish": "mish",
    "sigmoid": "sigmoid",
    "logsigmoid": "logsigmoid log_sigmoid",
    "tanh": "tanh",
    "hardswish hard_swish": "hardswish",
    "hardsigmoid hard_sigmoid": "hardsigmoid",
    "prelu": "prelu",
    "exp": "exp",
    "exp2": "exp2",
    "expm1": "expm1",
    "log": "log",
    "log2": "log2",
    "log10": "log10",
    "log1p": "log1p",
    "pow elementwise_pow": "pow __rpow__ float_power",
    "square": "square",
    "sqrt": "sqrt",
    "rsqrt": "rsqrt",
    "reciprocal": "reciprocal __rdiv__ __rtruediv__",
    "sin": "sin",
    "cos": "cos",
    "tan": "tan",
    "asin": "asin arcsin",
    "acos": "acos arccos",
    "atan": "atan arctan",
    "sinh": "sinh",
    "cosh": "cosh",
    "erf": "erf",
    "erfinv": "erfinv",
    "abs": "abs absolute",
    "add elementwise_add": "add __radd__",
    "sub elementwise_sub": "sub subtract rsub __rsub__",
    "multiply elementwise_mul": "mul multiply __rmul__",  # torch's mul, which is taken above
    "div divide elementwise_div": "div divide true_divide __rdiv__ __rtruediv__",
    "addcmul": "addcmul",
    "addcdiv": "addcdiv",
    "lerp": "lerp",
    "where": "where",
    "clamp clip": "clamp clip",
    "maximum elementwise_max": "maximum",
    "minimum elementwise_min": "minimum",
    "sum reduce_sum": "sum",
    "mean reduce_mean": "mean",
    "prod reduce_prod": "prod",
    "var": "var",
    "std": "std",
    "cumsum": "cumsum",
    "cumprod": "cumprod",
    "max_pool2d max_pool2d_with_index": "max_pool2d max_pool2d_with_indices",
    "avg_pool2d": "avg_pool2d",
    "pool2d": (
        "max_pool2d max_pool2d_with_indices avg_pool2d adaptive_avg_pool2d "
        "adaptive_max_pool2d adaptive_max_pool2d_with_indices"
    ),
    "adaptive_avg_pool2d": "adaptive_avg_pool2d",
    "adaptive_max_pool2d": "adaptive_max_pool2d adaptive_max_pool2d_with_indices",
    "interpolate bilinear_interp_v2 nearest_interp_v2": "interpolate upsample",
    "grid_sample grid_sampler": "grid_sample grid_sampler",
    "dropout": "dropout",
    "cat concat": "cat concat concatenate",
    "stack": "stack",
    "index_add": "index_add",
    "scatter_add scatter": "scatter_add scatter",
}

FUNCTIONS: dict[str, frozenset[str]] = {
    name: frozenset(functions.split())
    for names, functions in _TABLE.items()
    for name in names.split()
}
"""Operator -> the names of the torch functions that carry it out."""

PRODUCTS = frozenset(
    f"{_PRODUCTS} bilinear scaled_dot_product_attention conv1d conv2d conv3d "
    "conv_transpose1d conv_transpose2d conv_transpose3d".split()
)
"""The functions that multiply matrices: where low precision saves time."""


def functions(label: str, operators: Iterable[str]) -> frozenset[str]:
    """The names of torch functions behind the operators of a list that users know as ``label``."""
    return frozenset().union(*(_functions(label, operator) for operator in operators))


def two_lists(
    owner: str, white: Sequence[str], black: Sequence[str]
) -> tuple[frozenset[str], frozenset[str]]:
    """The functions of ``custom_white_list`` and ``custom_black_list``, which must not meet."""
    low = functions(f"{owner}['custom_white_list']", white)
    kept = functions(f"{owner}['custom_black_list']", black)
    if both := {*white} & {*black} or low & kept:
        raise ValueError(
            f"{owner} names {sorted(both)} in custom_white_list and in custom_black_list, so it "
            "would have to run in both precisions; keep it in one of them."
        )
    return low, kept


def _functions(label: str, operator: str) -> frozenset[str]:
    name = operator.rpartition(".")[2]
    if name not in FUNCTIONS:
        near = near_names(name, FUNCTIONS) or sorted(FUNCTIONS)
        raise ValueError(
            f"{label} has the operator {operator!r}, which fleetx does not know, so the list could "
            f"not be in force; the nearest known names are {', '.join(near)}."
        )
    return FUNCTIONS[name]
