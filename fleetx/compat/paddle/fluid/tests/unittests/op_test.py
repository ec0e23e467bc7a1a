"""``paddle.fluid.tests.unittests.op_test``: bfloat16 as numpy of old days held it."""

from typing import Any

import numpy as np
import torch


def convert_float_to_uint16(float_list: Any, data_format: str = "NCHW") -> np.ndarray:
    """Numbers in bfloat16, as whole numbers of the same bits."""
    if data_format not in {"NCHW", "NHWC"}:
        raise ValueError(f"data_format={data_format!r} is neither 'NCHW' nor 'NHWC'.")
    array = np.asarray(float_list, "float32")
    if data_format == "NHWC":
        array = np.ascontiguousarray(np.transpose(array, [0, 3, 1, 2]))
    found = torch.from_numpy(array.copy()).bfloat16().view(torch.int16).numpy().view("uint16")
    return np.transpose(found, [0, 2, 3, 1]) if data_format == "NHWC" else found


def convert_uint16_to_float(in_list: Any) -> np.ndarray:
    """The same numbers in float32; what is in float32 already stays so."""
    array = np.asarray(in_list)
    if array.dtype.kind == "f":
        return array.astype("float32")
    bits = array.astype("uint16").astype("uint32") << 16
    return bits.view("float32")
