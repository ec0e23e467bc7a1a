"""``paddle``: what scripts of 1.6 to 2.4 find at the top."""

from fleetx.compat.tables import table

__version__ = "2.4.2"

__getattr__, __dir__ = table(
    __name__,
    {
        "modes": (
            "enable_static disable_static in_dynamic_mode in_dygraph_mode=in_dynamic_mode "
            "enable_imperative=disable_static disable_imperative=enable_static"
        ),
        "parameters": "ParamAttr",
        "tensors": "Tensor",
        "formats": (
            "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex64 "
            "complex128 dtype finfo iinfo"
        ),
        "paddle.hapi": "Model summary",
        "operation_counts": "flops",
        "paddle.nn.initializer.lazy_init": "LazyGuard",
        "paddle.parameter": "create_parameter",
        "paddle.nn.functional.activation": "sigmoid",
        "paddle.tensor.printing": "set_printoptions",
        "default_dtype": "get_default_dtype set_default_dtype",
        "paddle.distributed.parallel": "DataParallel",
        "paddle.autograd": "no_grad grad enable_grad set_grad_enabled is_grad_enabled",
        "paddle.device": (
            "set_device get_device get_cuda_rng_state set_cuda_rng_state get_rng_state "
            "set_rng_state is_compiled_with_cuda is_compiled_with_npu is_compiled_with_xpu "
            "is_compiled_with_rocm is_compiled_with_ipu is_compiled_with_mlu "
            "is_compiled_with_cinn is_compiled_with_distribute get_cudnn_version"
        ),
        "paddle.tensor.creation": (
            "to_tensor zeros ones full zeros_like ones_like full_like arange linspace eye empty "
            "empty_like assign clone diag meshgrid tril triu numel"
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
            "tanh reciprocal erf clip clip_ scale scale_ add_ subtract_ multiply_ add_n "
            "logsumexp isfinite isnan isinf any all "
            "kron trace neg increment std var median amax amin stanh addmm inner outer lerp "
            "count_nonzero diff atan2 multiplex"
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
            "matmul mm bmm dot norm t cross dist cholesky bincount histogram mv einsum tensordot "
            "inverse cdist"
        ),
        "paddle.tensor.random": (
            "rand randn normal uniform randint randint_like randperm multinomial bernoulli "
            "standard_normal poisson seed"
        ),
        "paddle.tensor.ops": (
            "acosh asinh atanh angle conj digamma erfinv frac i0 i0e i1 i1e lgamma deg2rad "
            "rad2deg sgn gcd heaviside hypot lcm ldexp logaddexp nextafter frexp logit "
            "polygamma multigammaln logcumsumexp nan_to_num nansum nanmean nanmedian quantile "
            "nanquantile cummax cummin trapezoid cumulative_trapezoid renorm vander "
            "combinations take complex polar as_complex as_real abs_ acos_ acosh_ addmm_ asin_ "
            "asinh_ atan_ atanh_ ceil_ cos_ cosh_ cumprod_ cumsum_ digamma_ divide_ erf_ "
            "erfinv_ exp_ expm1_ floor_ floor_divide_ floor_mod_ frac_ gcd_ hypot_ i0_ lcm_ "
            "ldexp_ lerp_ lgamma_ log_ log10_ log1p_ log2_ logit_ masked_fill_ mod_ "
            "multigammaln_ nan_to_num_ neg_ polygamma_ pow_ reciprocal_ remainder_ renorm_ "
            "round_ rsqrt_ sigmoid_ tanh_ sin_ sinh_ sqrt_ square_ tan_ tril_ triu_ trunc_ "
            "equal_ not_equal_ "
            "greater_equal_ greater_than_ less_equal_ less_than_ logical_and_ logical_or_ "
            "logical_xor_ logical_not_ bitwise_and_ bitwise_or_ bitwise_xor_ bitwise_not_ "
            "put_along_axis_ index_add_ index_fill_ index_put_"
        ),
        "paddle.tensor.pieces": (
            "as_strided atleast_1d atleast_2d atleast_3d broadcast_tensors bucketize diag_embed "
            "diagflat diagonal diagonal_scatter select_scatter index_add index_fill index_put "
            "rot90 unflatten unfold unique_consecutive view view_as vsplit tolist logspace "
            "tril_indices triu_indices"
        ),
        "paddle.tensor.attribute": ("rank is_complex is_floating_point is_integer real imag"),
        "paddle.fluid.layers.elementwise": (
            "elementwise_add elementwise_sub elementwise_mul elementwise_div elementwise_pow "
            "elementwise_mod elementwise_floordiv elementwise_max elementwise_min"
        ),
        "paddle.fluid.layers.reduction": (
            "reduce_sum reduce_mean reduce_max reduce_min reduce_prod reduce_all reduce_any mul"
        ),
        "paddle.fluid.layers.tensor": "fill_constant has_inf has_nan sums create_global_var",
        "batches": "batch",
        "objects": "save load",
        "places": ("CPUPlace CUDAPlace CUDAPinnedPlace NPUPlace XPUPlace"),
        "programs": "default_main_program default_startup_program program_guard",
        "paddle.static.input": "data",
        "paddle.fluid.framework": "get_flags",
        "paddle.fluid.tuning": "disable_signal_handler set_flags",
    },
    modules=[
        "amp",
        "autograd",
        "callbacks",
        "common_ops_import",
        "core",
        "dataset",
        "device",
        "distributed",
        "fft",
        "distribution",
        "fluid",
        "framework",
        "incubate",
        "inference",
        "io",
        "jit",
        "linalg",
        "metric",
        "nn",
        "optimizer",
        "profiler",
        "reader",
        "regularizer",
        "static",
        "tensor",
        "text",
        "utils",
        "version",
        "vision",
    ],
)
