"""What becomes of a name of Paddle in a native script: one line for each name."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

HEADS = {
    "fleet": "import fleetx as fleet",
    "static": "from fleetx import static",
    "io": "from fleetx import io",
    "torch": "import torch",
    "nn": "from torch import nn",
    "F": "import torch.nn.functional as F",
}
"""First part of a native name -> the import that it needs."""


@dataclass(frozen=True)
class Rule:
    """How a call is written natively."""

    to: str
    """The native name."""
    order: tuple[str, ...] = ()
    """Paddle's names of arguments without a name; those that the rule renames get their name."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Keyword of Paddle -> native keyword; "" drops one that changes no result."""
    first: str = ""
    """An argument before all others."""
    unless: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """An argument that is added -> keywords of Paddle beside which it is not."""
    shape: str = ""
    """A keyword whose list gets None before its first number: the size of the batch."""
    gone: bool = False
    """A statement that has nothing to say in a native script."""


def _words(text: str) -> dict[str, str]:
    """``"a b=c d="``: a stays, b becomes c, d is dropped."""
    found = {}
    for word in text.split():
        name, given, native = word.partition("=")
        found[name] = native if given else name
    return found


def _rule(to: str, words: str = "", **more: Any) -> Rule:
    names = _words(words)
    return Rule(to, tuple(names), names, **more)


_XAVIER = {
    "weight_attr=torch.nn.init.xavier_uniform_": ("param_attr",),
    "bias_attr=torch.nn.init.zeros_": ("bias_attr",),
}
_HE = {
    "weight_attr=torch.nn.init.kaiming_normal_": ("param_attr",),
    "bias_attr=torch.nn.init.zeros_": ("bias_attr",),
}

LAYERS = {
    "fc": _rule(
        "static.nn.fc",
        "input=x size num_flatten_dims param_attr bias_attr act=activation name",
        unless=_XAVIER,
    ),
    "conv2d": _rule(
        "static.nn.conv2d",
        "input num_filters filter_size stride padding dilation groups param_attr bias_attr "
        "use_cudnn= act name",
        unless=_HE,
    ),
    "pool2d": _rule(
        "static.nn.pool2d",
        "input pool_size pool_type pool_stride pool_padding global_pooling use_cudnn=",
    ),
    "embedding": _rule(
        "static.nn.embedding",
        "input size is_sparse=",
        unless={"weight_attr=torch.nn.init.xavier_uniform_": ("param_attr",)},
    ),
    "cross_entropy": _rule("static.nn.cross_entropy", "input label"),
    "data": _rule("static.data", "name shape append_batch_size dtype lod_level=", shape="shape"),
    "py_reader": _rule(
        "static.py_reader", "capacity shapes dtypes lod_levels= name use_double_buffer"
    ),
    "read_file": _rule("static.read_file", "reader"),
    "accuracy": _rule("static.accuracy", "input label k"),
    "mean": _rule("torch.mean", "x=input name="),
    "relu": _rule("torch.relu", "x=input name="),
    "sigmoid": _rule("torch.sigmoid", "x=input name="),
    "tanh": _rule("torch.tanh", "x=input name="),
    "sqrt": _rule("torch.sqrt", "x=input name="),
    "exp": _rule("torch.exp", "x=input name="),
    "log": _rule("torch.log", "x=input name="),
    "abs": _rule("torch.abs", "x=input name="),
    "concat": _rule("torch.cat", "input=tensors axis=dim name="),
    "reshape": _rule("torch.reshape", "x=input shape inplace= name="),
    "transpose": _rule("torch.permute", "x=input perm=dims name="),
    "elementwise_add": _rule("torch.add", "x=input y=other name="),
    "elementwise_sub": _rule("torch.sub", "x=input y=other name="),
    "elementwise_mul": _rule("torch.mul", "x=input y=other name="),
    "elementwise_div": _rule("torch.div", "x=input y=other name="),
    "stack": _rule("torch.stack", "x=tensors axis=dim name="),
    "piecewise_decay": _rule("static.lr.piecewise_decay", "boundaries values"),
    "exponential_decay": _rule(
        "static.lr.exponential_decay", "learning_rate decay_steps decay_rate staircase"
    ),
}
"""Names of ``paddle.fluid.layers``."""

