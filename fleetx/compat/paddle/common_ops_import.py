"""``paddle.common_ops_import``."""

from fleetx.compat.paddle.fluid import core
from fleetx.compat.paddle.fluid.data_feeder import convert_dtype
from fleetx.compat.programs import Parameter, default_main_program
from fleetx.static import Variable

__all__ = ["Parameter", "Variable", "convert_dtype", "core", "default_main_program"]
