"""Programs, blocks and operators in Paddle's words, over those of ``fleetx.static``."""

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from typing_extensions import override

from fleetx import static
from fleetx.compat import clipping, modes, parameters
from fleetx.compat.dtypes import dtype_of
from fleetx.compat.seen_operators import Operator
from fleetx.plan.option import unknown
from fleetx.record import interception
from fleetx.static.record import current

_TEXTS = "fleetx.compat.program_bytes"
_BLOCKS = "fleetx.compat.blocks"
"""Operators by name; they are layers, which are made of what is here."""


class Program(static.Program):
    """A program with one block, as scripts look into it."""

    _pipeline_opt: Any = None
    _fleet_opt: Any = None
    _is_distributed = False
    num_blocks = 1
    _current_role = 0

    def global_block(self) -> "Block":
        """The one block."""
        return Block(self)

    current_block = global_block

    def block(self, index: int) -> "Block":
        """The block of this number, which is 0."""
        return Block(self)

    @property
    def blocks(self) -> list["Block"]:
        """The one block."""
        return [Block(self)]

    @override
    def clone(self, for_test: bool = False) -> "Program":
        made = ours(super().clone(for_test=for_test))
        clipping.hand_on(self, made)
        return made

    @override
    def list_vars(self) -> list[Any]:
        return super().list_vars() if not self.initial else _starting(self)

    @property
    def desc(self) -> "ProgramDesc":
        """What it is written as."""
        return ProgramDesc(self)

    def state_dict(self, mode: str = "all", scope: Any = None) -> dict[str, Any]:
        """The values of its parameters and buffers by name."""
        return {name: value.detach() for name, value in self.state.persistent().items()}

    def set_state_dict(self, state_dict: dict[str, Any], scope: Any = None) -> None:
        """Overwrite them."""
        static.set_program_state(self, state_dict)

    def to_string(self, throw_on_error: bool = True, with_details: bool = False) -> str:
        """The operators as text."""
        return str(self)

    @contextmanager
    def _lr_schedule_guard(self, is_with_opt: bool = False) -> Iterator[None]:
        """Learning rates are variables like others."""
        yield

    @contextmanager
    def _optimized_guard(self, param_and_grads: Any = None) -> Iterator[None]:
        yield

    @contextmanager
    def _backward_role_guard(self) -> Iterator[None]:
        yield

    def _prune(self, targets: Any) -> "Program":
        """The part that leads to the targets."""
        chosen = list(targets) if isinstance(targets, (list, tuple)) else [targets]
        return ours(self.prune(list(self.inputs()), chosen))

    def _prune_with_input(self, feeded_var_names: Sequence[Any], targets: Any) -> "Program":
        """The part that leads from these inputs to the targets."""
        chosen = list(targets) if isinstance(targets, (list, tuple)) else [targets]
        return ours(self.prune(list(feeded_var_names), chosen))

    def _inference_optimize(self, prune_read_op: bool = True) -> "Program":
        """The program as tests run it."""
        return self.clone(for_test=True)

    @staticmethod
    def parse_from_string(binary: bytes) -> "Program":
        """A program that ``serialize_to_string`` or ``save_inference_model`` wrote."""
        found: Program = importlib.import_module(_TEXTS).parsed(binary)
        return found


class ProgramDesc:
    """A program as bytes, where Paddle has a message of protocol buffers."""

    def __init__(self, program: static.Program) -> None:
        self._program = program

    def serialize_to_string(self) -> bytes:
        """The operators to read or to compare; this process makes a program of them again."""
        written: bytes = importlib.import_module(_TEXTS).written(self._program)
        return written


def ours(program: static.Program) -> Program:
    """The same program, with what scripts of Paddle ask of it."""
    if type(program) is static.Program:
        program.__class__ = Program
    assert isinstance(program, Program)
    return program


def _by_default() -> None:
    """Paddle 1 writes programs unless it is told not to."""
    if not modes.in_dygraph_mode():
        modes.enable_static()


