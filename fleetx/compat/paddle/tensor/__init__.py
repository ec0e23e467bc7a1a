"""``paddle.tensor``: functions of tensors, in eager mode and in programs."""

from fleetx.compat.tables import table

__getattr__, __dir__ = table(
    __name__,
    {
        "paddle.tensor.creation": (
            "to_tensor zeros ones full zeros_like ones_like full_like arange linspace eye empty "
            "empty_like assign clone diag meshgrid tril triu create_tensor numel"
        ),
        "paddle.tensor.manipulation": (
            "reshape reshape_ transpose concat split chunk squeeze unsqueeze squeeze_ unsqueeze_ "
            "stack unstack unbind expand expand_as broadcast_to tile gather gather_nd scatter "
            "scatter_ scatter_nd scatter_nd_add flatten slice strided_slice flip reverse roll cast "
            "shape index_select index_sample unique masked_select put_along_axis take_along_axis "
            "repeat_interleave moveaxis crop shard_index broadcast_shape"
        ),
        "paddle.tensor.math": (
            "add subtract multiply divide mod remainder floor_mod floor_divide pow maximum minimum "
            "fmax fmin sum mean max min prod cumsum cumprod exp expm1 log log2 log10 log1p sqrt "
            "rsqrt square abs sign ceil floor round trunc sin cos tan asin acos atan sinh cosh "
            "tanh tanh_ sigmoid reciprocal erf clip scale add_n logsumexp isfinite isnan isinf any "
            "all kron trace neg increment std var median amax amin nansum stanh addmm inner outer "
            "lerp count_nonzero diff atan2 multiplex"
        ),
        "paddle.tensor.logic": (
            "equal not_equal greater_than greater_equal less_than less_equal equal_all allclose "
            "isclose logical_and logical_or logical_xor logical_not is_empty is_tensor "
            "bitwise_and bitwise_or bitwise_xor bitwise_not"
        ),
        "paddle.tensor.search": (
            "argmax argmin argsort sort topk where nonzero searchsorted kthvalue mode masked_fill"
        ),
        "paddle.tensor.linalg": (
            "matmul mm bmm dot norm t cross dist cholesky bincount histogram mv einsum tensordot"
        ),
        "paddle.tensor.random": (
            "rand randn normal uniform randint randint_like randperm multinomial bernoulli "
            "standard_normal gaussian poisson"
        ),
        "paddle.tensor.stat": ["mean", "std", "var", "median", "numel"],
    },
    modules=[
        *["creation", "manipulation", "math", "logic", "search", "linalg", "random", "stat"],
        "attribute",
    ],
)
