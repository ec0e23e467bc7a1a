"""Finding out, after a forward failed, which of the model's weights it was reading."""

import linecache
import re
from collections.abc import Iterator
from types import FrameType

from torch import nn


def weights_read(model: nn.Module, error: BaseException) -> str:
    """Where a forward failed, and the parameters that this line of it names.

    Operators say nothing of the tensors that they were given; the source of their caller does.
    """
    paths = {id(module): path for path, module in model.named_modules()}
    for frame, line in reversed(list(_frames(error))):
        module = frame.f_locals.get(next(iter(frame.f_code.co_varnames), ""))
        if id(module) not in paths or not isinstance(module, nn.Module):
            continue
        source = linecache.getline(frame.f_code.co_filename, line).strip()
        path = paths[id(module)]
        inside = [name for name, _ in module.named_parameters() if "." in name]
        named = [name for name in inside if re.search(rf"\.{re.escape(name)}\b", source)]
        found = ", ".join(repr(f"{path}.{name}" if path else name) for name in named)
        return f"{found or 'of a submodule'} in {frame.f_code.co_qualname}: {source}"
    return "of a submodule"


def _frames(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame, trace.tb_lineno
        trace = trace.tb_next