def default_main_program() -> Program:
    """The program that is written now."""
    return ours(static.default_main_program())


def default_startup_program() -> Program:
    """The program that gives first values to what is written now."""
    return ours(static.default_startup_program())


@contextmanager
def program_guard(main_program: Any = None, startup_program: Any = None) -> Iterator[None]:
    """Write into these programs."""
    _by_default()
    with static.program_guard(main_program or default_main_program(), startup_program):
        yield


def switch_main_program(program: static.Program, startup: Any = None) -> Program:
    """Write into another program from now on; returns the one before."""
    before = default_main_program()
    current._pairs[-1].main = program
    interception.start(static.default_main_program, static.default_startup_program)
    return before


def switch_startup_program(program: static.Program) -> Program:
    """Keep first values in another program from now on; returns the one before."""
    before = default_startup_program()
    current._pairs[-1].startup = program
    return before


@contextmanager
def name_scope(prefix: str | None = None) -> Iterator[None]:
    """Groups operators in drawings of Paddle; names are the same without it."""
    yield


@contextmanager
def device_guard(device: str | None = None) -> Iterator[None]:
    """Note for operators on which device they belong."""
    kind, _, index = (device or "").partition(":")
    if index == "all" or not kind:
        yield  # on every stage: where it is used
        return
    named = device if kind not in {"npu", "xpu"} else f"gpu:{index}" if index else "gpu"
    with static.device_guard(named):
        yield


class _IsParameter(type):
    @override
    def __instancecheck__(cls, instance: Any) -> bool:
        if isinstance(instance, static.Variable):
            return instance.program.parameter(instance.node) is not None
        if isinstance(instance, StartVariable):
            return instance.is_parameter
        return isinstance(instance, nn.Parameter)


class Parameter(metaclass=_IsParameter):
    """Variables that read a parameter, and parameters of eager mode, are of this kind."""

    def __new__(
        cls,
        block: "Block | None" = None,
        shape: Sequence[int] = (),
        dtype: Any = "float32",
        type: Any = None,
        name: str | None = None,
        **options: Any,
    ) -> Any:
        """A parameter of the block's program, named and shaped so."""
        known = {
            *("lod_level", "stop_gradient", "trainable", "optimize_attr", "regularizer"),
            *("gradient_clip_attr", "error_clip", "do_model_average", "need_clip"),
            *("is_distributed", "persistable", "initializer", "belong_to_optimizer"),
        }
        if strange := sorted(set(options) - known):
            raise TypeError(unknown(f"Parameter() has no {strange[0]!r}", strange[0], [*known]))
        attr = parameters.ParamAttr(
            name=name,
            initializer=options.get("initializer"),
            trainable=bool(options.get("trainable", not options.get("stop_gradient", False))),
            regularizer=options.get("regularizer"),
            learning_rate=(options.get("optimize_attr") or {}).get("learning_rate", 1.0),
        )
        program = block.program if block is not None else default_main_program()
        return _made(program, attr, shape, dtype)


def _made(program: static.Program, attr: Any, shape: Sequence[int], dtype: Any) -> Any:
    with program_guard(program):
        return parameters.create("create_parameter", attr, shape, dtype, default=torch.Tensor.zero_)


@dataclass(frozen=True)
class StartVariable:
    """What a start-up program gives a first value."""

    name: str
    value: torch.Tensor
    is_parameter: bool = True
    persistable = True
    lod_level = 0
    is_data = False

    @property
    def shape(self) -> list[int]:
        """The sizes."""
        return list(self.value.shape)

    @property
    def dtype(self) -> torch.dtype:
        """The format of the numbers."""
        return self.value.dtype

    @property
    def stop_gradient(self) -> bool:
        """Whether optimizers leave it alone."""
        return not self.value.requires_grad

    @property
    def trainable(self) -> bool:
        """Whether optimizers move it."""
        return self.value.requires_grad