PROGRAMS = {
    name: _rule(f"static.{name}")
    for name in (
        *("Executor", "CPUPlace", "CUDAPlace", "CompiledProgram", "BuildStrategy"),
        *("ExecutionStrategy", "default_main_program", "default_startup_program"),
        *("program_guard", "Program", "device_guard", "global_scope"),
    )
}
"""Names that ``paddle.fluid``, ``paddle.static`` and ``static`` share, with their arguments."""

SAVERS = {
    name: _rule(f"io.{name}")
    for name in (
        *("save_persistables", "load_persistables", "save_params", "load_params"),
        *("save_vars", "load_vars", "save_inference_model", "load_inference_model"),
    )
}

_DECAY = "regularization=weight_decay grad_clip name="
OPTIMIZERS = {
    "SGD": _rule("static.Optimizer", f"learning_rate=lr {_DECAY}", first="torch.optim.SGD"),
    "Momentum": _rule(
        "static.Optimizer",
        f"learning_rate=lr momentum use_nesterov=nesterov {_DECAY}",
        first="torch.optim.SGD",
    ),
    "Adam": _rule(
        "static.Optimizer",
        f"learning_rate=lr beta1 beta2 epsilon=eps lazy_mode= {_DECAY}",
        first="torch.optim.Adam",
    ),
    "Adagrad": _rule(
        "static.Optimizer",
        f"learning_rate=lr epsilon=eps {_DECAY}",
        first="torch.optim.Adagrad",
        unless={"eps=1e-6": ("epsilon",)},
    ),
}
"""Names of ``paddle.fluid.optimizer``; some end in ``Optimizer`` there."""

MODULES = {
    "Layer": _rule("nn.Module"),
    "Linear": _rule("nn.Linear", "in_features out_features name="),
    "Sequential": _rule("nn.Sequential"),
    "LayerList": _rule("nn.ModuleList"),
    "ReLU": _rule("nn.ReLU"),
    "Sigmoid": _rule("nn.Sigmoid"),
    "Tanh": _rule("nn.Tanh"),
    "GELU": _rule("nn.GELU"),
    "Softmax": _rule("nn.Softmax", "axis=dim"),
    "Dropout": _rule("nn.Dropout", "p"),
    "Conv2D": _rule(
        "nn.Conv2d",
        "in_channels out_channels kernel_size stride padding dilation groups padding_mode",
    ),
    "MaxPool2D": _rule("nn.MaxPool2d", "kernel_size stride padding"),
    "AdaptiveAvgPool2D": _rule("nn.AdaptiveAvgPool2d", "output_size"),
    "LayerNorm": _rule("nn.LayerNorm", "normalized_shape epsilon=eps"),
    "Embedding": _rule("nn.Embedding", "num_embeddings embedding_dim padding_idx sparse"),
}
"""Names of ``paddle.nn``."""

FUNCTIONS = {
    "relu": _rule("F.relu", "x=input name="),
    "gelu": _rule("F.gelu", "x=input"),
    "softmax": _rule("F.softmax", "x=input axis=dim name=", unless={"dim=-1": ("axis",)}),
    "sigmoid": _rule("torch.sigmoid", "x=input name="),
    "tanh": _rule("torch.tanh", "x=input name="),
    "mse_loss": _rule("F.mse_loss", "input label=target reduction name="),
    "dropout": _rule("F.dropout", "x=input p axis= training"),
}
"""Names of ``paddle.nn.functional``."""

