"""Which functions of ``paddle.tensor`` are methods of tensors as well."""

METHODS = {
    "paddle.tensor.manipulation": (
        "reshape reshape_ transpose concat split chunk squeeze unsqueeze squeeze_ unsqueeze_ stack "
        "unstack unbind expand expand_as broadcast_to tile gather gather_nd scatter scatter_ "
        "scatter_nd_add flatten slice strided_slice flip roll index_select index_sample unique "
        "masked_select put_along_axis take_along_axis repeat_interleave moveaxis shard_index "
        "scatter_nd reverse"
    ),
    "paddle.tensor.math": (
        "add subtract multiply divide mod floor_divide remainder pow maximum minimum sum mean max "
        "min prod cumsum cumprod exp log log2 log10 log1p sqrt rsqrt square abs sign ceil floor "
        "round sin cos tan tanh sigmoid reciprocal erf clip clip_ scale scale_ add_ subtract_ "
        "multiply_ floor_mod add_n logsumexp isfinite isnan isinf any all kron trace neg increment "
        "std var median amax amin stanh addmm inner outer lerp tril triu"
    ),
    "paddle.tensor.logic": (
        "equal not_equal greater_than greater_equal less_than less_equal equal_all allclose "
        "logical_and logical_or logical_xor logical_not isclose is_empty"
    ),
    "paddle.tensor.search": (
        "argmax argmin argsort sort topk where nonzero masked_fill searchsorted kthvalue mode"
    ),
    "paddle.tensor.linalg": (
        "matmul mm bmm dot norm t cross dist cholesky bincount histogram mv det inverse eig "
        "eigvals eigvalsh matrix_power slogdet svd qr pinv solve triangular_solve cholesky_solve "
        "lstsq multi_dot cond cov corrcoef cdist tensordot"
    ),
    "paddle.tensor.random": "uniform_ normal_ exponential_ multinomial bernoulli",
    "paddle.tensor.creation": "clone detach",
    "paddle.tensor.ops": (
        "acosh asinh atanh angle conj digamma erfinv frac i0 i0e i1 i1e lgamma deg2rad rad2deg "
        "sgn gcd heaviside hypot lcm ldexp logaddexp nextafter frexp logit polygamma "
        "multigammaln logcumsumexp nan_to_num nansum nanmean nanmedian quantile nanquantile "
        "cummax cummin trapezoid cumulative_trapezoid renorm vander combinations take "
        "as_complex as_real abs_ acos_ acosh_ addmm_ asin_ asinh_ atan_ atanh_ ceil_ cos_ cosh_ "
        "cumprod_ cumsum_ digamma_ divide_ erf_ erfinv_ exp_ expm1_ floor_ floor_divide_ "
        "floor_mod_ frac_ gcd_ hypot_ i0_ lcm_ ldexp_ lerp_ lgamma_ log_ log10_ log1p_ log2_ "
        "logit_ masked_fill_ mod_ multigammaln_ nan_to_num_ neg_ polygamma_ pow_ reciprocal_ "
        "remainder_ renorm_ round_ rsqrt_ sin_ sinh_ sqrt_ square_ tan_ tril_ triu_ trunc_ "
        "equal_ not_equal_ greater_equal_ greater_than_ less_equal_ less_than_ logical_and_ "
        "logical_or_ logical_xor_ logical_not_ bitwise_and_ bitwise_or_ bitwise_xor_ "
        "bitwise_not_ put_along_axis_ index_add_ index_fill_ index_put_"
    ),
    "paddle.tensor.pieces": (
        "as_strided atleast_1d atleast_2d atleast_3d bucketize diag_embed diagflat diagonal "
        "diagonal_scatter select_scatter index_add index_fill index_put rot90 unflatten unfold "
        "unique_consecutive view view_as vsplit"
    ),
    "paddle.tensor.attribute": ("rank is_integer"),
    "paddle.nn.functional.activation": "softmax",
}
"""Methods that mean what Paddle's functions of these names do."""