def _starting(startup: static.Program) -> list[StartVariable]:
    found = []
    for layer, initial in startup.initial.items():
        for path, value in initial.module.state_dict(keep_vars=True).items():
            name = layer if path == "value" else f"{layer}.{path}"
            found.append(StartVariable(name, value, isinstance(value, nn.Parameter)))
    return found


class _Variables(dict[str, Any]):
    """The variables of a program by name; its learning rate is no variable, but has a name."""

    def __init__(self, program: static.Program) -> None:
        super().__init__((variable.name, variable) for variable in program.list_vars())
        self._training = program.objective

    def __missing__(self, name: str) -> Any:
        optimizer = getattr(self._training, "optimizer", None)
        rate = getattr(optimizer, "_global_learning_rate", None)
        if name == static.lr.NAME and rate is not None:
            return rate()
        scopes = importlib.import_module("fleetx.compat.scopes")  # it asks for programs in turn
        if scopes.registered(name):
            return scopes.ScopeName(name)
        raise KeyError(name)


class Block:
    """The variables and operators of a program."""

    idx = 0
    parent_idx = -1
    forward_block_idx = -1

    def __init__(self, program: static.Program) -> None:
        self.program = program

    @property
    def vars(self) -> dict[str, Any]:
        """Every variable by name, and the learning rate for whoever asks for it."""
        return _Variables(self.program)

    def has_var(self, name: str) -> bool:
        """Whether there is such a variable."""
        return self._find_var_recursive(name) is not None

    def var(self, name: str) -> Any:
        """A variable by name."""
        known = self.vars
        try:
            return known[name]
        except KeyError:
            message = unknown(f"var {name} not in this block", name, list(known))
            raise ValueError(message) from None

    def _find_var_recursive(self, name: str) -> Any:
        try:
            return self.vars[name]
        except KeyError:
            return None

    _var_recursive = var
    has_var_recursive = has_var

    def all_parameters(self) -> list[Any]:
        """Its parameters, those that are not trained too."""
        return [variable for variable in self.vars.values() if isinstance(variable, Parameter)]

    def iter_parameters(self) -> Iterator[Any]:
        """The same, one by one."""
        yield from self.all_parameters()

    @property
    def ops(self) -> list["Operator"]:
        """The operators in their order."""
        kinds = {"call_function", "call_method", "call_module"}
        return [Operator(self, node) for node in self.program.graph.nodes if node.op in kinds]

    def create_parameter(
        self,
        name: str | None = None,
        shape: Sequence[int] = (),
        dtype: Any = "float32",
        **options: Any,
    ) -> Any:
        """A parameter of the program."""
        return Parameter(self, shape, dtype, options.pop("type", None), name, **options)

    def create_var(  # noqa: PLR0917
        self,
        name: str | None = None,
        shape: Sequence[int] = (1,),
        dtype: Any = "float32",
        type: Any = None,
        persistable: bool = False,
        stop_gradient: bool = True,
        initializer: Any = None,
        lod_level: int = 0,
    ) -> Any:
        """A variable that keeps its value between runs."""
        if not persistable:
            blocks = importlib.import_module(_BLOCKS)
            return blocks.empty_variable(self.program, name, shape, dtype)
        if self.program.initial and (found := self.vars.get(name or "")) is not None:
            return found
        main = default_main_program() if _is_startup(self.program) else self.program
        attr = parameters.ParamAttr(name=name, initializer=initializer, trainable=False)
        return _made(main, attr, shape, dtype_of(dtype))

    def _clone_variable(self, var: Any, force_persistable: bool = True) -> Any:
        """The variable of this name, in this block's program."""
        return self.var(var.name)

    def append_op(self, *args: Any, **kwargs: Any) -> Any:
        """An operator by its name in Paddle, for those that scripts write so."""
        return importlib.import_module(_BLOCKS).append_op(self, *args, **kwargs)

    _prepend_op = _insert_op = append_op

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Block) and other.program is self.program

    @override
    def __hash__(self) -> int:
        return id(self.program)


def _is_startup(program: static.Program) -> bool:
    return bool(program.initial) or program is static.default_startup_program()
