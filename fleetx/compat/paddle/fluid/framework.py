"""``paddle.fluid.framework``."""

from collections.abc import Iterator
from contextlib import contextmanager

from fleetx.compat.modes import in_dygraph_mode, in_dynamic_mode
from fleetx.compat.places import (
    CPUPlace,
    CUDAPlace,
    cpu_places,
    cuda_pinned_places,
    cuda_places,
    is_compiled_with_cuda,
    is_compiled_with_npu,
    is_compiled_with_xpu,
)
from fleetx.compat.programs import (
    Block,
    Parameter,
    Program,
    default_main_program,
    default_startup_program,
    device_guard,
    name_scope,
    program_guard,
    switch_main_program,
    switch_startup_program,
)
from fleetx.compat.seen_operators import Operator
from fleetx.static import Variable

_in_legacy_dygraph = _in_eager_without_dygraph_check = in_dynamic_mode

EagerParamBase = ParamBase = Parameter
_non_static_mode = in_dynamic_mode

GRAD_VAR_SUFFIX = "@GRAD"


def grad_var_name(var_name: str) -> str:
    """The name of the gradient of a variable."""
    return var_name + GRAD_VAR_SUFFIX


@contextmanager
def _test_eager_guard(place: object = None) -> Iterator[None]:
    """Nothing to choose: there is one way to run eagerly."""
    yield


def _enable_legacy_dygraph() -> None:
    """Nothing to choose: there is one way to run eagerly."""


_disable_legacy_dygraph = _enable_legacy_dygraph


def require_version(min_version: str, max_version: str | None = None) -> None:
    """Scripts of 1.6 to 2.4 are at the right place."""


def get_flags(flags: object) -> dict[str, object]:
    """Settings of Paddle's executor, none of which is here."""
    listed = [flags] if isinstance(flags, str) else list(flags)  # type: ignore[call-overload]
    return dict.fromkeys(listed)


__all__ = [
    "GRAD_VAR_SUFFIX",
    "Block",
    "CPUPlace",
    "CUDAPlace",
    "EagerParamBase",
    "Operator",
    "ParamBase",
    "Parameter",
    "Program",
    "Variable",
    "_disable_legacy_dygraph",
    "_enable_legacy_dygraph",
    "_in_eager_without_dygraph_check",
    "_in_legacy_dygraph",
    "_non_static_mode",
    "_test_eager_guard",
    "cpu_places",
    "cuda_pinned_places",
    "cuda_places",
    "default_main_program",
    "default_startup_program",
    "device_guard",
    "get_flags",
    "grad_var_name",
    "in_dygraph_mode",
    "in_dynamic_mode",
    "is_compiled_with_cuda",
    "is_compiled_with_npu",
    "is_compiled_with_xpu",
    "name_scope",
    "program_guard",
    "require_version",
    "switch_main_program",
    "switch_startup_program",
]
