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
            "complex128 dtype"
        ),
        "paddle.hapi": "Model summary",
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
            "tanh tanh_ reciprocal erf clip scale add_n logsumexp isfinite isnan isinf any all "
            "kron trace neg increment std var median amax amin nansum stanh addmm inner outer lerp "
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
            "matmul mm bmm dot norm t cross dist cholesky bincount histogram mv einsum tensordot"
        ),
        "paddle.tensor.random": (
            "rand randn normal uniform randint randint_like randperm multinomial bernoulli "
            "standard_normal poisson seed"
        ),
        "batches": "batch",
        "objects": "save load",
        "places": ("CPUPlace CUDAPlace CUDAPinnedPlace NPUPlace XPUPlace"),
        "programs": "default_main_program default_startup_program program_guard",
        "paddle.static.input": "data",
    },
    modules=[
        "amp",
        "autograd",
        "common_ops_import",
        "core",
        "dataset",
        "device",
        "distributed",
        "fluid",
        "framework",
        "incubate",
        "io",
        "jit",
        "metric",
        "nn",
        "optimizer",
        "reader",
        "regularizer",
        "static",
        "tensor",
        "utils",
        "vision",
    ],
)
