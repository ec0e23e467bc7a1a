"""``paddle.static.nn``: layers that write their parameters into a program."""

from typing import Any

from fleetx.compat import unique_names
from fleetx.compat.notes import note
from fleetx.compat.paddle.fluid.layers.activation import prelu as _prelu
from fleetx.compat.paddle.fluid.layers.blocks_of_steps import StaticRNN
from fleetx.compat.paddle.fluid.layers.control_flow import case, cond, switch_case, while_loop
from fleetx.compat.paddle.fluid.layers.deformed import deformable_conv
from fleetx.compat.paddle.fluid.layers.functions import py_func
from fleetx.compat.paddle.fluid.layers.images import (
    conv2d,
    conv2d_transpose,
    conv3d,
    conv3d_transpose,
)
from fleetx.compat.paddle.fluid.layers.linear import (
    bilinear_tensor_product,
    looked_up,
    narrow,
    row_conv,
    served,
)
from fleetx.compat.paddle.fluid.layers.linear import fc as _fc
from fleetx.compat.paddle.fluid.layers.norms import (
    batch_norm,
    data_norm,
    group_norm,
    instance_norm,
    layer_norm,
    spectral_norm,
)
from fleetx.compat.paddle.fluid.layers.sampled import nce
from fleetx.compat.paddle.fluid.layers.sequence import (
    sequence_concat,
    sequence_conv,
    sequence_enumerate,
    sequence_expand,
    sequence_expand_as,
    sequence_first_step,
    sequence_last_step,
    sequence_pad,
    sequence_pool,
    sequence_reshape,
    sequence_reverse,
    sequence_scatter,
    sequence_slice,
    sequence_softmax,
    sequence_unpad,
)
from fleetx.compat.paddle.fluid.layers.ssd import multi_box_head
from fleetx.compat.paddle.fluid.layers.tagging import crf_decoding
from fleetx.compat.paddle.fluid.layers.tensor import create_parameter
from fleetx.compat.paddle.static.nn import sequence_lod
from fleetx.compat.parameters import ParamAttr
from fleetx.compat.recorded import settle
from fleetx.compat.role_makers import servers_ahead
from fleetx.ps.tables import entries
from fleetx.record.variable import Variable

__all__ = [
    "StaticRNN",
    "batch_norm",
    "bilinear_tensor_product",
    "case",
    "cond",
    "conv2d",
    "conv2d_transpose",
    "conv3d",
    "conv3d_transpose",
    "create_parameter",
    "crf_decoding",
    "data_norm",
    "deform_conv2d",
    "embedding",
    "fc",
    "group_norm",
    "instance_norm",
    "layer_norm",
    "multi_box_head",
    "nce",
    "prelu",
    "py_func",
    "row_conv",
    "sequence_concat",
    "sequence_conv",
    "sequence_enumerate",
    "sequence_expand",
    "sequence_expand_as",
    "sequence_first_step",
    "sequence_last_step",
    "sequence_lod",
    "sequence_pad",
    "sequence_pool",
    "sequence_reshape",
    "sequence_reverse",
    "sequence_scatter",
    "sequence_slice",
    "sequence_softmax",
    "sequence_unpad",
    "sparse_embedding",
    "spectral_norm",
    "switch_case",
    "while_loop",
]


def fc(  # noqa: PLR0917
    x: Any = None,
    size: int = 0,
    num_flatten_dims: int = 1,
    weight_attr: Any = None,
    bias_attr: Any = None,
    activation: Any = None,
    name: str | None = None,
    *,
    input: Any = None,
    act: Any = None,
    param_attr: Any = None,
) -> Any:
    """A fully connected layer; ``input``, ``act`` and ``param_attr`` are older names."""
    given = x if input is None else input
    if given is None or not size:
        raise TypeError("static.nn.fc() needs x and size.")
    weight = param_attr if weight_attr is None else weight_attr
    chosen = act if activation is None else activation
    return _fc(given, size, num_flatten_dims, weight, bias_attr, chosen, name)


def embedding(  # noqa: PLR0917
    input: Any,
    size: Any,
    is_sparse: bool = False,
    is_distributed: bool = False,
    padding_idx: int | None = None,
    param_attr: Any = None,
    dtype: Any = "float32",
) -> Any:
    """One row of a table for each id, in a new last dimension."""
    return looked_up(input, size, is_sparse, is_distributed, padding_idx, param_attr, dtype)


def sparse_embedding(  # noqa: PLR0917
    input: Any,
    size: Any,
    padding_idx: int | None = None,
    is_test: bool = False,
    entry: Any = None,
    table_class: str = "MemorySparseTable",
    param_attr: Any = None,
    dtype: Any = "float32",
    slot: Any = None,
) -> Any:
    """A large table of which a batch touches few rows, on parameter servers if there are any.

    Ids of shape [n, 1] give rows of shape [n, width].
    """
    settle(input)
    input = narrow(input)
    if not servers_ahead():
        return looked_up(input, size, True, False, padding_idx, param_attr, dtype)
    attr = ParamAttr.of(param_attr) or ParamAttr()
    name = attr.name or unique_names.generate(f"{unique_names.generate('sparse_embedding')}.w")
    if table_class != "MemorySparseTable":
        note("table_class", "tables of servers are in memory, or on disk by their own options")
    return served(input, size, attr, name, padding_idx, _entry(entry, input), is_test)


def _entry(entry: Any, ids: Any) -> Any:
    if isinstance(entry, entries.ShowClickEntry):
        named = {entry.show_name, entry.click_name}
        if not isinstance(ids, Variable) or not named <= ids.program.inputs().keys():
            note(f"{entry!r}", "the program has no such inputs; rows are kept without counts.")
            return None
    if entry is None or isinstance(entry, entries.Entry):
        return entry
    raise TypeError(
        f"sparse_embedding(entry={entry!r}) is no entry of a table; use CountFilterEntry, "
        "ProbabilityEntry or ShowClickEntry of paddle.distributed."
    )


def prelu(
    x: Any, mode: str, param_attr: Any = None, data_format: str = "NCHW", name: str | None = None
) -> Any:
    """ReLU whose slope below zero is learnt."""
    return _prelu(x, mode, param_attr, name, data_format)


def deform_conv2d(  # noqa: PLR0917
    x: Any,
    offset: Any,
    mask: Any,
    num_filters: int,
    filter_size: Any,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    deformable_groups: int = 1,
    im2col_step: int = 1,
    weight_attr: Any = None,
    bias_attr: Any = None,
    name: str | None = None,
) -> Any:
    """A convolution over pixels that are read elsewhere, weighed by a mask if there is one."""
    window = stride, padding, dilation, groups, deformable_groups, im2col_step
    given = x, offset, mask, num_filters, filter_size, *window, weight_attr, bias_attr
    return deformable_conv(*given, mask is not None, name)
