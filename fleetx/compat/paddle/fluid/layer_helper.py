"""``paddle.fluid.layer_helper``: parameters and results for layers that a script writes itself."""

from typing import Any

from fleetx.compat import unique_names
from fleetx.compat.blocks import appended, empty_variable
from fleetx.compat.default_dtype import get_default_dtype
from fleetx.compat.fills import Number, XavierFill
from fleetx.compat.paddle.fluid.layers.common import activated
from fleetx.compat.parameters import ParamAttr, create
from fleetx.compat.recorded import rebind, settle
from fleetx.static.record.current import default_main_program, default_startup_program


class LayerHelper:
    """What Paddle's own layers are written with."""

    def __init__(self, layer_type: str, **kwargs: Any) -> None:
        self.kwargs, self.layer_type = kwargs, layer_type
        self.name = kwargs.get("name") or unique_names.generate(layer_type)

    @property
    def main_program(self) -> Any:
        """The program that is written now."""
        return default_main_program()

    @property
    def startup_program(self) -> Any:
        """The program that gives first values."""
        return default_startup_program()

    @property
    def param_attr(self) -> Any:
        """How the layer's weight is described."""
        return ParamAttr.of(self.kwargs.get("param_attr"))

    @property
    def bias_attr(self) -> Any:
        """How the layer's bias is described."""
        return ParamAttr.of(self.kwargs.get("bias_attr"))

    def get_default_dtype(self) -> str:
        """The format that parameters have unless told otherwise."""
        return str(self.kwargs.get("dtype") or get_default_dtype())

    def input(self, input_param_name: str = "input") -> Any:
        """The one input."""
        return self.multiple_input(input_param_name)[0]

    def multiple_input(self, input_param_name: str = "input") -> list[Any]:
        """The inputs."""
        given = self.kwargs[input_param_name]
        return list(given) if isinstance(given, (list, tuple)) else [given]

    def input_dtype(self, input_param_name: str = "input") -> Any:
        """The format of the inputs."""
        return self.input(input_param_name).dtype

    def create_parameter(  # noqa: PLR0917
        self,
        attr: Any,
        shape: Any,
        dtype: Any = None,
        is_bias: bool = False,
        default_initializer: Any = None,
        stop_gradient: bool = False,
        type: Any = None,
    ) -> Any:
        """A parameter that is called after the layer."""
        settle(*(value for value in self.kwargs.values()))
        fill = default_initializer
        if fill is None:
            fill = Number(0.0) if is_bias else XavierFill(None, None, uniform=True)
        kind = dtype or "float32"
        return create(self.name, attr, shape, kind, default=fill, is_bias=is_bias)

    def create_variable_for_type_inference(
        self, dtype: Any, stop_gradient: bool = False, shape: Any = None
    ) -> Any:
        """A variable that ``append_op`` gives its value."""
        name = unique_names.generate(f"{self.name}.tmp")
        return empty_variable(default_main_program(), name, shape or [1], dtype or "float32")

    create_tmp_variable = create_variable_for_type_inference

    def create_variable(self, **kwargs: Any) -> Any:
        """The same."""
        name = kwargs.get("name") or unique_names.generate(f"{self.name}.tmp")
        shape, dtype = kwargs.get("shape") or [1], kwargs.get("dtype") or "float32"
        return empty_variable(default_main_program(), name, shape, dtype)

    def append_op(
        self, type: str = "", inputs: Any = None, outputs: Any = None, attrs: Any = None
    ) -> Any:
        """Write an operator by Paddle's name of it."""
        return appended(type, inputs or {}, outputs or {}, attrs or {})

    def append_bias_op(self, input_var: Any, dim_start: int = 1, dim_end: Any = None) -> Any:
        """With the layer's bias."""
        width = [int(size) for size in list(input_var.shape)[dim_start:dim_end]]
        attr = self.kwargs.get("bias_attr")
        bias = self.create_parameter(attr, width, input_var.dtype, is_bias=True)
        return input_var if bias is None else input_var + bias

    def append_activation(self, input_var: Any) -> Any:
        """Behind the layer's activation."""
        return activated(input_var, self.kwargs.get("act"))

    def set_variable_initializer(self, var: Any, initializer: Any) -> Any:
        """Let a variable begin with something."""
        parameter = var.program.parameter(var.node)
        if parameter is None:
            return rebind(var, var)
        initializer(parameter)
        return var
