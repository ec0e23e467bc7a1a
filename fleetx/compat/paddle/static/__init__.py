"""``paddle.static``."""

from fleetx.compat.tables import table

__getattr__, __dir__ = table(
    __name__,
    {
        "paddle.fluid.parallel_executor": "ParallelExecutor",
        "running": "Executor",
        "strategies": "BuildStrategy ExecutionStrategy CompiledProgram",
        "places": "cpu_places cuda_places xpu_places=cuda_places npu_places=cuda_places",
        "programs": (
            "Program default_main_program default_startup_program program_guard name_scope "
            "device_guard"
        ),
        "scopes": "Scope global_scope scope_guard",
        "saving": (
            "save load load_program_state set_program_state load_vars save_vars load_persistables "
            "save_persistables load_params save_params is_parameter is_persistable"
        ),
        "models": "save_inference_model=save_2 load_inference_model normalize_program",
        "program_bytes": (
            "serialize_program serialize_persistables deserialize_program "
            "deserialize_persistables save_to_file load_from_file"
        ),
        "paddle.fluid.framework": "Variable",
        "paddle.fluid.backward": "append_backward gradients",
        "paddle.fluid.contrib.layers.metric_op": "ctr_metric_bundle",
        "paddle.fluid.layers.control_flow": "Print",
        "paddle.fluid.layers.learning_rate_scheduler": "exponential_decay",
        "paddle.fluid.layers.tensor": "create_parameter create_global_var",
        "paddle.fluid.layers.functions": "py_func",
        "paddle.fluid.layers.metric_op": "accuracy auc",
        "paddle.fluid.optimizer": "ExponentialMovingAverage",
        "paddle.fluid.param_attr": "WeightNormParamAttr",
        "paddle.static.input": "InputSpec data",
    },
    modules=["amp", "input", "io", "nn"],
)
