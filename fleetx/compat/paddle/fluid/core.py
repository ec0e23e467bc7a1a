"""``paddle.fluid.core``: what scripts use of Paddle's inner module."""

from typing import Any

from fleetx.compat.lod_tensors import LoDTensor, LoDTensorArray, Tensor
from fleetx.compat.notes import note
from fleetx.compat.paddle.fluid.predictors import (
    AnalysisConfig,
    PaddleBuf,
    PaddleDType,
    PaddleTensor,
    create_paddle_predictor,
)
from fleetx.compat.paddle.fluid.var_types import VarDesc
from fleetx.compat.places import AnyPlace as Place
from fleetx.compat.places import (
    CPUPlace,
    CUDAPinnedPlace,
    CUDAPlace,
    NPUPlace,
    XPUPlace,
    get_cuda_device_count,
    is_compiled_with_brpc,
    is_compiled_with_cuda,
    is_compiled_with_npu,
    is_compiled_with_rocm,
    is_compiled_with_xpu,
)
from fleetx.compat.scopes import Scope
from fleetx.compat.strategies import BuildStrategy, ExecutionStrategy
from fleetx.static import EOFException
from fleetx.static import ProgramError as EnforceNotMet


class OpRole:
    """What an operator is for."""

    Forward, Backward, Optimize, RPC, Dist, LRSched, Loss = 0, 1, 2, 4, 8, 16, 256
    NotSpecified = 4096


class op_proto_and_checker_maker:
    """Names of what Paddle notes of operators."""

    OpRole = OpRole

    @staticmethod
    def kOpRoleAttrName() -> str:
        """Where the role of an operator is noted."""
        return "op_role"

    @staticmethod
    def kOpRoleVarAttrName() -> str:
        """Where parameters and gradients of an operator are noted."""
        return "op_role_var"

    @staticmethod
    def kOpDeviceAttrName() -> str:
        """Where the device of an operator is noted."""
        return "op_device"


class PSGPU:
    """Copies of tables in the memory of cards; here workers ask the servers, and learn the same."""

    def __init__(self) -> None:
        note("core.PSGPU", "rows of tables come from the servers; the numbers are the same.")

    def set_slot_vector(self, slots: Any) -> None:
        """Which slots look rows up."""

    def set_slot_dim_vector(self, dims: Any) -> None:
        """How wide their rows are."""

    def init_gpu_ps(self, devices: Any) -> None:
        """Which cards hold copies."""

    def set_dataset(self, dataset: Any) -> None:
        """Whose rows are copied."""

    def build_gpu_ps(self, table_id: int, feature_dim: int) -> None:
        """Copy the rows."""

    def begin_pass(self) -> None:
        """Begin a pass over the data."""

    def end_pass(self) -> None:
        """End it."""

    def finalize(self) -> None:
        """End all of them."""


class ops:
    """Operators of Paddle's eager mode by name, none of which is here."""


def globals() -> dict[str, Any]:
    """Flags of Paddle, of which there are none."""
    return {}


def get_num_devices() -> int:
    """How many cards this process sees."""
    return get_cuda_device_count()


__all__ = [
    "PSGPU",
    "AnalysisConfig",
    "BuildStrategy",
    "CPUPlace",
    "CUDAPinnedPlace",
    "CUDAPlace",
    "EOFException",
    "EnforceNotMet",
    "ExecutionStrategy",
    "LoDTensor",
    "LoDTensorArray",
    "NPUPlace",
    "OpRole",
    "PaddleBuf",
    "PaddleDType",
    "PaddleTensor",
    "Place",
    "Scope",
    "Tensor",
    "VarDesc",
    "XPUPlace",
    "create_paddle_predictor",
    "get_cuda_device_count",
    "get_num_devices",
    "globals",
    "is_compiled_with_brpc",
    "is_compiled_with_cuda",
    "is_compiled_with_npu",
    "is_compiled_with_rocm",
    "is_compiled_with_xpu",
    "op_proto_and_checker_maker",
    "ops",
]
