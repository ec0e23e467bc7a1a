"""``paddle.fluid``, of 1.6 to 1.8 and as 2.x kept it."""

from fleetx.compat.tables import table

__getattr__, __dir__ = table(
    __name__,
    {
        "modes": (
            "in_dygraph_mode enable_dygraph=disable_static disable_dygraph=enable_static "
            "enable_imperative=disable_static disable_imperative=enable_static"
        ),
        "parameters": "ParamAttr",
        "paddle.fluid.param_attr": "WeightNormParamAttr",
        "paddle.fluid.parallel_executor": "ParallelExecutor",
        "running": "Executor",
        "strategies": "BuildStrategy ExecutionStrategy CompiledProgram",
        "places": (
            "CPUPlace CUDAPlace CUDAPinnedPlace NPUPlace XPUPlace cpu_places cuda_places "
            "cuda_pinned_places is_compiled_with_cuda is_compiled_with_npu is_compiled_with_xpu"
        ),
        "programs": (
            "Program Parameter default_main_program default_startup_program program_guard "
            "name_scope device_guard"
        ),
        "scopes": "Scope global_scope scope_guard",
        "lod_tensors": (
            "LoDTensor LoDTensorArray Tensor create_lod_tensor create_random_int_lodtensor"
        ),
        "saving": "save load load_program_state set_program_state",
        "feeders": "DataFeeder",
        "loaders": "PyReader",
        "paddle.fluid.average": "WeightedAverage",
        "paddle.fluid.framework": "Variable require_version get_flags _non_static_mode",
        "paddle.nn.layer.layers": "Layer",
        "paddle.fluid.dataset": "DatasetFactory InMemoryDataset QueueDataset",
        "paddle.fluid.backward": "append_backward gradients",
        "paddle.static.input": "data",
        "paddle.fluid.input": "embedding one_hot",
        "paddle.fluid.transpiler.distribute_transpiler": (
            "DistributeTranspiler DistributeTranspilerConfig"
        ),
        "paddle.fluid.tuning": "memory_optimize release_memory set_flags",
    },
    modules=[
        "average",
        "backward",
        "clip",
        "compiler",
        "contrib",
        "core",
        "data_feeder",
        "dataset",
        "dygraph",
        "dygraph_grad_clip",
        "executor",
        "framework",
        "incubate",
        "initializer",
        "input",
        "io",
        "layer_helper",
        "layers",
        "lod_tensor",
        "metrics",
        "nets",
        "optimizer",
        "parallel_executor",
        "param_attr",
        "profiler",
        "proto",
        "reader",
        "regularizer",
        "tests",
        "transpiler",
        "unique_name",
    ],
    starred=[
        "backward",
        "clip",
        "contrib",
        "dygraph",
        "dygraph_grad_clip",
        "initializer",
        "io",
        "layers",
        "nets",
        "optimizer",
        "profiler",
        "regularizer",
        "transpiler",
        "unique_name",
    ],
)