TENSORS = {
    "mean": _rule("torch.mean", "x=input axis=dim keepdim name="),
    "sum": _rule("torch.sum", "x=input axis=dim dtype keepdim name="),
    "concat": _rule("torch.cat", "x=tensors axis=dim name="),
    "stack": _rule("torch.stack", "x=tensors axis=dim name="),
    "reshape": _rule("torch.reshape", "x=input shape name="),
    "transpose": _rule("torch.permute", "x=input perm=dims name="),
    "matmul": _rule("torch.matmul", "x=input y=other name="),
    "add": _rule("torch.add", "x=input y=other name="),
    "multiply": _rule("torch.mul", "x=input y=other name="),
    "subtract": _rule("torch.sub", "x=input y=other name="),
    "sqrt": _rule("torch.sqrt", "x=input name="),
    "exp": _rule("torch.exp", "x=input name="),
    "log": _rule("torch.log", "x=input name="),
    "tanh": _rule("torch.tanh", "x=input name="),
    "seed": _rule("torch.manual_seed", "seed"),
    "no_grad": _rule("torch.no_grad"),
    "to_tensor": _rule("torch.as_tensor", "data dtype"),
    "arange": _rule("torch.arange", "start end step dtype name="),
}
"""Names of ``paddle``."""

OTHERS = {
    "paddle.enable_static": Rule("", gone=True),
    "paddle.fluid.core.EOFException": _rule("static.EOFException"),
    "paddle.static.data": _rule("static.data", "name shape dtype lod_level="),
    "paddle.fluid.data": _rule("static.data", "name shape dtype lod_level="),
    "paddle.metric.accuracy": _rule("static.accuracy", "input label k"),
    "paddle.static.accuracy": _rule("static.accuracy", "input label k"),
    "paddle.fluid.incubate.data_generator.MultiSlotDataGenerator": _rule(
        "fleet.MultiSlotDataGenerator"
    ),
    "paddle.nn.initializer.XavierUniform()": _rule("torch.nn.init.xavier_uniform_"),
}
"""Names that stand alone."""

FLEETS = (
    "paddle.distributed.fleet.base.role_maker",
    "paddle.distributed.fleet",
    "paddle.fluid.incubate.fleet.collective.fleet",
    "paddle.fluid.incubate.fleet.collective",
    "paddle.fluid.incubate.fleet.base.role_maker",
    "paddle.fluid.incubate.fleet.parameter_server.distribute_transpiler.fleet",
    "paddle.fluid.transpiler.distribute_transpiler",
    "paddle.fluid",
)
"""What of these fleetx has, it has under the same name; of ``paddle.fluid`` only as below."""

_FLEET_OF_FLUID = {"DistributeTranspilerConfig", "BuildStrategy", "ExecutionStrategy"}


def _table() -> Iterator[tuple[str, Rule]]:
    for room, rules in (
        ("paddle.fluid.layers", LAYERS),
        ("paddle.fluid", PROGRAMS),
        ("paddle.static", PROGRAMS),
        ("paddle.fluid.io", SAVERS),
        ("paddle.fluid.optimizer", OPTIMIZERS),
        ("paddle.nn", MODULES),
        ("paddle.nn.functional", FUNCTIONS),
        ("paddle", TENSORS),
    ):
        yield from ((f"{room}.{name}", rule) for name, rule in rules.items())
    for name, rule in OPTIMIZERS.items():
        yield f"paddle.fluid.optimizer.{name}Optimizer", rule
        yield f"paddle.optimizer.{name}", _eager(rule)
    yield from ((f"paddle.{name}", PROGRAMS[name]) for name in ("CPUPlace", "CUDAPlace"))
    yield from OTHERS.items()


def _eager(rule: Rule) -> Rule:
    """An optimizer of Paddle 2, which takes ``weight_decay``, and ``parameters`` of a model."""
    names = {("weight_decay" if k == "regularization" else k): v for k, v in rule.names.items()}
    return Rule(rule.to, tuple(names), {**names, "parameters": "params"}, rule.first, rule.unless)


RULES = dict(_table())
"""Name of Paddle -> what becomes of it."""


def rule_of(name: str) -> Rule | None:
    """What becomes of a name, if that is known."""
    if name in RULES:
        return RULES[name]
    import fleetx

    for room in FLEETS:
        rest = name.removeprefix(f"{room}.")
        if rest == name or (room == "paddle.fluid" and rest not in _FLEET_OF_FLUID):
            continue
        if rest in {"main_program", "startup_program", "_origin_program"} or rest in dir(fleetx):
            return Rule(f"fleet.{rest}")
    return None
