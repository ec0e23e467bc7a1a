"""``paddle.fluid.proto.framework_pb2``: the numbers of kinds in files, and how a tensor is told."""

from fleetx.compat.files.tensors import TensorDesc as _TensorDesc


class VarType:
    """The number of each kind."""

    BOOL, INT16, INT32, INT64, FP16, FP32, FP64 = range(7)
    LOD_TENSOR, SELECTED_ROWS, FEED_MINIBATCH, FETCH_LIST = 7, 8, 9, 10
    STEP_SCOPES, LOD_RANK_TABLE, LOD_TENSOR_ARRAY, PLACE_LIST = 11, 12, 13, 14
    READER, RAW, TUPLE, SIZE_T, UINT8, INT8, BF16 = 15, 17, 18, 19, 20, 21, 22
    COMPLEX64, COMPLEX128 = 23, 24
    TensorDesc = _TensorDesc


__all__ = ["VarType"]
